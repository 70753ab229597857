"""How what was measured grows with a size n: the exponent of a n^b, values between sizes, where two curves cross."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Fit:
    """factor x n^exponent, least squares on logarithms over the sizes `used`."""

    exponent: float
    factor: float
    used: tuple[int, ...]


def fit(n: Sequence[int], values: Sequence[float]) -> Fit | None:
    """Over the upper half of the sizes, three at least; None where there are fewer."""
    half = max(0, min(len(n) // 2, len(n) - 3))
    x, y = np.asarray(n[half:], dtype=np.float64), np.asarray(values[half:], dtype=np.float64)
    if len(x) < 3 or not (y > 0).all():
        return None
    exponent, shift = np.polyfit(np.log(x), np.log(y), 1)
    return Fit(float(exponent), float(np.exp(shift)), tuple(int(one) for one in x))


def between(n: Sequence[int], values: Sequence[float], at: np.ndarray) -> np.ndarray:
    """Values at other sizes, straight lines between the measured ones on logarithmic axes."""
    return np.asarray(np.exp(np.interp(np.log(at), np.log(n), np.log(values))), dtype=np.float64)


def crossing(n: Sequence[int], ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The size from which `ours` is the smaller one for good; None: at every one of them, or at none."""
    ahead = np.log(np.asarray(theirs) / np.asarray(ours))
    behind = np.flatnonzero(ahead <= 0)
    if not len(behind) or behind[-1] == len(n) - 1:
        return None
    i = int(behind[-1])
    share = -ahead[i] / (ahead[i + 1] - ahead[i])
    return float(np.exp(np.log(n[i]) + share * (np.log(n[i + 1]) - np.log(n[i]))))
