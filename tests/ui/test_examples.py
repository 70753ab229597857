"""Examples by model: what is offered, and what becomes of an example when the model is switched."""

import pytest

from tfviz.config import Settings
from tfviz.ui.examples import carried_over, examples, most_examples
from tfviz.ui.page import _chips

FIRST, DATE = examples("smollm2-135m")[0], examples("dates")[0]


def test_a_model_without_a_list_of_its_own_has_the_common_one() -> None:
    assert examples("gpt2") == examples("no such model") == examples("smollm2-135m") != examples("dates")


def test_no_list_is_empty_or_says_a_thing_twice() -> None:
    for model in ("smollm2-135m", "dates"):
        assert examples(model) and len(set(examples(model))) == len(examples(model))


@pytest.mark.parametrize("text", examples("smollm2-135m"))
def test_an_example_of_the_old_model_becomes_the_first_of_the_new(text: str) -> None:
    assert carried_over(text, "smollm2-135m", "dates") == DATE


def test_it_goes_both_ways() -> None:
    assert carried_over(examples("dates")[3], "dates", "gpt2") == FIRST


@pytest.mark.parametrize("text", ["", "7 May 2001", FIRST + " ", FIRST.lower()])
def test_what_was_typed_stays(text: str) -> None:
    assert carried_over(text, "smollm2-135m", "dates") == text


@pytest.mark.parametrize("before, after", [("smollm2-135m", "gpt2"), ("dates", "dates"), ("gpt2", "/some/folder")])
def test_an_example_stays_where_the_list_stays(before: str, after: str) -> None:
    for text in (FIRST, DATE):
        assert carried_over(text, before, after) == text


def test_a_link_that_gives_the_new_model_an_old_example_keeps_it() -> None:
    assert carried_over(FIRST, "dates", "dates") == FIRST


def test_there_is_a_button_for_every_example_of_every_model(settings: Settings) -> None:
    for model in (settings.model, "dates"):
        chips = _chips(model)
        assert len(chips) == most_examples()
        assert [chip["value"] for chip in chips if chip["visible"]] == examples(model)
