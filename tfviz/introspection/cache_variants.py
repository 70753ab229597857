"""What other caches would do to a layer's attention, measured on its real queries, keys and values of a sentence.

    pooled       fewer KV heads: a group's keys and values are their mean (GQA, https://arxiv.org/abs/2305.13245)
    windowed     keys outside a window are gone, perhaps not the first ones (StreamingLLM, https://arxiv.org/abs/2309.17453)
    quantised    keys and values as INT8 or INT4 (KIVI, https://arxiv.org/abs/2402.02750)

An error is |o - o'| / |o| (Frobenius) of the attention's outputs before W_O.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tfviz.inference.measure import Latency, compare
from tfviz.inference.quantised_cache import Axis, quantise
from tfviz.introspection.trace import Array, LayerAttention
from tfviz.model.attention import ScoreRule, attention_weights, share_heads
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.decoding import Decoding, HeldLayer

QUERIES = 128  # of a long sentence the last so many are compared
AXES: tuple[tuple[Axis, Axis], ...] = (("token", "token"), ("channel", "token"), ("channel", "channel"))  # key, value


@dataclass(frozen=True, eq=False)
class Attended:
    """One layer's attention of its last queries, all heads, with some keys and values in place of its own."""

    weights: Float[Tensor, "head query key"]
    output: Float[Tensor, "head query value_dim"]


def attend(layer: LayerAttention, key: Array | None = None, value: Array | None = None) -> Attended:
    """The layer's own attention, or with other keys and values [kv_head, key, dim] of the same length."""
    n_query, n = layer.query.shape[1], min(QUERIES, layer.query.shape[1])
    query, own_key, own_value = (torch.from_numpy(x)[None] for x in (layer.query[:, -n:], layer.key, layer.value))
    key_ = own_key if key is None else torch.as_tensor(key)[None]
    value_ = own_value if value is None else torch.as_tensor(value)[None]
    blocked = layer.blocked[:, n_query - n :]
    bias = None if layer.bias is None else torch.from_numpy(layer.bias[:, -n:])[None]
    rule = ScoreRule(layer.scale, False, layer.softcap, bias)
    weights = attention_weights(query, key_, torch.tensor(blocked)[None], rule)
    return Attended(weights[0], (weights @ share_heads(value_, query.shape[1]))[0])


def relative(exact: Tensor, other: Tensor) -> float:
    """|x - x'| / |x|."""
    return float((exact - other).norm() / exact.norm().clamp_min(1e-30))


# ---- fewer key/value heads


def head_counts(n_heads: int, n_kv_heads: int) -> list[int]:
    """KV heads that this layer's could be spread to or pooled into, from all heads down to one."""
    return [n for n in range(n_heads, 0, -1) if n_heads % n == 0 and (n % n_kv_heads == 0 or n_kv_heads % n == 0)]


