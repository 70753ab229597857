"""Where texts meet models: runs traces and measurements, one heavy call at a time, and keeps the recent traces.

The page and `tfviz.trace` both go through it. Whatever it returns is CPU data.
"""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar

import torch

from tfviz.config import Settings
from tfviz.errors import Overtaken
from tfviz.inference.device import DeviceGate, give_back_memory, on_device
from tfviz.inference.measure import Difference, Latency, difference, latency, peak_extra_bytes
from tfviz.introspection.answer import candidates_of
from tfviz.introspection.capture import capture
from tfviz.introspection.results import Results
from tfviz.introspection.trace import Trace
from tfviz.model.attention_call import AttentionCall
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.resident import Progress, Resident

R = TypeVar("R")
COMPARED = 256  # outputs are compared at the last so many positions
KEPT_REFERENCES = 4
KEPT_FINDINGS = 16  # of one trace
LONG = 256  # tokens from which a run leaves enough freed memory behind to be worth giving back


class Gone(Exception):
    """The trace is no longer kept."""


@dataclass(frozen=True)
class Request:
    """A text and the switches to look at it with."""

    first: str
    second: str | None
    model: str
    kernel: str = "flash"
    precision: str = "fp32"

    @property
    def text(self) -> tuple[str, str | None]:
        return self.first, self.second


@dataclass(frozen=True)
class Measurement:
    """What one setting of the switches costs for one prompt, and how far its output is from FP32 naive."""

    kernel: str
    precision: str
    latency: Latency
    peak_bytes: int  # beyond what was allocated before the call
    weight_bytes: int
    difference: Difference


@dataclass(frozen=True)
class _Kept:
    trace: Trace
    prompt: Prompt
    found: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict)  # what `examine` found out about it

    @property
    def nbytes(self) -> int:
        return self.trace.nbytes + sum(getattr(one, "nbytes", 0) for one in list(self.found.values()))


