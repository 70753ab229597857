"""One head of one layer, stage by stage, from the arrays that the model itself used: NumPy, FP32, nothing recomputed.

    raw = q . k,   scaled = raw * scale,   capped = c tanh(scaled / c),   biased = capped + bias,
    scores = -inf where blocked, else biased,   weights = softmax(scores),   output = sum_j weights_j v_j

Stages that a model does not have (a soft cap, a bias) are None. Source: Vaswani et al. 2017, section 3.2,
https://arxiv.org/abs/1706.03762; soft cap: https://arxiv.org/abs/2408.00118; bias: https://arxiv.org/abs/2108.12409
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from tfviz.errors import UnsupportedHere

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.anatomy import AttentionSeen
    from tfviz.introspection.trace import LayerAttention, Trace
    from tfviz.sources.base import LoadedModel, Prompt

Array = np.ndarray
SAME = 1e-3  # relative: two arrays that differ by no more were computed in another order, or in another precision


@dataclass(frozen=True)
class HeadSteps:
    """Everything between q, k, v and the output of one head, for the query positions `rows`."""

    rows: tuple[int, ...]
    query: Float[Array, "row dim"]
    key: Float[Array, "key dim"]
    value: Float[Array, "key value_dim"]
    scale: float
    softcap: float | None
    raw: Float[Array, "row key"]
    scaled: Float[Array, "row key"]
    capped: Float[Array, "row key"] | None
    bias: Float[Array, "row key"] | None
    biased: Float[Array, "row key"] | None
    blocked: Bool[Array, "row key"]
    scores: Float[Array, "row key"]
    weights: Float[Array, "row key"]
    output: Float[Array, "row value_dim"]


def head_steps(layer: "LayerAttention", head: int, rows: Sequence[int]) -> HeadSteps:
    """The stages of query head `head` for some query positions. `UnsupportedHere` for scores that overflow."""
    group, chosen = kv_head(layer, head), list(rows)
    query, key, value = layer.query[head, chosen], layer.key[group], layer.value[group]
    scale = query.shape[-1] ** -0.5 if layer.scale is None else layer.scale
    with np.errstate(over="ignore", invalid="ignore"):  # refused below
        raw = query @ key.T  # q . k
    scaled = raw * np.float32(scale)  # q . k / sqrt(d_k)
    capped = None if layer.softcap is None else layer.softcap * np.tanh(scaled / np.float32(layer.softcap))
    bias = None if layer.bias is None or not layer.bias.any() else of_head(layer.bias, head)[chosen]  # T5: cross has 0
    before = scaled if capped is None else capped
    if not np.isfinite(before).all():
        raise UnsupportedHere("error.attention_scores", format="FP32", limit=f"{np.finfo(np.float32).max:.5g}")
    biased = None if bias is None else before + bias
    blocked = of_head(layer.blocked, head)[chosen]
    scores = np.where(blocked, np.float32(-np.inf), before if biased is None else biased)
    weights = softmax(scores)
    return HeadSteps(
        rows=tuple(chosen),
        query=query,
        key=key,
        value=value,
        scale=float(scale),
        softcap=layer.softcap,
        raw=raw,
        scaled=scaled,
        capped=None if capped is None else capped.astype(np.float32),
        bias=bias,
        biased=biased,
        blocked=blocked,
        scores=scores,
        weights=weights,
        output=weights @ value,  # sum_j weights_j v_j
    )


def softmax(scores: Float[Array, "row key"]) -> Float[Array, "row key"]:
    """exp(s - max s) / sum exp(s - max s); a row with nothing allowed is all zeros."""
    highest = scores.max(axis=-1, keepdims=True)
    grown = np.exp(scores - np.where(np.isfinite(highest), highest, 0))
    total = grown.sum(axis=-1, keepdims=True)
    return grown / np.where(total > 0, total, 1)


def kv_head(layer: "LayerAttention", head: int) -> int:
    """The key/value head that this query head reads: h // (heads / kv_heads)."""
    return head * len(layer.key) // len(layer.query)


def sharing(layer: "LayerAttention", head: int) -> list[int]:
    """All query heads that read the same key/value head, `head` among them."""
    return [other for other in range(len(layer.query)) if kv_head(layer, other) == kv_head(layer, head)]


def of_head(array: Array, head: int) -> Array:
    """One head of an array whose first axis is the heads, or 1 for all of them."""
    picked: Array = array[head if len(array) > 1 else 0]
    return picked


def split(features: Float[Array, "pos features"], n_heads: int, head: int) -> Float[Array, "pos dim"]:
    """One head's part of vectors that lie side by side."""
    width = features.shape[-1] // n_heads
    return features[:, head * width : (head + 1) * width]


def what_changed(before: Float[Array, "pos dim"], after: Float[Array, "pos dim"]) -> str:
    """What the model did between the projection and the dot product, told from the numbers alone.

    "same"; "scaled" (every vector times one number); "rotated" (lengths kept, up to one common factor, as RoPE does);
    "changed" (anything else, such as a norm of q and k).
    """
    if np.allclose(before, after, rtol=SAME, atol=SAME * float(np.abs(after).max(initial=0))):
        return "same"
    factor = float((before * after).sum() / max(float((before**2).sum()), 1e-30))  # least squares
    if np.allclose(before * factor, after, rtol=SAME, atol=SAME * float(np.abs(after).max())):
        return "scaled"
    lengths, turned = np.linalg.norm(before, axis=-1), np.linalg.norm(after, axis=-1)
    stretch = float((lengths * turned).sum() / max(float((lengths**2).sum()), 1e-30))
    return "rotated" if np.allclose(lengths * stretch, turned, rtol=10 * SAME) else "changed"


def largest_keys(weights: Float[Array, " key"], at_most: int) -> list[int]:
    """The positions of the largest weights, in the text's order; all of them if there are no more than `at_most`."""
    if len(weights) <= at_most:
        return list(range(len(weights)))
    return sorted(np.argpartition(-weights, at_most - 1)[:at_most].tolist())


@dataclass(frozen=True)
class AllHeads:
    """What leaves the attention for the query positions `rows`, made of our heads; and the model's own."""

    rows: tuple[int, ...]
    joined: Float[Array, "row features"]  # [head_1 ... head_h]
    output: Float[Array, "row d_model"]  # [head_1 ... head_h] W_O (+ b)
    model_joined: Float[Array, "row features"]
    model_output: Float[Array, "row d_model"]


def all_heads(layer: "LayerAttention", seen: "AttentionSeen", rows: Sequence[int]) -> AllHeads:
    """Every head's output side by side, times W_O, beside what the model has there. `seen.out_weight` can be read."""
    assert seen.out_weight is not None
    chosen = list(rows)
    joined = np.concatenate([head_steps(layer, head, chosen).output for head in range(len(layer.query))], axis=-1)
    output = joined @ seen.out_weight.T  # [head_1 ... head_h] W_O
    output = output if seen.out_bias is None else output + seen.out_bias
    return AllHeads(tuple(chosen), joined, output, seen.joined[chosen], seen.output[chosen])


def naive_pass(loaded: "LoadedModel", prompt: "Prompt") -> "Trace":
    """The same text once more under the naive kernel, whose q, k and v are then those of the pass that anatomy reads.

    Kernels differ by rounding. In half precision or INT8 it grows from layer to layer: what one pass put into a layer
    cannot be compared with what another got out of it.
    """
    from tfviz.introspection.capture import capture

    return capture(loaded, prompt, ("", None), kernel="naive")
