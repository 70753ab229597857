"""The logit lens's data step: what is sent is what was computed, and each badge turns red when an array lies."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.conftest import Loaded
from tfviz.introspection.lens import Lens, lens_steps
from tfviz.messages import LANGUAGES
from tfviz.ui.components.picture import Badge, Picture, payload
from tfviz.ui.components.section import Scene
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.generate import lens as tab

EN = Translator("en")
PLACE = {"kind": "self", "layer": 0, "head": 0, "query": 1, "key": 0}
LABELS = ["a", "b"]


def hand_made() -> Lens:
    """Two layers and the embedding, two columns, a vocabulary of three, by hand."""
    embedding, first, last = (
        [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]],
        [[0.2, 0.5, 0.3], [0.3, 0.6, 0.1]],
        [[0.1, 0.6, 0.3]] * 2,
    )
    probs = np.array([embedding, first, [last[0], [0.9, 0.06, 0.04]]])
    order = np.argsort(-probs, axis=2, kind="stable")
    final = order[-1, :, 0]
    of_final = np.take_along_axis(probs, final[None, :, None].repeat(3, 0), axis=2)
    return Lens(
        n_rows=3,
        first=0,
        ids=order.astype(np.int32),
        log_probs=np.log(np.take_along_axis(probs, order, axis=2)).astype(np.float32),
        final=final.astype(np.int32),
        final_log_probs=np.log(of_final[..., 0]).astype(np.float32),
        ranks=(1 + (probs > of_final).sum(axis=2)).astype(np.int32),
        kl=(probs[-1] * np.log(probs[-1] / probs)).sum(axis=2).astype(np.float32),
        entropy=-(probs * np.log(probs)).sum(axis=2).astype(np.float32),
        own_ids=order[-1].astype(np.int32),
        own_log_probs=np.log(np.take_along_axis(probs[-1], order[-1], axis=1)).astype(np.float32),
        gap=0.0,
        layers=(0, 1),
        normed=False,
        after=("norm", "head"),
        labels={0: "␣x", 1: "<b>", 2: "⏎"},
    )


def picture(lens: Lens, **options: Any) -> Picture:
    return tab.picture(lens, LABELS, PLACE, 1, options.pop("family", "decoder"), EN, **options)


def sent(picture: Picture) -> dict[str, Any]:
    return json.loads(json.dumps(payload(picture), allow_nan=False))["panels"][0]["data"]


def array(data: dict[str, Any], name: str, dtype: Any, *shape: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(data[name]), dtype=dtype).reshape(shape)


def red(badges: Any) -> list[int]:
    return [i for i, badge in enumerate(badges) if badge.ok is False]


def test_what_is_sent_is_what_was_computed() -> None:
    lens = hand_made()
    data = sent(picture(lens))
    ids = array(data, "ids", np.uint16, 3, 2, 3)
    assert [[data["names"][i] for i in row] for row in ids[:, 1, :1]] == [["<b>"], ["<b>"], ["␣x"]]
    np.testing.assert_allclose(
        np.exp(array(data, "logs", np.uint16, 3, 2, 3) / -2000), np.exp(lens.log_probs), rtol=3e-4
    )
    np.testing.assert_array_equal(array(data, "ranks", np.int32, 3, 2), [[2, 2], [1, 2], [1, 1]])
    np.testing.assert_array_equal(array(data, "kl", np.float32, 3, 2), lens.kl)
    np.testing.assert_array_equal(array(data, "final_logs", np.float32, 3, 2), lens.final_log_probs)
    assert [data["names"][i] for i in data["final"]] == ["<b>", "␣x"]
    assert data["next"] == ["b"] and data["layers"] == [0, 1] and data["tokens"] == LABELS


def test_a_token_has_settled_where_no_row_above_says_another() -> None:
    lens = hand_made()
    assert tab.settled(lens) == [1, 2]
    always = replace(lens, ids=np.broadcast_to(lens.ids[-1], lens.ids.shape).copy())
    assert tab.settled(always) == [0, 0]


def test_the_lines_are_the_chosen_columns() -> None:
    lens = hand_made()
    ranks, distances = (panel.figure for panel in picture(lens).panels[1:])
    assert ranks is not None and distances is not None
    np.testing.assert_allclose(ranks.data[0].y, [0.1, 0.3, 0.9], rtol=1e-6)
    np.testing.assert_array_equal(ranks.data[1].y, [2, 2, 1])
    np.testing.assert_array_equal(distances.data[0].y, lens.kl[:, 1])
    assert ranks.layout.shapes[0].x0 == 0
    assert "“x”" in picture(lens).panels[1].title and "layer 1" in picture(lens).panels[1].note


def test_every_check_holds_and_turns_red_when_an_array_lies() -> None:
    lens = hand_made()
    assert red(tab.badges(lens, "fp32", EN)) == []
    wrong_rank = lens.ranks.copy()
    wrong_rank[0, 0] = 1
    wrong_list = lens.log_probs.copy()
    wrong_list[1, 0] = wrong_list[1, 0][::-1]
    wrong_kl, low_kl = lens.kl.copy(), lens.kl.copy()
    wrong_kl[-1, 0], low_kl[0, 0] = 0.5, -0.2
    other_id = lens.own_ids.copy()
    other_id[0, 0] = 2
    cases: list[tuple[Lens, int]] = [
        (replace(lens, gap=0.1), 0),
        (replace(lens, own_log_probs=lens.own_log_probs + 0.1), 0),
        (replace(lens, own_ids=other_id), 0),
        (replace(lens, ranks=wrong_rank), 1),
        (replace(lens, log_probs=wrong_list), 1),
        (replace(lens, kl=wrong_kl), 2),
        (replace(lens, kl=low_kl), 2),
    ]
    for lying, badge in cases:
        assert badge in red(tab.badges(lying, "fp32", EN)), badge


def test_what_cannot_be_compared_is_said_not_claimed() -> None:
    lens = hand_made()
    badge: Badge = tab.badges(
        replace(lens, own_ids=lens.own_ids[:0], own_log_probs=lens.own_log_probs[:0]), "fp32", EN
    )[0]
    assert badge.ok is None and "not compared" in badge.text


def test_a_lens_under_way_shows_the_rows_it_has_and_how_far_it_is() -> None:
    lens = hand_made()
    rows = {name: getattr(lens, name)[1:] for name in ("ids", "log_probs", "final_log_probs", "ranks", "kl", "entropy")}
    part = replace(lens, **rows)
    drawn = picture(part)
    assert drawn.part == pytest.approx(2 / 3) and len(drawn.panels) == 1
    assert sent(drawn)["begun"] == 1 and sent(drawn)["settled"] == []


def test_an_encoder_says_what_belongs_there_and_its_decoders_side_is_told() -> None:
    lens = replace(hand_made(), normed=True)
    assert sent(picture(lens, family="encoder"))["next"] == []
    assert "An encoder says" in picture(lens, family="encoder").panels[0].note
    assert "post-norm" in picture(lens).panels[0].note
    other = picture(lens, family="encoder-decoder", other_side=True)
    assert sent(other)["kind"] == "decoder" and sent(other)["layer"] is None and other.notes


def test_the_window_stays_while_neighbours_are_chosen() -> None:
    assert tab.window(12, 5) == (0, 12)
    assert {tab.window(200, query) for query in range(96, 112)} == {(80, 128)}
    for n in (49, 60, 300):
        for query in range(n):
            first, end = tab.window(n, query)
            assert first <= query < end <= n and end - first == min(n, tab.COLUMNS)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", ["llama", "t5", "bert-mlm", "gemma2"])
def test_real_models_are_drawn_and_every_check_holds(loaded: Loaded, name: str, language: str) -> None:
    model = loaded(name)
    prompt = model.prompt("the cat saw the other cat", "the cat" if model.family == "encoder-decoder" else None)
    tokens = prompt.target or prompt.source.tokens
    steps: Iterator[Lens] = lens_steps(model, prompt, 0, len(tokens), "naive")
    *_, lens = steps
    drawn = tab.picture(lens, [one.label for one in tokens], PLACE, 1, model.family, Translator(language))
    assert not red(drawn.badges) and len(drawn.badges) == 3
    assert len(json.dumps(payload(drawn), allow_nan=False)) < 200_000


class Kept:
    """A workbench of one trace that counts how often something is computed."""

    def __init__(self, model: Any, prompt: Any) -> None:
        self.model, self.prompt, self.found, self.runs, self.stops = model, prompt, dict[Any, Any](), 0, False

    def recall(self, trace_id: str, key: Any) -> Any:
        return self.found.get(key)

    def remember(self, trace_id: str, key: Any, value: Any) -> None:
        self.found[key] = value

    def stream(self, trace_id: str, job: Any, stop: Any) -> Iterator[Any]:
        self.runs += 1
        yield from job(self.model, self.prompt)


def scene(loaded: Loaded, name: str, **place: Any) -> Any:
    from tfviz.introspection.capture import capture

    model = loaded(name)
    prompt = model.prompt("the cat saw the other cat", "the cat" if model.family == "encoder-decoder" else None)
    trace = capture(model, prompt, ("the cat saw the other cat", None), kernel="naive")
    kept: Any = Kept(model, prompt)
    return Scene(EN, kept, "id", trace, {**PLACE, **place}, lambda: kept.stops)


def test_a_lens_is_computed_once_and_then_drawn_from_what_is_kept(loaded: Loaded) -> None:
    looking = scene(loaded, "llama")
    first, again = list(tab.draw(looking)), list(tab.draw(looking))
    assert looking.bench.runs == 1 and len(again) == 1 and first[-1].badges == again[0].badges
    assert sent(again[0]) == sent(first[-1])


def test_a_lens_that_was_left_is_gone_on_with_for_another_choice(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfviz.introspection.lens.CHUNK", 1)  # a layer a step
    looking = scene(loaded, "llama")
    drawing = tab.draw(looking)
    assert sent(next(drawing))["begun"] == 3
    looking.bench.stops = True
    assert list(drawing) == []  # two rows are there
    looking.bench.stops = False
    other = Scene(EN, looking.bench, "id", looking.trace, {**PLACE, "layer": 0, "query": 1}, looking.stop)
    drawn = [sent(one) for one in tab.draw(other)]
    assert [one["begun"] for one in drawn] == [2, 1, 0] and drawn[-1]["query"] == 1


def test_of_an_encoder_decoder_the_decoder_is_read_whatever_is_selected(loaded: Loaded) -> None:
    drawn = list(tab.draw(scene(loaded, "t5", kind="encoder", query=5)))[-1]
    assert sent(drawn)["kind"] == "decoder" and sent(drawn)["query"] == len(sent(drawn)["tokens"]) - 1
    assert sent(list(tab.draw(scene(loaded, "t5", kind="cross", query=1)))[-1])["kind"] == ""
