"""Casts to 16 bits: what becomes 0, infinite or coarse, on hand-made values and on the dates model's gradients."""

import math

import numpy as np
import pytest

from tfviz.training.experiments.precision import FORMATS, MODELS, cast, gradients, histogram, limits, look


def values(*numbers: float) -> np.ndarray:
    return np.array(numbers, dtype=np.float32)


def test_the_limits_are_those_of_ieee() -> None:
    fp16, bf16 = limits("fp16"), limits("bf16")
    assert (fp16.smallest, fp16.normal, fp16.largest, fp16.half_step) == (2**-24, 2**-14, 65504, 2**-11)
    assert (bf16.smallest, bf16.normal, bf16.half_step) == (2.0**-133, 2.0**-126, 2**-8)
    assert bf16.largest == pytest.approx(3.39e38, rel=1e-3)


def test_each_value_is_counted_for_what_becomes_of_it() -> None:
    seen = cast(values(2**-25, -(2**-25) * 1.01, 2**-20, -1, 65504, 1e6), "fp16")
    assert (seen.n, seen.zero, seen.subnormal, seen.infinite, seen.too_small) == (6, 1, 2, 1, 1)
    seen = cast(values(2**-25, 2**-20, 1e6), "bf16")
    assert (seen.zero, seen.subnormal, seen.infinite, seen.worst_error) == (0, 0, 0, pytest.approx(1e6 % 4096 / 1e6))


def test_a_scale_lifts_small_values_and_overflows_large_ones() -> None:
    small, large = values(1e-8), values(1.0)
    assert [cast(small, "fp16", k).zero for k in (0, 8)] == [1, 0]
    assert [cast(large, "fp16", k).infinite for k in (15, 16)] == [0, 1]


def test_what_becomes_zero_is_all_wrong_and_errors_are_relative() -> None:
    assert cast(values(1e-9, 1.0), "fp16").mean_error == pytest.approx(0.5)
    third = cast(values(1 / 3), "bf16")
    assert third.mean_error == pytest.approx(third.worst_error) == pytest.approx(abs(0.333984375 * 3 - 1), rel=1e-4)
    assert math.isnan(cast(values(1e-9), "fp16").worst_error)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", FORMATS)
def test_real_gradients_obey_the_limits(model: str, name: str) -> None:
    for exponent in (0, 16):
        seen = look(model, name, exponent)
        assert seen.n == len(gradients(model)) > 900_000
        assert seen.zero == seen.too_small and seen.worst_error <= limits(name).half_step


def test_the_trained_models_gradients_need_a_scale_in_fp16_only() -> None:
    lost = [look("trained", "fp16", k).zero for k in (0, 8, 16)]
    assert lost[0] > 0.3 * look("trained", "fp16").n and lost == sorted(lost, reverse=True)
    assert look("trained", "bf16").zero == 0 and look("fresh", "fp16", 24).infinite > 0


@pytest.mark.parametrize("model", MODELS)
def test_the_histogram_holds_every_gradient(model: str) -> None:
    middles, shares = histogram(model)
    sizes = np.log10(np.abs(gradients(model)))
    assert shares.sum() == pytest.approx(1) and np.diff(middles) == pytest.approx(0.25)
    assert middles[0] <= sizes.min() + 0.25 and middles[-1] >= sizes.max() - 1
    at = int(shares.argmax())
    inside = (sizes >= middles[at] - 0.125) & (sizes < middles[at] + 0.125)
    assert inside.mean() == pytest.approx(shares[at], rel=1e-4, abs=1e-4)
