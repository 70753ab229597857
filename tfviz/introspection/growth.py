"""How what was measured grows with a size n: the exponent of a n^b, values between sizes, where two curves cross."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Fit:
    """factor x n^exponent, least squares on logarithms over the sizes `used`; the exponent is in `low` to `high`."""

    exponent: float
    factor: float
    used: tuple[int, ...]
    low: float
    high: float


def fit(n: Sequence[int], values: Sequence[float], spread: Sequence[tuple[float, float]] | None = None) -> Fit | None:
    """Over the upper half of the sizes, three at least; None where there are fewer.

    The exponent's range is what the values' `spread` (low, high) allows: the line tilts most where the small sizes lie
    at one end of theirs and the large ones at the other. That the values lie off a line, as where a cache ends, is no
    part of it.
    """
    half = max(0, min(len(n) // 2, len(n) - 3))
    y = np.asarray(values[half:], dtype=np.float64)
    if len(y) < 3 or not (y > 0).all():
        return None
    x, y = np.log(np.asarray(n[half:], dtype=np.float64)), np.log(y)
    tilt = (x - x.mean()) / np.square(x - x.mean()).sum()
    exponent = float(tilt @ y)  # sum (x - mean x) y / sum (x - mean x)^2
    shift = float(y.mean() - exponent * x.mean())
    low, high = np.log(np.asarray(spread[half:], dtype=np.float64)).T if spread is not None else (y, y)
    least, most = float(tilt @ np.where(tilt > 0, low, high)), float(tilt @ np.where(tilt > 0, high, low))
    used = tuple(int(one) for one in n[half:])
    return Fit(exponent, float(np.exp(shift)), used, least, most)


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
