"""Pictures of attention kernels, drawn from a handful of numbers."""

import numpy as np
import pytest

from tfviz.figures.speed_kernels import COLORS, kernel_gains, kernel_memory, kernel_times

N = np.array([64, 128, 256])
NAMES = {"naive": "<naive>", "flash": "flash", "flex": "flex"}
SPREAD = np.array([[1.0, 2, 4], [2, 3, 6], [4, 4, 7]], dtype=np.float32)


def test_times_are_medians_with_quartiles_over_wide_fits() -> None:
    measured = {"naive": (N[:2], SPREAD[:, :2]), "flash": (N, SPREAD)}
    fitted = {"flash": (N[1:], np.array([3.0, 6.0]))}
    figure = kernel_times(measured, fitted, 100.0, names=NAMES, words=("n", "ms", "same <b>"))
    fit, naive, flash = figure.data
    assert fit.line.width == 8 and list(fit.x) == [128, 256] and fit.line.color == flash.line.color == COLORS["flash"]
    assert naive.name == "&lt;naive&gt;" and list(naive.y) == [2, 3] and list(flash.y) == [2, 3, 6]
    assert list(flash.error_y.array) == [2, 1, 1] and list(flash.error_y.arrayminus) == [1, 1, 2]
    assert figure.layout.shapes[0].x0 == 100 and figure.layout.annotations[0].x == pytest.approx(2)
    assert figure.layout.annotations[0].text == "same &lt;b&gt;"
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert list(figure.layout.xaxis.ticktext) == ["64", "128", "256"]


def test_the_formula_is_dashed_and_hollow_and_measured_points_are_solid() -> None:
    line = N, np.array([1.0, 4, 16], dtype=np.float32)
    figure = kernel_memory(line, {"naive": (N[:1], np.array([1.0]))}, {}, 10.0, names=NAMES)
    formula, naive, limit = figure.data
    assert formula.line.dash == "dash" and formula.marker.symbol == "circle-open" and list(formula.y) == [1, 4, 16]
    assert naive.line.dash is None and list(naive.x) == [64] and list(limit.y) == [10, 10]
    assert len(kernel_memory(line, {}, {}, names=NAMES).data) == 1


def test_gains_stand_over_a_line_at_one() -> None:
    figure = kernel_gains(N, np.array([0.5, 1, 2]), np.array([1.0, 8, 64]), 128.0)
    even, speed, memory = figure.data
    assert list(even.y) == [1, 1] and list(speed.y) == [0.5, 1, 2] and list(memory.y) == [1, 8, 64]
    assert figure.layout.shapes[0].x0 == 128 and not kernel_gains(N, np.ones(3), np.ones(3)).layout.shapes