class Workbench:
    """Resident models, the device's gate, the traces that open pages still look at, and what was measured here."""

    def __init__(self, settings: Settings, resident: Resident | None = None) -> None:
        self.settings = settings
        self.resident = resident or Resident(settings)
        self.gate = DeviceGate()
        self.measuring = DeviceGate()  # one long measurement at a time; each of its steps takes a turn at `gate`
        self.results = Results()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._references: OrderedDict[tuple[object, ...], torch.Tensor] = OrderedDict()
        self._lock = threading.Lock()
        self._traced = on_device(self._trace_now)
        self._measured = on_device(self._measure_now)
        self._examined = on_device(self._examine_now)
        self._computed = on_device(_compute_now)
        self._streamed = on_device(self._stream_now)

    def trace(
        self,
        request: Request,
        *,
        layers: Collection[int] | None = None,
        overview: bool = False,
        limit: int | None = None,
        progress: Progress | None = None,
        waiting: Callable[[int], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
        memory: bool = False,
    ) -> tuple[str, Trace]:
        """(id, trace). The id finds the trace again with `find` until newer ones need its room.

        `stop` is asked when the device is there: `Overtaken` if nobody wants the trace any more. `memory` counts the
        call's peak of allocated bytes as well, which takes it about a tenth longer.
        """
        self.resident.get(request.model, request.precision, progress)
        with self.gate.turn(waiting):
            if stop():
                raise Overtaken
            kept = self._traced(request, layers, overview, limit, memory)
            if kept.prompt.n_tokens > LONG:
                give_back_memory()
        return self._keep(kept), kept.trace

    def find(self, trace_id: str) -> Trace | None:
        with self._lock:
            if trace_id in self._kept:
                self._kept.move_to_end(trace_id)
                return self._kept[trace_id].trace
        return None

    def measure(
        self,
        trace_id: str,
        kernel: str,
        precision: str,
        *,
        repeats: int = 5,
        progress: Progress | None = None,
        stop: Callable[[], bool] = lambda: False,
        give_way: bool = False,
    ) -> Measurement | None:
        """Times the traced prompt under other switches. None if the trace is gone, or if it was stopped too early.

        `stop` ends it between two runs; with `give_way` so does a trace that waits for the device.
        """
        with self._lock:
            kept = self._kept.get(trace_id)
        if kept is None:
            return None
        self.resident.get(kept.trace.model, precision, progress)
        with self.gate.turn(patient=True) as turn:
            ends = (lambda: stop() or turn.contended()) if give_way else stop
            measured = self._measured(kept, kernel, precision, repeats, ends)
            if kept.prompt.n_tokens > LONG:
                give_back_memory()
            return measured

    def examine(
        self,
        trace_id: str,
        job: Callable[[LoadedModel, Prompt], R],
        key: Hashable,
        *,
        stop: Callable[[], bool] = lambda: False,
    ) -> R | None:
        """`job(model, prompt)` of a trace, run once and kept under `key` as long as the trace is; None if that is gone.

        `job` can be pickled (a module's function or a `partial` of one): on ZeroGPU it runs in another process.
        """
        with self._lock:
            kept = self._kept.get(trace_id)
        if kept is None:
            return None
        if key not in kept.found:
            self.resident.get(kept.trace.model, kept.trace.precision)
            with self.gate.turn():
                if stop():
                    raise Overtaken
                if key not in kept.found:  # another page may have asked for it meanwhile
                    kept.found[key] = self._examined(kept.trace.model, kept.trace.precision, kept.prompt, job)
        with self._lock:
            found: R = kept.found[key]
            self._trim(kept, key)
        return found

    def stream(
        self,
        trace_id: str,
        job: Callable[[LoadedModel, Prompt], Iterator[R]],
        *,
        stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[R]:
        """The steps that `job(model, prompt)` of a trace yields. Between two of them the device is free for others.

        Ends early when `stop()` is true. `job` can be pickled, as in `examine`, and holds no context over a `yield`:
        each step may run in another thread. `Gone` if the trace is no longer kept.
        """
        kept = self._kept_trace(trace_id)
        self.resident.get(kept.trace.model, kept.trace.precision)
        steps: Iterator[Any] = self._streamed(kept.trace.model, kept.trace.precision, kept.prompt, job)
        end: Any = object()
        while not stop():
            with self.gate.turn():
                step = end if stop() else next(steps, end)
            if step is end:
                return
            yield step

    def recall(self, trace_id: str, key: Hashable) -> Any:
        """What `remember` or `examine` keeps of a trace under `key`; None if there is nothing."""
        return self._kept_trace(trace_id).found.get(key)

    def remember(self, trace_id: str, key: Hashable, value: Any) -> None:
        """Keeps `value` with the trace, as `examine` keeps what it finds; it counts by its `nbytes`."""
        kept = self._kept_trace(trace_id)
        with self._lock:
            kept.found[key] = value
            self._trim(kept, key)

    def keep(self, trace: Trace, prompt: Prompt) -> str:
        """Keeps a trace that was made elsewhere, and gives its id."""
        return self._keep(_Kept(trace, prompt))

    def forget(self, trace_id: str) -> None:
        """Gives a trace back before newer ones need its room, with those that runs have grown from it."""
        with self._lock:
            kept = self._kept.pop(trace_id, None)
        for finding in list(kept.found.values()) if kept is not None else ():
            if grown := getattr(finding, "grown_id", ""):
                self.forget(grown)

    def prompt_of(self, trace_id: str) -> Prompt:
        return self._kept_trace(trace_id).prompt

    def compute(self, job: Callable[..., R], *args: Any) -> R:
        """`job(*args)` while nobody else uses the device, for measurements that need quiet; `job` as in `examine`."""
        with self.gate.turn():
            result: R = self._computed(job, *args)
            return result

    def _examine_now(
        self, model: str, precision: str, prompt: Prompt, job: Callable[[LoadedModel, Prompt], Any]
    ) -> Any:
        return job(self.resident.get(model, precision), prompt)

    def _stream_now(
        self, model: str, precision: str, prompt: Prompt, job: Callable[[LoadedModel, Prompt], Iterator[Any]]
    ) -> Iterator[Any]:
        yield from job(self.resident.get(model, precision), prompt)

    def _kept_trace(self, trace_id: str) -> _Kept:
        with self._lock:
            if trace_id not in self._kept:
                raise Gone
            self._kept.move_to_end(trace_id)
            return self._kept[trace_id]

    def _trim(self, kept: _Kept, newest: Hashable) -> None:
        kept.found.move_to_end(newest)
        while len(kept.found) > KEPT_FINDINGS:
            kept.found.popitem(last=False)
        self._make_room()

    def _trace_now(
        self, request: Request, layers: Collection[int] | None, overview: bool, limit: int | None, memory: bool
    ) -> _Kept:
        loaded = self.resident.get(request.model, request.precision)
        prompt = loaded.prompt(request.first, request.second, limit)
        done: list[Trace] = []

        def run() -> None:
            done.append(capture(loaded, prompt, request.text, kernel=request.kernel, layers=layers, overview=overview))

        peak = peak_extra_bytes(run, loaded.device) if memory else None
        if not memory:
            run()
        trace = done[0]
        if trace.answer is not None:
            trace = replace(
                trace, answer=replace(trace.answer, candidates=candidates_of(loaded, prompt, request.kernel))
            )
        return _Kept(replace(trace, cost=replace(trace.cost, peak_bytes=peak)), prompt)

    def _measure_now(
        self, kept: _Kept, kernel: str, precision: str, repeats: int, stop: Callable[[], bool]
    ) -> Measurement | None:
        loaded = self.resident.get(kept.trace.model, precision)
        call = AttentionCall(kernel)
        output = _compared(loaded, kept.prompt, call)
        if stop():
            return None
        reference = self._reference(kept, loaded)
        if stop():
            return None
        took = latency(lambda: loaded.forward(kept.prompt, call), repeats=repeats, warmup=0, stop=stop)
        return Measurement(
            kernel=kernel,
            precision=precision,
            latency=took,
            peak_bytes=peak_extra_bytes(lambda: loaded.forward(kept.prompt, call), loaded.device),
            weight_bytes=loaded.weight_bytes,
            difference=difference(reference, output, is_logits=loaded.has_logits),
        )

    def _reference(self, kept: _Kept, loaded: LoadedModel) -> torch.Tensor:
        """The FP32 naive output of this prompt, kept for the next setting tried on it."""
        source, target = kept.prompt.source, tuple(token.id for token in kept.prompt.target)
        key = (loaded.id, loaded.revision, tuple(source.ids), source.segments, target)
        with self._lock:
            found = self._references.get(key)
        if found is None:
            exact = self.resident.get(kept.trace.model, "fp32")
            found = _compared(exact, kept.prompt, AttentionCall("naive"))
            with self._lock:
                self._references[key] = found
                while len(self._references) > KEPT_REFERENCES:
                    self._references.popitem(last=False)
        return found

    def _keep(self, kept: _Kept) -> str:
        trace_id = secrets.token_urlsafe(12)
        with self._lock:
            self._kept[trace_id] = kept
            self._make_room()
        return trace_id

    def _make_room(self) -> None:
        while len(self._kept) > 1 and sum(kept.nbytes for kept in self._kept.values()) > self.settings.trace_budget:
            self._kept.popitem(last=False)


def _compute_now(job: Callable[..., Any], *args: Any) -> Any:
    return job(*args)


def _compared(loaded: LoadedModel, prompt: Prompt, call: AttentionCall) -> torch.Tensor:
    """The output at the last `COMPARED` positions, on the CPU: (position, vocabulary or feature)."""
    return loaded.forward(prompt, call)[0, -COMPARED:].float().cpu().clone()


@cache
def default_workbench() -> Workbench:
    """The one of this process, with settings from the environment."""
    return Workbench(Settings.from_environment())
