"""Variants of a cache: exact values on hand-made arrays, and each badge turns red when an array is tampered with."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.introspection.test_cache_variants import layer
from tfviz.inference.measure import Latency
from tfviz.introspection import cache_variants as measured
from tfviz.introspection.cache_variants import AXES, CrossSeen, output_errors, quantised
from tfviz.introspection.trace import LayerAttention
from tfviz.messages import LANGUAGES
from tfviz.ui.components.picture import Picture, payload
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.cache import variants
from tfviz.ui.tabs.cache.variant_bits import bits_picture
from tfviz.ui.tabs.cache.variant_cross import cross_picture
from tfviz.ui.tabs.cache.variant_growth import growth_picture
from tfviz.ui.tabs.cache.variant_heads import Sharing, heads_picture
from tfviz.ui.tabs.cache.variant_window import window_picture

EN = Translator("en")
LABELS = ["The", "<b>", "cat", "sat", "on", "it"]


def failing(drawn: Picture) -> list[str]:
    return [badge.text for badge in drawn.badges if badge.ok is False]


# ---- heads

ROWS = [Sharing(4, 400, None), Sharing(2, 200, None), Sharing(1, 100, 0.5)]
POOLED = np.array([[0.1, 0.5, 0.3]], dtype=np.float32)


def test_heads_are_drawn_as_they_share() -> None:
    drawn = heads_picture(ROWS, 4, 2, POOLED, 1, EN)
    html = drawn.panels[0].html
    assert html.count('class="tv-variant-group"') == 4 + 2 + 1 and html.count("<b></b>") == 3 * 4
    assert html.count("this model") == 1 and "pooled here: 50.0 %" in html and "0.25x of MHA" in html
    np.testing.assert_allclose(drawn.panels[1].figure.data[0].y, [10, 50, 30])  # type: ignore[union-attr]
    assert not failing(drawn)


def test_the_badges_of_heads_turn_red() -> None:
    assert len(failing(heads_picture(ROWS, 4, 2, POOLED + 0.1, 1, EN))) == 1
    assert len(failing(heads_picture([*ROWS[:2], replace(ROWS[2], token_bytes=101)], 4, 2, POOLED, 1, EN))) == 1


def test_one_head_has_nothing_to_pool() -> None:
    drawn = heads_picture([Sharing(1, 100, None)], 1, 1, np.empty((0, 3)), 1, EN)
    assert len(drawn.panels) == 1 and not failing(drawn)


# ---- a window


def uniform(n: int = 6) -> LayerAttention:
    """Every query spreads its weight evenly over what it sees."""
    one = layer(n=n, heads=1, kv_heads=1)
    return replace(one, query=np.zeros_like(one.query))


def test_a_window_loses_what_lies_outside_it() -> None:
    drawn = window_picture(uniform(), 0, 5, 2, 1, LABELS, EN)
    strips, figure, numbers = drawn.panels
    plain, sinks = strips.html.split("<h4>")[1:]
    assert plain.count('class="gone"') == 4 and plain.count('class="held"') == 2
    assert sinks.count('class="gone"') == 3 and sinks.count('class="sink"') == 1
    assert "&lt;b&gt;" in plain and "<b>" not in plain
    assert "66.7 %" in numbers.html and "50.0 %" in numbers.html  # 4 of 6 keys, 3 of 6
    lines = {line.name: line for line in figure.figure.data}  # type: ignore[union-attr]
    own = lines["“it”"]
    np.testing.assert_allclose(own.y[list(own.x).index(2)], 100 * 4 / 6, rtol=1e-5)
    assert not failing(drawn) and not drawn.notes


def test_a_window_over_everything_is_said() -> None:
    drawn = window_picture(uniform(), 0, 5, 50, 0, LABELS, EN)
    assert "holds all of it" in drawn.notes[0] and drawn.panels[0].html.count("<h4>") == 1


def test_a_row_that_does_not_sum_to_one_turns_its_badge_red(monkeypatch: pytest.MonkeyPatch) -> None:
    one = uniform()
    weights = LayerAttention.weights(one, 0) * 1.1
    monkeypatch.setattr(LayerAttention, "weights", lambda self, head=None: weights)
    assert any("sum to 1" in text for text in failing(window_picture(one, 0, 5, 2, 0, LABELS, EN)))


def test_a_window_that_loses_something_of_everything_turns_its_badge_red(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "outside", lambda weights, windows, sinks: np.full((len(windows), len(weights)), 0.1))
    assert any("loses nothing" in text for text in failing(window_picture(uniform(), 0, 5, 2, 0, LABELS, EN)))


def test_of_a_long_sentence_the_first_and_last_keys_are_drawn() -> None:
    n = 200
    html = window_picture(uniform(n), 0, n - 1, 2, 0, [str(i) for i in range(n)], EN).panels[0].html
    assert html.count("<li") == 8 + 1 + 56 and "136 more" in html


# ---- growth

TOOK = {
    (way, n): Latency(median, median / 2, 2 * median, 9)
    for n in (8, 16)
    for way, median in (("exact", n * 1e-6), ("static", 1e-6))
}


def test_growth_shows_what_is_allocated_and_measured() -> None:
    drawn = growth_picture(100, 10, 64, TOOK, (2, 8, 8), "cpu", EN)
    allocated, times, numbers = drawn.panels
    static = next(line for line in allocated.figure.data if "static" in line.name)  # type: ignore[union-attr]
    assert set(static.y) == {6400}
    np.testing.assert_allclose(times.figure.data[0].y, [8, 16])  # type: ignore[union-attr]
    assert "16.00x as fast" in drawn.badges[1].text and drawn.badges[0].ok is True
    assert f"{100 * sum(range(10, 64)) / 1024:.3g}"[:3] in numbers.html.replace(",", "")


def test_slower_is_said_and_missing_room_turns_red(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {**TOOK, ("static", 16): Latency(1e-3, 1e-3, 1e-3, 9)}
    assert "slower" in growth_picture(100, 10, 64, slow, (2, 8, 8), "cpu", EN).badges[1].text
    real = measured.growth
    monkeypatch.setattr(measured, "growth", lambda *args: replace(real(*args), allocated=real(*args).allocated - 1))
    assert failing(growth_picture(100, 10, 64, TOOK, (2, 8, 8), "cpu", EN))


def test_a_sentence_that_fills_the_room_still_draws() -> None:
    assert not failing(growth_picture(100, 100, 64, TOOK, (2, 8, 8), "cpu", EN))


# ---- bits


def bits_of(one: LayerAttention, bits: int = 4, **changed: Any) -> Picture:
    found = {(width, axes): quantised(one, 1, width, axes) for width in (8, 4) for axes in AXES}
    errors = changed.pop("errors", output_errors([one, one], bits))
    found |= changed.pop("found", {})
    sizes = (np.abs(one.key[0]).max(0), np.abs(one.value[0]).max(0))
    return bits_picture(found, errors, sizes, one.key.shape, one.value.shape[-1], bits, 1, EN)


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_bytes_are_those_of_the_tensors(bits: int) -> None:
    one = layer(n=64, dim=32)
    drawn = bits_of(one, bits)
    assert not failing(drawn) and len(drawn.badges) == 4
    html = drawn.panels[0].html
    assert f"{2 * 64 * 2 * (16 + 4):,}"[:1] in html and html.count("<tr>") == 1 + 6
    np.testing.assert_allclose(drawn.panels[1].figure.data[0].y, np.abs(one.key[0]).max(0), rtol=1e-6)  # type: ignore[union-attr]


def test_the_badges_of_bits_turn_red() -> None:
    one, axes = layer(n=64, dim=32), AXES[0]
    good = quantised(one, 1, 4, axes)
    more = bits_of(one, found={(4, axes): replace(good, nbytes=good.nbytes + 1)})
    assert len(failing(more)) == 1
    finer = bits_of(one, found={(4, axes): replace(good, output_error=0.0)})
    assert any("INT8 spoils less" in text for text in failing(finer))
    assert len(failing(bits_of(one, errors=output_errors([one, one], 4) + 0.1))) == 1


# ---- cross attention

SEEN = CrossSeen(
    d_model=32, n_source=5, cross_bytes=2 * 5 * 64 * 4, self_bytes=1024, self_length=2, change=0.0, same_place=True
)


def test_the_cross_cache_is_fixed_and_its_work_counted() -> None:
    drawn = cross_picture(SEEN, 64, 2, EN)
    html = drawn.panels[1].html
    assert f"{2 * 5 * 32 * 64:,}" in html and f"{2 * 32 * 64:,}" in html and not failing(drawn)
    lines = {line.name: line for line in drawn.panels[0].figure.data}  # type: ignore[union-attr]
    assert set(lines["cross attention"].y) == {2560} and lines["self-attention"].y[1] == 1024


def test_the_badges_of_cross_turn_red() -> None:
    assert len(failing(cross_picture(replace(SEEN, change=1e-3), 64, 2, EN))) == 1
    assert len(failing(cross_picture(replace(SEEN, cross_bytes=7), 64, 2, EN))) == 1


# ---- the section


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_variant_is_drawn_of_a_real_trace(language: str, loaded: Any) -> None:
    from tfviz.introspection.capture import capture

    for name in ("llama", "bart", "bert"):
        model = loaded(name)
        text = ("the animal didn't cross", "the cat saw" if model.family == "encoder-decoder" else None)
        prompt = model.prompt(*text)
        trace = capture(model, prompt, text, kernel="naive")
        kept: dict[Any, Any] = {}
        bench = SimpleNamespace(
            recall=lambda trace_id, key, kept=kept: kept.get(key),
            remember=lambda trace_id, key, value, kept=kept: kept.update({key: value}),
            resident=SimpleNamespace(device="cpu"),
        )
        for kind in trace.stacks:
            scene: Any = SimpleNamespace(
                t=Translator(language),
                bench=bench,
                trace_id="1",
                trace=trace,
                place={"kind": kind, "layer": 0, "head": 1, "query": 2, "key": 0},
                compute=lambda job, *args: job(*args),
                examine=lambda job, model=model, prompt=prompt: job(model, prompt),
            )
            for variant in variants.VARIANTS:
                drawn = variants.draw(scene, variant, 2, 1, 64, "4")
                assert not failing(drawn), (name, kind, variant)
                assert bool(drawn.panels) != bool(drawn.notes) or variant == "window"
                json.dumps(payload(drawn), allow_nan=False)
