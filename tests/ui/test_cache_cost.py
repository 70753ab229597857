"""KV cache, the cost: exact words and numbers from hand-made points, and a badge that turns red."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.conftest import Loaded
from tests.ui.test_cache_steps import failing, scene, traced
from tests.ui.test_cache_steps import workbench as workbench
from tfviz.errors import TfvizError
from tfviz.inference.measure import Latency
from tfviz.inference.work import AttentionShape, DecoderShape, with_cache, without_cache
from tfviz.introspection.cache_cost import Point, Prospect, Sweep
from tfviz.introspection.workbench import Workbench
from tfviz.messages import LANGUAGES
from tfviz.ui.components.picture import Picture, pack, payload
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.cache import cost

EN = Translator("en")
SHAPE = DecoderShape((AttentionShape(2, 1, 4, 4, projections=96),), (), feed_forward=256, head=128)
LENGTHS = (8, 16, 32, 64)
WHERE = {"model": "<tiny>", "precision": "FP32", "device": "CPU", "threads": 2}


def point(n: int, cached: float, uncached: float) -> Point:
    took = [Latency.of([one * 0.9, one, one * 1.1]) for one in (cached, uncached)]
    works = with_cache(SHAPE, n), without_cache(SHAPE, n)
    return Point(n, took[0], took[1], *works, cache_bytes=n * 32, cross_bytes=0)


def found(*points: Point, left_out: int | None = None) -> Sweep:
    return Sweep(points, LENGTHS, 1.0, left_out)


POINTS = tuple(point(n, 0.001, 0.0005 * (n / 8) ** 1.5) for n in LENGTHS)


def drawn(
    sweep: Sweep | None,
    t: Translator = EN,
    shape: DecoderShape = SHAPE,
    part: float | None = None,
    limit: int | None = None,
) -> Picture:
    return cost.picture(sweep, Prospect(shape, LENGTHS, 3200, limit), 0, WHERE, t, part)


@pytest.mark.parametrize("language", LANGUAGES)
def test_before_a_measurement_the_formula_is_shown(language: str) -> None:
    picture = drawn(None, Translator(language))
    assert not picture.badges and len(picture.notes) == 1 and "<tiny>" in picture.notes[0]
    work, room, numbers = picture.panels
    assert len(work.figure.data) == 5 and len(room.figure.data[1].x) == 0  # type: ignore[union-attr]
    assert "–" not in numbers.html and numbers.html.count('scope="col"') == 4  # no column of times yet
    pack(payload(picture))


def test_the_figures_of_the_formula_are_exact() -> None:
    row = drawn(None).panels[-1].html.split("n\u00a0=\u00a08<")[1].split("</tr>")[0]
    # 96 + 256 + 128 + 2 x 8 x 8 = 608 with, 8 x 352 + 128 + 2 x 8 x 8 x 8 = 3,968 without
    assert "<td>608</td><td>3.97 K</td><td>6.53x</td><td>256 B</td>" in row


def test_measured_points_are_drawn_with_their_exponents_and_where_they_cross() -> None:
    picture = drawn(found(*POINTS))
    times, work, areas, room, numbers = picture.panels
    assert [list(one.y) for one in times.figure.data[2:]] == [  # type: ignore[union-attr]
        pytest.approx([1, 1, 1, 1]), pytest.approx([0.5 * (n / 8) ** 1.5 for n in LENGTHS])
    ]  # fmt: skip
    assert "n^0.00, without as n^1.50" in times.note and "3 largest contexts, n\u00a0=\u00a016 – 64" in times.note
    assert times.figure.layout.shapes[0].x0 == pytest.approx(8 * 2 ** (2 / 3))  # type: ignore[union-attr]
    assert "<tiny>, FP32, on CPU, threads: 2" in times.note
    assert "0.0570 s with the cache" in areas.note and len(areas.figure.data) == 2  # type: ignore[union-attr]
    assert list(room.figure.data[1].y) == pytest.approx([n * 32 / 2**20 for n in LENGTHS])  # type: ignore[union-attr]
    assert "After 100 tokens" in room.note and "32 B a token" in room.note
    assert "1.00 ms (0.950–1.05)" in numbers.html and "11.31x" in numbers.html
    texts = [badge.text for badge in picture.badges]
    assert not failing(picture.badges) and "11.31x as fast" in texts[1] and "cross at about n = 12.7" in texts[2]


def test_a_cache_that_holds_other_bytes_than_the_formula_is_red() -> None:
    (red,) = failing(drawn(found(*POINTS[:-1], replace(POINTS[-1], cache_bytes=2049))).badges)
    assert "at n = 64 the cache holds 2,049 B, the formula says 2,048 B" in red


def test_a_cache_that_is_always_faster_or_slower_is_called_so() -> None:
    always = [badge.text for badge in drawn(found(point(8, 1.0, 2.0), point(16, 1.0, 4.0))).badges]
    assert any("faster at every context measured, from n = 8" in text for text in always)
    never = [badge.text for badge in drawn(found(point(8, 2.0, 1.0), point(16, 4.0, 1.0))).badges]
    assert any("at n = 16 a step with the cache is 4.00x slower" in text for text in never) and len(never) == 2


def test_a_windowed_cache_promises_no_line_and_says_so() -> None:
    shape = replace(SHAPE, own=(replace(SHAPE.own[0], window=16),))
    picture = drawn(found(*POINTS), shape=shape)
    assert all(badge.ok is None for badge in picture.badges)
    assert "sliding-window" in picture.panels[3].note and "with the cache at no context" in picture.panels[1].note


def test_the_columns_have_names_of_their_own() -> None:
    heads = re.findall(r"<th[^>]*col[^>]*>(.*?)</th>", drawn(found(*POINTS)).panels[-1].html)
    assert len(heads) == len(set(heads)) >= 7
    assert drawn(found(POINTS[0]), part=0.2).panels[-1].html.count("–") == 2 + 3 * (len(LENGTHS) - 1)


@pytest.mark.parametrize("language", LANGUAGES)
def test_curves_end_at_the_models_last_position_and_no_sentence_goes_beyond_it(language: str) -> None:
    work, room, _ = drawn(None, Translator(language), limit=80).panels
    for panel in (work, room):
        assert panel.figure is not None and max(panel.figure.data[0].x) == 80
        assert panel.figure.layout.shapes[-1].x0 == 80 and "80" in panel.figure.layout.annotations[-1].text
    assert "100" not in room.note and "80" in room.note and "2.50 KiB" in room.note and "3.12 KiB" in room.note
    far = drawn(None, Translator(language), limit=8192).panels[1]
    assert max(far.figure.data[0].x) == 8 * 64 and not far.figure.layout.shapes and "100" in far.note  # type: ignore[union-attr]


def test_attention_that_is_half_beyond_the_last_position_only_is_said_so() -> None:
    # 16 n of 480 + 16 n with the cache: half from n = 30; 16 n^2 of 352 n + 128 + 16 n^2 without: from n = 23
    assert "with the cache from n = 30 on, without it from n = 23 on" in drawn(None).panels[0].note
    assert "with the cache at none of this model's 25 positions" in drawn(None, limit=25).panels[0].note


def test_while_it_is_measured_few_figures_are_drawn() -> None:
    growing = drawn(found(*POINTS[:1]), part=0.3)
    assert growing.part == 0.3 and not growing.badges and sum(panel.figure is not None for panel in growing.panels) == 2
    assert "needs three points" in growing.panels[0].note
    assert len(drawn(Sweep((), LENGTHS, 0.1), part=0.1).panels) == 3


def test_what_was_left_out_and_what_is_not_counted_is_said() -> None:
    picture = drawn(found(*POINTS, left_out=128), shape=replace(SHAPE, uncounted=5))
    assert "before a context of 128" in picture.notes[0] and "experts" in picture.notes[1]


def test_the_sweep_is_streamed_and_kept(workbench: Workbench, loaded: Loaded) -> None:
    trace_id, trace = traced(workbench, loaded)
    view = scene(workbench, trace_id, trace)
    (before,) = cost.draw(view)
    assert before.notes and workbench.recall(trace_id, cost.KEY) is None
    pictures = list(cost.draw(view, measure=True))
    assert len(pictures) > 3 and pictures[-1].part is None and not failing(pictures[-1].badges)
    (again,) = cost.draw(view)
    assert [panel.note for panel in again.panels] == [panel.note for panel in pictures[-1].panels]


def test_a_newer_wish_ends_the_sweep(workbench: Workbench, loaded: Loaded) -> None:
    trace_id, trace = traced(workbench, loaded)
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 12

    pictures = list(cost.draw(replace(scene(workbench, trace_id, trace), stop=stop), measure=True))
    assert all(one.part is not None for one in pictures) and workbench.recall(trace_id, cost.KEY) is None


def test_a_model_that_cannot_write_says_so(workbench: Workbench, loaded: Loaded) -> None:
    from tfviz.introspection.capture import capture

    model = loaded("bert")
    prompt = model.prompt("hello")
    trace = capture(model, prompt, ("hello", None), kernel="naive")
    with pytest.raises(TfvizError, match="writes no text"):
        list(cost.draw(scene(workbench, workbench.keep(trace, prompt), trace)))


def test_the_code_shown_is_code() -> None:
    shown: Any = cost.SECTION.code()
    assert all(isinstance(one, Callable) for one in shown)  # type: ignore[arg-type]
    assert np.all([one.__doc__ for one in shown])
