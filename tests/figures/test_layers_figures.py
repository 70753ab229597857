"""Layer pictures from a handful of numbers: what is plotted is what was given, and marks stand where they should."""

import numpy as np
import pytest

from tfviz.figures.layers import activation_functions, layer_lines, layer_shares, length_map

X = np.float32([-2, -1, 0, 1, 2])
CURVES = {"ReLU": np.maximum(X, 0), "x<1>": X}


def test_the_layers_own_function_is_drawn_last_and_strong() -> None:
    figure = activation_functions(X, CURVES, "ReLU")
    assert [line.name for line in figure.data] == ["x&lt;1&gt;", "ReLU"]
    assert figure.data[1].line.width > figure.data[0].line.width
    np.testing.assert_array_equal(figure.data[1].y, CURVES["ReLU"])


def test_units_and_the_mark_lie_on_the_layers_own_function() -> None:
    figure = activation_functions(X, CURVES, "ReLU", units=np.float32([-1.5, 0.5]), mark=1.5)
    points, mark = figure.data[2:]
    np.testing.assert_allclose(points.x, [-1.5, 0.5])
    np.testing.assert_allclose(points.y, [0, 0.5])
    assert list(mark.x) == list(mark.y) == [1.5]


def test_points_without_a_function_are_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match="GELU.*ReLU, x<1>"):
        activation_functions(X, CURVES, "GELU", mark=1.0)


def test_lengths_are_coloured_by_their_logarithm_and_said_as_they_are() -> None:
    lengths = np.float32([[1, 10], [100, 1000]])
    figure = length_map(lengths, ["a", "<b>"], (1, 6), first=5)
    cells = figure.data[0]
    np.testing.assert_allclose(cells.z, [[0, 1], [2, 3]], atol=1e-6)
    np.testing.assert_array_equal(cells.customdata, lengths)
    assert (cells.x0, cells.dx, cells.meta) == (5, 1, "weights")
    assert list(figure.layout.xaxis.tickvals) == [5, 6] and list(figure.layout.xaxis.ticktext) == ["a", "&lt;b&gt;"]
    frame = figure.layout.shapes[0]
    assert (frame.x0, frame.x1, frame.y0, frame.y1) == (5.5, 6.5, 0.5, 1.5)
    assert list(cells.colorbar.ticktext) == ["1", "10", "100", "1,000"]


def test_a_length_of_zero_is_no_error_and_equal_lengths_have_a_scale() -> None:
    figure = length_map(np.float32([[0, 5]]), ["a", "b"])
    assert np.isfinite(figure.data[0].z).all()
    same = length_map(np.float32([[5, 5]]), ["a", "b"]).data[0]
    assert same.zmin < np.log10(5) < same.zmax


def test_every_few_labels_are_left_out_where_there_are_many() -> None:
    axis = length_map(np.ones((2, 100), np.float32), [str(i) for i in range(100)]).layout.xaxis
    assert list(axis.ticktext[:3]) == ["0", "3", "6"] and list(axis.tickvals[:3]) == [0, 3, 6]


def test_one_label_a_token_is_asked_for() -> None:
    with pytest.raises(ValueError, match="1 labels for 2 tokens"):
        length_map(np.float32([[1, 2]]), ["a"])


def test_lines_over_layers_have_their_colours_and_the_chosen_layer_is_marked() -> None:
    lines = {"a": np.float64([1, 10]), "b": np.float64([np.nan, 3])}
    figure = layer_lines(lines, 1, log=True, colours=("#111111", "#222222"))
    assert [line.line.color for line in figure.data] == ["#111111", "#222222"]
    np.testing.assert_array_equal(figure.data[1].y, np.float32([np.nan, 3]))
    assert figure.layout.yaxis.type == "log" and figure.layout.shapes[0].x0 == 1
    assert list(figure.layout.yaxis.tickvals) == [1, 2, 5, 10]


def test_a_narrow_range_still_has_marks() -> None:
    axis = layer_lines({"a": np.float64([21, 23])}, log=True).layout.yaxis
    assert list(axis.ticktext) == ["20", "30"]


def test_one_line_needs_no_legend_and_no_mark() -> None:
    figure = layer_lines({"a": np.float64([1, 2])})
    assert figure.layout.showlegend is False and not figure.layout.shapes


def test_shares_are_stacked_after_the_share_of_the_input() -> None:
    figure = layer_shares({"a": np.float64([0.5, -0.1]), "b": np.float64([0.2, 0.1])}, 0.3, 0)
    assert figure.layout.barmode == "relative"
    start, a, b = figure.data
    assert (list(start.x), list(start.y)) == ([-1], [np.float32(0.3)])
    np.testing.assert_allclose(a.y, [0.5, -0.1], rtol=1e-6)
    np.testing.assert_array_equal(b.x, [0, 1])
    assert len(layer_shares({"a": np.float64([1.0])}).data) == 1
