"""Kernels over growing sizes: n = 64, 128 ... with a guard before each, so that neither memory nor patience runs out.

A kernel that would need too much memory, or too much time by n^2 from its last size, is refused and named; the others
go on without it: the fused one reaches sizes at which the naive one's matrices fit nowhere.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tfviz.inference.free_memory import free_bytes
from tfviz.inference.records import Record, Setting, latency_record, now
from tfviz.introspection.experiments.flex import Prepared, hindrance, prepare
from tfviz.introspection.experiments.kernels import (
    ROUNDS,
    KernelPoint,
    KernelSetting,
    add,
    enough,
    fused_bytes,
    look,
    naive_bytes,
    rounds_of,
    time_some,
)

SHORTEST, LONGEST = 64, 32768
BUDGET = 45.0  # seconds of the whole sweep, with compiling
UNCOMPILED = 25.0  # of them for the kernels that need no compiling, however long flex takes for it
MEMORY_SHARE = 0.6  # of what is free
UNCOUNTED = 2  # calls of each kernel besides the timed ones: warm-up, peak
STEADY = 1024  # below, a point takes about the same time whatever n is

Compute = Callable[..., Any]  # job, *arguments -> its result, when the device is free


@dataclass(frozen=True)
class Refusal:
    """A kernel that was not run from `n` on."""

    kernel: str
    n: int
    why: str  # memory | time | failed, or of flex.hindrance
    need: float = 0.0  # bytes or seconds
    limit: float = 0.0
    words: str = ""  # what PyTorch said


@dataclass(frozen=True)
class Sweep:
    """What has been measured so far; `base.n` is the largest size that was asked for."""

    base: KernelSetting
    kernels: tuple[str, ...]
    points: tuple[KernelPoint, ...] = ()
    refused: tuple[Refusal, ...] = ()
    part: float = 0.0
    limit: int | None = None  # bytes that a kernel may need here; None: not known
    compiling: float = 0.0  # seconds that flex took to compile

    @property
    def lengths(self) -> tuple[int, ...]:
        return lengths(self.base.n)


def lengths(largest: int) -> tuple[int, ...]:
    return tuple(2**i for i in range(SHORTEST.bit_length() - 1, 32) if 2**i <= largest)


def need(setting: KernelSetting, kernel: str) -> int:
    """Bytes by the formula, with q, k and v themselves (and their gradients' pull)."""
    own = naive_bytes(setting) if kernel == "naive" else fused_bytes(setting)
    return own + (3 + setting.backward) * setting.rows


def memory_limit(device: str) -> int | None:
    free = free_bytes(torch.device(device))
    return None if free is None else int(MEMORY_SHARE * free)


def too_large(base: KernelSetting, kernels: Sequence[str], limit: int | None) -> tuple[Refusal, ...]:
    """Each kernel's first size that does not fit, known without running anything."""
    found = []
    for kernel in kernels:
        sizes = ((n, need(replace(base, n=n), kernel)) for n in lengths(base.n))
        first = next(((n, size) for n, size in sizes if limit is not None and size > limit), None)
        if first is not None and limit is not None:
            found.append(Refusal(kernel, first[0], "memory", first[1], limit))
    return tuple(found)


def too_slow(points: Sequence[KernelPoint], n: int, kernels: Sequence[str], spent: float) -> tuple[Refusal, ...]:
    """Kernels for which, by n^2 from their last size, the budget is too small; the quickest ones are kept."""
    if not points:
        return ()
    took = points[-1].latency
    guesses = {k: (n / points[-1].setting.n) ** 2 * took[k].median * (ROUNDS[0] + UNCOUNTED) for k in kernels}
    found = []
    for kernel, guess in sorted(guesses.items(), key=lambda pair: pair[1]):
        if spent + guess > BUDGET:
            found.append(Refusal(kernel, n, "time", guess, BUDGET - spent))
        else:
            spent += guess
    return tuple(found)


def cost_of(point: KernelPoint) -> float:
    return sum(took.median * (took.runs + UNCOUNTED) for took in point.latency.values())


def sweep(
    base: KernelSetting, kernels: Sequence[str], device: str, compute: Compute, stop: Callable[[], bool]
) -> Iterator[Sweep]:
    """Grows by rounds at a size, then by sizes; ends early on `stop()`, and every yield holds all that was found."""
    limit = unhurried(compute, memory_limit, device, device=device)
    refused = hindrance_of(base, kernels, device)
    refused += too_large(base, [one for one in kernels if one not in _names(refused)], limit)
    now_at = Sweep(base, tuple(kernels), (), refused, 0.0, limit)
    yield now_at
    sizes = lengths(base.n)
    whole = sum(map(_share, sizes))
    for i, n in enumerate(sizes):
        setting, done = replace(base, n=n), sum(map(_share, sizes[:i])) / whole
        now_at = _guarded(now_at, setting, device, compute)
        running = _running(now_at, n)
        if not running:
            break
        seconds: dict[str, list[float]] = {}
        while not enough(seconds):
            if stop():
                return
            add(seconds, compute(time_some, setting, device, running, rounds_of(seconds)))
            if not enough(seconds):
                some = rounds_of(seconds) / (ROUNDS[0] + 1)
                yield replace(now_at, part=done + min(some, 1.0) * _share(n) / whole)
        if stop():
            return
        point = compute(look, setting, device, running, seconds)
        now_at = replace(now_at, points=(*now_at.points, point), part=done + _share(n) / whole)
        yield now_at
    yield replace(now_at, part=1.0)


def _running(found: Sweep, n: int) -> list[str]:
    return [kernel for kernel in found.kernels if all(one.kernel != kernel or n < one.n for one in found.refused)]


def _guarded(found: Sweep, setting: KernelSetting, device: str, compute: Compute) -> Sweep:
    """With what is refused at this size: for its time by what was measured, or because it does not compile."""
    n, spent, running = setting.n, sum(map(cost_of, found.points)), _running(found, setting.n)
    others = [one for one in running if one != "flex"]
    refused = too_slow(found.points, n, others, spent + min(found.compiling, BUDGET - UNCOMPILED))
    if "flex" in running:
        refused += too_slow(found.points, n, ["flex"], spent + found.compiling)
    found = replace(found, refused=found.refused + refused)
    if "flex" not in _running(found, n):
        return found
    first: Prepared = unhurried(compute, prepare, setting, device, device=device)
    found = replace(found, compiling=found.compiling + first.seconds)
    if first.failed:
        return replace(found, refused=(*found.refused, Refusal("flex", n, "failed", words=first.failed)))
    return found


def unhurried(compute: Compute, job: Callable[..., Any], *args: Any, device: str) -> Any:
    """`job(*args)`, which needs no quiet: on the CPU others use the device meanwhile."""
    return job(*args) if device == "cpu" else compute(job, *args)


def _names(refused: Sequence[Refusal]) -> set[str]:
    return {one.kernel for one in refused}


def _share(n: int) -> int:
    return int(n**2 + STEADY**2)


def hindrance_of(base: KernelSetting, kernels: Sequence[str], device: str) -> tuple[Refusal, ...]:
    why = hindrance(base.backward, device) if "flex" in kernels else None
    return () if why is None else (Refusal("flex", SHORTEST, why),)


def records(found: Sweep) -> list[Record]:
    """Every figure of the sweep on its own, for export."""
    flat: list[Record] = []
    at = now()
    for point in found.points:
        for kernel, took in point.latency.items():
            setting = _setting(point, kernel)
            flat.append(latency_record("kernels", setting, took))
            flat.append(Record("kernels", setting, "peak_bytes", point.peak_bytes[kernel], "B", at=at))
            for name, apart in (("max_abs", point.max_abs), ("gradient_max_abs", point.gradient_abs)):
                if kernel in apart:
                    flat.append(Record("kernels", setting, name, apart[kernel], "1", at=at))
    return flat


def _setting(point: KernelPoint, kernel: str) -> dict[str, Setting]:
    one = point.setting
    passes = "forward+backward" if one.backward else "forward"
    fields: dict[str, Setting] = {"n": one.n, "kernel": kernel, "dtype": one.dtype, "pass": passes}
    fields |= {"batch": one.batch, "heads": one.heads, "head_dim": one.head_dim, "causal": one.causal}
    return fields | ({"backend": point.backend[kernel]} if kernel in point.backend else {})
