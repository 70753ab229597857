"""Pictures of norms and of gradients by depth, with a handful of numbers."""

import numpy as np
import pytest

from tfviz.figures.norms import (
    eps_curves,
    gradients_by_layer,
    last_layer_by_depth,
    norms_compared,
    value_histogram,
)


def test_a_histogram_holds_every_value_and_marks_mean_and_spread() -> None:
    values = np.array([0.0, 0.0, 1.0, 3.0], dtype=np.float32)
    figure = value_histogram(values, words=("value", "features", "mean", "σ"))
    bars = figure.data[0]
    assert np.nansum(bars.y) == 4 and bars.y[0] == 2
    band, line = figure.layout.shapes
    assert line.x0 == 1.0 and (band.x0, band.x1) == pytest.approx((1 - values.std(), 1 + values.std()))
    assert figure.layout.annotations[0].text.startswith("mean 1")
    assert figure.layout.yaxis.type == "log"


def test_equal_values_have_a_histogram_too() -> None:
    assert np.nansum(value_histogram(np.ones(5, dtype=np.float32)).data[0].y) == 5


def test_outlines_of_norms_share_their_bins_and_escape_names() -> None:
    figure = norms_compared({"a": np.array([-1.0, 1.0]), "<b>": np.array([0.0, 2.0])})
    one, other = figure.data
    assert one.x.tolist() == other.x.tolist() and (one.x[0], one.x[-1]) == (-1, 2)
    assert other.name == "&lt;b&gt;"


def test_eps_curves_mark_the_chosen_eps() -> None:
    eps = np.array([1e-3, 1e-2, 1e-1])
    figure = eps_curves(eps, {"root": eps, "sum": eps / 2}, 1e-2, words=("ε", "σ", "now"))
    assert [curve.y.tolist() for curve in figure.data] == [eps.tolist(), (eps / 2).tolist()]
    assert [curve.line.dash for curve in figure.data] == ["solid", "dot"]
    assert figure.layout.shapes[0].x0 == 1e-2 and figure.layout.annotations[0].x == pytest.approx(-2)


def test_a_depth_is_a_line_whose_last_layer_has_the_dot() -> None:
    figure = gradients_by_layer({"2": np.array([1.0, 2.0]), "3": np.array([3.0, 2.0, 1.0])}, 4.0)
    assert [line.x.tolist() for line in figure.data] == [[1, 2], [1, 2, 3]]
    assert [line.marker.size.tolist() for line in figure.data] == [[0, 9], [0, 0, 9]]
    assert figure.layout.yaxis.range == (0, 4)


def test_measured_dots_stand_on_the_predicted_line() -> None:
    depths = np.array([2.0, 8.0])
    figure = last_layer_by_depth(depths, {"pre": np.array([0.4, 0.2])}, {"theory": np.array([0.4, 0.2])})
    dots, line = figure.data
    assert dots.y.tolist() == line.y.tolist() and (dots.mode, line.mode) == ("markers", "lines")
    assert list(figure.layout.yaxis.tickvals) == pytest.approx([0.1, 0.2, 0.5])
    assert last_layer_by_depth(np.array([]), {}, {}).data == ()
