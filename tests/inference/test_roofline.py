"""The roofline's prediction from hand-made probes, exact; real probes of a few sizes."""

import pytest
import torch

from tfviz.inference.measure import Latency
from tfviz.inference.operator_clock import Medley, OperatorClock, reading_cost
from tfviz.inference.roofline import (
    PASSED,
    READ,
    Operation,
    Part,
    Pass,
    Probe,
    Roofs,
    Route,
    between,
    peak_probe,
    predict,
    predict_operation,
    probes,
    weight_bytes,
)
from tfviz.inference.roofline_probes import measure, steps, together

ROUTE = Route("linear", "fp32")
CALL, F, B = 1e-6, 1e11, 1e10  # seconds, FLOP/s, B/s of an ideal machine


def took(seconds: float) -> Latency:
    return Latency(seconds, seconds, seconds, 5)


def ideal(probe: Probe) -> float:
    """c + max(FLOPs / F, bytes / B), where everything that was passed has left the caches."""
    if probe == Probe(probe.kind, probe.route, passed=probe.passed, again=probe.again):
        return CALL / 4 if probe.again and not probe.passed else CALL
    if probe.kind == "read":
        return probe.inner / B
    flops = 2 * probe.rows * probe.inner * probe.outer
    nbytes = 4 * probe.inner * probe.outer if probe.passed else 0
    return CALL + max(flops / F, nbytes / B)


def product(rows: int, side: int, count: int = 1) -> Operation:
    weights = 4 * side * side
    return Operation("product", ROUTE, rows, side, side, 2 * rows * side * side, weights, weights, count)


def roofs(*operations: Operation) -> Roofs:
    return Roofs("cpu", 2, {probe: took(ideal(probe)) for probe in probes(operations)})


def passing(nbytes: int, others: float = 20) -> Pass:
    """A pass of so many bytes, in which every so many-th operator is a product."""
    return Pass(nbytes, {("product", ROUTE): 1000, ("view", Route()): round(1000 * (others - 1))})


def test_one_row_is_bound_by_bandwidth_and_many_by_the_arithmetic() -> None:
    one, many = product(1, 1024), product(512, 1024)
    found = roofs(one)
    slow, fast = (predict_operation(x, found, passing(2**26)) for x in (one, many))
    assert slow.bound == "memory" and slow.seconds == pytest.approx(CALL + 4 * 2**20 / B)
    assert fast.bound == "compute" and fast.seconds == pytest.approx(CALL + 2 * 512 * 2**20 / F)


def test_weights_that_stay_in_the_caches_are_not_waited_for() -> None:
    tiny = Operation("product", ROUTE, 1, 16, 16, 512, 1024, 1024)
    found = predict_operation(tiny, roofs(tiny), passing(0))
    assert found.bound == "overhead" and found.seconds == pytest.approx(CALL, rel=0.03)


def test_a_part_is_the_sum_of_its_operations() -> None:
    one, two = product(1, 1024, 3), product(512, 1024, 2)
    part, found = Part("prefill", "self", "projections", (one, two)), roofs(one)
    whole = predict(part, found, passing(2**26))
    each = [predict_operation(x, found, passing(2**26)).seconds for x in (one, two)]
    assert whole.seconds == pytest.approx(3 * each[0] + 2 * each[1])
    assert part.flops == 3 * one.flops + 2 * two.flops and part.calls == 5
    assert part.intensity == pytest.approx(part.flops / part.nbytes)


def test_a_call_is_cheaper_the_fewer_others_ran_since_the_last_one_of_it() -> None:
    one = product(1, 16, 4)
    found = roofs(one)
    c = [predict_operation(one, found, passing(0, others)).overhead for others in (1, 20**0.5, 20, 500)]
    assert c == pytest.approx([CALL / 4, CALL / 2, CALL, CALL], rel=1e-3)
    assert predict_operation(one, found, passing(2**36, 1)).overhead == pytest.approx(CALL)  # the bytes drove it out
    view = Operation("view", Route("t"), 1, 0, 0, 0, 0, count=12)
    whole = Pass.of([Part("decode", "self", "head", (one,)), Part("decode", "self", "other", (view,))])
    assert whole.others(one) == 4 and whole.passed(one) == one.nbytes and whole.nbytes == 4 * one.nbytes


