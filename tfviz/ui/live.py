"""A run while it grows and after: one thread makes its steps, and every drawing of it follows.

So a drawing for another head joins the run under way, one that nobody looks at any more ends, and "stop" is heard
between two steps.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from tfviz.ui.components.section import Scene

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.run import Plan, Run, TokenStep
    from tfviz.introspection.trace import Trace
    from tfviz.introspection.workbench import Workbench
    from tfviz.sources.base import LoadedModel, Prompt

KIND = "generate.steps"  # under which runs are kept with their trace
EVERY = 0.12  # seconds between two drawings of a growing run
GRACE = 0.15  # seconds without anybody who follows until a run ends
_starting = Lock()


@dataclass(eq=False)
class Live:
    """One run under its plan."""

    plan: "Plan"
    run: "Run | None" = None  # from the first step on
    ended: bool = False
    halted: bool = False  # before its own end: by a person, or because nobody followed
    error: Exception | None = None
    nbytes: int = 0  # once it has ended: counting takes milliseconds, and what is kept is counted often
    grown_id: str = ""  # of the trace of the sentence together with this run's tokens, once somebody wanted it
    rows: dict[Any, list[Any]] = field(default_factory=dict)  # (kind, layer, head) -> the steps' weights so far
    _news: Condition = field(default_factory=Condition)
    _followers: dict[int, Callable[[], bool]] = field(default_factory=dict)
    _seen: float = field(default_factory=monotonic)  # when somebody followed last
    _halt: bool = False

    @property
    def n_steps(self) -> int:
        return 0 if self.run is None else len(self.run.steps)

    def start(self, bench: "Workbench", trace_id: str) -> "Live":
        Thread(target=self._make, args=[bench, trace_id], daemon=True).start()
        return self

    def halt(self) -> None:
        """Ends it after the step under way, and waits until it has."""
        self._halt = True
        with self._news:
            self._news.wait_for(lambda: self.ended, timeout=30)

    def follow(self, stop: Callable[[], bool]) -> Iterator[int]:
        """How many steps are there: the first at once, then all that came in `EVERY` seconds, and at last all."""
        self._followers[id(stop)] = stop
        shown, due = 0, 0.0
        try:
            while not stop():
                n, ended = self._wait(shown, due)
                if self.error is not None and not n:
                    raise self.error
                if n > shown or (n and ended):
                    yield n
                if ended:
                    return
                shown, due = n, monotonic() + EVERY
        finally:
            self._followers.pop(id(stop), None)

    def _wait(self, shown: int, due: float) -> tuple[int, bool]:
        """(steps, ended) once there are more than `shown` and it is time, or it has ended, or half a second is over."""
        with self._news:
            self._news.wait_for(lambda: self.ended or self.n_steps > shown, timeout=0.5)
            self._news.wait_for(lambda: self.ended, timeout=max(0.0, due - monotonic()))
            return self.n_steps, self.ended

    def _unwanted(self) -> bool:
        if any(not stop() for stop in list(self._followers.values())):
            self._seen = monotonic()
        return self._halt or monotonic() - self._seen > GRACE

    def _make(self, bench: "Workbench", trace_id: str) -> None:
        from tfviz.introspection.generation import run_steps

        try:
            for step in bench.stream(trace_id, partial(run_steps, plan=self.plan), stop=self._unwanted):
                self._add(step)
        except Exception as error:  # raised again where it is followed
            self.error = error
        with self._news:
            self.halted = self.run is None or not self.run.finished
            self.nbytes = 0 if self.run is None else self.run.nbytes
            self.ended = True
            self._news.notify_all()

    def _add(self, step: "TokenStep") -> None:
        from tfviz.introspection.run import Run

        with self._news:
            self.run = self.run or Run(self.plan)
            self.run.steps.append(step)
            self._news.notify_all()


def live(scene: Scene, plan: "Plan", again: bool) -> Live:
    """The run of this plan: the one that is kept, or a new one. `again`: one that ended early is begun anew."""
    key = KIND, run_id(plan)
    with _starting:
        found: Live | None = scene.bench.recall(scene.trace_id, key)
        if found is None or found.error is not None or (again and found.ended and found.halted):
            found = Live(plan).start(scene.bench, scene.trace_id)
        scene.bench.remember(scene.trace_id, key, found)  # again: the one that was looked at last goes last
    return found


def run_id(plan: "Plan") -> str:
    """What a browser calls the run of this plan by."""
    return hashlib.sha256(repr(plan).encode()).hexdigest()[:12]


def grown(bench: "Workbench", trace_id: str, run: str) -> "tuple[str, Trace]":
    """(id, trace) of a sentence together with what a run has written after it; `Gone` if there is no such run."""
    from tfviz.introspection.workbench import Gone

    found: Live | None = bench.recall(trace_id, (KIND, run))
    if found is None or found.run is None or not found.ended:
        raise Gone
    trace = bench.find(found.grown_id)
    if trace is None:
        trace, prompt = next(bench.stream(trace_id, partial(_grow, run=found.run)))
        found.grown_id = bench.keep(trace, prompt)
    return found.grown_id, trace


def _grow(loaded: "LoadedModel", prompt: "Prompt", run: "Run") -> "Iterator[tuple[Trace, Prompt]]":
    from tfviz.introspection import grown

    yield grown.grown(loaded, prompt, run)
