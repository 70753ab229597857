"""What a decode step costs with and without the KV cache, measured at growing contexts beside the formula.

With the cache a step multiplies one vector with every weight and reads n keys: a constant plus O(n). Without it the
whole text goes through again: O(n) for the weights plus O(n^2) for attention. The text is what was typed, repeated.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tfviz.inference.measure import Latency, latency
from tfviz.inference.work import AttentionShape, DecoderShape, Work, with_cache, without_cache
from tfviz.introspection.growth import between
from tfviz.introspection.layer_calls import features, is_linear, layers_of
from tfviz.model.attention_call import AttentionCall, AttentionRecord, attention_call
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.decoding import Decoding

LONGEST = 512  # context that the sweep goes up to
SHORTEST = 8
ROUNDS = (3, 9)  # steps timed at one context: at least, at most
ROUND_SECONDS = 0.8  # at one context, once there are enough
BUDGET = 24.0  # seconds of the whole sweep: a context that would go beyond it is left out
FAR = 2**26  # tokens: no context is that long
CHECKED = 6  # source tokens that the shapes are read from


# ---- shapes


def decoder_shape(loaded: LoadedModel, prompt: Prompt) -> DecoderShape:
    """Every matrix that a step of this model multiplies with, from one watched pass of very few tokens."""
    encoder, records = loaded.encoder_modules(), []

    def watch(record: AttentionRecord) -> None:
        if record.module not in encoder:
            records.append(record)

    loaded.run(_shortened(loaded, prompt), AttentionCall("naive", watch), all_logits=False)
    if loaded.family != "encoder-decoder":
        own, cross = records, []
    else:  # a decoder layer looks at itself first, then at the encoder
        own, cross = records[::2], records[1::2]
    attending = {one for record in records for one in record.module.modules()}
    blocks = [one for one in layers_of(loaded) if one not in encoder]
    inside = {one for block in blocks for one in block.modules()} | attending
    outside = [one for one in loaded.model.modules() if one not in inside and one not in encoder]
    return DecoderShape(
        own=tuple(_attention(record, loaded.window("decoder", i)) for i, record in enumerate(own)),
        cross=tuple(_attention(record, None, of_memory=True) for record in cross),
        feed_forward=sum(map(_weights, inside - attending)),
        head=sum(map(_weights, outside)),
        element=own[0].key.element_size() if own else 4,
        uncounted=_uncounted(inside),
    )


def _shortened(loaded: LoadedModel, prompt: Prompt) -> dict[str, Tensor]:
    """The prompt's inputs, cut: one decoder position, a few of the source."""
    own = "decoder_input_ids"
    cut = {name: one[:, : 1 if loaded.family == "decoder" else CHECKED] for name, one in prompt.inputs.items()}
    return {**cut, own: prompt.inputs[own][:, :1]} if own in prompt.inputs else cut


def _attention(record: AttentionRecord, window: int | None, of_memory: bool = False) -> AttentionShape:
    (_, heads, _, dim), (_, kv_heads, _, value_dim) = record.query.shape, record.value.shape
    weights = sum(map(_weights, record.module.modules()))
    columns = heads * dim + kv_heads * dim + (kv_heads + heads) * value_dim
    memory = weights * kv_heads * (dim + value_dim) // columns if of_memory else 0  # W_k and W_v
    return AttentionShape(heads, kv_heads, dim, value_dim, weights - memory, memory, window)


def _weights(module: Any) -> int:
    if not is_linear(module):
        return 0
    read, given = features(module)
    return int(read * given)


def _uncounted(modules: set[nn.Module]) -> int:
    """Weights of two and more axes that belong to no linear layer and are looked up in no table: experts."""
    loose = (one for one in modules if not is_linear(one) and not isinstance(one, nn.Embedding))
    return sum(weight.numel() for one in loose for weight in one.parameters(recurse=False) if weight.dim() > 1)


# ---- the sweep


@dataclass(frozen=True)
class Point:
    """One context: a step that reads `n` keys, its own among them."""

    n: int
    cached: Latency
    uncached: Latency
    cached_work: Work
    uncached_work: Work
    cache_bytes: int  # measured from the tensors, after the step
    cross_bytes: int  # of them: the encoder-decoder's part that does not grow


@dataclass(frozen=True)
class Prospect:
    """What a sweep would measure."""

    shape: DecoderShape
    lengths: tuple[int, ...]  # contexts
    weights: int  # bytes of the model's
    limit: int | None = None  # positions that the model has; None: no end


def prospect(loaded: LoadedModel, prompt: Prompt) -> Prospect:
    """From one watched pass of very few tokens. `WrongModel` if the model cannot write."""
    with attention_call(AttentionCall("naive")):
        limit = loaded.decoding(inputs_of_length(loaded, prompt, 1)).last_position
    return Prospect(decoder_shape(loaded, prompt), context_lengths(loaded, limit), loaded.weight_bytes, limit)


@dataclass(frozen=True, eq=False)
class Sweep:
    """What was measured so far."""

    points: tuple[Point, ...]
    lengths: tuple[int, ...]  # those that were meant to be
    part: float
    left_out: int | None = None  # the first context that would have taken too long


