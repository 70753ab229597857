"""Probes of the roofline: small calls on random operands, each after as many bytes of other work as it says.

A probe runs the kernel that a model's operation runs (dtype, layout, oneDNN or not, packed weights) on operands of its
own. Before each timed call so many bytes are read, which drives weights and code out of the caches, and the
activations are touched, as the operation before would have just written them.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from tfviz.inference.measure import Latency
from tfviz.inference.operator_clock import Medley, OperatorClock
from tfviz.inference.precision import PRECISIONS
from tfviz.inference.precision.int4 import GROUP, pack, packed_product
from tfviz.inference.precision.int8 import integer_product
from tfviz.inference.roofline import PASSED, PROBED_HEADS, Probe
from tfviz.inference.small_calls import Call, calls

RUNS = (5, 15)  # timed calls of a probe: at least, at most
BUDGET = 0.04  # seconds of them, once there are enough
STEP = 12  # probes that go together in one step of a measurement: well under two seconds


def steps(probes: Sequence[Probe]) -> list[tuple[Probe, ...]]:
    """Probes in groups that one step of a measurement can take."""
    return [tuple(probes[at : at + STEP]) for at in range(0, len(probes), STEP)]


def together(found: Sequence[Latency]) -> Latency:
    """One probe's timings at several times: the best lower quartile, for what else the machine does only adds."""
    middle, high = (median(getattr(one, name) for one in found) for name in ("median", "high"))
    return Latency(middle, min(one.low for one in found), high, sum(one.runs for one in found))


def measure(probes: Sequence[Probe], device: str, cost: float) -> dict[Probe, Latency]:
    """Seconds a call of each; a job for `Scene.compute`. A probe that this device has no kernel for is left out."""
    found = {}
    for probe in probes:
        try:
            found[probe] = measure_one(probe, torch.device(device), cost)
        except (RuntimeError, NotImplementedError):  # torch says in many ways that a kernel is missing
            continue
    return found


@torch.inference_mode()
def measure_one(probe: Probe, device: torch.device, cost: float) -> Latency:
    """Of several calls (kinds of views, of passes) the mean. `cost`: of reading the clock, taken off."""
    found, touched = _CALLS[probe.kind](probe, device)
    with _library(probe.route.onednn):
        took = [_time(call, touched, probe, device, cost) for call in found]
    low, middle, high = (sum(getattr(one, name) for one in took) / len(took) for name in ("low", "median", "high"))
    return Latency(middle, low, high, took[0].runs)


@contextmanager
def _library(asked: bool) -> Iterator[None]:
    """oneDNN in force or not, as it was for the model's operation; the switch is the process's."""
    before = torch._C._get_mkldnn_enabled()  # type: ignore[attr-defined]
    torch._C._set_mkldnn_enabled(before and asked)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)  # type: ignore[attr-defined]


def _time(call: Call, touched: Sequence[Tensor], probe: Probe, device: torch.device, cost: float) -> Latency:
    ballast, medley = _surroundings(device)
    call()
    seconds: list[float] = []
    begun = time.perf_counter()
    while len(seconds) < RUNS[0] or (len(seconds) < RUNS[1] and time.perf_counter() - begun < BUDGET):
        with OperatorClock() as clock:
            if probe.again:
                medley()
                call()
            if probe.passed:
                ballast[: probe.passed // 4].sum()
            if not probe.again:
                medley()
            for one in touched:
                one.add_(0)
            before = len(clock.seconds)
            call()
        seconds.append(sum(max(one - cost, 1e-8) for one in clock.seconds[before:]))
    return Latency.of(seconds)


@cache
def _surroundings(device: torch.device) -> tuple[Tensor, Medley]:
    return torch.ones(PASSED[-1] // 4, device=device), Medley(device)


def _product(probe: Probe, device: torch.device) -> tuple[list[Call], list[Tensor]]:
    """x [1, rows, inner] times a weight [outer, inner], as the route's kernel does it."""
    route, rows, inner, outer = probe.route, probe.rows, probe.inner, probe.outer
    dtype = torch.bfloat16 if route.op.endswith("pack") else _dtype(route.dtype)
    x = _random((1, rows, inner), dtype, device)
    if route.op == "linear":
        weight = _random((outer, inner), dtype, device)
        weight = weight.t().contiguous().t() if route.by_columns else weight
        bias = _random((outer,), dtype, device) if route.bias else None
        return [lambda: F.linear(x, weight, bias)], [x]
    if route.op == "int_mm":
        a, b = (torch.randint(-127, 128, (n, inner), dtype=torch.int8, device=device) for n in (rows, outer))
        return [lambda: integer_product(a, b)], [a]
    if route.op == "int8pack":
        table = torch.randint(-127, 128, (outer, inner), dtype=torch.int8, device=device)
        scale = _random((outer,), dtype, device)
        return [lambda: torch.ops.aten._weight_int8pack_mm(x[0], table, scale)], [x]
    inner, outer = max(inner, GROUP), max(outer, 2 * GROUP)
    packed = pack(torch.randint(0, 16, (outer, inner), dtype=torch.int32, device=device))
    groups, x = _random((inner // GROUP, outer, 2), dtype, device), _random((rows, inner), dtype, device)
    return [lambda: packed_product(x, packed, groups)], [x]


def _attention(probe: Probe, device: torch.device) -> tuple[list[Call], list[Tensor]]:
    """SDPA over [1, heads, rows, dim], causally, with a mask, or over all keys; few queries find their keys cold."""
    dtype, heads = _dtype(probe.route.dtype), PROBED_HEADS
    sizes = (probe.rows, probe.inner, probe.inner)
    q, k, v = (_random((1, n, heads, probe.outer), dtype, device).transpose(1, 2) for n in sizes)  # as views lie
    every = torch.ones(1, 1, probe.rows, probe.inner, dtype=torch.bool, device=device)
    mask = every if probe.route.op == "masked" else None
    causal = probe.route.op == "causal"
    touched = [q] if probe.rows < probe.inner else [q, k, v]
    return [lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)], touched


def _read(probe: Probe, device: torch.device) -> tuple[list[Call], list[Tensor]]:
    return [torch.ones(probe.inner // 4, device=device).sum], []


def _elementwise(probe: Probe, device: torch.device) -> tuple[list[Call], list[Tensor]]:
    """One operator by its name, or several of a kind: it is their mean that a kind stands for."""
    x = _random((1, max(1, probe.inner // 64), min(64, probe.inner)), _dtype(probe.route.dtype), device)
    return calls(probe.kind, probe.route.op, x), [] if probe.kind == "view" else [x]


_CALLS = {"product": _product, "attention": _attention, "read": _read} | dict.fromkeys(
    ("pass", "reduce", "curve", "view"), _elementwise
)


def _dtype(name: str) -> torch.dtype:
    return PRECISIONS[name].dtype


def _random(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape, device=device).to(dtype)
