"""What the naive form of attention costs as the text grows: time and memory against n^2, the fused kernel beside it.

naive: Q K^T has n x n scores a head, softmax(...) as many weights: 2 heads n^2 numbers alive at once
flash: tiles of the same product, never the whole of it (Dao et al. 2022, https://arxiv.org/abs/2205.14135)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfviz.inference.measure import Latency
from tfviz.introspection.experiments import kernels
from tfviz.introspection.experiments.kernels import KernelSetting

SIZES = (64, 128, 256, 512, 1024, 2048)
FITTED_FROM = 512  # below, the constant part of a call weighs too much for an exponent
KERNELS = ("naive", "flash")


@dataclass(frozen=True)
class Cost:
    """One length of text: n queries and n keys, FP32, no mask."""

    n: int
    latency: dict[str, Latency]
    peak_bytes: dict[str, int]  # beyond q, k and v


def measure(n: int, n_heads: int, head_dim: int, device: str) -> Cost:
    """Both kernels on the same random q, k and v."""
    point = kernels.measure(KernelSetting(n, heads=n_heads, head_dim=head_dim, causal=False), device, KERNELS)
    return Cost(n, point.latency, point.peak_bytes)


def score_bytes(n: int, n_heads: int) -> int:
    """Scores and weights of all heads in FP32: 2 x heads x n^2 x 4."""
    return 2 * n_heads * n * n * 4


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float | None:
    """b of a n^b, least squares on logarithms of what was measured from `FITTED_FROM` on; None below two points."""
    points = [(n, value) for n, value in zip(sizes, values, strict=True) if n >= FITTED_FROM and value > 0]
    if len(points) < 2:
        return None
    n, value = np.log(np.array(points, dtype=np.float64)).T
    return float(np.polyfit(n, value, 1)[0])
