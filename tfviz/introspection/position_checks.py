"""What is said of a model's positions against what was seen of them: pure functions of arrays.

    turned    R(m θ) q for both conventions of pairing: weights trained with one are wrong with the other
    biased    T5's table by bucket, ALiBi's -m |i - j|
    tables    which of them are the sinusoids of a formula

Every comparison is max |what the model computed - what was said|.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from tfviz.model.positions import Rotation
from tfviz.model.positions.sinusoidal import sinusoidal_encoding
from tfviz.sources.positions import Angles, Buckets, Table

PAIRINGS = ("halves", "interleaved")

# ---- rotations


@dataclass(frozen=True)
class Turn:
    """The rotation that gives a layer's queries best, of all that were said."""

    angles: Angles | None  # None: they are not turned at all
    pairs: str
    difference: float  # max |the model's query - the projected one, turned|
    other: float  # the same with the other pairing
    largest: float  # max |query|, to judge it by


def turn(
    x: Float[np.ndarray, "head pos dim"], said: Angles, pairs: str, positions: Int[np.ndarray, " pos"] | None = None
) -> Float[np.ndarray, "head pos dim"]:
    """Queries or keys turned by RoPE, with the code of our models; positions 0, 1, 2 ... unless given."""
    at = torch.arange(x.shape[1]) if positions is None else torch.from_numpy(np.asarray(positions))
    angle = at.float()[None, None, :, None] * torch.from_numpy(said.theta)  # m θ_i
    rotation = Rotation(angle.cos() * said.grown, angle.sin() * said.grown, pairs == "interleaved")
    turned: np.ndarray = rotation(torch.from_numpy(np.ascontiguousarray(x))[None])[0].numpy()
    return turned


def which_turn(
    projected: Float[np.ndarray, "head pos dim"],
    seen: Float[np.ndarray, "head pos dim"],
    said: Sequence[Angles],
) -> Turn:
    """Compares what the projection gave with what the attention read, for each set of angles and both pairings."""

    def off(made: np.ndarray) -> float:
        return float(np.abs(seen - made).max())

    largest = float(np.abs(seen).max())
    best = Turn(None, "", off(projected), float("nan"), largest)
    for angles in said:
        found = {pairs: off(turn(projected, angles, pairs)) for pairs in PAIRINGS}
        pairs = min(found, key=found.__getitem__)
        other = next(found[name] for name in PAIRINGS if name != pairs)
        if found[pairs] < best.difference:
            best = Turn(angles, pairs, found[pairs], other, largest)
    return best


# ---- biases


def relative_bucket(
    distance: Int[np.ndarray, "*any"], n_buckets: int, farthest: int, both_sides: bool
) -> Int[np.ndarray, "*any"]:
    """T5's bucket of key position - query position: near distances have their own, far ones share by their logarithm.

    Raffel et al. 2020, section 2.1, https://arxiv.org/abs/1910.10683
    """
    first = np.zeros_like(distance)
    if both_sides:
        n_buckets //= 2
        first = np.where(distance > 0, n_buckets, 0)
        away = np.abs(distance)
    else:
        away = np.maximum(-distance, 0)
    exact = n_buckets // 2
    far = np.log(np.maximum(away, exact).astype(np.float32) / exact) / np.float32(np.log(farthest / exact))
    shared = np.minimum(exact + (far * (n_buckets - exact)).astype(np.int64), n_buckets - 1)
    return first + np.where(away < exact, away, shared)


def bucket_bias(buckets: Buckets, n_query: int, n_key: int) -> Float[np.ndarray, "head query key"]:
    """The table's biases for each pair of positions."""
    distance = np.arange(n_key)[None] - np.arange(n_query)[:, None]
    bucket = relative_bucket(distance, len(buckets.table), buckets.farthest, buckets.both_sides)
    bias: np.ndarray = buckets.table[bucket].transpose(2, 0, 1)  # [query, key, head] -> [head, query, key]
    return bias


def linear_bias(slopes: Float[np.ndarray, " head"], n_query: int, n_key: int) -> Float[np.ndarray, "head query key"]:
    """ALiBi: -m_h |i - j|."""
    distance = np.abs(np.arange(n_query)[:, None] - np.arange(n_key)[None])
    return -slopes[:, None, None] * distance.astype(np.float32)


# ---- tables


def sinusoid_layout(table: Table, base: float = 10000.0) -> tuple[str, float] | None:
    """(layout, max difference) if the rows are sinusoids; None: they are learned.

    The paper alternates sine and cosine; many models put all sines first, tensor2tensor's with angles of its own.
    """
    rows = table.rows[:512]
    n, d = rows.shape
    paper = sinusoidal_encoding(torch.arange(n)[None], d, base)[0].numpy()
    angle = np.arange(n)[:, None] * base ** (-np.arange(d // 2) / max(d // 2 - 1, 1))
    layouts = {
        "alternating": paper,
        "halves": np.concatenate([paper[:, 0::2], paper[:, 1::2]], axis=1),
        "tensor2tensor": np.concatenate([np.sin(angle), np.cos(angle), np.zeros((n, d % 2))], axis=1),
    }
    used = np.abs(rows).max(axis=1) > 0  # a row for padding is zero
    for name, made in layouts.items():
        difference = float(np.abs(rows - made)[used].max(initial=0))
        if used.any() and difference < 1e-2:  # learned rows differ by 1; FP16 ones by 1e-3
            return name, difference
    return None
