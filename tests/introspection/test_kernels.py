"""Attention kernels over growing sizes: peaks are the formula's, outputs agree, guards refuse, a stop is heard."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tfviz.inference.measure import Latency
from tfviz.introspection.experiments import flex, kernel_sweep, kernels
from tfviz.introspection.experiments.kernel_sweep import Refusal, Sweep, records, sweep, too_large, too_slow
from tfviz.introspection.experiments.kernels import KernelPoint, KernelSetting, fused_bytes, measure, naive_bytes

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
SMALL = {"heads": 2, "head_dim": 16}


def at_once(job: Callable[..., Any], *args: Any) -> Any:
    return job(*args)


def never() -> bool:
    return False


def swept(largest: int, names: tuple[str, ...] = ("naive", "flash"), **fields: Any) -> list[Sweep]:
    return list(sweep(KernelSetting(largest, **SMALL | fields), names, "cpu", at_once, never))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "ROUNDS", (1, 3))


# ---- one size


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("dtype", kernels.DTYPES)
def test_the_naive_peak_is_the_formulas(dtype: str, backward: bool, causal: bool) -> None:
    setting = KernelSetting(256, 1, 4, 16, causal, dtype, backward)
    point = measure(setting, "cpu")
    assert point.peak_bytes["naive"] == pytest.approx(naive_bytes(setting), rel=0.005)
    assert point.peak_bytes["flash"] < point.peak_bytes["naive"]
    assert point.latency["naive"].runs == point.latency["flash"].runs == 3
    assert bool(point.gradient_abs) is backward


def test_the_formula_is_two_matrices_of_scores_forward_and_three_backward() -> None:
    setting = KernelSetting(1024, batch=2, heads=8, head_dim=64, causal=False)
    assert naive_bytes(setting) == 2 * 2 * 8 * 1024**2 * 4
    assert naive_bytes(KernelSetting(1024, 2, 8, 64, False, "fp16")) == naive_bytes(setting) / 2
    row = 2 * 8 * 1024 * 64 * 4
    short = KernelSetting(64, 1, 8, 128, True, "fp32", True)
    assert measure(short, "cpu", ["naive"]).peak_bytes["naive"] == pytest.approx(naive_bytes(short), rel=0.005)
    assert naive_bytes(KernelSetting(1024, 2, 8, 64, False, "fp32", True)) == 3 * 2 * 8 * 1024**2 * 4 + 3 * row
    assert fused_bytes(setting) == row + 4 * 2 * 8 * 1024


def test_outputs_and_gradients_agree_to_rounding_but_need_not_be_equal() -> None:
    point = measure(KernelSetting(300, heads=2, backward=True), "cpu")
    assert 0 < point.max_abs["flash"] < 1e-5 and 0 < point.gradient_abs["flash"] < 1e-5


def test_without_the_naive_form_its_last_rows_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    for causal in (True, False):
        point = measure(KernelSetting(256, **SMALL, causal=causal), "cpu", ("flash",))  # type: ignore[arg-type]
        assert set(point.latency) == {"flash"} and point.max_abs["flash"] < 1e-5
    wrong: Any = lambda kernel, q, k, v, rule: lambda: (v * 2,)  # noqa: E731
    exact = kernels.forward_of
    monkeypatch.setattr(
        kernels, "forward_of", lambda kernel, *rest: (exact if kernel == "naive" else wrong)(kernel, *rest)
    )
    assert measure(KernelSetting(256, heads=2), "cpu", ("flash",)).max_abs["flash"] > 0.1


@pytest.mark.parametrize("backward", [True, False])
def test_the_backend_told_is_the_operator_that_runs(backward: bool) -> None:
    setting = KernelSetting(128, **SMALL, backward=backward)  # type: ignore[arg-type]
    assert kernels.backend(setting, "cpu") == "flash"
    call = kernels.calls_of(setting, "cpu", ("flash",))["flash"]
    with kernels.graph_mode(setting), profile(activities=[ProfilerActivity.CPU]) as seen:
        call()
    ran = {event.key for event in seen.key_averages()}
    assert any("scaled_dot_product_flash_attention_for_cpu" in name for name in ran), ran


def test_where_the_math_path_is_taken_it_is_told() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        assert kernels.backend(KernelSetting(128, heads=2), "cpu") == "math"


def test_rounds_alternate_and_end_with_their_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    calls = {name: (lambda name=name: called.append(name)) for name in ("naive", "flash")}
    monkeypatch.setattr(kernels, "calls_of", lambda *_: calls)
    kernels.time_some(KernelSetting(512), "cpu", ("naive", "flash"), 0)
    assert called == ["naive", "flash"] + ["naive", "flash", "flash", "naive", "naive", "flash"]
    called.clear()
    monkeypatch.setattr(kernels, "CHUNK_SECONDS", 0.0)
    assert kernels.rounds_of(kernels.time_some(KernelSetting(512), "cpu", ("naive", "flash"), 1)) == 1
    assert called == ["flash", "naive"]  # the second round, and nothing uncounted


def test_a_short_call_is_timed_several_times_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of 20 microseconds that has just been pushed out of the caches by the other takes a third more."""
    called: list[str] = []
    calls = {name: (lambda name=name: called.append(name)) for name in ("naive", "flash")}
    monkeypatch.setattr(kernels, "calls_of", lambda *_: calls)
    kernels.time_some(KernelSetting(128), "cpu", ("naive", "flash"), 0, most=1)
    assert called == ["naive", "flash", *["naive"] * 8, *["flash"] * 8]


