"""Pictures of the bytes that attention moves, drawn from a handful of numbers."""

import numpy as np
import pytest

from tfviz.figures.speed_tiling import traffic_lines, traffic_parts

NAMES = dict(zip(("q", "k", "v", "o", "s_write", "s_read", "p_write", "p_read"), "QKVOabcd", strict=True))


def test_each_piece_of_a_bar_is_one_thing_that_is_moved() -> None:
    moved = {"<naive>": dict.fromkeys(NAMES, 512 * 1024), "tiled": {"q": 1024, "k": 2048 * 1024, "v": 0, "o": 1}}
    figure = traffic_parts(moved, NAMES)
    assert [one.name for one in figure.data] == list("QKVOabcd") and figure.layout.barmode == "stack"
    assert list(figure.data[0].y) == ["tiled", "&lt;naive&gt;"]  # the first one on top
    assert figure.layout.xaxis.title.text == "MiB"
    assert list(figure.data[1].x) == [2, 0.5] and list(figure.data[5].x) == [0, 0.5]
    assert figure.data[5].marker.pattern.shape == "/" and figure.data[4].marker.pattern.shape is None


def test_small_sizes_are_told_in_small_units() -> None:
    figure = traffic_parts({"naive": {"q": 900}, "tiled": {"q": 90}}, NAMES)
    assert figure.layout.xaxis.title.text == "B" and list(figure.data[0].x) == [90, 900]


def test_lines_are_dashed_since_they_are_not_measured_and_marks_stand_upright() -> None:
    n = np.array([64, 1024, 16384])
    lines = {name: size * n * 2.0**20 for name, size in (("naive", 3), ("tiled", 2), ("least", 1))}
    figure = traffic_lines(n, lines, {"<here>": 100, "there": 2000}, words=("n", "MiB"))
    assert [one.line.dash for one in figure.data] == ["dash", "dash", "dot"]
    assert list(figure.data[1].y) == [128, 2048, 32768]
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert list(figure.layout.xaxis.ticktext) == ["64", "256", "1k", "4k", "16k"]
    assert [one.x0 for one in figure.layout.shapes] == [100, 2000]
    assert [one.text for one in figure.layout.annotations] == ["&lt;here&gt;", "there"]
    assert figure.layout.annotations[0].x == pytest.approx(2) and figure.layout.annotations[1].y < 1
