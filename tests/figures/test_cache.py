"""Pictures of the KV cache's cost, drawn from a handful of numbers."""

import numpy as np
import pytest

from tfviz.figures.cache import cache_memory, step_times, step_work, time_areas

N = np.array([8, 16, 32])
TIMES = {
    "<with>": np.array([[1.0, 1, 1], [2, 2, 3], [3, 3, 4]]),
    "without": np.array([[2.0, 4, 8], [3, 5, 9], [4, 6, 10]]),
}


def test_times_are_points_with_their_spread_over_a_wide_fitted_line() -> None:
    fitted = {"<with>": (N[1:], np.array([2.0, 3.0])), "without": (N[1:], np.array([5.0, 9.0]))}
    figure = step_times(N, TIMES, fitted, crossing=10.0, words=("n", "ms", "same <b>"))
    lines, points = figure.data[:2], figure.data[2:]
    assert [list(one.x) for one in lines] == [[16, 32]] * 2 and lines[0].line.color == points[0].line.color
    assert lines[1].line.color == points[1].line.color != points[0].line.color
    assert [one.name for one in points] == ["&lt;with&gt;", "without"]
    assert list(points[0].y) == [2, 2, 3] and list(points[0].error_y.array) == [1, 1, 1]
    assert list(points[1].error_y.arrayminus) == [1, 1, 1]
    assert figure.layout.shapes[0].x0 == 10 and figure.layout.annotations[0].x == pytest.approx(1)
    assert figure.layout.annotations[0].text == "same &lt;b&gt;"
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert list(figure.layout.xaxis.ticktext) == ["8", "16", "32"]


def test_without_a_crossing_nothing_is_marked() -> None:
    figure = step_times(N, TIMES, {})
    assert not figure.layout.shapes and not figure.layout.annotations and len(figure.data) == 2


def test_work_shows_all_of_it_and_attention_alone() -> None:
    predicted = {"with": np.array([[10.0, 11, 12], [1, 2, 3]]), "without": np.array([[80.0, 170, 400], [8, 30, 99]])}
    figure = step_work(N, predicted, words=("n", "adds", "attention"))
    names = ["with", "without", "with, attention", "without, attention", "attention"]
    assert [one.name for one in figure.data] == names
    assert [list(one.y) for one in figure.data[:4]] == [[10, 11, 12], [80, 170, 400], [1, 2, 3], [8, 30, 99]]
    assert figure.data[2].line.dash == "dot" and figure.data[2].showlegend is False  # all that is dotted is one entry


def test_an_area_is_the_time_of_a_text_and_the_small_one_lies_in_front() -> None:
    figure = time_areas(N, {"with": np.array([1.0, 1.0, 1.0]), "without": np.array([2.0, 4.0, 8.0])})
    assert [one.name for one in figure.data] == ["without", "with"]
    assert all(one.fill == "tozeroy" for one in figure.data) and figure.layout.xaxis.type is None
    assert list(figure.data[0].y) == [2, 4, 8]


def test_memory_stands_beside_the_weights() -> None:
    figure = cache_memory(N, np.array([1.0, 2.0, 4.0]), (N[:2], np.array([1.0, 2.0])), 3.0)
    line, points, weights = figure.data
    assert list(line.y) == [1, 2, 4] and list(points.x) == [8, 16] and points.mode == "markers"
    assert list(weights.x) == [8, 32] and list(weights.y) == [3, 3]


def test_a_long_axis_has_few_ticks() -> None:
    n = np.array([1, 2**20])
    figure = cache_memory(n, np.array([1.0, 2.0]), (n[:0], np.array([])), 1.0)
    assert len(figure.layout.xaxis.tickvals) <= 8
