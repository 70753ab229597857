"""Speed, how flash does it: what is sent is what was computed, bytes are exact, and tampering turns badges red."""

import base64
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import ARCHITECTURES
from tests.conftest import Loaded
from tfviz.inference.traffic import HeadShape
from tfviz.introspection.capture import capture
from tfviz.introspection.tiles import Tiling, head_tiling
from tfviz.introspection.trace import LayerAttention
from tfviz.messages import LANGUAGES, sentences
from tfviz.ui.components.picture import Picture, pack, payload
from tfviz.ui.components.section import Scene
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.speed import tiling as section
from tfviz.ui.tabs.speed import tiling_traffic
from tfviz.ui.tabs.speed.tiling_traffic import Wish

EN = Translator("en")
TEXT = "The animal didn't cross the street because it was too tired"
WISH = Wish(4, 3, 128, 4096, True)


def layer(n: int = 10, m: int = 10, dim: int = 8, causal: bool = True, **changes: Any) -> LayerAttention:
    make = np.random.default_rng(3).standard_normal
    query, key, value = (make((heads, size, dim), dtype=np.float32) for heads, size in ((4, n), (2, m), (2, m)))
    made = LayerAttention(2 * query, key, value, mask=None, bias=None, scale=None, causal=causal, softcap=None)
    return replace(made, **changes)


def drawn(found: Tiling, t: Translator = EN, wish: Wish = WISH, row: int = 0) -> Picture:
    n, m = found.scores.shape
    return section.picture(found, [[f"<q{i}>" for i in range(n)], [f"k{i}" for i in range(m)]], wish, t, "id", row)


def failing(picture: Picture) -> list[str]:
    return [badge.text for badge in picture.badges if badge.ok is False]


def numbers(text: str, kind: str = "<f4") -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=kind)


FOUND = head_tiling(layer(), 3, 4, 3, 64)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_model_is_drawn_and_every_check_holds(name: str, language: str, loaded: Loaded) -> None:
    model = loaded(name)
    prompt = model.prompt(TEXT, "the cat saw" if model.family == "encoder-decoder" else None)
    trace = capture(model, prompt, (TEXT, None), kernel="naive")
    for kind in trace.stacks:
        place = {"kind": kind, "layer": 1, "head": 1, "query": 2, "key": 0}
        scene = Scene(Translator(language), None, "trace", trace, place)  # type: ignore[arg-type]
        picture = section.draw(scene, 4, 3, 128, tiling_traffic.SENTENCE)
        assert not failing(picture) and [badge.ok for badge in picture.badges] == [True, True, True, None]
        assert not picture.notes and len(pack(payload(picture))) < 200_000
        assert picture.panels[0].data["id"] == f"trace/{kind}/1/1"


def test_what_is_sent_is_what_was_computed() -> None:
    data = json.loads(json.dumps(payload(drawn(FOUND)), allow_nan=False))["panels"][0]["data"]
    assert data["blocks"] == [4, 3] and data["dims"] == [8, 8] and data["queries"][1] == "<q1>"
    for name in ("scores", "maximum", "total", "correction"):
        assert np.array_equal(numbers(data["numbers"][name]).reshape(10, -1), getattr(FOUND, name))
    assert data["few"] == 4 and data["features"] == 8
    assert np.array_equal(numbers(data["numbers"]["accumulator"]).reshape(10, 4, 4), FOUND.accumulator[..., :4])
    assert np.array_equal(numbers(data["numbers"]["output"]).reshape(10, 4), FOUND.output[:, :4])
    ink = numbers(data["ink"]["accumulator"], "i1").reshape(10, 4, 8)
    assert abs(ink).max() == 127 and np.array_equal(np.sign(ink[0, 0]), np.sign(np.rint(FOUND.accumulator[0, 0] * 20)))
    assert list(numbers(data["skipped"], "u1")) == [0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0]


def test_one_head_reads_its_group_and_its_own_mask() -> None:
    masks = np.random.default_rng(0).random((4, 10, 10)) < 0.5
    made = layer(causal=False, mask=masks)
    found = head_tiling(made, 2, 4, 3, 64)
    np.testing.assert_allclose(made.weights(2)[0] @ made.value[1], found.output, atol=2e-6)
    assert np.array_equal(np.isneginf(found.scores), masks[2] | np.isneginf(found.scores)) and not failing(drawn(found))


def test_bias_cap_and_scale_are_in_the_scores() -> None:
    bias = np.random.default_rng(0).standard_normal((1, 10, 10)).astype(np.float32)
    made = layer(bias=bias, softcap=1.5, scale=0.7)
    found = head_tiling(made, 0, 2, 5, 64)
    capped = 1.5 * np.tanh(0.7 * made.query[0] @ made.key[0].T / 1.5) + bias[0]
    allowed = np.isfinite(found.scores)
    np.testing.assert_allclose(found.scores[allowed], capped[allowed], atol=2e-6)
    assert not failing(drawn(found))


