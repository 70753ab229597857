"""The answer panel's data step on answers made by hand: what it says is what the arrays hold."""

import json
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import Loaded
from tfviz.introspection.capture import capture
from tfviz.introspection.trace import Answer, Candidate
from tfviz.messages import ASSETS, LANGUAGES
from tfviz.sources.tokens import Token
from tfviz.ui.components.answer import answer_labels, draw
from tfviz.ui.i18n import Translator

EN, ZH = Translator("en"), Translator("zh")
END = Token(2, "</s>", "</s>", special=True)


def answer(
    text: str, probs: Sequence[float], written: bool = True, candidates: Sequence[Candidate] = (), others: str = "xyzv"
) -> Answer:
    """One token a character, then the end; each beside the characters of `others`."""
    tokens = (*(Token(ord(c), c, c) for c in text), END)
    assert len(tokens) == len(probs)
    rest = [[(c, (1 - p) / 2 ** (i + 1)) for i, c in enumerate(others)] for p in probs]
    alternatives = tuple(((token.label, p), *more) for token, p, more in zip(tokens, probs, rest, strict=True))
    return Answer(text, tokens, np.array(probs, dtype=np.float32), alternatives, written, tuple(candidates))


def drawn(made: Answer, t: Translator = EN) -> dict[str, Any]:
    value = draw("id", SimpleNamespace(answer=made), t)  # type: ignore[arg-type]
    assert value is not None
    assert json.loads(json.dumps(value, allow_nan=False)) is not None
    return value


def test_a_model_that_answers_nothing_has_no_panel() -> None:
    assert draw("id", SimpleNamespace(answer=None), EN) is None  # type: ignore[arg-type]


def test_a_sure_answer_is_said_with_the_probability_of_the_whole() -> None:
    value = drawn(answer("2024", [0.99, 0.98, 1.0, 0.995, 0.999]))
    assert (value["trace"], value["text"], value["unsure"]) == ("id", "2024", False)
    assert value["confidence"] == f"{100 * 0.99 * 0.98 * 0.995 * 0.999:.1f}\u00a0% for the whole answer"
    assert value["about"].startswith("The decoder writes one token at a time")


@pytest.mark.parametrize("half, unsure", [([0.5001, 1.0], False), ([0.4999, 1.0], True), ([0.7, 0.7], True)])
def test_an_answer_below_one_half_is_said_to_be_unsure(half: list[float], unsure: bool) -> None:
    assert drawn(answer("a", half))["unsure"] is unsure


@pytest.mark.parametrize(
    "probs, words",
    [
        ([0.001, 0.04], "The model is unsure: it gives its whole answer 0.00400\u00a0%."),
        ([1e-5, 0.012], "The model is unsure: it gives its whole answer 1.20e-5\u00a0%."),
        ([1e-38] * 20, "The model is unsure: it gives its whole answer 1.00e-758\u00a0%."),
    ],
)
def test_low_confidence_is_a_sentence_with_three_digits_and_never_nothing(probs: list[float], words: str) -> None:
    assert drawn(answer("a" * (len(probs) - 1), probs))["confidence"] == words


def test_a_token_that_fp32_gives_nothing_is_still_not_zero_percent() -> None:
    value = drawn(answer("ab", [0.0, 1.0, 1.0]))
    assert value["confidence"].endswith("<1e-43\u00a0%.")
    assert value["cells"][0]["alternatives"][0]["percent"] == "<1e-43 %"


def test_the_models_own_best_answer_is_not_called_unlikely_when_it_is_typed() -> None:
    best = Candidate("ab", -2.5, True, True)
    value = drawn(answer("ab", [0.9, 0.1, 0.9], written=False, candidates=[best]))
    assert value["confidence"].startswith("The model is unsure")


def test_a_typed_target_is_judged_and_not_called_the_models_own() -> None:
    sure, unlikely = (drawn(answer("ab", probs, written=False)) for probs in ([0.9, 0.9, 0.9], [0.9, 0.1, 0.9]))
    assert sure["about"] == "How probable the model finds the target you typed, token by token."
    assert not sure["written"] and "for the whole answer" in sure["confidence"]
    assert unlikely["confidence"] == "The model finds this target unlikely: it gives the whole of it 8.10\u00a0%."


