"""What each precision costs and what it spoils, on one model: bytes, prefill, decode, peak, and agreement with FP32.

Every precision is timed in turns with FP32, every second round in reverse order, so that what else the machine does
falls on both alike. Quality is judged on texts that FP32 reads too: perplexity exp(mean -log p(next token)), mean
KL(FP32 || it) and top-1 agreement of its distributions over the vocabulary; the cosine of its last hidden states where
there is no head; and for each head the total variation between its rows of attention and FP32's,

    TV(p, q) = 1/2 sum_k |p_k - q_k|,     the share of a row's weight that has moved to other keys.

An encoder-decoder is teacher-forced: both read the answer that FP32 gave.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import exp
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tfviz.errors import TfvizError, UnsupportedHere
from tfviz.inference.free_memory import free_bytes
from tfviz.inference.measure import Latency, difference, latency, peak_extra_bytes
from tfviz.inference.precision import PRECISIONS
from tfviz.inference.records import Record, Setting, latency_record, now
from tfviz.introspection.layer_calls import is_linear
from tfviz.model.attention import attention_weights
from tfviz.model.attention_call import AttentionCall, AttentionRecord, attention_call
from tfviz.sources.base import LoadedModel

BASE = "fp32"
PREFILL = 128  # tokens
TEXT_TOKENS = 128  # of one text that quality is judged on
TEXTS = 4
ROUNDS = 3  # in each of which a prefill and `STEPS` decode steps of both are timed
STEPS = 6
SHORT = 0.25  # seconds of a round that prefills again while there are fewer than `STEPS`
REFERENCE_BYTES = 160 * 2**20  # of FP32's outputs, which are kept while the others are compared with them
MAP_BYTES = 96 * 2**20  # of FP32's attention rows
MAP_TEXTS = 2
WEIGHED = 8  # linear layers whose rounded weights are compared with FP32's
GROWTH = {"fp16": 0.5, "bf16": 0.5, "int8_weights": 0.8, "int8": 0.6, "int4": 0.9}  # of FP32's bytes, while converting

Inputs = dict[str, Tensor]
Get = Callable[[str], LoadedModel]
Compute = Callable[..., Any]


# ---- what is found


@dataclass(frozen=True, eq=False)
class PrecisionPoint:
    """One precision of one model on this machine. Its speeds stand beside those of FP32, timed in turns with it."""

    precision: str
    weight_bytes: int
    peak_bytes: int  # of a prefill, beyond the weights
    prefill: Latency
    decode: Latency | None  # seconds a token; None: the model does not write
    prefill_beside: Latency  # FP32's
    decode_beside: Latency | None
    perplexity: float | None = None  # None: the model does not predict the next token
    kl: float | None = None  # nats a position; None: no output head
    top1: float | None = None
    cosine: float | None = None  # of the last hidden states, where there is no head
    weight_error: float | None = None  # |W - W as held| / |W| over some layers
    maps: Mapping[str, np.ndarray] = field(default_factory=dict)  # kind -> mean TV [layer, head], 0..1
    read: int = 0  # positions that quality was judged on so far

    @property
    def prefill_speed(self) -> float:
        """Times FP32's."""
        return self.prefill_beside.median / self.prefill.median

    @property
    def decode_speed(self) -> float | None:
        beside = self.decode_beside
        return None if self.decode is None or beside is None else beside.median / self.decode.median

    @property
    def map_divergence(self) -> np.ndarray | None:
        """[layer, head] of the first kind."""
        return next(iter(self.maps.values()), None)


@dataclass(frozen=True, eq=False)
class Trial:
    """What was found so far, by precision, and what is being done."""

    points: Mapping[str, PrecisionPoint] = field(default_factory=dict)
    failed: Mapping[str, TfvizError] = field(default_factory=dict)  # what this model or machine could not do
    prefill_tokens: int = 0
    part: float = 0.0  # of the steps
    doing: tuple[str, str] = ("prepare", BASE)  # prepare | measure | compare, and the precision


# ---- the measurement, as a run of short steps


