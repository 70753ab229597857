"""The Masks tab: it shows what the arrays say, badges turn red where one lies, its code makes the mask on screen."""

import json
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import gradio as gr
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Loaded
from tfviz.errors import TfvizError
from tfviz.introspection.alignment import Alignments
from tfviz.introspection.batch import BatchRun, MaskedHead, masked_head
from tfviz.introspection.capture import capture
from tfviz.introspection.mask_parts import Axes, MaskChoice, mask_parts, packed_axes, together
from tfviz.introspection.mask_read import MaskKind
from tfviz.introspection.packing import run_packed
from tfviz.messages import LANGUAGES
from tfviz.sources.batch import Batch, Side
from tfviz.sources.tokens import Token
from tfviz.ui.components.picture import Picture, payload
from tfviz.ui.components.section import Section
from tfviz.ui.i18n import Translator
from tfviz.ui.selection import place
from tfviz.ui.tabs.masks import SECTIONS, bench, conventions, decode, model
from tfviz.ui.tabs.masks import batch as batch_section
from tfviz.ui.tabs.masks.batch import Shown, run_badges, weight_badges
from tfviz.ui.tabs.masks.snippet import CONVENTIONS, Recipe, mask_code, run_code

EN = Translator("en")
BY_KEY = {section.key: section for section in SECTIONS}
TEXT = ("The animal didn't cross the street", None)
NO, YES = False, True


def tokens(*labels: str) -> tuple[Token, ...]:
    return tuple(Token(i, label, label) for i, label in enumerate(labels))


def head(before: list[list[float]], blocked: np.ndarray) -> MaskedHead:
    """One head of hand-made scores: q is the scores, k the identity."""
    n = len(before)
    query = np.array(before, dtype=np.float32)[None, None]
    attention = SimpleNamespace(
        query=query, key=np.eye(n, dtype=np.float32)[None, None], bias=None, scale=1.0, softcap=None
    )
    return masked_head(attention, 0, 0, blocked)  # type: ignore[arg-type]


@pytest.fixture
def shown() -> Shown:
    """PAD a b, causal: the row of PAD may look at nothing."""
    padding = np.array([YES, NO, NO])
    axes = Axes(tokens("PAD", "<a>", "b"), tokens("PAD", "<a>", "b"), padding, padding)
    parts = mask_parts(axes, "self", MaskChoice(causal=True))
    scores = [[0.0, 1.0, 2.0], [5.0, 1.0, -3.0], [7.0, 0.0, np.log(3.0)]]
    return Shown(axes, parts, head(scores, together(parts)), row=1, layer=4, number=2, packed=False)


@pytest.fixture
def found() -> BatchRun:
    padding = np.array([[NO, NO, NO], [YES, NO, NO]])
    side = Side((tokens("x", "y", "z"), tokens("PAD", "<a>", "b")), padding)
    inputs = {"input_ids": torch.zeros(2, 3), "position_ids": torch.zeros(2, 3)}
    prompts: Any = (SimpleNamespace(n_tokens=3), SimpleNamespace(n_tokens=2))
    return BatchRun(Batch(inputs, prompts, side, None), {}, {}, (1e-6, 3e-5), 8.0, True, "tiny", "fp32")


def states(picture: Picture) -> list[bool | None]:
    return [badge.ok for badge in picture.badges]