def test_each_cell_says_its_token_probability_and_position_and_the_end_has_its_own() -> None:
    cells = drawn(answer("a-", [0.25, 0.999999, 1.0]))["cells"]
    assert [cell["label"] for cell in cells] == [
        "a, 25.0 %, position 0",
        "-, >99.9 %, position 1",
        "</s>, 100 %, position 2",
    ]
    assert [cell["special"] for cell in cells] == [False, False, True]
    assert cells[0]["prob"] == 0.25 and cells[0]["position"] == "position 0"


def test_alternatives_keep_their_order_and_the_token_written_is_marked_once() -> None:
    (cell, _) = drawn(answer("x", [0.6, 1.0]))["cells"]  # x is also among the others
    assert [row["text"] for row in cell["alternatives"]] == ["x", "x", "y", "z", "v"]
    assert [row["chosen"] for row in cell["alternatives"]] == [True, False, False, False, False]
    assert [row["percent"] for row in cell["alternatives"]][:3] == ["60.0 %", "20.0 %", "10.0 %"]


def test_a_typed_token_that_is_not_among_the_most_probable_stands_last() -> None:
    made = answer("q", [1e-7, 1.0], written=False)
    made = Answer(made.text, made.tokens, made.probs, ((("a", 0.9), ("b", 0.1)), made.alternatives[1]), False)
    assert [(row["text"], row["chosen"]) for row in drawn(made)["cells"][0]["alternatives"]] == [
        ("a", False),
        ("b", False),
        ("q", True),
    ]


def test_candidates_keep_their_order_and_the_greedy_and_the_shown_one_are_marked() -> None:
    beams = [
        Candidate("b", math.log(0.4), True, False),
        Candidate("a", math.log(0.3), True, True),
        Candidate("", -60.0, False, False),
    ]
    rows = drawn(answer("a", [0.6, 0.5], candidates=beams))["candidates"]
    assert [row["rank"] for row in rows] == [1, 2, 3]
    assert [(row["text"], row["greedy"], row["shown"], row["finished"]) for row in rows] == [
        ("b", False, False, True),
        ("a", True, True, True),
        ("", False, False, False),
    ]
    assert [row["percent"] for row in rows] == ["40.0 %", "30.0 %", "8.76e-25 %"]
    assert [row["log_prob"] for row in rows] == ["−0.916", "−1.20", "−60.0"]


def test_markup_and_braces_are_carried_as_the_plain_text_they_are() -> None:
    text = "<b>{i}&"
    value = drawn(answer(text, [0.9] * (len(text) + 1), candidates=[Candidate(text, -1.0, True, True)]))
    assert value["text"] == value["candidates"][0]["text"] == text
    assert "".join(cell["text"] for cell in value["cells"]) == text + "</s>"
    assert value["cells"][3]["label"] == "{, 90.0 %, position 3"


def test_chinese_says_it_in_chinese() -> None:
    value = drawn(answer("a", [0.1, 0.1]), ZH)
    assert value["confidence"] == "模型没有把握：它给整个答案的概率是 1.00\u00a0%。"
    assert value["cells"][0]["label"] == "a，10.0 %，位置 0"


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_real_encoder_decoder_has_a_cell_for_each_row_of_its_cross_map(name: str, loaded: Loaded) -> None:
    model = loaded(name)
    trace = capture(model, model.prompt("the cat", "a dog"), ("the cat", "a dog"), overview=True)
    value = draw("id", trace, EN)
    assert value is not None and trace.answer is not None
    assert len(value["cells"]) == len(trace.stacks["cross"].query_tokens) == len(trace.target_tokens)
    assert [cell["prob"] for cell in value["cells"]] == pytest.approx(trace.answer.probs.tolist())
    assert not value["written"] and value["unsure"]  # random weights


def test_every_label_exists_in_every_language() -> None:
    assert len({frozenset(answer_labels(language)) for language in LANGUAGES}) == 1
    source = (ASSETS / "js" / "answer.js").read_text(encoding="utf-8")
    for key in answer_labels("en"):
        assert f"'{key.removeprefix('answer.label.')}'" in source, key


def test_the_style_survives_gradios_template_string() -> None:
    css = (ASSETS / "css" / "answer.css").read_text(encoding="utf-8")
    assert not any(sign in css for sign in ("\\", "`", "${", "{{"))
