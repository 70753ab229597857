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


def test_values_between_lie_on_straight_lines_of_logarithms() -> None:
    assert between([8, 32], [1.0, 16.0], np.array([16])) == pytest.approx([4.0])


def test_curves_cross_where_one_is_ahead_for_good() -> None:
    assert crossing([8, 32], [2.0, 2.0], [1.0, 4.0]) == pytest.approx(16)
    assert crossing([8, 32], [1.0, 1.0], [2.0, 4.0]) is None  # ahead from the first one
    assert crossing([8, 32], [3.0, 9.0], [2.0, 4.0]) is None  # never ahead