def values(grid: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(b64decode(grid["values"]), dtype=np.float32)


# -- section 1 --------------------------------------------------------------------------------------------------------


def test_scores_become_weights_step_by_step(shown: Shown, found: BatchRun) -> None:
    picture = batch_section.picture(shown, found, EN)
    data = picture.panels[1].data
    masks, numbers = (strip["grids"] for strip in data["strips"])
    assert [(grid["sign"], grid["title"]) for grid in masks] == [("", "padding"), ("|", "causal"), ("=", "combined")]
    assert masks[2]["masks"] == ["padding", "causal"]
    assert [grid["title"] for grid in numbers] == ["scores", "after the mask", "softmax alone", "weights"]
    assert np.array_equal(values(numbers[0]).reshape(3, 3), shown.head.before)
    assert np.isneginf(values(numbers[1]).reshape(3, 3)[shown.blocked]).all()
    assert np.isnan(values(numbers[2]).reshape(3, 3)[0]).all()
    assert np.allclose(values(numbers[3]).reshape(3, 3), [[0, 0, 0], [0, 1, 0], [0, 0.25, 0.75]])
    bits = np.frombuffer(b64decode(data["bits"]), dtype=np.uint16).reshape(3, 3)
    assert bits.tolist() == [[1, 2, 2], [1, 0, 2], [1, 0, 0]]  # 1: padding, 2: causal
    assert [token["pad"] for token in data["queries"]] == [True, False, False]


def test_without_an_empty_row_no_nan_is_shown(found: BatchRun) -> None:
    none = np.zeros(2, dtype=bool)
    axes = Axes(tokens("a", "b"), tokens("a", "b"), none, none)
    parts = mask_parts(axes, "self", MaskChoice())
    picture = batch_section.picture(
        Shown(axes, parts, head([[1, 2], [3, 4]], together(parts)), 0, 0, 0, False), found, EN
    )
    masks, numbers = (strip["grids"] for strip in picture.panels[1].data["strips"])
    assert len(masks) == 1 and [grid["title"] for grid in numbers] == ["scores", "after the mask", "weights"]
    assert states(picture) == [True, True]  # sums, and each sentence as alone


def test_all_badges_hold_on_true_arrays(shown: Shown, found: BatchRun) -> None:
    badges = weight_badges(shown, EN)
    assert [badge.ok for badge in badges] == [True] * 4
    assert "off by 0)" in badges[0].text and "columns: 1," in badges[1].text and "cells: 6," in badges[2].text
    assert "softmax alone makes 3 of their 3 cells NaN" in badges[3].text
    assert [badge.ok for badge in run_badges(found, False, EN)] == [True]


@pytest.mark.parametrize(
    "at, value, red",
    [
        ((1, 1), 0.9, 0),
        ((2, 0), 1e-7, 1),
        ((1, 2), 1e-7, 2),
        ((0, 2), 1e-7, 3),
        ((0, 0), np.nan, 3),
        ((1, 2), np.nan, 2),
    ],
)
def test_a_badge_turns_red_where_a_weight_lies(shown: Shown, at: tuple, value: float, red: int) -> None:
    weights = shown.head.weights.copy()
    weights[at] = value
    assert weight_badges(replace(shown, head=replace(shown.head, weights=weights)), EN)[red].ok is False


def test_the_run_badges_turn_red_or_say_only(found: BatchRun) -> None:
    def first(**changes: Any) -> bool | None:
        return run_badges(replace(found, **changes), False, EN)[0].ok

    assert first(differences=(None, 2e-4), largest=1.0) is False and first(differences=(2e-4,), largest=30.0) is True
    assert first(precision="int8") is None
    assert run_badges(replace(found, finite=False), False, EN)[-1].ok is False
    assert run_badges(replace(found, differences=(None,)), True, EN)[0].ok is None


def test_the_batch_is_a_table_with_its_padding_and_escaped_tokens(shown: Shown, found: BatchRun) -> None:
    panel = batch_section.picture(shown, found, EN).panels[0]
    assert panel.title == "The batch: 2 rows of 3 tokens, 16.7 % padding"
    assert "&lt;a&gt;" in panel.html and "<a>" not in panel.html and panel.html.count('class="pad"') == 1
    assert (
        'data-masks-row="2" aria-pressed="true"' in panel.html
        and 'data-masks-row="1" aria-pressed="false"' in panel.html
    )


# -- the workbench ----------------------------------------------------------------------------------------------------

FIRST = dict(lines="a\nb", row="2", side="right", pattern="model", prefix="4", window="", packed=False)


def test_lines_are_rows_and_an_empty_one_in_between_counts() -> None:
    assert bench.read(**FIRST).lines == ("a", "b")
    assert bench.read(**FIRST | {"lines": "a\n\nb\n"}).lines == ("a", "", "b")
    assert bench.read(**FIRST | {"lines": "\n"}).lines == ()
    assert bench.read(**FIRST | {"row": None, "side": None, "pattern": None}) == bench.Bench(("a", "b"), 0, prefix=0)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"lines": "a\n" * 5 + "b"}, "at most 6 sentences"),
        ({"window": "0"}, "0 is no width"),
        ({"window": "-1"}, "-1 is no width"),
        ({"window": "wide"}, "wide is no width"),
        ({"pattern": "prefix", "prefix": ""}, "– is no length for a prefix"),
    ],
)
def test_what_makes_no_mask_is_refused_in_a_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TfvizError, match=said):
        bench.read(**FIRST | changes)