@pytest.mark.parametrize("kernel", ["naive", "flash"])
def test_what_is_timed_is_the_kernel_without_what_stands_around_it(kernel: str) -> None:
    """Python functions of tfviz that one call enters: the kernel and its scores; no look-up, no check, no context."""
    setting, entered = KernelSetting(16), list[str]()
    call = kernels.calls_of(setting, "cpu", (kernel,))[kernel]

    def trace(frame: Any, event: str, arg: object) -> None:
        if event == "call" and "tfviz" in frame.f_code.co_filename and "site-packages" not in frame.f_code.co_filename:
            entered.append(frame.f_code.co_name)

    with kernels.graph_mode(setting):
        sys.setprofile(trace)
        try:
            call()
        finally:
            sys.setprofile(None)
    assert not {"scaled_dot_product_attention", "choose", "scores_overflow", "all_finite"} & set(entered), entered
    assert kernel in entered


# ---- the sweep


def test_a_sweep_grows_to_the_largest_size_and_tells_how_far_it_is() -> None:
    found = swept(256)
    assert [one.setting.n for one in found[-1].points] == [64, 128, 256]
    parts = [one.part for one in found]
    assert parts == sorted(parts) and parts[0] == 0 and parts[-1] == 1
    assert not found[-1].refused and found[-1].limit is not None and found[-1].limit > 2**20


def test_a_stop_keeps_what_was_found() -> None:
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 3

    found = list(sweep(KernelSetting(512, **SMALL), ("naive", "flash"), "cpu", at_once, stop))  # type: ignore[arg-type]
    assert 0 < len(found[-1].points) < 4 and found[-1].part < 1


def test_what_does_not_fit_is_refused_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_sweep, "memory_limit", lambda device: 2**20)
    found = swept(512)[-1]
    assert found.refused == (Refusal("naive", 256, "memory", 2 * 2 * 256**2 * 4 + 3 * 2 * 256 * 16 * 4, 2**20),)
    assert [set(one.latency) for one in found.points] == [{"naive", "flash"}] * 2 + [{"flash"}] * 2


def test_unknown_memory_refuses_nothing() -> None:
    assert too_large(KernelSetting(32768), ("naive", "flash"), None) == ()


def test_a_size_that_would_take_too_long_is_refused() -> None:
    took = {"naive": Latency(2.0, 2, 2, 3), "flash": Latency(0.01, 0, 0, 3)}
    points = [KernelPoint(KernelSetting(1024), took, {}, {}, {})]
    (slow,) = too_slow(points, 2048, ("naive", "flash"), 10.0)
    assert (slow.kernel, slow.n, slow.why) == ("naive", 2048, "time")
    assert slow.need == pytest.approx(4 * 2.0 * (kernel_sweep.ROUNDS[0] + 2))
    assert too_slow(points, 1024, ("naive", "flash"), 0.0) == () == too_slow([], 64, ("naive",), 0.0)


