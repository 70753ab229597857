"""The parts of a loaded model for the roofline: every operation of a pass with its FLOPs and bytes, and its seconds.

A pass is watched operator by operator (torch's dispatch mode): the shapes give FLOPs (2 m k n of a product, 2 h n m
(d_k + d_v) of an attention) and bytes (each operand and result once), the address of the weight says which part of the
model it is. The same watching times the operators inside the real pass, in the model's own order, so that weights are
as cold as they are: the clock is read around the operator, and what that costs by itself is measured and taken off.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tfviz.inference.measure import Latency, latency
from tfviz.inference.operator_clock import OperatorClock, OperatorWatch
from tfviz.inference.roofline import Operation, Part, Pass
from tfviz.inference.work import with_cache
from tfviz.introspection.cache_cost import decoder_shape, inputs_of_length
from tfviz.introspection.roofline_operations import PRODUCTS, attention_of, elementwise_of, product_of, tensors
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.sources.architecture import architecture
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.decoding import Decoding
from tfviz.sources.module_calls import own_weights

PARTS = {"attention": "projections", "cross": "projections", "feed_forward": "feed_forward", "head": "head"}
Place = tuple[str, str]  # side, name


# ---- what a pass is made of


@dataclass(frozen=True)
class Phase:
    """One pass, operator by operator, in order."""

    name: str  # prefill | decode
    n: int  # tokens read at once; keys read by a decode step
    places: tuple[Place, ...]
    operations: tuple[Operation, ...]

    @property
    def parts(self) -> list[Part]:
        """Operators of one place together, equal ones counted."""
        found: dict[Place, dict[Operation, int]] = {}
        for place, one in zip(self.places, self.operations, strict=True):
            counts = found.setdefault(place, {})
            counts[one] = counts.get(one, 0) + 1
        return [
            Part(self.name, side, name, tuple(replace(one, count=n) for one, n in counts.items()))
            for (side, name), counts in sorted(found.items(), key=lambda item: _order(item[0]))
        ]


def _order(place: Place) -> tuple[int, int]:
    names = ("projections", "attention", "feed_forward", "head", "other")
    return ("self", "encoder", "decoder").index(place[0]), names.index(place[1])


@dataclass(frozen=True)
class Counted:
    """What one model computes for `n` tokens at once, and for one more behind them."""

    model: str
    label: str
    precision: str
    phases: tuple[Phase, ...]
    weights: int  # bytes of the whole model
    formula: int | None = None  # FLOPs of a decode step's products and attentions by inference/work.py

    @property
    def parts(self) -> list[Part]:
        return [part for phase in self.phases for part in phase.parts]

    @cached_property
    def passes(self) -> dict[str, Pass]:
        """What each phase runs in all."""
        return {phase.name: Pass.of(phase.parts) for phase in self.phases}


class _Counter:
    """Turns operators into `Operation`s and says where each belongs, from the weight that it reads."""

    def __init__(self, known: dict[int, Place], side: str) -> None:
        self.known, self.side = known, side
        self.places: list[Place] = []
        self.operations: list[Operation] = []

    def __call__(self, func: Any, args: Sequence[Any], output: Any) -> None:
        name, read, gave = func.__name__.split(".")[0], list(tensors(args)), list(tensors(output))
        place = next((self.known[one.data_ptr()] for one in read[::-1] if one.data_ptr() in self.known), None)
        if name in PRODUCTS and len(read) > 1:
            self.side = place[0] if place else self.side
            scores = place is None and min(one.dim() for one in read) > 2  # of two activations
            one, own = product_of(name, read, gave[0], place is not None), "attention" if scores else "other"
            place = place or (self.side, own)
        elif name.lstrip("_").startswith("scaled_dot_product"):
            one, place = attention_of(args, gave[0]), (self.side, "attention")
        else:
            one, place = elementwise_of(name, func, read, gave), (self.side, "other")
        self.places.append(place)
        self.operations.append(one)


def _places(loaded: LoadedModel, prompt: Prompt) -> dict[int, Place]:
    """Address of a weight -> the part of the model that it belongs to."""
    by_name = {
        f"{path}.{name}": place
        for path, module in loaded.model.named_modules()
        for name, _, place in own_weights(module)
    }
    found: dict[int, Place] = {}
    for side in architecture(loaded, prompt).sides:
        for block in side.blocks:
            for weight in block.weights if block.kind in PARTS else ():
                found[by_name[weight.name]] = side.name, PARTS[block.kind]
    return found


# ---- running it


class Runs:
    """The two phases of one model, ready to be run again and again: a prefill of n, a step that reads n + 1 keys."""

    def __init__(self, loaded: LoadedModel, prompt: Prompt, n: int) -> None:
        self.loaded, self.call = loaded, AttentionCall("flash")
        self.inputs = long_inputs(loaded, prompt, n)
        self.n = next(iter(self.inputs.values())).shape[1]
        self.decoding: Decoding | None = None
        if loaded.family != "encoder" and loaded.has_logits:
            with attention_call(self.call):
                self.decoding = loaded.decoding(self.inputs)
                self.decoding.logits()
            self.length = self.decoding.ids.shape[1]

    @property
    def phases(self) -> dict[str, Callable[[], Any]]:
        return {"prefill": self.prefill} | ({} if self.decoding is None else {"decode": self.decode})

    def prefill(self) -> None:
        self.loaded.run(self.inputs, self.call, all_logits=False)

    def ready(self, name: str) -> None:
        """A decode step begins where the one before began."""
        if name == "decode" and self.decoding is not None:
            self.decoding.rewind(self.length)
            self.decoding.append(self.decoding.ids[:, -1])

    def decode(self) -> None:
        assert self.decoding is not None
        with attention_call(self.call):
            self.decoding.logits()


def longest(loaded: LoadedModel) -> int:
    """Tokens that a prefill may have, so that a step still has a position."""
    return max(1, loaded.token_limit - 1)


def long_inputs(loaded: LoadedModel, prompt: Prompt, n: int) -> dict[str, Tensor]:
    """The typed tokens again and again, up to n on each side."""
    n = min(n, longest(loaded))
    if loaded.family == "decoder":
        return inputs_of_length(loaded, prompt, n)
    own = prompt.inputs["input_ids"]
    ids = own.repeat(1, n // own.shape[1] + 1)[:, :n]
    source = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if loaded.family == "encoder":
        return source
    return {**source, "decoder_input_ids": inputs_of_length(loaded, prompt, n)["decoder_input_ids"]}


def count(loaded: LoadedModel, prompt: Prompt, n: int = 128) -> Counted:
    """A job for `Scene.examine`: one watched pass of each phase."""
    runs, known = Runs(loaded, prompt, n), _places(loaded, prompt)
    phases = tuple(_count(runs, name, known) for name in runs.phases)
    formula = None
    if runs.decoding is not None:
        shape = decoder_shape(loaded, prompt)
        formula = 2 * with_cache(shape, runs.length + 1, runs.n if shape.cross else 0).total
    return Counted(loaded.id, loaded.label, loaded.precision, phases, loaded.weight_bytes, formula)


@torch.inference_mode()
def _count(runs: Runs, name: str, known: dict[int, Place]) -> Phase:
    family = runs.loaded.family
    first = "self" if family != "encoder-decoder" else "encoder" if name == "prefill" else "decoder"
    counter = _Counter(known, first)
    if name == "decode":  # the first step after a prefill prepares what later ones use
        runs.ready(name)
        runs.decode()
    runs.ready(name)
    with OperatorWatch(counter):
        runs.phases[name]()
    n = runs.n if name == "prefill" else runs.length + 1
    return Phase(name, n, tuple(counter.places), tuple(counter.operations))


# ---- timing it


@dataclass(frozen=True)
class Timed:
    """Seconds of each part, and of whole passes that nobody watched."""

    parts: dict[tuple[str, str, str], Latency]  # by Part.key: the sums of its operators' medians and quartiles
    whole: dict[str, Latency]  # by phase
    cost: float  # of reading the clock around one operator, taken off each


class Rounds:
    """Timings gathered round by round: between two of them the device is free, and probes may have their turn."""

    def __init__(self, loaded: LoadedModel, prompt: Prompt, counted: Counted, cost: float) -> None:
        self.runs, self.counted, self.cost = Runs(loaded, prompt, counted.phases[0].n), counted, cost
        self.whole: dict[str, list[float]] = {phase.name: [] for phase in counted.phases}
        self.seconds: dict[str, list[list[float]]] = {phase.name: [] for phase in counted.phases}

    def __call__(self, times: int = 3) -> Timed:
        """Each phase, plain and watched in turn, `times` times; an uncounted one first."""
        for phase in self.counted.phases:
            self._run(phase.name)
            for at in range(times):
                for watched in (False, True)[:: -1 if at % 2 else 1]:
                    if not watched:
                        self.whole[phase.name].append(self._run(phase.name))
                    elif len(found := self._watched(phase.name)) == len(phase.places):  # a cache that grew: left out
                        self.seconds[phase.name].append(found)
        return self.timed()

    def _run(self, name: str) -> float:
        self.runs.ready(name)
        return latency(self.runs.phases[name], repeats=1, warmup=0).median

    @torch.inference_mode()
    def _watched(self, name: str) -> list[float]:
        self.runs.ready(name)
        with OperatorClock() as clock:
            self.runs.phases[name]()
        return [max(one - self.cost, 0.0) for one in clock.seconds]

    def timed(self) -> Timed:
        parts: dict[tuple[str, str, str], Latency] = {}
        for phase in self.counted.phases:
            rounds = self.seconds[phase.name]
            if not rounds:
                continue
            quartiles = np.percentile(np.array(rounds), [50, 25, 75], axis=0)  # [3, operator]
            for part in phase.parts:
                mine = np.array([place == part.key[1:] for place in phase.places])
                middle, low, high = quartiles[:, mine].sum(1).tolist()
                parts[part.key] = Latency(middle, low, high, len(rounds))
        return Timed(parts, {name: Latency.of(one) for name, one in self.whole.items()}, self.cost)