def trial(
    get: Get,
    texts: Sequence[str],
    precisions: Sequence[str] = tuple(PRECISIONS),
    compute: Compute = lambda job, *args: job(*args),
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Trial]:
    """Yields what there is after every step; each runs through `compute(job, *args)` and takes about two seconds at
    most. `get(precision)` gives the model; FP32 is measured whether it is asked for or not."""
    rest = [one for one in precisions if one != BASE]
    base = get(BASE)
    prefill, read = _prefill_inputs(base, texts), _text_inputs(base, texts, compute)
    whole = (2 + len(read)) + len(rest) * (2 + ROUNDS + len(read))
    run = _Run(base, get, compute, prefill, read)
    found, done = Trial(prefill_tokens=prefill["input_ids"].shape[1]), 0
    for name in (BASE, *rest):
        before, n_steps = done, 2 + len(read) + (ROUNDS if name != BASE else 0)
        try:
            for doing in run.steps(name):
                done = min(done + 1, before + n_steps)
                found = replace(found, points=dict(run.points), part=done / whole, doing=(doing, name))
                yield found
                if stop():
                    return
        except (TfvizError, RuntimeError) as error:
            if name == BASE:
                raise
            said = error if isinstance(error, TfvizError) else UnsupportedHere("speed.precision.failed", what=error)
            found = replace(found, failed={**found.failed, name: said})
        done = before + n_steps
    yield replace(found, part=1.0)


@dataclass(eq=False)
class _Run:
    """What the steps of one trial hand on to one another."""

    base: LoadedModel
    get: Get
    compute: Compute
    prefill: Inputs
    read: Sequence[Inputs]
    references: "list[Reference]" = field(default_factory=list)  # of each text
    points: dict[str, PrecisionPoint] = field(default_factory=dict)
    every: "Seconds" = field(default_factory=lambda: Seconds())  # of all rounds, so FP32's speed is that of all

    def steps(self, name: str) -> Iterator[str]:
        """The steps of one precision, each named by what comes next; FP32's also fill `references`."""
        yield "prepare"
        if name != BASE:
            _check_room(self.base, name)
        loaded = self.get(name)
        peak: int = self.compute(prefill_peak, loaded, self.prefill)  # warms up as well
        yield "measure"
        pair, seconds = ([loaded] if name == BASE else [self.base, loaded]), Seconds()
        for number in range(1 if name == BASE else ROUNDS):
            new: Seconds = self.compute(timed, pair, self.prefill, number)
            seconds, self.every = seconds.joined(new), self.every.joined(new)
            self.points[name] = replace(seconds.point(loaded, peak, BASE), weight_error=weight_error(self.base, loaded))
            if name != BASE:
                shown, pooled = self.points[BASE], self.every.point(self.base, 0, BASE)
                beside = {"prefill_beside": pooled.prefill, "decode_beside": pooled.decode}
                speeds: dict[str, Any] = {"prefill": pooled.prefill, "decode": pooled.decode, **beside}
                self.points[BASE] = replace(shown, **speeds)
            yield "measure"
        judged, timed_point = Judged(), self.points[name]
        for i, inputs in enumerate(self.read):
            if name == BASE:
                self.references.append(self.compute(reference, self.base, inputs, i < MAP_TEXTS))
            judged = judged.joined(self.compute(judge, loaded, inputs, self.references[i]))
            self.points[name] = replace(timed_point, **judged.fields())
            yield "compare"


def weight_error(base: LoadedModel, loaded: LoadedModel) -> float:
    """|W - W as this precision holds it| / |W| over the first `WEIGHED` linear layers but the head."""
    off = size = 0.0
    pairs = zip(base.model.modules(), loaded.model.modules(), strict=True)
    get_head: Any = getattr(base.model, "get_output_embeddings", None)
    head = get_head() if get_head is not None else None
    one: Any
    other: Any
    linear = ((one, other) for one, other in pairs if is_linear(one) and one is not head)
    for one, other in islice(linear, WEIGHED):
        exact: Any = one.weight.detach()
        restored: Any = getattr(other, "dequantised", None)
        held: Any = other.weight.detach().float() if restored is None else restored()
        exact = exact if held.shape == exact.shape else exact.t()  # transformers' Conv1D
        off += float((held - exact).square().sum())
        size += float(exact.square().sum())
    return (off / size) ** 0.5 if size else 0.0


