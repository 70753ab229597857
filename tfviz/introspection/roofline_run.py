"""A roofline measured: probes of the machine and parts of a model in turn, so that what else it does falls on both.

error = (predicted - measured) / measured        of each part; the verdict is the median of |error|

Two of the machine's limits are measured once more behind the parts. Where they moved by more than a prediction may be
off, or threads had to wait for a processor, something else was using the machine, and neither the prediction nor the
parts say what an idle one would do.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

from tfviz.inference.contention import QUIET, Contention
from tfviz.inference.measure import Latency
from tfviz.inference.operator_clock import reading_cost
from tfviz.inference.records import Record, Setting, latency_record, now
from tfviz.inference.roofline import (
    DTYPES,
    READ,
    Part,
    Prediction,
    Probe,
    Roofs,
    machine_probes,
    peak_probe,
    predict,
    probes,
    read_probes,
)
from tfviz.inference.roofline_probes import measure, steps, together
from tfviz.introspection.roofline_parts import Counted, Rounds, Timed
from tfviz.sources.base import LoadedModel, Prompt

CYCLES = 3  # times that everything is measured
BUDGET = 30.0  # seconds: a cycle that would end later, if it takes as long as those before, does not begin
RUNS = 3  # timed runs of each phase in a cycle
EXPERIMENT = "roofline"
MOVED = 0.25  # by which a limit may move during a measurement


@dataclass(frozen=True, eq=False)
class Found:
    """What has been measured so far; a part's prediction is made of the probes there are."""

    counted: Counted
    roofs: Roofs
    timed: Timed | None
    part: float  # 0..1
    moved: Mapping[str, float] = field(default_factory=dict)  # by limit: slowest over fastest time of it, less 1
    held_up: float = 0.0  # share of the threads' time that they waited for a processor

    @property
    def busy(self) -> bool:
        """Whether something else was using the machine."""
        return self.held_up > QUIET or any(one > MOVED for one in self.moved.values())

    def predicted(self, part: Part) -> Prediction:
        return predict(part, self.roofs, self.counted.passes[part.phase])

    def error(self, part: Part) -> float | None:
        """(predicted - measured) / measured; lower quartiles, for what else the machine does only adds."""
        took = self.measured(part)
        return None if took is None else self.predicted(part).seconds / took.low - 1

    def measured(self, part: Part) -> Latency | None:
        return None if self.timed is None else self.timed.parts.get(part.key)

    @property
    def median_error(self) -> float | None:
        errors = [abs(one) for one in map(self.error, self.counted.parts) if one is not None]
        return median(errors) if errors else None

    def sums(self, phase: str) -> tuple[float, float, float] | None:
        """Seconds of one phase: its parts' measured sum, the whole pass measured, the parts' predicted sum."""
        parts = [one for one in self.counted.parts if one.phase == phase]
        took = [one for one in map(self.measured, parts) if one is not None]
        if self.timed is None or len(took) < len(parts):
            return None
        predicted = sum(self.predicted(one).seconds for one in parts)
        return sum(one.low for one in took), self.timed.whole[phase].low, predicted


def run(loaded: LoadedModel, prompt: Prompt, counted: Counted, cycles: int = CYCLES) -> Iterator[Found]:
    """A job for `Scene.stream`: between two steps the device is free and a stop is heard."""
    wanted = [*machine_probes(), *probes(one for part in counted.parts for one in part.operations)]
    groups = steps(list(dict.fromkeys(wanted)))
    device, threads = loaded.device, _threads(loaded)
    cost, begun = reading_cost(device), perf_counter()
    times: dict[Probe, list[Latency]] = {}
    rounds, timed, contention = Rounds(loaded, prompt, counted, cost), None, Contention()
    for cycle in range(cycles):
        if cycle and (perf_counter() - begun) * (cycle + 1) / cycle > BUDGET:
            break
        for at, group in enumerate(groups):
            with contention.watched():
                for probe, took in measure(group, str(device), cost).items():
                    times.setdefault(probe, []).append(took)
            roofs = Roofs(str(device), threads, {probe: together(one) for probe, one in times.items()})
            yield Found(counted, roofs, timed, (cycle + 0.7 * (at + 1) / len(groups)) / cycles)
        with contention.watched():
            timed = rounds(RUNS)
            for probe, took in measure(list(steady().values()), str(device), cost).items():
                times.setdefault(probe, []).append(took)
        yield Found(counted, roofs, timed, min((cycle + 1) / cycles, 0.999), moved(times), contention.share)
    yield Found(counted, roofs, timed, 1.0, moved(times), contention.share)


def steady() -> dict[str, Probe]:
    """Limits that are measured on both sides of the parts."""
    return {"bandwidth": read_probes()[-1], "throughput": peak_probe("fp32")}


def moved(times: Mapping[Probe, Sequence[Latency]]) -> dict[str, float]:
    """How far these limits moved, from the fastest lower quartile to the slowest median."""
    found = {name: times[probe] for name, probe in steady().items() if probe in times}
    return {name: max(one.median for one in took) / min(one.low for one in took) - 1 for name, took in found.items()}


def _threads(loaded: LoadedModel) -> int | None:
    from tfviz.inference.device import describe

    return describe(loaded.device).threads


# ---- as records


def records(found: Found) -> list[Record]:
    """The machine's limits, and each part measured and predicted."""
    return [*_of_machine(found.roofs), *(one for part in found.counted.parts for one in _of_part(found, part))]


def _of_machine(roofs: Roofs) -> Iterator[Record]:
    at = now()
    for nbytes in READ:
        if Probe("read", inner=nbytes) in roofs.times:
            yield Record(EXPERIMENT, {"working_set": nbytes}, "bandwidth", roofs.bandwidth(nbytes), "B/s", at=at)
    for dtype in DTYPES:
        peak = roofs.peak(dtype)
        if peak is not None:
            yield Record(EXPERIMENT, {"dtype": dtype}, "throughput", peak, "FLOP/s", at=at)


def _of_part(found: Found, part: Part) -> Sequence[Record]:
    counted, took = found.counted, found.measured(part)
    if took is None:
        return ()
    n = next(phase.n for phase in counted.phases if phase.name == part.phase)
    setting: dict[str, Setting] = {"model": counted.model, "precision": counted.precision, "phase": part.phase}
    setting |= {"side": part.side, "part": part.name, "n": n}
    figures = (("predicted_latency", found.predicted(part).seconds, "s"), ("flops", part.flops, "FLOP"))
    said = [Record(EXPERIMENT, setting, name, value, unit, at=now()) for name, value, unit in figures]
    moved = Record(EXPERIMENT, setting, "bytes", part.nbytes, "B", at=now())
    return (latency_record(EXPERIMENT, setting, took), *said, moved)
