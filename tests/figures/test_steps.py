"""Figures of the Step by step tab: they hold the numbers that they were given."""

import json

import numpy as np
import pytest

from tfviz.figures.steps import cost_by_length, dot_products, head_similarity, softness_by_width, variance_by_width

D_KS = np.array([4, 16, 64])
ONES = np.ones(3)


def test_histograms_are_densities_of_the_same_dot_products() -> None:
    dots = np.random.default_rng(0).normal(0, 8, (64, 64)).astype(np.float32)
    figure = dot_products(dots, dots / 8)
    for bars, deviation in zip(figure.data[:2], (8, 1), strict=True):
        assert (bars.y * bars.width).sum() == pytest.approx(1, abs=0.01)
        assert np.average(bars.x**2, weights=bars.y) == pytest.approx(deviation**2, rel=0.05)
    assert figure.layout.xaxis.range[1] == pytest.approx(4 * dots.std(), rel=1e-3)


def test_points_stand_beside_the_two_lines_of_the_proof() -> None:
    figure = variance_by_width(D_KS, D_KS * 1.1, ONES, 16, {"<m>": (64, np.array([3.0, 50.0, 900.0]))})
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    assert [line.y.tolist() for line in lines] == [[4, 16, 64], [1, 1, 1]]
    own, without, scaled = (trace for trace in figure.data if trace.mode == "markers")
    assert own.name == "&lt;m&gt;" and (list(own.x), list(own.y)) == ([64], [50])
    assert list(own.error_y.array) == [850] and list(own.error_y.arrayminus) == [47]
    assert without.y == pytest.approx(D_KS * 1.1) and scaled.y.tolist() == [1, 1, 1]
    assert without.marker.size[1] > without.marker.size[0]
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"


def test_entropy_and_gradient_share_the_widths() -> None:
    entropy = {"without": ONES * 0.2, "with": ONES * 0.9}
    gradient = {name: np.array([ONES * 0.1, ONES * 0.2, ONES * 0.3]) for name in entropy}
    figure = softness_by_width(D_KS, entropy, gradient, 16)
    above = [trace for trace in figure.data if trace.yaxis is None]
    assert [trace.y.tolist() for trace in above] == [[0.2] * 3, [0.9] * 3]
    bands = [trace for trace in figure.data if trace.fill]
    assert len(bands) == 2 and bands[0].y.tolist() == pytest.approx([0.3] * 3 + [0.1] * 3)
    assert figure.layout.shapes[0].x0 == 16 and figure.layout.yaxis2.type == "log"
    assert figure.layout.yaxis.range == (0, 1.02) and figure.layout.yaxis2.range is None


def test_similarity_is_the_matrix_and_the_chosen_head_is_framed() -> None:
    matrix = np.array([[1, 0.5], [0.5, 1]], dtype=np.float32)
    figure = head_similarity(matrix, 1)
    assert figure.data[0].z.tolist() == [[1, 0.5], [0.5, 1]] and figure.data[0].meta == "weights"
    column, row = figure.layout.shapes
    assert (column.x0, column.x1, row.y0, row.y1) == (0.5, 1.5, 0.5, 1.5)
    assert not head_similarity(matrix).layout.shapes


def test_costs_are_drawn_as_far_as_they_are_measured() -> None:
    sizes = np.array([64, 128, 256])
    naive, flash = np.array([[1.0, 4.0], [2.0, 5.0], [4.0, 6.0]]), np.array([[1.0], [1.0], [1.0]])
    figure = cost_by_length(sizes, {"naive": naive, "flash": flash}, np.array([1.0, 4.0, 16.0]))
    slow, fast, line = figure.data
    assert slow.x.tolist() == [64, 128] and slow.y.tolist() == [2, 5]
    assert slow.error_y.array.tolist() == [2, 1] and slow.error_y.arrayminus.tolist() == [1, 1]
    assert fast.x.tolist() == [64] and line.y.tolist() == [1, 4, 16]
    json.loads(figure.to_json())