def _check_room(base: LoadedModel, name: str) -> None:
    """`UnsupportedHere` where making this precision would take more memory than the device has free."""
    needed, free = int(GROWTH.get(name, 1.0) * base.weight_bytes), free_bytes(base.device)
    if free is not None and needed > 0.9 * free:
        raise UnsupportedHere("speed.precision.no_room", needed=f"{needed / 2**20:,.0f}", free=f"{free / 2**20:,.0f}")


# ---- inputs


def _prefill_inputs(loaded: LoadedModel, texts: Sequence[str]) -> Inputs:
    """`PREFILL` tokens, or what the model has positions for; a decoder's own is left with room for the steps."""
    room = loaded.token_limit - (STEPS + 2 if loaded.family == "decoder" else 0)
    text = " ".join(texts) if loaded.family != "encoder-decoder" else max(texts, key=len)
    inputs = loaded.prompt(text, _target(loaded, text), limit=max(2, min(PREFILL, room))).inputs
    return {name: one for name, one in inputs.items() if name != "decoder_input_ids"}


def _target(loaded: LoadedModel, text: str) -> str | None:
    """Anything, so that the model does not write one."""
    return text if loaded.family == "encoder-decoder" else None


def _text_inputs(loaded: LoadedModel, texts: Sequence[str], compute: Compute) -> list[Inputs]:
    """The texts as the model reads them, as many as `REFERENCE_BYTES` of its outputs allow, and one at least."""
    found: list[Inputs] = []
    width = loaded.n_embeddings if loaded.has_logits else 4096
    left = REFERENCE_BYTES // (4 * width)  # positions
    for text in texts[:TEXTS]:
        if found and left < 32:
            break
        inputs = compute(_read, loaded, text, max(2, min(TEXT_TOKENS, loaded.token_limit, left)))
        found.append(inputs)
        left -= _own(inputs).shape[1]
    return found


def _read(loaded: LoadedModel, text: str, limit: int) -> Inputs:
    """An encoder-decoder writes its answer here, in FP32; the others are then made to read it."""
    return loaded.prompt(text, limit=limit).inputs


def _own(inputs: Inputs) -> Tensor:
    """The ids whose outputs are compared: the decoder's where there are two sides."""
    return inputs.get("decoder_input_ids", inputs["input_ids"])


# ---- speed


def prefill_peak(loaded: LoadedModel, inputs: Inputs) -> int:
    """Peak bytes of a prefill beyond the weights; the weights of all models are there before."""
    return peak_extra_bytes(lambda: _prefill(loaded, inputs), loaded.device)


def _writes(loaded: LoadedModel) -> bool:
    return loaded.family != "encoder" and loaded.has_logits


def _prefill(loaded: LoadedModel, inputs: Inputs) -> Any:
    """One prefill; what decodes on from it, or the output of a model that does not write."""
    call = AttentionCall("flash")
    if not _writes(loaded):
        return loaded.run(inputs, call, all_logits=False)
    with attention_call(call):
        decoding = loaded.decoding(inputs)
        decoding.logits()
        return decoding


@dataclass(frozen=True)
class Seconds:
    """Times of one call each, by precision."""

    prefill: Mapping[str, list[float]] = field(default_factory=dict)
    decode: Mapping[str, list[float]] = field(default_factory=dict)

    def joined(self, other: "Seconds") -> "Seconds":
        return Seconds(*(_joined(getattr(self, one), getattr(other, one)) for one in ("prefill", "decode")))

    def point(self, loaded: LoadedModel, peak: int, beside: str) -> PrecisionPoint:
        """What was timed of `loaded`, next to the precision that stands beside it."""
        own = loaded.precision
        prefill = {name: Latency.of(taken) for name, taken in self.prefill.items()}
        decode = {name: Latency.of(taken) for name, taken in self.decode.items() if taken}
        speeds = prefill[own], decode.get(own), prefill[beside], decode.get(beside)
        return PrecisionPoint(own, loaded.weight_bytes, peak, *speeds)


