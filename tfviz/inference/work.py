"""Multiply-adds of a decode step by formula, from the shapes of the matrices: what a KV cache saves, counted.

With c new positions that read n keys, a layer of h heads computes

    projections   c (d h d_k + 2 d h_kv d_k + h d_v d)      its own weight matrices, once for each new position
    scores        h c n d_k                                 q . k
    values        h c n d_v                                 weights times values
    feed-forward  c x the weights of its matrices
    head          d |V|                                     once: only the last position's logits are wanted

With a cache c = 1, without one c = n. Counted as the naive kernel computes: the blocked half of the scores too, which
the fused kernel partly skips; no softmax, no norm, no addition. A decoder's cross-attention computes its keys and
values of the m memory positions once with a cache, at every step without.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class AttentionShape:
    """One attention of the decoder."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    projections: int  # weights that each new position meets: W_q, W_o, and W_k, W_v of a self-attention
    memory: int = 0  # weights that each position of the memory meets: W_k and W_v of a cross-attention
    window: int | None = None  # positions that it looks back, its own included; None: all

    def cached(self, element: int) -> int:
        """Bytes that one position takes in this attention's cache, at `element` bytes a number."""
        return self.kv_heads * (self.head_dim + self.value_dim) * element


@dataclass(frozen=True)
class DecoderShape:
    """What a decoder's step multiplies with."""

    own: tuple[AttentionShape, ...]  # self-attention, layer by layer
    cross: tuple[AttentionShape, ...]
    feed_forward: int  # weights of all layers' feed-forward matrices
    head: int  # weights of the output matrix, and of what else stands between the layers and the logits
    element: int = 4  # bytes of a number in the cache
    uncounted: int = 0  # weights in a form that is not a matrix here (experts): the figures leave them out

    def cached(self, kind: str) -> int:
        """Bytes a position: 2 x layers x kv_heads x head_dim x bytes of a number, where keys and values are alike."""
        return sum(one.cached(self.element) for one in (self.cross if kind == "cross" else self.own))

    @property
    def linear(self) -> int:
        """Multiply-adds of one new position that do not depend on how much text stands before it."""
        return sum(one.projections for one in (*self.own, *self.cross)) + self.feed_forward

    @property
    def attention(self) -> int:
        """Multiply-adds of one new position for each key that it reads in every self-attention."""
        return sum(one.heads * (one.head_dim + one.value_dim) for one in self.own)


@dataclass(frozen=True)
class Work:
    """Multiply-adds of one call."""

    projections: int
    scores: int
    values: int
    feed_forward: int
    head: int

    @property
    def total(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self))


def step_work(
    shape: DecoderShape, new: int, held: Sequence[int], memory: int = 0, *, first: bool = True, head_rows: int = 1
) -> Work:
    """`new` positions computed; `held[i]` keys read in self-attention i, `memory` of them in every cross-attention.

    `first`: the keys and values of the memory are computed in this call.
    """
    read = [*zip(shape.own, held, strict=True), *((one, memory) for one in shape.cross)]
    of_memory = sum(one.memory for one in shape.cross) * memory if first else 0
    return Work(
        projections=new * sum(one.projections for one, _ in read) + of_memory,
        scores=sum(one.heads * new * n * one.head_dim for one, n in read),  # h c n d_k
        values=sum(one.heads * new * n * one.value_dim for one, n in read),  # h c n d_v
        feed_forward=new * shape.feed_forward,
        head=head_rows * shape.head,
    )


def keys_read(shape: DecoderShape, total: int) -> list[int]:
    """How many keys the last of `total` positions may read in each self-attention: all, or its window."""
    return [min(total, one.window or total) for one in shape.own]


def with_cache(shape: DecoderShape, total: int, memory: int = 0) -> Work:
    """A step that computes its newest position only and reads all others from the cache."""
    return step_work(shape, 1, keys_read(shape, total), memory, first=False)


def without_cache(shape: DecoderShape, total: int, memory: int = 0) -> Work:
    """A step that computes all `total` positions again; masks do not make it cheaper."""
    return step_work(shape, total, [total] * len(shape.own), memory)
