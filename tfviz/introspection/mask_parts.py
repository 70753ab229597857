"""The masks that a person chooses for one row of a batch, one by one and together.

blocked = padding | causal (or prefix) | window | documents          True = blocked
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool

from tfviz.model.masks import (
    combine_masks,
    count_positions,
    make_causal_mask,
    make_document_mask,
    make_prefix_mask,
    make_window_mask,
)
from tfviz.sources.batch import Batch
from tfviz.sources.tokens import Token

Array = np.ndarray
Parts = dict[str, Bool[Array, "query key"]]


@dataclass(frozen=True)
class MaskChoice:
    """What is blocked besides padding. A prefix stands for a triangle that leaves so many tokens open to all."""

    causal: bool = False
    prefix: int | None = None
    window: int | None = None


@dataclass(frozen=True)
class Axes:
    """What stands along the two sides of one mask."""

    queries: tuple[Token, ...]
    keys: tuple[Token, ...]
    query_padding: Bool[Array, " query"]
    key_padding: Bool[Array, " key"]
    lengths: tuple[tuple[int, int], ...] = ()  # (queries, keys) of each document of a packed row; else empty


def axes_of(batch: Batch, kind: str, row: int) -> Axes:
    """Of one row of a padded batch."""
    queries, keys = batch.sides(kind)
    return Axes(queries.tokens[row], keys.tokens[row], queries.padding[row], keys.padding[row])


def packed_axes(batch: Batch, kind: str) -> Axes:
    """Of a packed row."""
    plain = axes_of(batch, kind, 0)
    rows = [row for row in batch.prompts if row is not None]
    n_source, n_target = [row.n_tokens for row in rows], [len(row.target) for row in rows]
    lengths = {"decoder": (n_target, n_target), "cross": (n_target, n_source)}.get(kind, (n_source, n_source))
    return Axes(plain.queries, plain.keys, plain.query_padding, plain.key_padding, tuple(zip(*lengths, strict=True)))


def mask_parts(axes: Axes, kind: str, choice: MaskChoice) -> Parts:
    """Each mask by its name, in the order they are shown; cross attention has only padding and documents."""
    n = len(axes.keys)
    parts = {"padding": np.broadcast_to(axes.key_padding, (len(axes.queries), n))}
    if axes.lengths:
        of_queries, of_keys = (_documents([pair[side] for pair in axes.lengths]) for side in (0, 1))
        parts = {"documents": make_document_mask(of_queries, of_keys)[0, 0].numpy()}
    if kind == "cross":
        return parts
    if choice.prefix is not None:
        parts["prefix"] = make_prefix_mask(_places(axes), prefix=choice.prefix)[0, 0].numpy()
    elif choice.causal:
        parts["causal"] = make_causal_mask(n).numpy()
    if choice.window is not None:
        parts["window"] = make_window_mask(n, window=choice.window).numpy()
    return parts


def together(parts: Mapping[str, Bool[Array, "query key"]]) -> Bool[Array, "query key"]:
    """Blocked by any of them."""
    combined = combine_masks(*(torch.from_numpy(np.array(part)) for part in parts.values()))
    assert combined is not None, "no mask to combine"
    blocked: Array = combined.numpy()
    return blocked


def _documents(lengths: list[int]) -> torch.Tensor:
    """[1, position]: 0 0 0 1 1 2 ..."""
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]


def _places(axes: Axes) -> torch.Tensor:
    """[1, position]: each key's place in its own text."""
    if axes.lengths:
        return torch.cat([torch.arange(n_key) for _, n_key in axes.lengths])[None]
    return count_positions(torch.from_numpy(axes.key_padding)[None], len(axes.keys), torch.device("cpu"))
