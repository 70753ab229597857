"""Pictures of caches: what is drawn is what was given."""

import numpy as np
import pytest

from tfviz.figures.cache_variants import (
    allocation_growth,
    bytes_by_context,
    channel_sizes,
    layer_errors,
    mass_outside,
    write_times,
)

X = np.array([16, 64, 256, 1024])


def test_bytes_by_context_draws_every_curve_and_marks_its_own() -> None:
    curves = {"FP16": 100.0 * X, "INT4": 30.0 * X}
    figure = bytes_by_context(X, curves, "INT4", memory=50_000, limit=512, at=256)
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    assert [line.name for line in lines] == ["FP16", "INT4"] and lines[1].line.width > lines[0].line.width
    np.testing.assert_array_equal(lines[0].y, curves["FP16"])
    (dot,) = (trace for trace in figure.data if trace.mode == "markers")
    assert (dot.x[0], dot.y[0]) == (256, 30 * 256)
    across, upright = figure.layout.shapes
    assert (across.y0, upright.x0) == (50_000, 512)
    said, limit = figure.layout.annotations  # placed by log10 on logarithmic axes
    assert said.y == pytest.approx(np.log10(50_000)) and limit.x == pytest.approx(np.log10(512))
    assert lines[0].customdata[3] == "100 KiB"


def test_a_limit_outside_the_figure_is_not_drawn_and_an_unknown_curve_is_refused() -> None:
    assert not bytes_by_context(X, {"a": 1.0 * X}, "a", limit=10**6).layout.shapes
    with pytest.raises(ValueError, match="no curve 'b'"):
        bytes_by_context(X, {"a": 1.0 * X}, "b")


def test_a_curve_that_starts_at_zero_is_drawn() -> None:
    figure = bytes_by_context(X, {"a": np.array([0.0, 1, 2, 3])}, "a")
    assert figure.layout.yaxis.type == "log" and len(figure.layout.yaxis.tickvals) > 0


def test_mass_outside_is_in_percent() -> None:
    figure = mass_outside(np.array([1, 2, 4]), {"it": np.array([0.5, 0.25, 0.0])}, 2)
    np.testing.assert_allclose(figure.data[0].y, [50, 25, 0])
    assert figure.layout.shapes[0].x0 == 2


def test_growth_draws_use_and_allocation_with_units() -> None:
    steps = np.arange(3)
    figure = allocation_growth(steps, {"static": np.full(3, 4096.0)}, 1024.0 * steps)
    assert [trace.name for trace in figure.data] == ["in use", "static"]
    assert figure.layout.yaxis.ticktext[-1] == "4 KiB" and figure.data[1].customdata[0] == "4 KiB"


def test_step_times_have_their_quartiles() -> None:
    seconds = np.array([[1e-6, 2e-6], [3e-6, 4e-6], [6e-6, 9e-6]])
    figure = write_times(np.array([128, 512]), {"cat": seconds})
    np.testing.assert_allclose(figure.data[0].y, [3, 4])
    np.testing.assert_allclose(figure.data[0].error_y.array, [3, 5])
    np.testing.assert_allclose(figure.data[0].error_y.arrayminus, [2, 2])


def test_channels_and_layers() -> None:
    bars = channel_sizes(np.array([1.0, 9.0]), np.array([2.0, 1.0]))
    assert [list(bar.y) for bar in bars.data] == [[1, 9], [2, 1]]
    lines = layer_errors({"K <b>": np.array([0.1, 0.2])}, at=1)
    np.testing.assert_allclose(lines.data[0].y, [10, 20])
    assert lines.data[0].name == "K &lt;b&gt;" and lines.layout.shapes[0].x0 == 1
    assert not layer_errors({"K": np.array([0.1])}).layout.shapes