def test_every_figure_is_a_record_on_its_own() -> None:
    flat = records(swept(128, backward=True)[-1])
    assert {one.quantity for one in flat} == {"latency", "peak_bytes", "max_abs", "gradient_max_abs"}
    assert len(flat) == 2 * (2 + 2 + 2) and all(one.experiment == "kernels" and one.at for one in flat)
    first = flat[0]
    assert first.setting == {"n": 64, "kernel": "naive", "dtype": "fp32", "pass": "forward+backward", "batch": 1,
                             "heads": 2, "head_dim": 16, "causal": True}  # fmt: skip
    assert flat[2].setting["kernel"] == "flash" and flat[2].setting["backend"] == "flash"


# ---- flex_attention


def test_flex_is_left_out_where_it_cannot_run_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flex.hindrance(True, "cpu") == "backward" and flex.hindrance(False, "mps") == "device"
    monkeypatch.setattr(flex.shutil, "which", lambda name: None)
    assert flex.hindrance(False, "cpu") == "compiler"
    found = swept(64, ("naive", "flash", "flex"))[-1]
    assert found.refused == (Refusal("flex", 64, "compiler"),) and set(found.points[0].latency) == {"naive", "flash"}


def test_what_the_compiler_says_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no such instruction\nand more")

    monkeypatch.setattr(flex, "hindrance", lambda *_: None)
    monkeypatch.setattr(kernel_sweep, "hindrance", lambda *_: None)
    monkeypatch.setattr(flex, "flex", broken)
    found = swept(128, ("naive", "flash", "flex"))[-1]
    assert found.refused == (Refusal("flex", 64, "failed", words="no such instruction"),)
    assert len(found.points) == 2


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(flex, "_compiled", lambda: flex_attention)  # the same function, not compiled
    for causal in (True, False):
        point = measure(KernelSetting(130, **SMALL, causal=causal), "cpu", ("naive", "flex"))  # type: ignore[arg-type]
        assert point.max_abs["flex"] < 1e-5


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_compiling_counts_towards_the_budget_and_its_time_is_known_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    setting = KernelSetting(64, **SMALL)  # type: ignore[arg-type]
    monkeypatch.setattr(flex, "_took", {})
    assert flex.compile_ahead(setting, "cpu") is None
    monkeypatch.setattr(flex, "_compiled", lambda: flex_attention)
    took = flex.prepare(setting, "cpu")
    assert took.seconds > 0 and not took.failed
    assert flex.compile_ahead(KernelSetting(512), "cpu") == 0  # of the same kind
    assert flex.compile_ahead(KernelSetting(64, dtype="bf16"), "cpu") == took.seconds
    more = flex.prepare(KernelSetting(128, **SMALL), "cpu")  # type: ignore[arg-type]
    assert flex.compile_ahead(KernelSetting(64, dtype="bf16"), "cpu") == took.seconds + more.seconds
    slow = flex.Prepared(kernel_sweep.BUDGET)
    monkeypatch.setattr(kernel_sweep, "prepare", lambda *_: slow)
    found = swept(256, ("naive", "flash", "flex"))[-1]
    assert found.compiling == kernel_sweep.BUDGET
    assert [(one.kernel, one.n, one.why) for one in found.refused] == [("flex", 128, "time")]
    assert [set(one.latency) for one in found.points[1:]] == [{"naive", "flash"}] * 2  # they go on


# ---- a GPU


@needs_cuda
@pytest.mark.parametrize("dtype", kernels.DTYPES)
def test_on_cuda_peaks_agree_with_the_formula_and_a_fused_kernel_is_named(dtype: str) -> None:
    point = measure(KernelSetting(1024, dtype=dtype), "cuda")
    assert point.peak_bytes["naive"] == pytest.approx(naive_bytes(point.setting), rel=0.02)
    assert point.backend["flash"] in {"flash", "efficient", "cudnn"}
    assert np.isfinite(point.max_abs["flash"]) and point.max_abs["flash"] < 8e-2
