"""Measuring: what is counted, when it ends, what the peak is, and differences against a plain computation."""

import time
from collections.abc import Callable
from threading import Thread

import numpy as np
import pytest
import torch

from tfviz.inference.measure import Latency, compare, difference, latency, peak_extra_bytes

CPU = torch.device("cpu")
MIB = 2**20


class Clock:
    """Stands in for the wall clock: each call of `work(seconds)` lets that much time pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def work(self, *seconds: float) -> Callable[[], None]:
        left = list(seconds)

        def fn() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return fn


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_the_warm_up_is_not_counted(clock: Clock) -> None:
    assert latency(clock.work(100.0, 0.1)).median == pytest.approx(0.1)


def test_median_and_quartiles_are_those_of_the_measured_runs(clock: Clock) -> None:
    measured = latency(clock.work(9, 1, 2, 3, 4, 5), budget=100)
    assert measured == Latency(median=3, low=2, high=4, runs=5)


def test_a_spent_budget_ends_the_measurement(clock: Clock) -> None:
    assert latency(clock.work(0.25), repeats=50, budget=0.6).runs == 3


def test_one_run_is_measured_however_slow(clock: Clock) -> None:
    assert latency(clock.work(1000.0), budget=0.6).runs == 1


def test_a_request_to_stop_is_heard_after_the_first_run(clock: Clock) -> None:
    assert latency(clock.work(0.001), stop=lambda: True).runs == 1


def test_compared_functions_alternate_and_the_order_turns_round() -> None:
    calls: list[str] = []
    measured = compare({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert list(measured) == ["a", "b"] and {item.runs for item in measured.values()} == {3}


def test_a_comparison_that_must_stop_still_has_one_round() -> None:
    assert compare({"a": lambda: None}, rounds=9, stop=lambda: True)["a"].runs == 1


def test_the_peak_is_what_lives_at_once_not_what_was_allocated() -> None:
    def one_after_another() -> None:
        for _ in range(5):
            torch.empty(MIB, dtype=torch.uint8)

    def together() -> None:
        kept = [torch.empty(MIB, dtype=torch.uint8) for _ in range(5)]
        del kept

    assert peak_extra_bytes(one_after_another, CPU) == MIB
    assert peak_extra_bytes(together, CPU) == 5 * MIB


def test_what_was_allocated_before_does_not_count() -> None:
    held = [torch.empty(8 * MIB, dtype=torch.uint8)]

    assert peak_extra_bytes(lambda: held[0][:MIB].clone(), CPU) == MIB
    assert peak_extra_bytes(held.clear, CPU) == 0


def test_naive_attention_peaks_at_two_score_matrices() -> None:
    query, key, value = torch.randn(3, 1, 2, 256, 16)
    matrix = 2 * 256 * 256 * 4
    peak = peak_extra_bytes(lambda: (query @ key.mT).softmax(-1) @ value, CPU)
    assert 2 * matrix <= peak <= 2.2 * matrix


def test_a_failing_function_leaves_the_profiler_usable() -> None:
    with pytest.raises(ZeroDivisionError):
        peak_extra_bytes(lambda: 1 / 0, CPU)
    assert peak_extra_bytes(lambda: torch.empty(MIB, dtype=torch.uint8), CPU) == MIB


def test_threads_measure_their_own_memory_one_at_a_time() -> None:
    peaks: dict[int, int] = {}

    def measure(size: int) -> None:
        peaks[size] = peak_extra_bytes(lambda: torch.empty(size * MIB, dtype=torch.uint8), CPU)

    threads = [Thread(target=measure, args=(size,)) for size in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert peaks == {size: size * MIB for size in range(1, 6)}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_peak_on_cuda_is_the_allocators() -> None:
    cuda = torch.device("cuda")
    assert peak_extra_bytes(lambda: torch.empty(4 * MIB, dtype=torch.uint8, device=cuda), cuda) == 4 * MIB


@pytest.mark.parametrize("as_array", [torch.as_tensor, torch.Tensor.numpy])
def test_difference_equals_the_plain_formula_over_many_pieces(as_array: Callable) -> None:
    torch.manual_seed(0)
    reference, output = torch.randn(2, 2, 50, 11)  # 100 positions: more than one piece, the last one short
    p, q = reference.softmax(-1), output.softmax(-1)
    ours = difference(as_array(reference), as_array(output), is_logits=True)
    assert ours.max_abs == pytest.approx(float((reference - output).abs().max()))
    assert ours.top1 == pytest.approx(float((reference.argmax(-1) == output.argmax(-1)).float().mean()))
    assert ours.kl == pytest.approx(float((p * (p / q).log()).sum(-1).mean()), rel=1e-4)


def test_equal_logits_differ_by_nothing() -> None:
    logits = np.random.default_rng(0).normal(size=(1, 7, 5)).astype(np.float32)
    ours = difference(logits, logits.copy(), is_logits=True)
    assert (ours.max_abs, ours.top1, ours.kl) == (0.0, 1.0, 0.0)


def test_hidden_states_have_no_most_likely_token() -> None:
    ours = difference(torch.zeros(1, 4, 3), torch.full((1, 4, 3), 0.5, dtype=torch.float16), is_logits=False)
    assert (ours.max_abs, ours.top1, ours.kl) == (0.5, None, None)


def test_different_shapes_are_refused_with_both_shapes() -> None:
    with pytest.raises(ValueError, match=r"\(4, 3\).*\(4, 2\)"):
        difference(torch.zeros(4, 3), torch.zeros(4, 2), is_logits=False)
