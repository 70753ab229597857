"""Exponents, values between sizes and crossings, from numbers whose answer is known."""

import numpy as np
import pytest

from tfviz.introspection.growth import between, crossing, fit

N = [8, 16, 32, 64, 128, 256]


def test_a_fit_finds_the_exponent_of_the_larger_half() -> None:
    line = fit(N, [9.0, 9.0, 9.0, *(3e-3 * n**1.5 for n in N[3:])])
    assert line is not None and line.used == (64, 128, 256)
    assert line.exponent == pytest.approx(1.5) and line.factor == pytest.approx(3e-3)
    assert fit([8, 16], [1.0, 2.0]) is None and fit([8, 16, 32], [0.0, 1.0, 2.0]) is None


def test_the_exponents_range_is_what_the_spread_allows() -> None:
    n, values = [64, 128, 256], [1.0, 4.0, 16.0]
    exact = fit(n, values)
    assert exact is not None and (exact.low, exact.high) == pytest.approx((2, 2))
    tenth = fit(n, values, [(one / 1.1, one * 1.1) for one in values])
    step = 2 * np.log(1.1) / np.log(4)  # one end down and the other up, over two doublings
    assert tenth is not None and (tenth.low, tenth.high) == pytest.approx((2 - step, 2 + step))
    bent = fit(n, [1.0, 8.0, 16.0], [(1.0, 1.0), (4.0, 12.0), (16.0, 16.0)])  # the middle one tilts nothing
    assert bent is not None and (bent.low, bent.high) == pytest.approx((2, 2))


def test_values_between_lie_on_straight_lines_of_logarithms() -> None:
    assert between([8, 32], [1.0, 16.0], np.array([16])) == pytest.approx([4.0])


def test_curves_cross_where_one_is_ahead_for_good() -> None:
    assert crossing([8, 32], [2.0, 2.0], [1.0, 4.0]) == pytest.approx(16)
    assert crossing([8, 32], [1.0, 1.0], [2.0, 4.0]) is None  # ahead from the first one
    assert crossing([8, 32], [3.0, 9.0], [2.0, 4.0]) is None  # never ahead
