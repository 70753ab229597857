"""The path-length measurement from end to end, in steps: gradients, times, learning; what it found, and as records."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from tfviz.inference.measure import Latency
from tfviz.inference.records import Record, Setting, latency_record, now
from tfviz.introspection.experiments.recall import AT_ONCE, DISTANCES, STEPS, Student, accuracy, students, train
from tfviz.introspection.experiments.recurrent import (
    KINDS,
    LENGTHS,
    SEEDS,
    TIMED,
    RecurrentSetting,
    decay,
    gradients,
    parameters_of,
    powers,
    relative_quartiles,
    times,
)
from tfviz.introspection.growth import crossing, fit

WAYS = {"forward": False, "backward": True}  # backward: forward and backward
Compute = Callable[..., Any]  # compute(job, *args)


@dataclass(frozen=True, eq=False)
class Finding:
    """What was measured so far; everything in it by kind of layer (see recurrent.KINDS)."""

    setting: RecurrentSetting
    gradients: Mapping[str, Float[np.ndarray, "seed distance"]] = field(default_factory=dict)
    times: Mapping[str, Mapping[int, Mapping[str, Latency]]] = field(default_factory=dict)  # way -> n -> kind
    accuracy: Mapping[tuple[str, int], float] = field(default_factory=dict)  # (kind, distance) -> share right
    part: float = 0.0

    @property
    def seeds(self) -> int:
        return len(next(iter(self.gradients.values()), ()))

    def decays(self) -> dict[str, float]:
        """Factor a step of the median gradient, by kind."""
        medians = {kind: relative_quartiles(one)[1] for kind, one in self.gradients.items() if kind in KINDS}
        fits = {kind: decay(one) for kind, one in medians.items()}
        return {kind: one.per_step for kind, one in fits.items() if one is not None}

    def farthest(self) -> dict[str, float]:
        """The median gradient at the longest distance, relative to distance 1."""
        return {kind: float(relative_quartiles(one)[1, -1]) for kind, one in self.gradients.items() if kind in KINDS}

    def lengths(self, way: str) -> list[int]:
        return sorted(self.times.get(way, {}))

    def latencies(self, way: str) -> dict[str, list[Latency]]:
        return {kind: [self.times[way][n][kind] for n in self.lengths(way)] for kind in TIMED}

    def exponents(self, way: str) -> dict[str, float]:
        """Of time against n over the longer half; nothing before there are three lengths."""
        n = self.lengths(way)
        fits = {kind: fit(n, [one.median for one in took]) for kind, took in self.latencies(way).items()}
        return {kind: one.exponent for kind, one in fits.items() if one is not None}

    def crossing(self, way: str) -> tuple[str, float] | None:
        """The first recurrent layer to overtake attention for good, and from which n on; None: none does."""
        n, took = self.lengths(way), self.latencies(way)
        ours = [one.median for one in took["attention"]]
        met = {kind: crossing(n, [one.median for one in took[kind]], ours) for kind in TIMED if kind != "attention"}
        return min(((kind, at) for kind, at in met.items() if at is not None), key=lambda one: one[1], default=None)

    def last(self, way: str) -> tuple[int, Mapping[str, Latency]] | None:
        n = self.lengths(way)
        return (n[-1], self.times[way][n[-1]]) if n else None


Step = Callable[[Finding, Compute], Finding]


def sweep(
    setting: RecurrentSetting,
    longest: int,
    device: str,
    compute: Compute,
    stop: Callable[[], bool],
    *,
    seeds: int = SEEDS,
    lengths: Sequence[int] = LENGTHS,
    taught: Sequence[int] = DISTANCES,
) -> Iterator[Finding]:
    """Grows by one seed, one length or one lesson; each computes by `compute(job, *args)`, and then a stop is heard."""
    found = Finding(setting)
    steps: list[tuple[float, Step]] = []  # the seconds that each is expected to take
    steps += [(0.25 * longest / 256, partial(_seed, longest, seed)) for seed in range(seeds)]
    steps += [
        (0.3 + n / 1600 * (1 + backward), partial(_length, n, way, device))
        for n in lengths
        for way, backward in WAYS.items()
    ]
    steps += [(0.2 + distance / 35, partial(_lesson, kind, distance, stop)) for kind, distance in students(taught)]
    whole, done = sum(cost for cost, _ in steps), 0.0
    for i, (cost, step) in enumerate(steps, start=1):
        found, done = step(found, compute), done + cost
        found = replace(found, part=1.0 if i == len(steps) else done / whole)
        yield found
        if stop():
            return


def _seed(longest: int, seed: int, found: Finding, compute: Compute) -> Finding:
    new = compute(gradients, found.setting, longest, seed)
    rows = {kind: [*found.gradients.get(kind, ()), one] for kind, one in new.items()}
    return replace(found, gradients={kind: np.array(one) for kind, one in rows.items()})


def _length(n: int, way: str, device: str, found: Finding, compute: Compute) -> Finding:
    of_way = {**found.times.get(way, {}), n: compute(times, n, found.setting, WAYS[way], device)}
    return replace(found, times={**found.times, way: of_way})


def _lesson(kind: str, distance: int, stop: Callable[[], bool], found: Finding, compute: Compute) -> Finding:
    """One student taught from its start to its end; between two parts of the lesson others may use the device."""
    student = Student(kind, found.setting, distance)
    while student.steps < STEPS:
        if stop():
            return found
        student = compute(train, student, min(AT_ONCE, STEPS - student.steps))
    return replace(found, accuracy={**found.accuracy, (kind, distance): accuracy(student)})


# ---- for export


def records_of(found: Finding) -> list[Record]:
    """Flat rows: gradients at distances 1, 2, 4 ..., decays, times and what was learned."""
    rows: list[Record] = []
    setting: dict[str, Setting] = {"width": found.setting.width, "equal": found.setting.equal}
    sizes = {kind: parameters_of(kind, found.setting) for kind in KINDS}
    at, seeds = now(), found.seeds
    for kind, norms in found.gradients.items():
        if kind not in KINDS:
            continue
        low, middle, high = relative_quartiles(norms)
        own: dict[str, Setting] = {"layer": kind, "parameters": sizes[kind], **setting}
        for k in powers(norms.shape[1]):
            value, first, third = (float(one[k - 1]) for one in (middle, low, high))
            row = Record("recurrent", {**own, "distance": k}, "relative_gradient", value, "1", first, third, seeds, at)
            rows.append(row)
    for kind, per_step in found.decays().items():
        own = {"layer": kind, "longest": found.gradients[kind].shape[1], **setting}
        rows.append(Record("recurrent", own, "decay_per_step", per_step, "1", runs=seeds, at=at))
    for way, by_length in found.times.items():
        for n, took in by_length.items():
            for kind, one in took.items():
                own = {"layer": kind, "n": n, "pass": way, "dtype": "fp32", **setting}
                rows.append(latency_record("recurrent", own, one))
    for (kind, distance), right in found.accuracy.items():
        own = {"layer": kind, "distance": distance, "steps": STEPS, **setting}
        rows.append(Record("recurrent", own, "accuracy", right, "1", runs=1, at=at))
    return rows
