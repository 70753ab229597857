"""The roof and the comparison, drawn from a handful of numbers."""

import numpy as np
import pytest

from tfviz.figures.speed_roofline import PartPoints, part_scatter, roofline

PARTS = [
    PartPoints("<head>", np.array([0.5, 50.0]), np.array([1e9, 1e11]), [True, False], ["a <b>\nc", "d"]),
    PartPoints("ffn", np.array([40.0]), np.array([2e11]), [False], ["e"]),
]


def test_slopes_end_at_the_highest_peak_and_flat_lines_begin_at_the_widest_slope() -> None:
    figure = roofline(PARTS, {"DRAM": 1e10, "L2": 1e11}, {"FP32": 2e11, "BF16": 4e11}, words=("i", "f"))
    dram, l2, fp32, bf16 = figure.data[:4]
    assert dram.y[-1] == pytest.approx(4e11) and l2.y[-1] == pytest.approx(4e11) and dram.x[-1] == pytest.approx(40)
    assert list(fp32.y) == [2e11, 2e11] and fp32.x[0] == pytest.approx(2) and bf16.x[0] == pytest.approx(4)
    assert dram.line.dash != l2.line.dash and figure.layout.xaxis.type == figure.layout.yaxis.type == "log"


def test_a_decode_step_is_hollow_and_a_part_keeps_its_colour() -> None:
    head, key, ffn = roofline(PARTS, {}, {}).data[:3]
    assert list(head.marker.symbol) == ["circle-open", "circle"] and head.marker.color == key.marker.color
    assert head.name == "&lt;head&gt;" and head.text[0] == "a &lt;b&gt;<br>c" and ffn.marker.color != head.marker.color


def test_the_band_lies_around_the_diagonal() -> None:
    band, line, *_ = part_scatter(PARTS, band=0.25).data
    assert band.y[0] == pytest.approx(1.25 * line.y[0]) and band.y[-1] == pytest.approx(0.75 * line.y[0])
    assert np.allclose(line.x, line.y) and line.line.dash == "dash"
    assert not part_scatter([]).data
