"""Why scores are divided by sqrt(d_k): dot products of random vectors, and what softmax makes of them.

    Var(q . k) = d_k,   Var(q . k / sqrt(d_k)) = 1     for independent parts with mean 0 and variance 1
    dp_i / ds_j = p_i (1[i = j] - p_j)                 the derivative of p = softmax(s), with the Frobenius norm
    |J|^2 = sum_i p_i^2 (1 - p_i)^2 + sum_(i != j) p_i^2 p_j^2

Source: Vaswani et al. 2017, section 3.2.1 and its footnote, https://arxiv.org/abs/1706.03762
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float

Array = np.ndarray
D_KS = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
QUERIES = 128  # drawn for each d_k


@dataclass(frozen=True)
class Sample:
    """Dot products of one d_k, and what the lines of the proof measure on the same vectors."""

    d_k: int
    dots: Float[Array, "query key"]
    mean_part: float  # of q_i k_i
    variance_part: float  # of q_i k_i

    @property
    def scaled(self) -> Float[Array, "query key"]:
        return self.dots / np.float32(self.d_k**0.5)  # q . k / sqrt(d_k)


@dataclass(frozen=True)
class Softness:
    """What softmax makes of the scores, a row a query."""

    entropy: float  # mean, as a share of the most there can be, log(keys)
    gradient: float  # median Frobenius norm of the derivative
    gradient_low: float  # quartiles
    gradient_high: float
    largest: float  # mean of the largest weight


def standard_error(d_k: int, n_keys: int) -> float:
    """Of the measured variance, as a share of d_k: n vectors a side, each met by all of the other side.

    On the diagonal of the two second-moment matrices (2 / QUERIES + 2 / n_keys) / d_k, beside it 1 / (QUERIES n_keys).
    """
    return float(((2 / QUERIES + 2 / n_keys) / d_k + 1 / (QUERIES * n_keys)) ** 0.5)


@lru_cache(maxsize=64)
def sample(d_k: int, n_keys: int, seed: int) -> Sample:
    """`QUERIES` queries against the same `n_keys` keys, parts drawn from N(0, 1)."""
    draw = np.random.default_rng((seed, d_k, n_keys))
    q = draw.standard_normal((QUERIES, d_k), dtype=np.float32)
    k = draw.standard_normal((n_keys, d_k), dtype=np.float32)
    mean = float((q.mean(axis=0) * k.mean(axis=0)).mean())  # over all pairs of vectors and all parts
    square = float(((q**2).mean(axis=0) * (k**2).mean(axis=0)).mean())
    return Sample(d_k, q @ k.T, mean, square - mean**2)


@lru_cache(maxsize=256)
def softness(d_k: int, n_keys: int, seed: int, scaled: bool) -> Softness:
    """Of one sample's dot products, divided by sqrt(d_k) or not."""
    drawn = sample(d_k, n_keys, seed)
    return soften(drawn.scaled if scaled else drawn.dots)


def soften(scores: Float[Array, "query key"]) -> Softness:
    """Entropy, derivative and largest weight of softmax(scores), over the rows."""
    p = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1) / np.log(scores.shape[1])
    low, middle, high = np.quantile(jacobian_norm(p), (0.25, 0.5, 0.75))
    return Softness(float(entropy.mean()), float(middle), float(low), float(high), float(p.max(axis=1).mean()))


def jacobian_norm(p: Float[Array, "query key"]) -> Float[Array, " query"]:
    """|diag(p) - p p^T|, row by row. Summed so that it stays exact when one weight is almost 1.

    Diagonal: p_i (1 - p_i), where 1 - p_i is the sum of the others; beside it: -p_i p_j.
    """
    top = p.argmax(axis=1)[:, None]
    others = p.copy()
    np.put_along_axis(others, top, 0, axis=1)
    rest = others.sum(axis=1, keepdims=True)  # 1 - p_max, without cancellation
    share = np.where(np.arange(p.shape[1]) == top, rest, 1 - p)
    square = (others**2).sum(axis=1)
    beside = 2 * np.take_along_axis(p, top, axis=1)[:, 0] ** 2 * square + square**2 - (others**4).sum(axis=1)
    return np.sqrt(((p * share) ** 2).sum(axis=1) + beside)
