"""The Fill in section's data step: what is shown is what was computed, and each badge turns red when an array lies."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from html import unescape
from math import log
from typing import Any

import numpy as np
import pytest

from tests.conftest import Loaded
from tests.introspection.test_filling import TEXT, fillable  # noqa: F401
from tfviz.config import Settings
from tfviz.introspection.filling import Ability, Filled, Follows, Guess, fill_chosen, fill_drawn
from tfviz.introspection.spans import Spans, corrupt, fill_spans
from tfviz.introspection.workbench import Request, Workbench
from tfviz.messages import LANGUAGES
from tfviz.sources.resident import Resident
from tfviz.sources.tokens import Token
from tfviz.ui.components.picture import Badge, Picture, payload
from tfviz.ui.components.section import Scene
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.generate import fill, fill_masks
from tfviz.ui.tabs.generate import fill_spans as spans_tab
from tfviz.ui.tabs.generate.fill_row import asked

EN = Translator("en")
WORDS = ("[CLS]", "the", "cat", "saw", "<b>", "[SEP]")


def tokens() -> tuple[Token, ...]:
    return tuple(Token(i, word, word, special=word[0] == "[") for i, word in enumerate(WORDS))


def guess(position: int, kind: str, read: str, truth: str | None, rank: int | None, p: float) -> Guess:
    top = (("cat", 0.5), ("dog", 0.25), ("<i>", 0.125))
    return Guess(position, kind, read, truth, top, 1.5, 1.0, rank, None if truth is None else log(p))


def filled() -> Filled:
    """Of four places two are hidden: "cat", guessed rightly, and "<b>", at rank 3."""
    given = np.arange(6)
    read = given.copy()
    read[[2, 4]] = 99
    guesses = (guess(2, "mask", "[MASK]", "cat", 1, 0.5), guess(4, "mask", "[MASK]", "<b>", 3, 0.125))
    loss = -(log(0.5) + log(0.125)) / 2
    return Filled(tokens(), given, read, 99, (1, 2, 3, 4), guesses, loss, 1000, "[MASK]")


def drawn() -> Filled:
    """One of four places was chosen, and stayed as it was."""
    kept = replace(filled().guesses[0], kind="kept", read="cat")
    return replace(filled(), read=np.arange(6), guesses=(kept,), loss=-log(0.5))


def gaps() -> Spans:
    """ "the cat" and "<b>" are gaps; the model answers the second one only, rightly."""
    given, marks = (0, 1, 2, 3, 4, 5), (20, 21, 22)
    source, target = corrupt(given, ((1, 3), (4, 5)), marks, end=5)
    labels = dict(enumerate(WORDS)) | {20: "<x0>", 21: "<x1>", 22: "<x2>"}
    probs = (0.5,) * len(target)
    return Spans(
        tokens(), given, (1, 2, 3, 4), ((1, 3), (4, 5)), frozenset(), marks, tuple(source), tuple(target), probs,
        (1.0,) * len(target), log(2), (21, 4, 22), labels, 30,
    )  # fmt: skip


def chips(picture: Picture) -> list[dict[str, Any]]:
    return list(picture.panels[0].data["tokens"])


def failing(badges: Any) -> list[str]:
    return [badge.text for badge in badges if badge.ok is False]


# ---- masks


def test_the_row_shows_what_is_read_and_what_is_guessed() -> None:
    picture = fill_masks.picture(filled(), False, EN)
    shown = chips(picture)
    assert [chip["state"] for chip in shown] == ["special", "plain", "mask", "plain", "mask", "special"]
    assert (shown[2]["text"], shown[2]["read"], shown[2]["guess"], shown[2]["right"]) == ("cat", "[MASK]", "cat", True)
    assert shown[4]["right"] is False and shown[1]["guess"] == ""
    data = picture.panels[0].data
    assert (data["hidden"], data["places"], data["open"]) == ([2, 4], [1, 2, 3, 4], True)


def test_bars_have_the_length_of_their_probability() -> None:
    html = fill_masks.cards(filled(), EN).html
    assert re.findall(r"--part:([\d.]+)", html)[:3] == ["0.5000", "0.2500", "0.1250"]
    assert re.findall(r"<span>([^<]+ %)</span>", html)[:3] == ["50.0 %", "25.0 %", "12.5 %"]
    assert html.count("<li class=true>") == 2  # both truths are among the three
    assert "cat: 50.0 %, rank 1" in html and "&lt;b&gt;: 12.5 %, rank 3" in html
    assert "Entropy 1.50 of at most 6.91 nats: as unsure as between 4.48 equally likely tokens." in html
    assert "<i>" not in html and "<b>" not in html  # a token's text is text


def test_a_typed_mask_has_no_truth_to_show() -> None:
    one = replace(filled(), guesses=(guess(2, "typed", "[MASK]", None, None, 1),), loss=None)
    picture = fill_masks.picture(replace(one, renamed=True), False, EN)
    assert "rank" not in picture.panels[1].html and "class=true" not in picture.panels[1].html
    assert chips(picture)[2]["right"] is None and not failing(picture.badges)[1:]
    assert any("it was read as [MASK]" in note for note in picture.notes)


def test_nothing_hidden_says_what_to_do() -> None:
    picture = fill_masks.picture(replace(filled(), read=np.arange(6), guesses=(), loss=None), False, EN)
    assert len(picture.panels) == 1 and "Click a token" in picture.notes[0]
    assert [badge.ok for badge in picture.badges] == [True]
    nothing = replace(filled(), read=np.arange(6), guesses=(), loss=None, places=())
    assert "only special ones" in fill_masks.picture(nothing, False, EN).notes[0]


def test_the_draw_is_summed_up_and_listed() -> None:
    picture = fill_masks.picture(drawn(), True, EN)
    assert not picture.panels[0].data["open"] and picture.panels[0].data["hidden"] == []
    assert re.findall(r"<b>([^<]+)</b>", picture.panels[1].html) == ["1 / 4", "0 · 0 · 1", "0.693", "1 / 1"]
    cells = re.findall(r"<td>([^<]+)</td>", picture.panels[2].html)
    assert cells == ["unchanged", "cat", "cat 50.0 %", "50.0 %", "1", "0.693"]
    assert not failing(picture.badges) and len(picture.badges) == 4


@pytest.mark.parametrize(
    ("made", "shown", "says"),
    [
        (replace(filled(), guesses=(replace(filled().guesses[0], total=0.9), filled().guesses[1])), False, "sum to 1"),
        (replace(filled(), read=np.array([0, 1, 99, 7, 99, 5])), False, "sentence's own tokens (1 differ)"),
        (replace(filled(), loss=1.0), False, "equals the cross-entropy"),
        (replace(drawn(), read=np.array([0, 1, 99, 3, 4, 5])), True, "15 % of the text"),
        (replace(filled(), places=(2, 4)), True, "15 % of the text"),
    ],
)
def test_a_badge_turns_red_when_an_array_lies(made: Filled, shown: bool, says: str) -> None:
    assert not failing(fill_masks.badges(filled(), False, EN)) and not failing(fill_masks.badges(drawn(), True, EN))
    red = failing(fill_masks.badges(made, shown, EN))
    assert red and any(says in text for text in red)


# ---- spans


def test_four_texts_stand_below_each_other() -> None:
    html = spans_tab.lines(gaps(), EN).html
    rows = [re.findall(r"<bdi[^>]*>([^<]+)</bdi>", row) for row in re.findall(r"<dd>(.*?)</dd>", html)]
    assert [[unescape(one) for one in row] for row in rows] == [
        ["[CLS]", "<x0>", "saw", "<x1>", "[SEP]"],
        ["<x0>", "the", "cat", "<x1>", "<b>", "<x2>", "[SEP]"],
        ["<x1>", "<b>", "<x2>"],
        ["[CLS]", "<x0>", "saw", "<b>", "[SEP]"],
    ]
    assert re.findall(r"<small>([^<]+)</small>", html) == ["50.0 %"] * 7
    assert html.count("tv-fill-chip filled") == 1
    assert "Loss on the true target: 0.693 nats" in spans_tab.lines(gaps(), EN).note


def test_each_gap_is_compared() -> None:
    html = spans_tab.answers(gaps(), EN).html
    assert re.findall(r"<td>([^<]+)</td>", html) == ["the cat", "(not answered)", "no", "&lt;b&gt;", "&lt;b&gt;", "yes"]


def test_the_row_of_gaps_shows_one_sentinel_a_gap() -> None:
    shown = chips(spans_tab.picture(gaps(), False, EN))
    assert [(chip["state"], chip["read"]) for chip in shown[1:5]] == [
        ("mask", "<x0>"),
        ("mask", ""),
        ("plain", ""),
        ("mask", "<x1>"),
    ]
    assert (shown[4]["guess"], shown[4]["right"], shown[1]["guess"], shown[1]["right"]) == ("<b>", True, "", False)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (replace(gaps(), target=(20, 1, 21, 4, 22, 5)), "give back the sentence"),
        (replace(gaps(), source=(0, 21, 3, 20, 5)), "2 sentinels in order"),
        (replace(gaps(), totals=(1.0, 0.5)), "sum to 1"),
        (replace(gaps(), loss=0.5), "equals the cross-entropy"),
    ],
)
def test_a_badge_of_the_spans_turns_red_when_an_array_lies(made: Spans, says: str) -> None:
    assert not failing(spans_tab.badges(gaps(), EN)) and len(spans_tab.badges(gaps(), EN)) == 4
    assert any(says in text for text in failing(spans_tab.badges(made, EN)))


# ---- pairs, and what cannot be done


def test_both_orders_of_a_pair_are_shown_and_summed() -> None:
    found = Follows("a <b>", "c", (0.75, 0.25), (0.1, 0.9))
    picture = fill.with_pair(Picture([]), Ability("masks", "BERT", True), found, EN)
    assert re.findall(r"--part:([\d.]+)", picture.panels[0].html) == ["0.7500", "0.1000"]
    assert "a &lt;b&gt; → c" in picture.panels[0].html and not failing(picture.badges)
    bad = fill.with_pair(Picture([]), Ability("masks", "BERT", True), replace(found, swapped=(0.5, 0.9)), EN)
    assert failing(bad.badges)


def test_without_a_pair_or_a_head_it_says_where_to_go() -> None:
    typed = fill.with_pair(Picture([]), Ability("masks", "BERT", True), None, EN)
    assert EN("page.second") in typed.panels[0].html
    none = fill.with_pair(Picture([]), Ability("masks", "RoBERTa <x>", False), None, EN)
    assert "RoBERTa &lt;x&gt; came without" in none.panels[0].html


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", ["decoder", "no_head", "no_mask", "whole", "answers"])
def test_what_a_model_cannot_do_is_said_with_what_to_choose(kind: str, language: str) -> None:
    picture = fill.cannot(Ability(kind, "Model <x>", False), Translator(language))
    assert "Model &lt;x&gt;" in picture.panels[0].html and "BERT" in picture.panels[0].html
    assert ("data-section" in picture.panels[0].html) == (kind in {"decoder", "whole", "answers"})


# ---- what the page asks for


@pytest.mark.parametrize(
    ("ask", "hidden"),
    [
        ({}, None),
        ({"masked": None}, None),
        ({"masked": "1,2"}, None),
        ({"masked": []}, ()),
        ({"masked": [3, 1, 3]}, (1, 3)),
        ({"masked": [True, 1.5, "2", None, -1, 10**9, [4], 5]}, (5,)),
    ],
)
def test_a_wish_is_read_as_far_as_it_makes_sense(ask: dict[str, Any], hidden: tuple[int, ...] | None) -> None:
    assert asked(ask) == hidden
    assert len(asked({"masked": list(range(5000))}) or ()) == 512


# ---- real models, as the page draws them


@pytest.fixture(scope="module")
def models(loaded: Loaded, fillable: Loaded) -> Any:  # noqa: F811
    return cache(lambda name: (fillable if name in {"bert-pretraining", "bert-next", "t5-sentinels"} else loaded)(name))


@pytest.fixture
def scene(models: Any, tmp_path: Any) -> Iterator[Any]:
    """`scene("bert-mlm", text)`: the page after that sentence, with every model of the tests at hand."""

    class All(Resident):
        def get(self, model: str, precision: str = "fp32", progress: Any = None) -> Any:
            return models(model)

    settings = replace(Settings.from_environment({}), cache=tmp_path, device="cpu")
    bench = Workbench(settings, All(settings))

    def make(name: str, text: str = TEXT, second: str | None = None, language: str = "en") -> Scene:
        trace_id, trace = bench.trace(Request(text, second, name, kernel="naive"))
        return Scene(Translator(language), bench, trace_id, trace, {})

    yield make


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("mode", fill.MODES)
@pytest.mark.parametrize(
    "name",
    ["bert-mlm", "roberta", "albert", "bert-pretraining", "bert-next", "bert", "t5-sentinels", "t5", "gpt2", "llama"],
)
def test_every_kind_of_model_draws_and_every_check_holds(name: str, mode: str, language: str, scene: Any) -> None:
    picture = fill.draw(scene(name, language=language), mode=mode, seed=3, ask={})
    assert not failing(picture.badges) and picture.panels
    sent = json.dumps(payload(picture), allow_nan=False)
    assert len(sent) < 200_000


def test_a_click_hides_a_token_and_comes_back_from_memory(scene: Any) -> None:
    here = scene("bert-mlm")
    for masked in ([2], [2, 4], [2], []):
        picture = fill.draw(here, "hand", 0, {"masked": masked})
        assert picture.panels[0].data["hidden"] == masked


def test_a_pair_is_asked_in_both_orders(scene: Any) -> None:
    picture = fill.draw(scene("bert-pretraining", TEXT, "it was too tired"), "hand", 0, {})
    assert any("sum to 1 (off by" in badge.text and "follows" in badge.text for badge in picture.badges)
    assert TEXT.split()[0] in picture.panels[-1].html


def test_the_seed_decides_the_draw(scene: Any) -> None:
    here = scene("t5-sentinels")
    states = [[chip["state"] for chip in chips(fill.draw(here, "drawn", seed, {}))] for seed in (0, 0, 1, 2, 3)]
    assert states[0] == states[1] and any(one != states[0] for one in states[2:])


def test_badges_name_the_counts_of_the_draw(models: Any) -> None:
    model, text = models("bert-mlm"), " ".join([TEXT] * 6)
    found = fill_drawn(model, model.prompt(text), (text, None), 1)
    badge: Badge = fill_masks.badges(found, True, EN)[2]
    counts = [sum(one.kind == kind for one in found.guesses) for kind in ("mask", "random", "kept")]
    said = [int(number) for number in re.findall(r"\d+", badge.text)]
    assert badge.ok and said == [len(found.guesses), 15, *counts] and sum(counts) == len(found.guesses)


def test_long_texts_show_a_limited_number_of_cards(models: Any) -> None:
    model, text = models("bert-mlm"), " ".join([TEXT] * 6)
    found = fill_chosen(model, model.prompt(text), (text, None), tuple(range(1, 50)))
    picture = fill_masks.picture(found, False, EN)
    assert picture.panels[1].html.count('tv-fill-card"') == fill_masks.MOST_CARDS
    assert any("24 of 49" in note for note in picture.notes)


def test_spans_of_a_real_model_hold(models: Any) -> None:
    model = models("t5-sentinels")
    found = fill_spans(model, model.prompt(TEXT, TEXT), (TEXT, None), seed=2)
    assert not failing(spans_tab.badges(found, EN)) and len(spans_tab.badges(found, EN)) == 4