def _joined(one: Mapping[str, list[float]], other: Mapping[str, list[float]]) -> dict[str, list[float]]:
    return {name: [*one.get(name, []), *other.get(name, [])] for name in {**one, **other}}


def timed(models: Sequence[LoadedModel], inputs: Inputs, number: int) -> Seconds:
    """One round: prefills in turn, several where they are short, then decode steps in turn; odd ones in reverse."""
    order = list(models)[:: -1 if number % 2 else 1]
    prefill: dict[str, list[float]] = {model.precision: [] for model in models}
    decode: dict[str, list[float]] = {model.precision: [] for model in models}
    running: dict[str, Any] = {}
    begun = time.perf_counter()
    while not running or (time.perf_counter() - begun < SHORT and len(prefill[models[0].precision]) < STEPS):
        for model in order:
            taken, running[model.precision] = _clocked(model, inputs)
            prefill[model.precision].append(taken)
    steps = STEPS + 1 if all(map(_writes, models)) else 0
    for step in range(steps):
        for model in order[:: -1 if step % 2 else 1]:
            taken = _step(running[model.precision])
            if step:  # the first one after a prefill prepares what later ones use
                decode[model.precision].append(taken)
    return Seconds(prefill, decode)


def _clocked(model: LoadedModel, inputs: Inputs) -> tuple[float, Any]:
    results: list[Any] = []
    took = latency(lambda: results.append(_prefill(model, inputs)), repeats=1, warmup=0)
    return took.median, results[0]


def _step(decoding: Any) -> float:
    """One more token, whichever: its seconds."""
    if decoding.room is not None and decoding.room < 2:
        decoding.rewind(decoding.prompt_length)
    decoding.append(decoding.ids[:, -1])
    with attention_call(AttentionCall("flash")):
        return latency(decoding.logits, repeats=1, warmup=0).median


# ---- quality


@dataclass(frozen=True, eq=False)
class Reference:
    """What FP32 made of one text, on the CPU."""

    output: Tensor  # [position, vocabulary or feature]
    maps: Mapping[str, list[Tensor]]  # kind -> weights [head, query, key] of each layer


class Maps:
    """Watches a pass and keeps every attention's rows, computed in FP32 from its q and k, by kind and layer."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.encoder = loaded.encoder_modules()
        self.kinds: dict[str, list[Tensor]] = {}

    def __call__(self, record: AttentionRecord) -> None:
        query, key = record.query[:1].float(), record.key[:1].float()
        weights = attention_weights(query, key, record.mask, record.rule)[0].cpu()
        self.kinds.setdefault(self._kind(record), []).append(weights)

    def _kind(self, record: AttentionRecord) -> str:
        if not self.encoder:
            return "self"
        if record.module in self.encoder:
            return "encoder"  # below: a decoder layer looks at itself first, then at the encoder
        return "decoder" if len(self.kinds.get("decoder", [])) == len(self.kinds.get("cross", [])) else "cross"


def _seen(loaded: LoadedModel, inputs: Inputs, watched: bool) -> Reference:
    maps = Maps(loaded)
    call = AttentionCall("flash", maps if watched else None)
    output = loaded.run(inputs, call)[0].float().cpu()
    return Reference(output, maps.kinds)


def reference(loaded: LoadedModel, inputs: Inputs, watched: bool) -> Reference:
    """FP32's outputs on a text; the rows of attention too if `watched` and they are not too many."""
    found = _seen(loaded, inputs, watched)
    size = sum(4 * one.numel() for layers in found.maps.values() for one in layers)
    return found if size <= MAP_BYTES else replace(found, maps={})


