"""Bytes that one head's attention moves through slow memory, counted by formula: the matrix written out, and tiled.

    naive:  Q, K, V read, O written, and S written, S read, P written, P read:    4 n d + 4 n^2   numbers
    tiled:  Q read and O written once, K and V once for each block of queries:    2 n d + 2 n d ceil(n / B_r)

The larger the fast memory M, the larger the block B_r that fits, and tiled moves Theta(n^2 d^2 / M). A counting model:
fast memory holds a block and nothing else, naive keeps nothing between its passes. Under a causal mask tiled skips the
blocks that are wholly in the future; naive has no tiles to skip.
Source: Dao et al. 2022, https://arxiv.org/abs/2205.14135, section 3.2
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

L2 = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
UNITS = {"K": 1024, "M": 1024**2}


@dataclass(frozen=True)
class HeadShape:
    """One head's attention."""

    n_query: int
    n_key: int
    dim: int  # of q and k
    value_dim: int
    element: int = 4  # bytes of a number
    causal: bool = False


def naive_traffic(shape: HeadShape) -> dict[str, int]:
    """Bytes by what is moved; scale and mask counted as part of writing S."""
    matrix = shape.n_query * shape.n_key * shape.element
    squares = dict.fromkeys(("s_write", "s_read", "p_write", "p_read"), matrix)
    return {**tiled_traffic(shape, shape.n_key), **squares}


def tiled_traffic(shape: HeadShape, keys_read: int) -> dict[str, int]:
    """Bytes by what is moved, where key and value rows are read `keys_read` times in all (see `keys_read`)."""
    element = shape.element
    return {
        "q": shape.n_query * shape.dim * element,
        "k": keys_read * shape.dim * element,
        "v": keys_read * shape.value_dim * element,
        "o": shape.n_query * shape.value_dim * element,
    }


def keys_read(shape: HeadShape, query_block: int, key_block: int) -> int:
    """How many key rows are read by all blocks of queries together; causal: up to the block that has the newest one."""
    ends = np.minimum(np.arange(0, shape.n_query, query_block) + query_block, shape.n_query)
    if not shape.causal:
        return len(ends) * shape.n_key
    newest = ends + shape.n_key - shape.n_query  # the last query of the block sees so many keys
    return int(np.minimum(-(-newest // key_block) * key_block, shape.n_key).sum())


def blocks_that_fit(fast_bytes: int, dim: int, value_dim: int, element: int = 4) -> tuple[int, int]:
    """(B_r, B_c) with Q_i, O_i, K_j, V_j and the tile S together in fast memory; K_j and V_j get a quarter at most.

    As many rows of queries as possible, since each block of them reads all keys again. At least (1, 1).
    """
    room, both = fast_bytes // element, dim + value_dim
    columns = max(1, min(dim, room // (4 * both)))
    rows = (room - columns * both) // (both + columns)  # B_r (d + d_v) + B_c (d + d_v) + B_r B_c <= M
    return max(1, rows), columns


def alive(shape: HeadShape, query_block: int, key_block: int) -> tuple[int, int]:
    """Bytes of scores that exist at once: (naive: S and P, tiled: one tile)."""
    rows, columns = min(query_block, shape.n_query), min(key_block, shape.n_key)
    return 2 * shape.n_query * shape.n_key * shape.element, rows * columns * shape.element


def fast_memory() -> int | None:
    """Bytes of this machine's second-level cache of one core; None where the system does not say."""
    try:
        text = L2.read_text().strip()
        return int(text[:-1]) * UNITS[text[-1]]
    except (OSError, ValueError, KeyError, IndexError):
        return None
