"""Figures of a quantised matrix, from a handful of numbers."""

import numpy as np

from tfviz.figures.speed_quantisation import bits_curve, error_histogram, input_channels, level_histogram

EDGES, COUNTS = np.array([-1, 0, 1], np.float32), np.array([3, 5], np.float32)


def test_levels_lie_below_the_bars_a_row_each() -> None:
    levels = {"fine <1>": np.array([-1, 0, 1], np.float32), "coarse": np.array([-1, 1], np.float32)}
    bars, fine, coarse = level_histogram(EDGES, COUNTS, levels).data
    assert [*bars.x] == [-0.5, 0.5] and [*bars.y] == [3, 5] and fine.name == "fine &lt;1&gt;"
    assert np.nanmax(coarse.y) < np.nanmin(fine.y) < np.nanmax(fine.y) < 0
    assert [*coarse.x[::3]] == [*coarse.x[1::3]] == [-1, 1] and np.isnan(coarse.x[2::3]).all()


def test_half_a_step_is_marked_on_both_sides() -> None:
    figure = error_histogram(EDGES, {"RTN": COUNTS, "GPTQ": COUNTS}, 0.25)
    assert len(figure.data) == 2 and [one.x0 for one in figure.layout.shapes] == [-0.25, 0.25]
    assert not error_histogram(EDGES, {"RTN": COUNTS}).layout.shapes


def test_what_is_exact_has_no_place_on_a_logarithmic_axis() -> None:
    errors = {"RTN": np.array([[0.0, 2.0], [1.0, 4.0]], np.float32)}
    figure = bits_curve(np.array([8, 2]), errors, 2)
    solid, dotted, _ = figure.data
    assert np.isnan(solid.y[0]) and solid.y[1] == 2 and [*dotted.y] == [1, 4] and dotted.line.dash == "dot"
    assert figure.layout.xaxis.range == (8.4, 1.6) and figure.layout.shapes[0].x0 == 2


def test_marked_channels_are_dots_at_their_size() -> None:
    figure = input_channels(np.array([1, 9, 2], np.float32), np.array([1]))
    assert [*figure.data[1].x] == [1] and [*figure.data[1].y] == [9]