def test_as_the_model_is_its_triangle_and_the_window_of_its_layer() -> None:
    read = partial(bench.read, **FIRST)
    assert bench.choice_of(read(), True, 4, 9) == MaskChoice(causal=True, window=4)
    assert bench.choice_of(read(), False, 4, 4) == MaskChoice()  # a window as wide as the sentence blocks nothing
    own = bench.read(**FIRST | {"pattern": "prefix", "window": "3"})
    assert bench.choice_of(own, True, 4, 9) == MaskChoice(prefix=4, window=3)
    assert bench.choice_of(bench.read(**FIRST | {"pattern": "none"}), True, 4, 9) == MaskChoice()


# -- code to take away ------------------------------------------------------------------------------------------------

PADDINGS = st.integers(1, 6).flatmap(
    lambda n: st.lists(st.tuples(st.integers(0, n), st.booleans()), min_size=1, max_size=3).map(
        lambda rows: [[pad < blank if left else pad >= n - blank for pad in range(n)] for blank, left in rows]
    )
)
CHOICES = st.builds(MaskChoice, st.booleans(), st.none() | st.integers(1, 4), st.none() | st.integers(1, 4))


def wrong(made: dict[str, Any], row: int, blocked: np.ndarray) -> list[str]:
    """The conventions in which a cell differs."""
    want = {name: np.where(blocked, conventions.SHUT[name], conventions.OPEN[name]) for name in CONVENTIONS}
    return [name for name in CONVENTIONS if not np.array_equal(made[name][row, 0].numpy(), want[name])]


@given(PADDINGS, CHOICES)
def test_the_code_makes_the_masks_of_a_padded_batch(rows: list[list[bool]], choice: MaskChoice) -> None:
    recipe = Recipe((~np.array(rows)).astype(int).tolist(), None, (), choice.causal, choice.prefix, choice.window)
    made = run_code(mask_code(recipe))
    for row, padding in enumerate(np.array(rows)):
        axes = Axes(tokens(*"abcdef"[: len(padding)]), tokens(*"abcdef"[: len(padding)]), padding, padding)
        assert wrong(made, row, together(mask_parts(axes, "self", choice))) == []
    assert {name: str(made[name].dtype) for name in CONVENTIONS} == {
        "blocked": "torch.bool", "allowed": "torch.bool", "additive": "torch.float32", "ones": "torch.int64"
    }  # fmt: skip


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), CHOICES)
def test_the_code_makes_the_mask_of_packed_texts(lengths: list[int], choice: MaskChoice) -> None:
    labels, none = tokens(*["x"] * sum(lengths)), np.zeros(sum(lengths), dtype=bool)
    pairs = tuple((length, length) for length in lengths)
    recipe = Recipe((), None, pairs, choice.causal, choice.prefix, choice.window)
    blocked = together(mask_parts(Axes(labels, labels, none, none, pairs), "self", choice))
    assert wrong(run_code(mask_code(recipe)), 0, blocked) == []


def test_the_code_makes_cross_masks() -> None:
    padding, three = np.array([NO, YES]), np.zeros(3, dtype=bool)
    axes = Axes(tokens(*"abc"), tokens(*"de"), three, padding)
    assert (
        wrong(run_code(mask_code(Recipe([[1, 0]], n_query=3))), 0, together(mask_parts(axes, "cross", MaskChoice())))
        == []
    )
    packed = replace(axes, key_padding=three[:2], lengths=((1, 1), (2, 1)))
    made = run_code(mask_code(Recipe(lengths=packed.lengths)))
    assert wrong(made, 0, together(mask_parts(packed, "cross", MaskChoice()))) == []


