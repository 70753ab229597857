"""Which of a layer's linear steps made an attention's q, k and v, and which one read its heads.

Fused projections lie as [q | k | v] (GPT-2, Phi-3) or by head, [.. q_h k_h v_h ..] (GPT-NeoX; Falcon: by group). The
layout is the one whose v is the v that the attention really got; q and k must have the lengths of its q and k, since
a rotation keeps them. Where nothing fits, nothing is said.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from tfviz.introspection.layer_calls import Attended, LayerCall, Step, is_linear, is_norm

Array = np.ndarray
Heads = Float[Array, "head pos dim"]
Rows = Float[Array, "pos features"]
CLOSE = 1e-3  # of lengths: a rotation in FP32 changes them by some 1e-7, in BF16 by 1e-2


@dataclass(frozen=True, eq=False)
class Projections:
    """The linear steps of one attention."""

    linears: Sequence[Step]  # that fed it
    inputs: tuple[Rows, Rows, Rows] | None  # q, k, v; None if they cannot be told apart
    out: Step | None  # W_O


def read_projections(call: LayerCall) -> dict[Attended, Projections]:
    """For each attention of a layer, in order."""
    found: dict[Attended, Projections] = {}
    start = 0
    for attended in call.attentions:
        at = call.steps.index(attended)
        own = set(attended.module.modules())
        before = [one for one in call.steps[start:at] if isinstance(one, Step) and one.module in own]
        linears = [one for one in before if is_linear(one.module)]
        normed = any(is_norm(one.module) for one in before)
        found[attended] = Projections(linears, _told_apart(attended, linears, normed), _out(call, at, attended))
        start = at + 1
    return found


def weight_of(module: Any) -> Float[Array, "out_features in_features"] | None:
    """A linear layer's matrix in FP32; of an INT8 one what its table stands for."""
    if hasattr(module, "dequantised"):
        return module.dequantised().cpu().numpy()
    if not module.weight.is_floating_point():
        return None
    weight = module.weight.detach().float().cpu().numpy()
    weight.setflags(write=False)  # it may be the resident model's own memory
    return weight.T if hasattr(module, "nf") else weight  # transformers' Conv1D: [in, out]


def _out(call: LayerCall, at: int, attended: Attended) -> Step | None:
    """The first linear step behind the heads, if it reads them and gives rows of the stream."""
    stream = call.whole.after
    for step in call.steps[at:]:
        if isinstance(step, Step) and step.role == "linear" and step.before is not None:
            wide = stream is None or step.after is None or step.after.shape == stream.shape
            return step if wide and step.before.shape == attended.joined_shape else None
    return None


def _told_apart(attended: Attended, linears: Sequence[Step], normed: bool) -> tuple[Rows, Rows, Rows] | None:
    rows = [one.after for one in linears if one.after is not None]
    tolerance = max(CLOSE, 4 * max((one.eps for one in linears), default=0.0))
    for query, key, value in _readings(attended, rows):
        shapes = all(
            len(one) == heads.shape[1] and one.shape[1] == heads.shape[0] * heads.shape[2]
            for one, heads in ((query, attended.query), (key, attended.key), (value, attended.value))
        )
        if not shapes or not np.array_equal(value, _side_by_side(attended.value)):
            continue
        turned = _same_lengths(query, attended.query, tolerance) and _same_lengths(key, attended.key, tolerance)
        if normed or turned:
            return query, key, value
    return None


def _readings(attended: Attended, rows: Sequence[Rows]) -> Iterator[tuple[Rows, Rows, Rows]]:
    """Every way in which these outputs may hold q, k and v."""
    (heads, _, dim), (kv_heads, _, value_dim) = attended.query.shape, attended.value.shape
    widths = heads * dim, kv_heads * dim, kv_heads * value_dim
    if len(rows) == 3:
        query, key, value = rows
        yield query, key, value
        yield key, query, value
    if len(rows) == 2 and rows[1].shape[1] == widths[1] + widths[2]:
        yield rows[0], rows[1][:, : widths[1]], rows[1][:, widths[1] :]
    if len(rows) == 1 and rows[0].shape[1] == sum(widths):
        query, key, value = np.split(rows[0], np.cumsum(widths)[:2], axis=1)
        yield query, key, value
        if dim == value_dim:
            groups = rows[0].reshape(len(rows[0]), kv_heads, heads // kv_heads + 2, dim)
            parts = groups[:, :, :-2], groups[:, :, -2], groups[:, :, -1]
            query, key, value = (part.reshape(len(part), -1) for part in parts)
            yield query, key, value


def _side_by_side(heads: Heads) -> Rows:
    """[head, pos, dim] -> [pos, head x dim]"""
    return heads.transpose(1, 0, 2).reshape(heads.shape[1], -1)


def _same_lengths(rows: Rows, heads: Heads, tolerance: float) -> bool:
    """Whether each head's vectors are as long as the attention's, up to one factor for all (scaling done early)."""
    ours = np.linalg.norm(rows.reshape(len(rows), len(heads), -1), axis=2)
    theirs = np.linalg.norm(heads, axis=2).T
    factor = (ours * theirs).sum() / max(float((ours * ours).sum()), 1e-30)
    return bool(np.abs(ours * factor - theirs).max() <= tolerance * max(float(theirs.max()), 1e-30))