def pooled(x: Float[Array, "kv_head key dim"], n_kv_heads: int) -> Float[Array, "pooled key dim"]:
    """The mean over each group of heads; with more heads than there are, each is repeated."""
    if n_kv_heads >= len(x):
        return x.repeat(n_kv_heads // len(x), axis=0)
    return x.reshape(n_kv_heads, -1, *x.shape[1:]).mean(axis=1)


def pooling_error(layer: LayerAttention, n_kv_heads: int, own: Attended | None = None) -> float:
    """Error of the layer's output if its keys and values were pooled into so many heads, without any training."""
    own = own or attend(layer)
    return relative(own.output, attend(layer, pooled(layer.key, n_kv_heads), pooled(layer.value, n_kv_heads)).output)


# ---- a window, and sinks


def held_keys(n: int, query: int | Int[Array, " query"], window: int, sinks: int = 0) -> Bool[Array, "*query key"]:
    """Which of `n` keys a cache with this window still has when `query` reads it; the first `sinks` always stay."""
    place, at = np.arange(n), np.asarray(query)[..., None]
    held: Array = ((place > at - window) | (place < sinks)) & (place <= at)
    return held


def _places(weights: Float[Array, "query key"]) -> Int[Array, " query"]:
    n_query, n_key = weights.shape
    return np.arange(n_query) + n_key - n_query


def outside(
    weights: Float[Array, "query key"], windows: Sequence[int] | Int[Array, " window"], sinks: int
) -> Float[Array, "window query"]:
    """Weight of each query on keys that are not held, for each window: from key `sinks` to where it begins."""
    at = _places(weights)
    until = np.pad(weights.cumsum(axis=-1, dtype=np.float64), ((0, 0), (1, 0)))  # [query, keys before this one]
    first = np.maximum(at[None] + 1 - np.asarray(windows)[:, None], 0)  # [window, query]
    rows = np.arange(len(at))
    missing: Array = until[rows, np.maximum(first, sinks).clip(0, at + 1)] - until[rows, np.minimum(sinks, at + 1)]
    return missing


def windowed_error(
    weights: Float[Array, "query key"], value: Float[Array, "key value_dim"], window: int, sinks: int
) -> Float[Array, " query"]:
    """Error of each query's output of one head when the rest of its weight is shared out again among what is held."""
    kept = weights * held_keys(weights.shape[1], _places(weights), window, sinks)
    kept = kept / np.maximum(kept.sum(axis=-1, keepdims=True), 1e-30)  # softmax over fewer keys
    exact = weights @ value
    errors: Array = np.linalg.norm(exact - kept @ value, axis=-1) / np.maximum(np.linalg.norm(exact, axis=-1), 1e-30)
    return errors


# ---- how a cache grows


@dataclass(frozen=True, eq=False)
class Growth:
    """Positions allocated after each step of a decode, and positions copied altogether until then."""

    allocated: Int[Array, " step"]
    copied: Int[Array, " step"]


def growth(way: str, start: int, steps: int, room: int) -> Growth:
    """`exact`: a new tensor each step; `doubling`: twice the room when it is full; `static`: `room` from the start."""
    length = start + np.arange(steps + 1)
    if way == "exact":
        return Growth(length, np.concatenate([[0], np.cumsum(length[:-1])]))
    if way == "static":
        return Growth(np.full(steps + 1, max(room, start + steps)), np.zeros(steps + 1, dtype=np.int64))
    allocated, copied = np.empty_like(length), np.zeros_like(length)
    size, done = start, 0
    for i, n in enumerate(length):
        if n > size:
            done, size = done + size, 2 * size
        allocated[i], copied[i] = size, done
    return Growth(allocated, copied)


GROWTHS = ("exact", "doubling", "static")
LENGTHS = (128, 512, 2048, 8192)  # tokens held when a step is timed
ROUNDS = 9


def growth_times(n_kv_heads: int, dim: int, value_dim: int, device: str) -> dict[tuple[str, int], Latency]:
    """Seconds that one layer takes to add one token: `torch.cat` of everything, or a write into room that is there."""
    found: dict[tuple[str, int], Latency] = {}
    for n in LENGTHS:
        held = [torch.zeros(1, n_kv_heads, n, width, device=device) for width in (dim, value_dim)]
        room = [torch.zeros(1, n_kv_heads, n + 1, width, device=device) for width in (dim, value_dim)]
        new = [torch.ones(1, n_kv_heads, 1, width, device=device) for width in (dim, value_dim)]
        ways: dict[str, Callable[[], object]] = {
            "exact": partial(_append, held, new),
            "static": partial(_write, room, new, n),
        }
        found |= {(way, n): took for way, took in compare(ways, ROUNDS).items()}
    return found


def _append(held: Sequence[Tensor], new: Sequence[Tensor]) -> list[Tensor]:
    return [torch.cat([old, one], dim=2) for old, one in zip(held, new, strict=True)]


def _write(room: Sequence[Tensor], new: Sequence[Tensor], at: int) -> None:
    for buffer, one in zip(room, new, strict=True):
        buffer[:, :, at : at + 1] = one


# ---- fewer bits


@dataclass(frozen=True)
class QuantisedLayer:
    """What a quantised cache of one layer costs and spoils; errors are relative, `head` the one that was asked for."""

    nbytes: int
    fp32_bytes: int
    key_error: float
    value_error: float
    weight_error: float  # largest |a - a'| of the head's weights
    kl: float  # mean over the head's rows of KL(a || a'), nats
    head_error: float  # of the head's output
    output_error: float  # of all heads' outputs together


def quantised(
    layer: LayerAttention, head: int, bits: int, axes: tuple[Axis, Axis], own: Attended | None = None
) -> QuantisedLayer:
    """Quantises the layer's real keys and values (`axes` of key and value) and attends with what comes back."""
    own = own or attend(layer)
    packed = [quantise(torch.from_numpy(x), bits, axis) for x, axis in zip((layer.key, layer.value), axes, strict=True)]
    key, value = (one.dequantise() for one in packed)
    found = attend(layer, key.numpy(), value.numpy())
    p, q = own.weights[head].double(), found.weights[head].double()
    kl = (p * (p / q.clamp_min(1e-300)).clamp_min(1e-300).log()).where(p > 0, 0.0).sum(-1)
    return QuantisedLayer(
        nbytes=sum(one.nbytes for one in packed),
        fp32_bytes=layer.key.nbytes + layer.value.nbytes,
        key_error=relative(torch.from_numpy(layer.key), key),
        value_error=relative(torch.from_numpy(layer.value), value),
        weight_error=float((p - q).abs().max()),
        kl=max(0.0, float(kl.mean())),
        head_error=relative(own.output[head], found.output[head]),
        output_error=relative(own.output, found.output),
    )


def output_errors(layers: Sequence[LayerAttention], bits: int) -> Float[Array, "axes layer"]:
    """Error of every layer's output for each of `AXES`."""
    errors = np.empty((len(AXES), len(layers)), dtype=np.float32)
    for i, layer in enumerate(layers):
        own = attend(layer)
        errors[:, i] = [quantised(layer, 0, bits, axes, own).output_error for axes in AXES]
    return errors


def pooling_errors(layers: Sequence[LayerAttention], counts: Sequence[int]) -> Float[Array, "count layer"]:
    """Error of every layer's output for each number of KV heads."""
    errors = np.empty((len(counts), len(layers)), dtype=np.float32)
    for i, layer in enumerate(layers):
        own = attend(layer)
        errors[:, i] = [pooling_error(layer, n, own) for n in counts]
    return errors


# ---- cross attention, written once


@dataclass(frozen=True)
class CrossSeen:
    """The cross caches of a real decoding: bytes from the tensors, and how much they changed from step 1 to step 2."""

    d_model: int
    n_source: int
    cross_bytes: int
    self_bytes: int  # after the second step
    self_length: int
    change: float  # max |k - k'| and |v - v'| over all layers
    same_place: bool  # still the same memory


def cross_twice(loaded: LoadedModel, prompt: Prompt, kernel: str = "flash") -> CrossSeen:
    """Two steps of an encoder-decoder's decoding, its cross caches looked at after each."""
    going = loaded.decoding(prompt.inputs)
    with attention_call(AttentionCall(kernel)):
        going.append(going.logits().argmax(-1))
        first = [(layer.key.clone(), layer.value.clone(), layer.key.data_ptr()) for layer in _crosses(going)]
        going.logits()
    after = _crosses(going)
    own = [layer for layer in going.held() if layer.kind != "cross"]
    change = max(
        float((old - new).abs().max())
        for (key, value, _), layer in zip(first, after, strict=True)
        for old, new in ((key, layer.key), (value, layer.value))
    )
    config: Any = loaded.model.config
    return CrossSeen(
        d_model=getattr(config, "d_model", None) or config.hidden_size,
        n_source=after[0].key.shape[2],
        cross_bytes=sum(layer.nbytes for layer in after),
        self_bytes=sum(layer.nbytes for layer in own),
        self_length=own[0].key.shape[2],
        change=change,
        same_place=all(place == layer.key.data_ptr() for (_, _, place), layer in zip(first, after, strict=True)),
    )


def _crosses(going: Decoding) -> list[HeldLayer]:
    return [layer for layer in going.held() if layer.kind == "cross"]
