"""What each precision costs and what it spoils, on one model: bytes, prefill, decode, peak, and agreement with FP32.

Every precision is timed in turns with FP32, every second round in reverse order, so that what else the machine does
falls on both alike. Quality is judged on texts that FP32 reads too (precision_quality.py); an encoder-decoder is
teacher-forced: both read the answer that FP32 gave.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tfviz.errors import TfvizError, UnsupportedHere
from tfviz.inference.free_memory import free_bytes
from tfviz.inference.measure import Latency, latency, peak_extra_bytes
from tfviz.inference.precision import PRECISIONS
from tfviz.introspection.precision_point import BASE, PrecisionPoint, Trial
from tfviz.introspection.precision_quality import Inputs, Judged, Reference, judge, own_ids, reference, weight_error
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.sources.base import LoadedModel

PREFILL = 128  # tokens
TEXT_TOKENS = 128  # of one text that quality is judged on
TEXTS = 4
ROUNDS = 3  # in each of which a prefill and `STEPS` decode steps of both are timed
STEPS = 6
SHORT = 0.25  # seconds of a round that prefills again while there are fewer than `STEPS`
REFERENCE_BYTES = 160 * 2**20  # of FP32's outputs, which are kept while the others are compared with them
MAP_TEXTS = 2
GROWTH = {"fp16": 0.5, "bf16": 0.5, "int8_weights": 0.8, "int8": 0.6, "int4": 0.9}  # of FP32's bytes, while converting

Get = Callable[[str], LoadedModel]
Compute = Callable[..., Any]


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
    every: "Seconds" = field(default_factory=lambda: Seconds())  # of all rounds

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
            self._beside_all()
            yield "measure"
        judged, timed_point = Judged(), self.points[name]
        for i, inputs in enumerate(self.read):
            if name == BASE:
                self.references.append(self.compute(reference, self.base, inputs, i < MAP_TEXTS))
            judged = judged.joined(self.compute(judge, loaded, inputs, self.references[i]))
            self.points[name] = replace(timed_point, **judged.fields())
            yield "compare"

    def _beside_all(self) -> None:
        """FP32's times of all rounds, in its row and beside every other: each speed is the ratio of what is shown."""
        pooled = self.every.point(self.base, 0, BASE)
        beside: dict[str, Any] = {"prefill_beside": pooled.prefill, "decode_beside": pooled.decode}
        self.points |= {name: replace(point, **beside) for name, point in self.points.items()}
        self.points[BASE] = replace(self.points[BASE], prefill=pooled.prefill, decode=pooled.decode)


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
        left -= own_ids(inputs).shape[1]
    return found


def _read(loaded: LoadedModel, text: str, limit: int) -> Inputs:
    """An encoder-decoder writes its answer here, in FP32; the others are then made to read it."""
    return loaded.prompt(text, limit=limit).inputs


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