def test_the_badge_ran_the_code_that_stands_there() -> None:
    blocked = np.array([[NO, YES], [NO, NO]])
    code = mask_code(Recipe([[1, 1]], causal=True))
    assert conventions.code_badge(code, blocked, 0, EN).ok is True
    assert conventions.code_badge(code.replace("column > row", "column >= row"), blocked, 0, EN).ok is False
    assert conventions.code_badge(code, ~blocked, 0, EN).ok is False


# -- decoding, and the model's own ------------------------------------------------------------------------------------


def test_each_alignment_is_said_as_it_was_measured() -> None:
    corner = np.array([[NO, YES]])
    out, weights = np.zeros((1, 2), dtype=np.float32), np.array([[1, 0]], dtype=np.float32)
    right = Alignments(corner, ~corner, weights, weights, out + 1, out, out + 1, out)
    none = np.zeros(2, dtype=bool)
    axes = Axes(tokens("b"), tokens("a", "b"), none[:1], none)
    picture = decode.picture(right, axes, EN)
    assert states(picture) == [True, None, True] and "from bottom right 1.00" in picture.badges[2].text
    assert states(decode.picture(replace(right, out_bottom_right=out + 1e-3), axes, EN))[0] is False
    assert states(decode.picture(replace(right, out_flag=out), axes, EN))[2] is False
    assert [grid["texts"] for grid in picture.panels[0].data["strips"][0]["grids"]] == [("1", "0")] * 2


def test_masks_read_from_the_model_say_where_they_differ() -> None:
    padding = np.array([[NO, NO], [YES, NO]])
    expected = (np.array([[NO, YES], [NO, NO]]),) * 2
    axes = [Axes(tokens("a", "b"), tokens("a", "b"), row, row) for row in padding]
    fine = MaskKind("self", (0, 1, 2, 5), 3, "mask", (2, 1, 2, 2), expected, expected)
    badge = model.badge(fine, padding, EN)
    assert badge.ok is True and "layers 0–2, 5: as expected in all 8 cells" in badge.text
    idle = replace(fine, read=(expected[0], np.array([[YES, YES], [NO, NO]])))
    assert model.badge(idle, padding, EN).ok is None
    wrong_one = replace(fine, read=(np.array([[NO, YES], [YES, NO]]), expected[1]))
    badge = model.badge(wrong_one, padding, EN)
    assert badge.ok is False and "differing cells: 1," in badge.text and "1: 1 → 0" in badge.text
    picture = model.picture([wrong_one], [(wrong_one, padding)], axes, 0, EN)
    strip = picture.panels[0].data["strips"][0]
    assert strip["title"] == "Layers 0–2, 5 · sliding window of 3" and [g["kind"] for g in strip["grids"]] == [
        "mask",
        "mask",
        "flag",
    ]
    assert "[2, 1, 2, 2]" in picture.panels[1].html


# -- whole sections on real models ------------------------------------------------------------------------------------


@cache
def traced(loaded: Loaded, name: str) -> tuple[Any, Callable[..., Any]]:
    """(a trace, what `Scene.examine` does with it)"""
    tiny = loaded(name)
    prompt = tiny.prompt(*TEXT)
    trace = capture(tiny, prompt, TEXT, kernel="naive" if name == "gemma2" else "flash", overview=True)
    kept: dict[str, Any] = {}

    def examine(job: Callable[..., Any]) -> Any:
        kept[str(job)] = kept[str(job)] if str(job) in kept else job(tiny, prompt)
        return kept[str(job)]

    return trace, examine


def scene(loaded: Loaded, name: str, kind: str = "", language: str = "en") -> Any:
    trace, examine = traced(loaded, name)
    where = place({"kind": kind or next(iter(trace.stacks))}, trace)
    return SimpleNamespace(t=Translator(language), trace=trace, place=where, examine=examine)


