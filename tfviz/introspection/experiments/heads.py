"""How alike the heads of a layer are, and what they cost.

    JSD(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2     in bits: 0 for equal rows, 1 for rows that share no key
    similarity = 1 - mean over the queries of JSD

Sources: Lin 1991, "Divergence measures based on the Shannon entropy", https://doi.org/10.1109/18.61115;
parameters: Vaswani et al. 2017, section 3.2.2, https://arxiv.org/abs/1706.03762
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

Array = np.ndarray
CELLS = 4_000_000  # logarithms that one matrix may take: heads^2 / 2 x queries x keys


def similarity(weights: Float[Array, "head query key"]) -> Float[Array, "head head"]:
    """1 - JSD for each pair of heads, averaged over the queries."""
    own = entropy(weights)
    found = np.ones((len(weights), len(weights)), dtype=np.float32)
    for a in range(len(weights)):
        mixed = entropy((weights[a] + weights[a + 1 :]) / 2)
        found[a, a + 1 :] = found[a + 1 :, a] = 1 - (mixed - (own[a] + own[a + 1 :]) / 2).mean(axis=-1)
    return found


def entropy(p: Float[Array, "*other key"]) -> Float[Array, "*other"]:
    """In bits: -sum p log2 p."""
    return -(p * np.log2(np.where(p > 0, p, 1))).sum(axis=-1)


def compared_queries(blocked: Bool[Array, "head query key"], n_heads: int) -> list[int]:
    """Queries that have a choice: where one key is allowed, all heads are equal. Of a long text, some of them."""
    free = np.flatnonzero(((~blocked).sum(axis=-1) > 1).all(axis=0))
    most = max(8, int(2 * CELLS / (n_heads**2 * blocked.shape[-1])))
    if len(free) > most:
        free = free[np.linspace(0, len(free) - 1, most).round().astype(int)]
    return [int(i) for i in free]


@dataclass(frozen=True)
class Pairs:
    """The two ends of a similarity matrix, and its mean inside and across the groups that share k and v."""

    alike: tuple[int, int]
    different: tuple[int, int]
    mean: float
    mean_inside: float | None  # None without groups of several heads, or with one group only
    mean_across: float | None


def pairs(matrix: Float[Array, "head head"], n_kv_heads: int) -> Pairs:
    """`matrix` of at least two heads."""
    rows, columns = np.triu_indices(len(matrix), 1)
    values = matrix[rows, columns]
    most, least = int(values.argmax()), int(values.argmin())
    group = len(matrix) // n_kv_heads
    inside = rows // group == columns // group
    grouped = inside.any() and not inside.all()
    return Pairs(
        alike=(int(rows[most]), int(columns[most])),
        different=(int(rows[least]), int(columns[least])),
        mean=float(values.mean()),
        mean_inside=float(values[inside].mean()) if grouped else None,
        mean_across=float(values[~inside].mean()) if grouped else None,
    )


@dataclass(frozen=True)
class Matrix:
    """A projection: what it is called, rows and columns as the article writes them (x W)."""

    name: str
    rows: int
    columns: int

    @property
    def size(self) -> int:
        return self.rows * self.columns


def projections(d_model: int, n_heads: int, n_kv_heads: int, dim: int, value_dim: int) -> Sequence[Matrix]:
    """The four matrices of an attention. One head of the same width: one head, and dim times as large."""
    return (
        Matrix("W_Q", d_model, n_heads * dim),
        Matrix("W_K", d_model, n_kv_heads * dim),
        Matrix("W_V", d_model, n_kv_heads * value_dim),
        Matrix("W_O", n_heads * value_dim, d_model),
    )
