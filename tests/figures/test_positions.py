"""Pictures of positions: a handful of numbers, and where they end up."""

import numpy as np
import pytest

from tfviz.figures.positions import Mark, matrices, position_curves, signed_heatmap
from tfviz.figures.theme import DIVERGING_SCALE

VALUES = np.array([[0.5, -1.0, 0.0], [0.25, 2.0, -0.5]])


def test_zero_is_in_the_middle_of_the_colours() -> None:
    heat = signed_heatmap(VALUES).data[0]
    assert heat.z.tolist() == VALUES.tolist() and heat.z.dtype == np.float32
    assert (heat.zmin, heat.zmid, heat.zmax) == (-2, 0, 2) and heat.meta == "diverging"
    assert [list(stop) for stop in heat.colorscale] == DIVERGING_SCALE
    assert signed_heatmap(VALUES, limit=1.0).data[0].zmax == 1
    assert signed_heatmap(np.zeros((1, 1))).data[0].zmax == 1  # all zero: white, not a division by zero


def test_equal_tokens_do_not_merge_and_are_text() -> None:
    figure = signed_heatmap(VALUES, rows=["the", "the"], columns=["<b>", "the", "cat"], words=("query", "key"))
    assert list(figure.layout.yaxis.ticktext) == ["the", "the"] and list(figure.layout.yaxis.tickvals) == [0, 1]
    assert figure.layout.xaxis.ticktext[0] == "&lt;b&gt;"
    assert figure.data[0].hovertext[1][0] == "the (1) → &lt;b&gt; (0)"
    with pytest.raises(ValueError, match="1 labels for 2"):
        signed_heatmap(VALUES, rows=["the"])


def test_numbers_scale_the_axes_and_marks_shade_what_is_beyond() -> None:
    figure = signed_heatmap(VALUES, column_numbers=np.array([0, 4, 8]), marks=[Mark(4, "here", beyond=True)])
    line, rect = figure.layout.shapes
    assert (line.x0, line.x1, rect.x0, rect.x1) == (4, 4, 4, 8)
    assert figure.layout.annotations[0].text == "here"


def test_a_curve_holds_its_values_and_a_logarithmic_axis_has_plain_numbers() -> None:
    x = np.array([1.0, 10.0, 100.0])
    figure = position_curves(x, {"a": np.array([6.0, 600.0, 60_000.0])}, log=["x", "y"], dots=True)
    assert figure.data[0].y.tolist() == [6, 600, 60_000] and figure.data[0].mode == "lines+markers"
    assert list(figure.layout.yaxis.ticktext) == ["10", "100", "1,000", "10,000"]
    assert list(figure.layout.xaxis.ticktext) == ["1", "10", "100"]
    assert not figure.layout.showlegend


def test_a_mark_on_a_logarithmic_axis_stands_at_its_value() -> None:
    curves = {"a": np.array([1.0, 10.0, 1000.0])}
    figure = position_curves(np.arange(3), curves, log=["y"], marks=[Mark(100, "end", axis="y", beyond=True)])
    line, rect = figure.layout.shapes
    assert (line.y0, line.y1, rect.y1) == (100, 100, 1000)
    name = figure.layout.annotations[0]
    assert name.y == pytest.approx(2) and name.x == 0  # the curve is further away on the left


def test_lines_that_lie_on_others_are_dashed_and_a_wrong_length_is_refused() -> None:
    two = {"a": np.zeros(2), "b": np.zeros(2)}
    figure = position_curves(np.arange(2), two, dashed=["b"], ticks={0.5: "1/2"})
    assert [line.line.dash for line in figure.data] == ["solid", "dash"] and figure.layout.showlegend
    assert list(figure.layout.yaxis.ticktext) == ["1/2"]
    with pytest.raises(ValueError, match="a has 2 values for 3 points"):
        position_curves(np.arange(3), two)


def test_two_matrices_stand_beside_their_difference() -> None:
    first, second = np.array([[1.0, 0.0], [0.25, 0.75]]), np.array([[1.0, 0.0], [0.0, 1.0]])
    figure = matrices(first, second, ["the", "the"], words=("a", "b", "c"))
    assert [heat.customdata.tolist() for heat in figure.data] == [
        first.tolist(),
        second.tolist(),
        [[0, 0], [-0.25, 0.25]],
    ]
    assert figure.data[0].z[1, 0] == 0.5 and figure.data[2].z[1].tolist() == [-0.5, 0.5]
    assert [heat.meta for heat in figure.data] == ["weights", "weights", "diverging"]
    assert [note.text for note in figure.layout.annotations] == ["a", "b", "c"]
    assert {figure.layout[f"yaxis{i}"].autorange for i in ("", 2, 3)} == {"reversed"}  # the first token on top
    ends = [figure.layout[f"xaxis{i}"].domain[1] for i in ("", 2, 3)]
    assert ends == sorted(ends) and ends[-1] <= 1
    with pytest.raises(ValueError, match="1 labels for 2"):
        matrices(first, second, ["the"])