def controls_of(section: Section) -> dict[str, Any]:
    own = section.controls if section.key == "masks.decode" else bench.controls
    with gr.Blocks():
        return {name: control.value for name, control in own(EN).items()}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.key)
@pytest.mark.parametrize(
    "name, kind", [("llama", ""), ("gemma2", ""), ("bert", ""), ("t5", "cross"), ("t5", "decoder"), ("bart", "encoder")]
)
def test_each_section_draws_and_everything_holds(loaded: Loaded, section: Section, name: str, kind: str) -> None:
    here = scene(loaded, name, kind)
    tries = [one.values for one in section.tries]
    for changes in [{}, {"side": "left"}] if section.key != "masks.decode" else [{}, *tries]:
        picture: Any = section.draw(here, **controls_of(section) | dict(changes))
        fails = [badge.text for badge in picture.badges if badge.ok is False]
        assert not fails or (name == "bart" and changes.get("side") == "left"), fails
        assert len(json.dumps(payload(picture))) < 200_000


@pytest.mark.parametrize("section", [one for one in SECTIONS if one.key != "masks.decode"], ids=lambda one: one.key)
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_what_is_offered_to_try_works_in_each_language(loaded: Loaded, section: Section, name: str) -> None:
    for language in LANGUAGES:
        here = scene(loaded, name, language=language)
        for one in section.tries:
            changed = controls_of(section) | dict(one.values)
            if section.key == "masks.model" and one.key == "packed" and name == "bert":
                with pytest.raises(TfvizError, match="builds no mask for a packed row"):
                    section.draw(here, **changed)
            else:
                assert section.draw(here, **changed).panels  # type: ignore[union-attr]


def test_an_empty_line_is_marked_and_gives_no_nan(loaded: Loaded) -> None:
    section = BY_KEY["masks.batch"]
    empty = next(one for one in section.tries if one.key == "empty")
    picture: Any = section.draw(scene(loaded, "bert"), **controls_of(section) | dict(empty.values))
    assert EN("masks.view.nothing") in picture.panels[0].html
    assert all(badge.ok for badge in picture.badges) and EN("masks.badge.finite") in [
        one.text for one in picture.badges
    ]


def test_a_model_that_counts_from_the_left_is_named(loaded: Loaded) -> None:
    section = BY_KEY["masks.batch"]
    picture: Any = section.draw(scene(loaded, "bart"), **controls_of(section) | {"side": "left"})
    assert any("bart counts positions" in note for note in picture.notes)


def test_notes_say_what_is_cut_and_what_is_not_there(loaded: Loaded) -> None:
    section = BY_KEY["masks.batch"]
    typed = {"lines": "the cat saw the other cat " * 20, "row": "6", "window": "2"}
    picture: Any = section.draw(scene(loaded, "t5", "cross"), **controls_of(section) | typed)
    said = " ".join(picture.notes)
    assert "first 32 are shown" in said and "no sentence 6 in this batch of 2" in said and "no order of time" in said


def test_more_queries_than_keys_are_refused(loaded: Loaded) -> None:
    with pytest.raises(TfvizError, match=r"more queries \(6\) than keys \(5\)"):
        BY_KEY["masks.decode"].draw(scene(loaded, "llama"), n_query=6, n_key=5)


def test_a_packed_cross_mask_lets_each_text_read_its_own_source(loaded: Loaded) -> None:
    t5 = loaded("t5")
    found = run_packed(t5, t5.prompt(*TEXT), TEXT, ("the cat",))
    axes = packed_axes(found.batch, "cross")
    blocked = together(mask_parts(axes, "cross", MaskChoice()))
    (n, m), _ = axes.lengths
    assert not blocked[:n, :m].any() and blocked[:n, m:].all() and blocked[n:, :m].all()


def test_every_section_has_its_sentences() -> None:
    for language in LANGUAGES:
        t = Translator(language)
        for section in SECTIONS:
            assert all(t.has(f"{section.key}.{name}") for name in ("name", "title", "intro"))
            assert all(t.has(f"{section.key}.try.{one.key}") for one in section.tries)