@dataclass(frozen=True, eq=False)
class Judged:
    """Sums over the positions of the texts read so far; None: this model has none."""

    read: int = 0
    predicted: int = 0
    surprise: float | None = None  # nats
    kl: float | None = None
    agreeing: float | None = None
    cosine: float | None = None
    maps: Mapping[str, np.ndarray] = field(default_factory=dict)  # TV summed over texts
    watched: int = 0

    def joined(self, other: "Judged") -> "Judged":
        if not self.read:
            return other
        names = ("read", "predicted", "surprise", "kl", "agreeing", "cosine", "watched")
        sums: dict[str, Any] = {name: _sum(getattr(self, name), getattr(other, name)) for name in names}
        maps = {kind: self.maps[kind] + other.maps.get(kind, 0) for kind in self.maps}
        return Judged(maps=maps, **sums)

    def fields(self) -> dict[str, Any]:
        """What of it stands in a PrecisionPoint."""
        shares = {"kl": self.kl, "top1": self.agreeing, "cosine": self.cosine}
        means = {name: None if one is None else one / self.read for name, one in shares.items()}
        perplexity = None if self.surprise is None else _exp(self.surprise / self.predicted)
        maps = {kind: (one / self.watched).astype(np.float32) for kind, one in self.maps.items()}
        return {**means, "perplexity": perplexity, "maps": maps, "read": self.read}


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _exp(nats: float) -> float:
    return exp(nats) if nats < 700 else float("inf")


def judge(loaded: LoadedModel, inputs: Inputs, exact: Reference) -> Judged:
    """One text through this precision, beside what FP32 made of it."""
    found = _seen(loaded, inputs, bool(exact.maps))
    n = len(found.output)
    maps = {kind: _apart(layers, found.maps[kind]) for kind, layers in exact.maps.items()}
    if not loaded.has_logits:
        cosine = torch.cosine_similarity(exact.output, found.output, dim=-1).sum()
        return Judged(n, cosine=float(cosine), maps=maps, watched=int(bool(maps)))
    apart = difference(exact.output, found.output, is_logits=True)
    assert apart.kl is not None and apart.top1 is not None
    own, surprise = _own(inputs)[0], None
    if loaded.family != "encoder" and n > 1:
        log_probs = -torch.nn.functional.cross_entropy(found.output[:-1], own[1:].cpu(), reduction="sum")
        surprise = -float(log_probs)  # sum of -log p(next token)
    return Judged(n, n - 1, surprise, n * apart.kl, n * apart.top1, maps=maps, watched=int(bool(maps)))


def _apart(exact: Sequence[Tensor], found: Sequence[Tensor]) -> np.ndarray:
    """Mean over rows of TV(p, q) = 1/2 sum |p - q|: [layer, head]; layers with fewer heads end in nan."""
    each = [0.5 * (p - q).abs().sum(-1).mean(-1) for p, q in zip(exact, found, strict=True)]  # [head]
    made = np.full((len(each), max(map(len, each))), np.nan, dtype=np.float32)
    for row, values in zip(made, each, strict=True):
        row[: len(values)] = values.numpy()
    return made


# ---- for export


def records(found: Trial, model: str) -> list[Record]:
    """Every figure as a flat row."""
    return [one for point in found.points.values() for one in _records(point, model, found.prefill_tokens)]


def _records(point: PrecisionPoint, model: str, n: int) -> Iterator[Record]:
    setting: dict[str, Setting] = {"model": model, "precision": point.precision}
    yield latency_record("precision", {**setting, "phase": "prefill", "n": n}, point.prefill)
    if point.decode is not None:
        yield latency_record("precision", {**setting, "phase": "decode", "n": n}, point.decode)
        took = point.decode
        rate, low, high = (1 / one for one in (took.median, took.high, took.low))
        where = {**setting, "n": n}
        yield Record("precision", where, "tokens_per_second", rate, "token/s", low, high, took.runs, now())
        yield Record("precision", setting, "decode_speedup", float(point.decode_speed or 0), "1", at=now())
    yield Record("precision", setting, "prefill_speedup", point.prefill_speed, "1", at=now())
    units: dict[str, str] = {"weight_error": "1"}
    units |= {"weight_bytes": "B", "peak_bytes": "B", "perplexity": "1", "kl": "nat", "top1": "1", "cosine": "1"}
    for name, unit in units.items():
        value = getattr(point, name)
        if value is not None:
            yield Record("precision", setting, name, float(value), unit, at=now())
    for kind, each in point.maps.items():
        yield Record("precision", {**setting, "kind": kind}, "map_tv", float(np.nanmean(each)), "1", at=now())
