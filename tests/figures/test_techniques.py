"""Pictures of training techniques: what is given is what is drawn."""

import numpy as np

from tfviz.figures.number_formats import format_ranges, gradient_histogram
from tfviz.figures.techniques import (
    gradient_norms,
    mean_distances,
    norms_by_parameter,
    part_differences,
    probability_rows,
    stacked_counts,
    token_says,
)


def test_norms_before_and_after_share_steps_and_leave_room() -> None:
    figure = gradient_norms(np.array([3.0, 0.5]), np.array([1.0, 0.5]), 1.0, 60)
    before, after, limit = figure.data
    assert before.x.tolist() == after.x.tolist() == [1, 2]
    assert (before.y.tolist(), after.y.tolist(), limit.y.tolist()) == ([3, 0.5], [1, 0.5], [1, 1])
    assert figure.layout.xaxis.range == (0.5, 60.5)


def test_a_parameters_dot_has_its_name_as_plain_text() -> None:
    figure = norms_by_parameter(["a<b>", "c"], np.array([2.0, 1.0]), np.array([1.0, 0.5]))
    equal, dots = figure.data
    assert (dots.x.tolist(), dots.y.tolist(), list(dots.text)) == ([2, 1], [1, 0.5], ["a&lt;b&gt;", "c"])
    assert equal.x.tolist() == equal.y.tolist() == [0, 2.1]


def test_rows_of_probabilities_keep_equal_tokens_apart() -> None:
    figure = probability_rows(np.array([[0.0, 1.0], [0.5, 0.25]]), ["one", "two"], ["0", "0"])
    (cells,) = figure.data
    assert cells.z.tolist() == [[0, 1], [0.5, 0.25]] and (cells.zmin, cells.zmax, cells.meta) == (0, 1, "weights")
    assert figure.layout.xaxis.tickvals == (0, 1) and figure.layout.xaxis.ticktext == ("0", "0")


def test_the_guide_starts_at_the_first_lines_first_point() -> None:
    sizes = np.array([1, 4])
    figure = mean_distances(sizes, {"a": np.array([2.0, 1.5]), "b": np.array([3.0, 1.0])})
    guide, a, b = figure.data
    assert guide.y.tolist() == [2, 1] and a.y.tolist() == [2, 1.5] and b.name == "b"
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"


def test_counts_are_stacked_and_marked_parts_have_colours_of_their_own() -> None:
    parts = {"x": np.array([3.0, 2.0]), "y": np.array([1.0, 0.0]), "z": np.array([5.0, 5.0])}
    figure = stacked_counts(["one", "two"], parts, marked=["x"])
    assert [bar.x.tolist() for bar in figure.data] == [[3, 2], [1, 0], [5, 5]]
    assert figure.layout.barmode == "stack" and len({bar.marker.color for bar in figure.data}) == 3
    assert figure.data[0].marker.color.startswith("#") and figure.data[1].marker.color.startswith("rgba")


def test_exact_agreement_has_no_point_on_a_logarithmic_axis() -> None:
    figure = part_differences(np.array([1, 2]), {"a": np.array([0.0, 1e-8]), "b": np.array([0.0, 0.1])}, 32, 2)
    a, b = figure.data
    assert np.isnan(a.y[0]) and a.y[1] == 1e-8 and b.y[1] == 0.1
    assert figure.layout.shapes[0].x0 == 2


def test_unfair_weights_are_coloured() -> None:
    figure = token_says(np.array([2, 4, 3]), np.array([1.5, 0.75, 1.0]))
    (bars,) = figure.data
    colors = bars.marker.color
    assert bars.y.tolist() == [1.5, 0.75, 1] and bars.customdata.tolist() == [2, 4, 3]
    assert colors[0] == colors[1] != colors[2]


def test_gradients_stand_over_what_a_format_makes_of_them() -> None:
    figure = gradient_histogram(np.array([-9.0, -8.75, -5.0]), np.array([0.25, 0.5, 0.25]), [-7.5, -4.2, 4.8])
    (bars,) = figure.data
    assert bars.y.tolist() == [25, 50, 25] and bars.x.tolist() == [-9, -8.75, -5]
    zero, weak, over = figure.layout.shapes
    assert (zero.x1, weak.x0, weak.x1, over.x0) == (-7.5, -7.5, -4.2, 4.8)
    low, high = figure.layout.xaxis.range
    assert low < -9 and high > 4.8


def test_a_format_reaches_from_its_smallest_to_its_largest() -> None:
    figure = format_ranges({"FP16": (-7.2, -4.2, 4.8), "BF16": (-40.0, -38.0, 38.0)}, (-12.0, -1.0))
    weak, normal, _ = figure.data
    assert weak.base.tolist() == [-7.2, -40] and (weak.base + weak.x).tolist() == normal.base.tolist() == [-4.2, -38]
    assert np.allclose(normal.base + normal.x, [4.8, 38])
    assert (figure.layout.shapes[0].x0, figure.layout.shapes[0].x1) == (-12, -1)
