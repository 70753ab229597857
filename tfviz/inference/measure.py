"""What a computation costs and how far two results are apart: wall time with its spread, peak memory, agreement."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isnan
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._profiler import ProfilerActivity, ProfilerConfig, ProfilerState, RecordScope, _ExperimentalConfig
from torch.autograd import _disable_profiler, _enable_profiler, _prepare_profiler

POSITIONS_AT_ONCE = 32  # rows of logits compared together: 6 MiB in FP32 for a vocabulary of 49,152

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler otherwise prints two lines a measurement


@dataclass(frozen=True)
class Latency:
    """Wall time of one call in seconds: median and quartiles over `runs` measured calls."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Latency":
        low, median, high = np.percentile(seconds, [25, 50, 75])
        return cls(float(median), float(low), float(high), len(seconds))


def never() -> bool:
    return False


def latency(
    fn: Callable[[], Any],
    *,
    repeats: int = 5,
    budget: float = 0.6,
    warmup: int = 1,
    stop: Callable[[], bool] = never,
) -> Latency:
    """Calls `fn` `warmup` times uncounted, then up to `repeats` times; ends early once `budget` seconds are spent on
    measured calls or `stop()` is true, but never without one measured call."""
    for _ in range(warmup):
        fn()
    seconds = [seconds_of(fn)]
    while len(seconds) < repeats and sum(seconds) < budget and not stop():
        seconds.append(seconds_of(fn))
    return Latency.of(seconds)


def compare(fns: dict[str, Callable[[], Any]], rounds: int, *, stop: Callable[[], bool] = never) -> dict[str, Latency]:
    """Each function's latency from `rounds` rounds that call all of them, every second round in reverse order, so that
    what else the machine does falls on all alike. One uncounted call of each first; at least one round."""
    for fn in fns.values():
        fn()
    seconds: dict[str, list[float]] = {name: [] for name in fns}
    for number in range(max(rounds, 1)):
        if number and stop():
            break
        for name in list(fns)[:: -1 if number % 2 else 1]:
            seconds[name].append(seconds_of(fns[name]))
    return {name: Latency.of(measured) for name, measured in seconds.items()}


def seconds_of(fn: Callable[[], Any]) -> float:
    """Wall time of one call, waiting before and after for what an accelerator was told to do."""
    _synchronise()
    start = time.perf_counter()
    fn()
    _synchronise()
    return time.perf_counter() - start


def _synchronise() -> None:
    """Waits for work that an accelerator was only told to do."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()


def peak_extra_bytes(fn: Callable[[], Any], device: torch.device) -> int:
    """The most bytes alive at once, while `fn` ran, of tensors that it made.

    CPU: every allocation of PyTorch in this thread (what `fn` frees of older memory is not subtracted); CUDA: the
    allocator's own peak beyond what was held before; MPS, which keeps none: what the driver holds more afterwards.
    """
    if device.type == "cuda":
        return _cuda_peak(fn, device)
    if device.type == "mps":
        before = torch.mps.driver_allocated_memory()
        fn()
        _synchronise()
        return max(0, torch.mps.driver_allocated_memory() - before)
    return max(accumulate(_allocations(fn), initial=0))


def _cuda_peak(fn: Callable[[], Any], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    fn()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


_one_profiler = Lock()  # the profiler is global to the process


def _allocations(fn: Callable[[], Any]) -> list[int]:
    """Bytes allocated (positive) and freed (negative) on the CPU while `fn` ran, in order.

    torch.profiler's own engine, asked for user scopes only: it then records no operator, which is most of its cost,
    and still every allocation.
    """
    config = ProfilerConfig(ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig())
    activities = {ProfilerActivity.CPU}
    with _one_profiler:
        _prepare_profiler(config, activities)
        _enable_profiler(config, activities, {RecordScope.USER_SCOPE})  # type: ignore[call-arg]
        try:
            result = fn()
        finally:
            recorded = _disable_profiler()
        del result  # freed only now, so what `fn` returns counts as alive to its end
    return [event.nbytes() for event in recorded.events() if event.name() == "[memory]"]  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Difference:
    """How far `output` is from `reference`; the last two for logits only."""

    max_abs: float
    top1: float | None  # share of positions whose most likely token is the same
    kl: float | None  # mean over positions of KL(reference || output), nats


def difference(reference: Tensor | np.ndarray, output: Tensor | np.ndarray, is_logits: bool) -> Difference:
    """Compares two arrays [..., position, feature or vocabulary], a few positions at a time; they may lie anywhere.

    A value that is not a number makes every figure `nan`: that is never "no difference".
    """
    if tuple(reference.shape) != tuple(output.shape):
        raise ValueError(f"shapes differ: reference {tuple(reference.shape)}, output {tuple(output.shape)}")
    first, second = (torch.as_tensor(array).detach().flatten(0, -2) for array in (reference, output))
    largest, agreeing, divergence = torch.zeros(()), 0, 0.0
    for start in range(0, len(first), POSITIONS_AT_ONCE):
        a, b = (rows[start : start + POSITIONS_AT_ONCE].cpu().float() for rows in (first, second))
        largest = torch.maximum(largest, (a - b).abs().where(a != b, 0.0).max())  # equal infinities do not differ
        if is_logits:
            agreeing += int((a.argmax(-1) == b.argmax(-1)).sum())
            p, q = a.log_softmax(-1), b.log_softmax(-1)
            divergence += float((p.exp() * (p - q)).where(p.exp() > 0, 0.0).sum())  # Σ p log(p / q)
    max_abs = float(largest)
    if not is_logits:
        return Difference(max_abs, None, None)
    if isnan(max_abs):
        return Difference(max_abs, max_abs, max_abs)
    return Difference(max_abs, agreeing / len(first), max(0.0, divergence / len(first)))
