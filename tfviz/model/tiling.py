"""Attention without the matrix: what flash attention does, tile by tile, from scratch.

    for each block of queries Q_i:      m = -inf   l = 0   O = 0
        for each block of keys K_j:     S = Q_i K_j^T / sqrt(d_k)             the only scores that exist
                                        m' = max(m, rowmax S)                 a = exp(m - m')
                                        P = exp(S - m')
                                        l = a l + rowsum P                    O = a O + P V_j
        O = O / l                       L = m + log l

`a` corrects what was summed under the old maximum. The division stands at the end, as in FlashAttention-2; the first
FlashAttention divides after every block. The backward pass builds each tile again, exp(S - L), from q, k and L.
Sources: Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867 (the running softmax);
Dao et al. 2022, https://arxiv.org/abs/2205.14135, algorithm 1; Dao 2023, https://arxiv.org/abs/2307.08691, algorithm 1
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tfviz.model.attention import PLAIN, Key, Mask, Output, Query, ScoreRule, Value, attention_scores, share_heads
from tfviz.model.overflow import overflow_error, scores_overflow

Rows = Float[Tensor, "batch head row"]
Block = Float[Tensor, "batch head row value_dim"]
Scores = Float[Tensor, "batch head row column"]


@dataclass(frozen=True, eq=False)
class Running:
    """What is known of a block of rows after the keys that it has met so far."""

    maximum: Rows  # m, -inf as long as nothing was allowed
    total: Rows  # l = sum of exp(s - m)
    output: Block  # sum of exp(s - m) v, not divided by l yet
    correction: Rows  # exp(m_old - m) of the last step


@dataclass(frozen=True, eq=False)
class Tile:
    """One block of queries and one block of keys that have met."""

    rows: slice
    columns: slice
    scores: Scores | None  # FP32 at least; -inf where blocked; None: wholly blocked, neither loaded nor computed
    after: Running


def tiled_attention(
    query: Query,
    key: Key,
    value: Value,
    mask: Mask | None = None,
    rule: ScoreRule = PLAIN,
    *,
    query_block: int = 64,
    key_block: int = 64,
) -> tuple[Output, Float[Tensor, "batch head query"]]:
    """`(output, L)`: attention as `naive` gives it, and each row's log-sum-exp; a row with nothing allowed gives zeros.

    Scores and sums are kept in FP32 at least, as in fused kernels. `ValueError` for block sizes below 1,
    `UnsupportedHere` for scores that overflow.
    """
    outputs, sums = [], []
    for tile in tiles(query, key, value, mask, rule, query_block=query_block, key_block=key_block):
        if tile.columns.stop == key.shape[2]:  # the last keys: the block of rows is ready
            outputs.append(divide(tile.after))
            sums.append(tile.after.maximum + tile.after.total.log())  # L = m + log l
    return torch.cat(outputs, dim=2).to(query.dtype), torch.cat(sums, dim=2)


def tiles(
    query: Query,
    key: Key,
    value: Value,
    mask: Mask | None = None,
    rule: ScoreRule = PLAIN,
    *,
    query_block: int,
    key_block: int,
) -> Iterator[Tile]:
    """Every pair of blocks in the order in which they meet; nothing here is larger than one block."""
    n_heads, n_query, n_key = query.shape[1], query.shape[2], key.shape[2]
    key, value = share_heads(key, n_heads), share_heads(value, n_heads)
    for rows in blocks(n_query, query_block):
        running = _nothing(query[:, :, rows], value)
        for columns in blocks(n_key, key_block):
            blocked = _blocked(mask, rule.causal, n_query, n_key, rows, columns, query.device)
            if blocked is not None and bool(blocked.all()):
                running = replace(running, correction=torch.ones_like(running.total))
                yield Tile(rows, columns, None, running)
                continue
            bias = None if rule.bias is None else rule.bias[..., rows, columns]
            here = replace(rule, causal=False, bias=bias)
            q, k = query[:, :, rows].to(running.total.dtype), key[:, :, columns].to(running.total.dtype)
            if scores_overflow(q, k, blocked, here, q.dtype):
                raise overflow_error(q.dtype)
            scores = attention_scores(q, k, blocked, here)
            running = absorb(running, scores, value[:, :, columns])
            yield Tile(rows, columns, scores, running)


def absorb(before: Running, scores: Scores, value: Float[Tensor, "batch head column value_dim"]) -> Running:
    """One step of the running softmax: the old sums are corrected to the new maximum, then the new keys are added."""
    maximum = torch.maximum(before.maximum, scores.amax(dim=-1))  # m' = max(m, rowmax S)
    shift = maximum.masked_fill(maximum == -torch.inf, 0.0)  # a row with nothing allowed yet: exp(-inf - 0) = 0, no NaN
    correction = (before.maximum - shift).exp()  # a = exp(m - m')
    parts = (scores - shift[..., None]).exp()  # P = exp(S - m')
    total = correction * before.total + parts.sum(dim=-1)  # l = a l + rowsum P
    output = correction[..., None] * before.output + parts @ value.to(parts.dtype)  # O = a O + P V
    return Running(maximum, total, output, correction)


def divide(after: Running) -> Block:
    """O / l, once; zeros where no key was allowed."""
    return after.output / after.total.masked_fill(after.total == 0, 1.0)[..., None]


def blocks(n: int, size: int) -> list[slice]:
    """0 .. n in pieces of `size`; the last may be shorter."""
    if size < 1:
        raise ValueError(f"a block holds at least 1 position; got {size}")
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _nothing(query: Query, value: Value) -> Running:
    """m = -inf, l = 0, O = 0; sums are kept in FP32 at least, whatever q is, as kernels do."""
    kind = torch.promote_types(query.dtype, torch.float32)
    zeros = torch.zeros(query.shape[:3], dtype=kind, device=query.device)
    output = torch.zeros(*query.shape[:3], value.shape[-1], dtype=kind, device=query.device)
    return Running(torch.full_like(zeros, -torch.inf), zeros, output, zeros)


def _blocked(
    mask: Mask | None, causal: bool, n_query: int, n_key: int, rows: slice, columns: slice, device: torch.device
) -> Bool[Tensor, "#batch #head row column"] | None:
    """This tile's part of the mask; the causal part is made of positions, so that no triangle of n x n is built."""
    blocked = None
    if mask is not None:
        blocked = mask.expand(*mask.shape[:2], n_query, n_key)[:, :, rows, columns]
    if causal:
        newest = torch.arange(rows.start, rows.stop, device=device) + (n_key - n_query)
        future = (torch.arange(columns.start, columns.stop, device=device) > newest[:, None])[None, None]
        blocked = future if blocked is None else blocked | future
    return blocked