def test_between_is_straight_on_logarithmic_axes_and_level_beyond_the_ends() -> None:
    assert between(10, {1: 1.0, 100: 100.0}) == pytest.approx(10)
    assert between(0, {1: 2.0, 4: 8.0}) == 2 and between(1e9, {1: 2.0, 4: 8.0}) == 8
    assert between(2**10, {0: 1.0, 2**20: 4.0}) == pytest.approx(2)


def test_bandwidth_and_peaks_are_read_off_their_probes() -> None:
    read = {Probe("read", inner=n): took(n / B) for n in READ}
    found = Roofs("cpu", 2, {**read, peak_probe("fp32"): took(0.01)})
    assert found.bandwidth(2**23) == pytest.approx(B)
    assert found.peak("fp32") == pytest.approx(2 * 512 * 1024**2 / 0.01) and found.peak("int8") is None


def test_weights_have_the_bytes_that_their_kernel_reads() -> None:
    assert weight_bytes(ROUTE, 64, 32) == 8192 and weight_bytes(Route("linear", "bf16"), 64, 32) == 4096
    assert weight_bytes(Route("int_mm", "int8"), 64, 32) == 2048
    assert weight_bytes(Route("int4pack", "bf16"), 64, 32) == 1024 + 2 * 32 * 4


@pytest.mark.parametrize(
    "probe",
    [
        Probe("product", ROUTE, 8, 96, 96),
        Probe("product", Route("linear", "bf16", by_columns=True, onednn=False, bias=True), 1, 96, 96, 2**20),
        Probe("product", Route("int_mm", "int8"), 8, 96, 96),
        Probe("product", Route("int4pack", "bf16"), 1, 96, 96),
        Probe("product", Route("int8pack", "bf16"), 1, 96, 96),
        Probe("attention", Route("causal"), 32, 32, 32),
        Probe("attention", Route("masked"), 1, 32, 64, PASSED[1]),
        Probe("curve", Route("", "fp32"), 1, 4096),
        Probe("view", Route()),
        Probe("read", inner=2**18),
    ],
)
def test_probes_run_and_take_time(probe: Probe) -> None:
    found = measure([probe], "cpu", 0.0)[probe]
    assert 0 < found.low <= found.median <= found.high < 1 and found.runs >= 5


def test_a_kernel_that_is_missing_is_left_out() -> None:
    assert measure([Probe("product", Route("int_mm", "int8"), 1, 0, 96), Probe("read", inner=2**18)], "cpu", 0.0)
    assert [len(group) for group in steps([Probe("read", inner=n) for n in range(14)])] == [12, 2]


def test_what_else_the_machine_does_only_adds() -> None:
    one, other = Latency(2.0, 1.0, 3.0, 5), Latency(4.0, 3.5, 9.0, 6)
    assert together([one, other]) == Latency(3.0, 1.0, 6.0, 11)


def test_the_clock_sees_each_operator_once_and_other_threads_never() -> None:
    x = torch.ones(4, 4)
    with torch.inference_mode(), OperatorClock() as clock:
        torch.nn.functional.silu(torch.nn.functional.linear(x, x))
    assert clock.names == ["linear.default", "silu.default"] and all(one > 0 for one in clock.seconds)
    Medley(torch.device("cpu"))()
    assert 0 <= reading_cost(torch.device("cpu"), calls=5) < 1e-3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_probes_run_on_cuda() -> None:
    probe = Probe("product", Route("linear", "bf16"), 128, 1024, 1024, 2**20)
    assert measure([probe], "cuda", 0.0)[probe].low > 0
