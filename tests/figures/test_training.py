"""Learning rates by step: one line a schedule, its highest point marked."""

import numpy as np
import pytest

from tfviz.figures import learning_rates, losses_by_confidence, target_distributions

STEPS = np.array([1, 2, 4])
RATES = {"a": np.array([1.0, 3.0, 2.0]), "<b>": np.array([0.0, 0.5, 1.0])}


def test_a_line_holds_its_rates_and_the_mark_its_peak() -> None:
    figure = learning_rates(STEPS, RATES)
    line, mark, other, _ = figure.data
    assert line.x.tolist() == [1, 2, 4] and line.y.tolist() == [1, 3, 2]
    assert (mark.x[0], mark.y[0]) == (2, 3) and "peak 3, step 2" in mark.hovertemplate
    assert other.name == "&lt;b&gt;" and len({line.line.color, other.line.color}) == 2


def test_logarithmic_axes_leave_out_what_is_zero() -> None:
    figure = learning_rates(STEPS, RATES, log_steps=True, log_rates=True)
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert np.isnan(figure.data[2].y[0]) and figure.data[2].y[1] == 0.5


def test_a_curve_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a has 2 rates for 3 steps"):
        learning_rates(STEPS, {"a": np.array([1.0, 2.0])})


def test_bars_stand_for_tokens_of_which_two_have_names() -> None:
    figure = target_distributions({"a": np.array([0.0, 0.1, 0.9]), "b": np.array([0.1, 0.1, 0.8])}, 2, 0)
    assert [bar.y.tolist() for bar in figure.data] == [[0, 0.1, 0.9], [0.1, 0.1, 0.8]]
    assert list(figure.layout.xaxis.ticktext) == ["padding", "1", "right token"]


def test_the_lowest_loss_is_marked() -> None:
    figure = losses_by_confidence(np.array([0.1, 0.5, 0.9]), {"a": np.array([2.0, 0.5, 1.0])})
    line, mark = figure.data
    assert line.y.tolist() == [2, 0.5, 1] and (mark.x[0], mark.y[0]) == (0.5, 0.5)


def test_another_point_can_be_marked() -> None:
    nearest = losses_by_confidence(
        np.array([0.1, 0.9]), {"a": np.array([-0.8, 0.1])}, mark_at=lambda y: abs(y).argmin()
    )
    assert (nearest.data[1].x[0], nearest.data[1].y[0]) == (0.9, 0.1)
