"""Bars of memory: GiB of each part, parts that nobody has left out, the device's line."""

from tfviz.figures.speed_memory import GIB, memory_bars

NAMES = {"weights": "weights", "cache": "cache", "gradients": "gradients"}


def test_bars_are_stacked_in_gib_with_the_devices_line() -> None:
    figure = memory_bars({"a": {"weights": GIB, "cache": 2 * GIB}, "b": {"weights": GIB / 2}}, 4 * GIB, NAMES, "a")
    assert [list(one.x) for one in figure.data] == [[1, 0.5], [2, 0]] and figure.layout.barmode == "stack"
    assert figure.layout.shapes[0].x0 == 4 and figure.layout.xaxis.range[1] == 4.2
    strong, weak = figure.data[0].marker.color
    assert strong != weak


def test_a_memory_far_beyond_the_bars_stands_at_the_edge() -> None:
    figure = memory_bars({"a": {"weights": GIB}}, 100 * GIB, NAMES, "a", words=("GiB", "device: 100 GiB"))
    assert figure.layout.shapes[0].x0 == 4 and figure.layout.annotations[0].text == "device: 100 GiB →"


def test_there_is_room_for_the_longest_label() -> None:
    narrow, wide = (
        memory_bars({one: {"weights": GIB}}, GIB, NAMES, "").layout.margin.l for one in ("a", "混合精度训练")
    )
    assert narrow < 30 and wide > 6 * 13