def test_a_row_with_nothing_allowed_and_rows_of_another_length_hold() -> None:
    mask = np.zeros((1, 5, 9), dtype=bool)
    mask[0, 2] = True
    found = head_tiling(layer(5, 9, causal=False, mask=mask), 1, 1, 4, 64)
    assert (found.output[2] == 0).all() and not failing(drawn(found))
    assert found.skipped.sum(axis=1).tolist() == [0, 0, 3, 0, 0]


def test_one_block_is_the_whole_matrix() -> None:
    found = head_tiling(layer(), 0, 64, 64, 64)
    assert (found.query_block, found.key_block) == (10, 10) and found.skipped.tolist() == [[False]]
    assert "no tile is wholly blocked" in drawn(found).badges[2].text


@pytest.mark.parametrize("name", ["accumulator", "total", "output", "naive"])
def test_a_number_that_is_tampered_with_turns_the_first_badge_red(name: str) -> None:
    array = getattr(FOUND, name).copy()
    array[5, ...] *= 1.01
    assert "tiled = naive" in failing(drawn(replace(FOUND, **{name: array})))[0]


@pytest.mark.parametrize("name", ["maximum", "total", "correction", "scores"])
def test_a_running_number_that_is_tampered_with_turns_its_badge_red(name: str) -> None:
    array = getattr(FOUND, name).copy()
    array[9, 1] += 0.3
    assert any("every m" in text for text in failing(drawn(replace(FOUND, **{name: array}))))


@pytest.mark.parametrize("at", [(0, 0), (0, 2)])
def test_a_tile_that_is_wrongly_skipped_or_computed_turns_the_badge_red(at: tuple[int, int]) -> None:
    skipped = FOUND.skipped.copy()
    skipped[at] ^= True
    assert any("skipped" in text for text in failing(drawn(replace(FOUND, skipped=skipped))))


def test_nan_is_no_small_difference() -> None:
    for name in ("accumulator", "total", "maximum"):
        array = getattr(FOUND, name).copy()
        array[0] = np.nan
        assert failing(drawn(replace(FOUND, **{name: array})))


def test_a_long_text_is_cut_and_stays_small_at_the_smallest_blocks() -> None:
    found = head_tiling(layer(80, 80, 64), 0, 1, 1, section.SHOWN)
    assert found.scores.shape == (64, 64)
    labels = [[str(i) for i in range(80)]] * 2
    picture = section.picture(found, labels, WISH, EN)
    assert "first 64 of 80" in picture.notes[0] and not failing(picture)
    assert len(json.dumps(picture.panels[0].data)) < 200_000
    assert "this sentence, n = 80" in picture.panels[-1].html


# ---- bytes


def test_the_bytes_of_the_table_are_exact() -> None:
    rows = drawn(head_tiling(layer(12, 12, 64), 0, 4, 4, 64), wish=replace(WISH, causal=False)).panels[-1].html
    row = rows.split("n\u00a0=\u00a01,024<")[1].split("</tr>")[0]
    # naive 4 x 1024 x 64 x 4 + 4 x 1024 x 1024 x 4; tiled in blocks of 128: 2 x 1024 x 64 x 4 x (1 + 8)
    assert re.findall(r"<td>(.*?)</td>", row) == ["17.0 MiB", "4.50 MiB", "3.78x", "1.00 MiB", "8.00 MiB", "32.0 KiB"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [12, 40, 300, 4096])
def test_the_first_block_that_moves_less_is_the_first(n: int, causal: bool) -> None:
    shape = HeadShape(n, n, 64, 64, causal=causal)
    found = tiling_traffic.first_better(shape)
    less = [
        rows
        for rows in range(1, n + 1)
        if tiling_traffic.totals(shape, rows, 1)[1] < tiling_traffic.totals(shape, 1, 1)[0]
    ]
    assert found == (less[0] if less else None)


def test_the_figures_show_the_forms_that_are_named() -> None:
    bars, growth, by_block = (panel.figure for panel in drawn(FOUND).panels[1:4])
    assert bars is not None and growth is not None and by_block is not None
    assert list(bars.data[0].y) == ["tiled", "naive"] and bars.data[4].x[0] == 0  # tiled writes no scores
    assert [one.name for one in growth.data] == ["naive", "tiled", "q, k, v, output once"]
    assert (np.diff(by_block.data[1].y) <= 0).all() and by_block.layout.shapes[0].x0 == 4


def test_another_head_of_the_sentence_draws_no_new_figures() -> None:
    other = head_tiling(layer(), 0, 4, 3, 64)
    assert [panel.figure for panel in drawn(other).panels[1:]] == [panel.figure for panel in drawn(FOUND).panels[1:]]
    assert drawn(other).panels[1].figure is drawn(FOUND).panels[1].figure


def test_every_sentence_has_the_same_fields_in_both_languages() -> None:
    def fields(language: str) -> dict[str, set[str]]:
        own = ((key, text) for key, text in sentences(language).items() if key.startswith("speed.tiling"))
        return {key: set(re.findall(r"\{(\w+)\}", text)) for key, text in own if key.rsplit(".", 1)[-1] != "intro"}

    def plain(found: dict[str, set[str]]) -> dict[str, set[str]]:
        return {key: names for key, names in found.items() if not key.endswith(("title", "article"))}

    assert plain(fields("en")) == plain(fields("zh"))
