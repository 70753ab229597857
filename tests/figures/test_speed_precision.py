"""Figures of the precision section: exact bars, claims as hollow marks, and what is not there leaves no bar."""

import numpy as np

from tfviz.figures.speed_precision import head_divergence, losses, speeds, weight_shares
from tfviz.figures.theme import SERIES


def test_shares_are_bars_and_claims_hollow_marks() -> None:
    figure = weight_shares(["A", "<B>"], np.array([100.0, 26.0], np.float32), ["4 MiB", "1 MiB"], {"<B>": 25.0})
    bars, said = figure.data
    assert list(bars.y) == [100, 26] and bars.x == ("A", "&lt;B&gt;")
    assert list(said.y) == [25] and said.marker.symbol == "diamond-open"
    assert figure.layout.xaxis.ticktext == ("A<br>4<br>MiB", "&lt;B&gt;<br>1<br>MiB")


def test_speeds_stand_around_a_line_at_one() -> None:
    measured = {"prefill": np.array([[0.2, 1.5], [0.25, 2.0], [0.3, 3.0]], np.float32)}
    figure = speeds(["A", "B"], measured, {"B": 3.0})
    bars = figure.data[0]
    assert list(bars.y) == [0.25, 2.0] and bars.text == ("0.25x", "2.00x")
    assert np.allclose(bars.error_y.array, [0.05, 1.0]) and np.allclose(bars.error_y.arrayminus, [0.05, 0.5])
    assert bars.textposition == ("outside", "inside")  # no room in a short bar
    assert figure.layout.shapes[0].y0 == figure.layout.shapes[0].y1 == 1


def test_a_loss_of_nothing_has_no_bar() -> None:
    figure = losses(["A", "B"], np.array([0.0, 1e-3], np.float32), ["100 %", "99 %"])
    assert np.isnan(figure.data[0].y[0]) and figure.layout.yaxis.type == "log"
    assert losses(["A"], np.zeros(1, np.float32), ["100 %"]).data[0].y.size == 1


def test_the_heads_are_percent_with_a_frame_around_the_chosen_one() -> None:
    figure = head_divergence(np.array([[0.0, 0.02], [0.01, 0.5]], np.float32), (1, 0))
    assert figure.data[0].meta == "weights" and np.allclose(figure.data[0].z, [[0, 2], [1, 50]])
    box = figure.layout.shapes[0]
    assert (box.x0, box.x1, box.y0, box.y1) == (-0.5, 0.5, 0.5, 1.5) and box.line.color == SERIES[1]
    assert not head_divergence(np.zeros((1, 1), np.float32)).layout.shapes
