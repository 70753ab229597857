"""Several texts packed into one row instead of padded: each token sees its own document only, positions start again.

A decoder of transformers is really run so: it is given the positions and no mask, and finds the documents by itself.
The other models have no such input; their q and k are those of each text alone, side by side, which is the same.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from tfviz.introspection.batch import Array, BatchAttention, BatchRun, apart, seen, watched
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.batch import Batch, Side, make_batch, read_rows

MAX_PACKED = 96  # tokens of the packed row; texts beyond are left out


def run_packed(
    loaded: LoadedModel,
    prompt: Prompt,
    text: tuple[str, str | None] = ("", None),
    lines: Sequence[str] = (),
    kernel: str = "flash",
) -> BatchRun:
    """The page's sentence and as many of `lines` as fit, in one row. Empty lines leave nothing to pack."""
    rows = [row for row in read_rows(loaded, prompt, text, lines) if row is not None]
    kept = [row for row, end in zip(rows, np.cumsum([row.n_tokens for row in rows]), strict=True) if end <= MAX_PACKED]
    alone = [watched(loaded, row.inputs, kernel) for row in kept]
    batch, differences = _in_one_row(loaded, kept), tuple[float | None, ...]([None] * len(kept))
    attentions = {
        kind: tuple(_side_by_side(layers) for layers in zip(*(found[kind] for _, found in alone), strict=True))
        for kind in alone[0][1]
    }
    packed = torch.cat([output[0] for output, _ in alone])[None]
    if loaded.family == "decoder" and "position_ids" in batch.inputs:
        told = {name: batch.inputs[name] for name in ("input_ids", "position_ids")}
        packed, attentions = watched(loaded, told, kernel)
        ends = np.cumsum([row.n_tokens for row in kept]).tolist()
        differences = tuple(
            apart(packed[0, end - row.n_tokens : end], output[0])
            for row, end, (output, _) in zip(kept, ends, alone, strict=True)
        )
    windows = {kind: tuple(loaded.window(kind, i) for i in range(len(stack))) for kind, stack in attentions.items()}
    really = any(one is not None for one in differences)
    return BatchRun(batch, attentions, windows, differences, *seen(packed), loaded.label, loaded.precision, really)


def _in_one_row(loaded: LoadedModel, rows: Sequence[Prompt]) -> Batch:
    """One row without padding; positions start again at each text."""
    single = [make_batch(loaded, [row]) for row in rows]
    inputs = {name: torch.cat([one.inputs[name] for one in single], dim=1) for name in single[0].inputs}

    def joined(sides: Sequence[Side]) -> Side:
        tokens = tuple(token for side in sides for token in side.tokens[0])
        return Side((tokens,), np.zeros((1, len(tokens)), dtype=bool))

    targets = [one.target for one in single if one.target is not None]
    return Batch(inputs, tuple(rows), joined([one.source for one in single]), joined(targets) if targets else None)


def _side_by_side(layers: Sequence[BatchAttention]) -> BatchAttention:
    """The same attention of several runs over one text each, as if the texts stood in one row."""
    query, key = (np.concatenate([getattr(one, name) for one in layers], axis=2) for name in ("query", "key"))
    biases = [one.bias for one in layers if one.bias is not None]
    return replace(layers[0], query=query, key=key, mask=None, bias=_blocks(biases) if biases else None)


def _blocks(biases: Sequence[Array]) -> Array:
    """[row, head, query, key] with each text's bias in its own block; what lies outside is blocked anyway."""
    heights, widths = zip(*(bias.shape[2:] for bias in biases), strict=True)
    whole = np.zeros((*biases[0].shape[:2], sum(heights), sum(widths)), dtype=np.float32)
    for i, bias in enumerate(biases):
        top, left = sum(heights[:i]), sum(widths[:i])
        whole[:, :, top : top + heights[i], left : left + widths[i]] = bias
    return whole
