"""Path length and results: what is measured is solid, the formula dashed, and every number arrives as it was."""

import numpy as np
import pytest

from tfviz.figures.speed_recurrent import SMALLEST, gradient_distances, pass_times, recall_accuracy
from tfviz.figures.speed_results import gain_dots

NAMES = {"attention": "<att>", "rnn": "RNN"}


def quartiles(middle: np.ndarray) -> np.ndarray:
    return np.array([middle * 0.9, middle, middle * 1.1])


def test_gradients_are_solid_and_the_formula_is_dashed() -> None:
    flat, falling = np.ones(4), 0.5 ** np.arange(4.0)
    first = np.array([1, 4]), quartiles(np.array([1.0, 0.4]))
    figure = gradient_distances({"attention": quartiles(flat), "rnn": quartiles(falling)}, falling, first, names=NAMES)
    bands, lines, (formula, crosses) = figure.data[:2], figure.data[2:4], figure.data[4:]
    assert [one.fill for one in bands] == ["toself"] * 2 and list(lines[1].y) == list(falling)
    assert lines[0].line.dash == "solid" if lines[0].line.dash else True
    assert formula.line.dash == "dash" and list(crosses.y) == [1.0, 0.4] and list(lines[0].x) == [1, 2, 3, 4]
    assert lines[0].name == "&lt;att&gt;" and figure.layout.yaxis.type == "log" and not figure.layout.shapes


def test_a_line_stands_where_fp32_ends() -> None:
    tiny = 0.1 ** np.arange(60.0)
    figure = gradient_distances({}, tiny, names=NAMES)
    assert figure.layout.shapes[0].y0 == SMALLEST == float(np.float32(1e-45)) and float(np.float32(SMALLEST / 2)) == 0
    assert figure.layout.annotations[0].y == pytest.approx(np.log10(SMALLEST))


def test_times_have_their_quartiles_and_their_crossing() -> None:
    n, took = np.array([64, 128]), quartiles(np.array([1.0, 2.0]))
    figure = pass_times(n, {"rnn": took}, (100.0, "<here>"), names=NAMES)
    (line,) = figure.data
    assert list(line.y) == [1, 2] and list(line.error_y.array) == pytest.approx([0.1, 0.2])
    assert figure.layout.shapes[0].x0 == 100 and figure.layout.annotations[0].text == "&lt;here&gt;"
    assert not pass_times(n, {"rnn": took}, names=NAMES).layout.shapes


def test_what_was_learned_is_in_percent_beside_guessing() -> None:
    figure = recall_accuracy([4, 16], {"rnn": np.array([1.0, np.nan])}, 1 / 8, names=NAMES)
    assert figure.data[0].y[0] == 100 and np.isnan(figure.data[0].y[1])
    assert figure.layout.shapes[0].y0 == 12.5 and list(figure.layout.xaxis.ticktext) == ["4", "16"]


@pytest.mark.parametrize("values", [[1.0], [0.5, 2.0], [1e-4, 1e5], [1.0001], [1e-290, 1e290]])
def test_gains_have_few_ticks_and_one_is_among_them(values: list[float]) -> None:
    figure = gain_dots({"a<b>": ([str(x) for x in values], np.array(values))})
    ticks = list(figure.layout.xaxis.tickvals)
    assert 1 <= len(ticks) <= 20 and figure.layout.yaxis.ticktext == ("a&lt;b&gt;",)
    low, high = figure.layout.xaxis.range
    assert low < np.log10(min(values)) + 1e-9 and high > np.log10(max(values)) - 1e-9
    assert 1.0 in ticks or high - low > 15