def context_lengths(loaded: LoadedModel, last_position: int | None) -> tuple[int, ...]:
    """Powers of two from `SHORTEST` to `LONGEST`, or to what the model has positions for."""
    room = min(last_position or loaded.token_limit, loaded.token_limit) - ROUNDS[1] - 1
    lengths = [2**i for i in range(3, 20) if SHORTEST <= 2**i <= min(LONGEST, room)]
    if room < LONGEST and (not lengths or room > 1.25 * lengths[-1]):
        lengths.append(room)
    return tuple(one for one in lengths if one > 1)


def sweep(loaded: LoadedModel, prompt: Prompt, kernel: str, shape: DecoderShape) -> Iterator[Sweep]:
    """A job for `Scene.stream`: grows by rounds; between two of them the device is free and a stop is heard."""
    lengths = prospect(loaded, prompt).lengths
    memory = prompt.n_tokens if shape.cross else 0
    whole = sum(without_cache(shape, n, memory).total for n in lengths)
    points: list[Point] = []
    spent = done = 0.0
    for i, n in enumerate(lengths):
        share = without_cache(shape, n, memory).total / whole
        for round_, point in _measure(loaded, prompt, n, kernel, shape, memory):
            if point is None:
                yield Sweep(tuple(points), lengths, done + share * round_)
            else:
                points.append(point)
        done += share
        spent += (ROUNDS[0] + 1) * points[-1].uncached.median
        after = lengths[i + 1] if i + 1 < len(lengths) else None
        guess = (ROUNDS[0] + 1) * points[-1].uncached.median * after / n if after else 0.0
        if after and spent + guess > BUDGET:
            yield Sweep(tuple(points), lengths, 1.0, left_out=after)
            return
        yield Sweep(tuple(points), lengths, 1.0 if after is None else done)


def _measure(
    loaded: LoadedModel, prompt: Prompt, n: int, kernel: str, shape: DecoderShape, memory: int
) -> Iterator[tuple[float, Point | None]]:
    """(share done, None) after each round, then (1, the point). Both ways in turn, every second round reversed."""
    call, inputs = AttentionCall(kernel), inputs_of_length(loaded, prompt, n - 1)
    with attention_call(call):
        ways = {name: loaded.decoding(inputs, use_cache=name == "cached") for name in ("cached", "uncached")}
        ways["cached"].logits()
        _step(ways["cached"])  # the first step after a prefill prepares what later ones use
    nbytes: tuple[int, int] | None = None
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    yield 1 / (ROUNDS[0] + 1), None
    while len(seconds["cached"]) < ROUNDS[1]:
        done = len(seconds["cached"])
        if done >= ROUNDS[0] and sum(map(sum, seconds.values())) > ROUND_SECONDS:
            break
        for name in list(ways)[:: -1 if done % 2 else 1]:
            with attention_call(call):
                seconds[name].append(_step(ways[name]))
        if nbytes is None:
            nbytes = cache_bytes_at(ways["cached"], n)
        yield min((done + 2) / (ROUNDS[0] + 1), 1.0), None
    assert nbytes is not None
    cached, uncached = (Latency.of(seconds[name]) for name in ("cached", "uncached"))
    work = with_cache(shape, n, memory), without_cache(shape, n, memory)
    yield 1.0, Point(n, cached, uncached, *work, *nbytes)


def _step(decoding: Decoding) -> float:
    """One more token, whichever: its seconds."""
    decoding.append(decoding.ids[:, -1])
    return latency(decoding.logits, repeats=1, warmup=0).median


def cache_bytes_at(decoding: Decoding, n: int) -> tuple[int, int]:
    """(all, of them cross) bytes as they were with `n` positions: those held now, less the newer positions' share."""
    own = cross = 0
    for layer in decoding.held():
        if layer.kind == "cross":
            cross += layer.nbytes
        else:
            held = layer.key.shape[2]
            own += layer.nbytes * min(held, n) // held
    return own + cross, cross


def inputs_of_length(loaded: LoadedModel, prompt: Prompt, n: int) -> dict[str, Tensor]:
    """Inputs with `n` decoder positions: the typed tokens again and again; a decoder's own beside its source."""
    name = "decoder_input_ids" if loaded.family == "encoder-decoder" else "input_ids"
    ids = prompt.inputs[name]
    body = ids[:, 1:] if name != "input_ids" and ids.shape[1] > 1 else ids
    head = ids[:, : n if body is ids else 1]
    repeated = torch.cat([head, body.repeat(1, n // body.shape[1] + 1)], dim=1)[:, :n]
    if name == "input_ids":
        return {"input_ids": repeated, "attention_mask": torch.ones_like(repeated)}
    return {**prompt.inputs, name: repeated}


# ---- what the points say


def half_attention(work: Callable[[int], Work]) -> int | None:
    """The context from which attention is at least half of a step's multiply-adds, by the formula; None: from none."""
    low, high = 1, FAR
    while low < high:
        middle = (low + high) // 2
        found = work(middle)
        low, high = (low, middle) if 2 * (found.scores + found.values) >= found.total else (middle + 1, high)
    return low if low < FAR else None


Totals = Mapping[str, float]


def totals(points: Sequence[Point]) -> Totals:
    """Seconds to write every token from the shortest measured context to the longest, one step after another."""
    n = [one.n for one in points]
    steps = np.arange(n[0], n[-1] + 1)
    return {
        name: float(between(n, [getattr(one, name).median for one in points], steps).sum())
        for name in ("cached", "uncached")
    }
