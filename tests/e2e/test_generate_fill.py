"""Fill in as a person uses it: tokens hidden by a click, the draw and its seed, T5's gaps, pairs, and refusals."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.e2e.conftest import Visitor
from tests.e2e.test_looks import DESK, both_looks, violations
from tests.introspection.test_filling import MAKERS

Visit = Callable[..., Visitor]
KEY = "generate.fill"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, quiet_transformers: None) -> Callable[[str], Path]:
    """`folder("bert-pretraining")`: a checkpoint with the heads of its pre-training."""
    made = tmp_path_factory.mktemp("filling")
    return lambda name: MAKERS[name](made / name) if not (made / name).exists() else made / name


def opened(visitor: Visitor) -> Locator:
    picture = visitor.section("generate", KEY)
    expect(picture.locator(".tv-panels")).to_have_css("opacity", "1")
    expect(picture.locator(".tv-badges .warn")).to_have_count(0)
    return picture


def mode(visitor: Visitor, name: str) -> None:
    visitor.page.get_by_role("radio", name=visitor.t(f"generate.fill.mode.{name}"), exact=True).check()


def token(picture: Locator, text: str) -> Locator:
    """By what is typed there: what the model guesses stands in the same button."""
    typed = picture.page.locator(".tv-fill-text", has_text=re.compile(f"^{text}$"))
    return picture.locator("button.tv-fill-token").filter(has=typed)


def hidden(picture: Locator) -> Locator:
    return picture.locator(".tv-fill-token.mask .tv-fill-text")


def test_a_click_hides_a_token_and_the_model_says_what_stood_there(visit: Visit, folder: Callable[[str], Path]) -> None:
    visitor = visit(f"/?model={folder('bert-pretraining')}&text=the+cat+saw+the+door")
    picture = opened(visitor)
    expect(hidden(picture)).to_have_text(["saw"])  # the one in the middle, before anybody chose
    with visitor.redrawn(KEY):
        token(picture, "cat").click()
    expect(hidden(picture)).to_have_text(["cat", "saw"])
    expect(picture.locator(".tv-fill-read")).to_have_text(["[MASK]", "[MASK]"])
    cards = picture.locator(".tv-fill-card")
    expect(cards).to_have_count(2)
    expect(cards.first.get_by_role("listitem")).to_have_count(10)
    expect(cards.first).to_contain_text(re.compile(r"cat: [\d.e-]+ %, rank [\d,]+"))
    first = picture.locator(".tv-fill-token.mask .tv-fill-guess").first.inner_text()
    expect(cards.first.get_by_role("listitem").first).to_contain_text(first)
    with visitor.redrawn(KEY):
        picture.get_by_role("button", name=visitor.t("generate.fill.clear"), exact=True).click()
    expect(picture.get_by_text("Nothing is hidden.")).to_be_visible()
    expect(cards).to_have_count(0)


def test_tokens_are_walked_and_hidden_by_keys(visit: Visit, folder: Callable[[str], Path]) -> None:
    visitor = visit(f"/?model={folder('bert-pretraining')}&text=the+cat+saw+the+door")
    picture = opened(visitor)
    token(picture, "saw").focus()
    for key in ("ArrowRight", "ArrowRight"):
        visitor.page.keyboard.press(key)
    with visitor.redrawn(KEY):
        visitor.page.keyboard.press("Enter")
    expect(hidden(picture)).to_have_text(["saw", "door"])
    expect(picture.locator(":focus")).to_contain_text("door")  # where it was, after the new drawing


def test_a_typed_mask_is_filled_and_another_sentence_starts_afresh(visit: Visit, folder: Callable[[str], Path]) -> None:
    visitor = visit(f"/?model={folder('bert-pretraining')}&text=the+cat+saw+the+door")
    picture = opened(visitor)
    with visitor.redrawn(KEY):
        token(picture, "door").click()
    with visitor.redrawn(KEY):
        visitor.sentence.fill("the [MASK] saw the cat")
    expect(picture.locator(".tv-fill-token.typed")).to_have_count(1)
    expect(hidden(picture)).to_have_count(0)
    expect(picture.locator(".tv-fill-card")).to_have_count(1)


def test_the_seed_draws_fifteen_percent(visit: Visit, folder: Callable[[str], Path]) -> None:
    visitor = visit(f"/?model={folder('bert-pretraining')}&text={'+'.join(['the+cat+saw+the+other+cat'] * 7)}")
    picture = opened(visitor)
    with visitor.redrawn(KEY):
        mode(visitor, "drawn")
    chosen = picture.locator(".tv-fill-token:is(.mask, .random, .kept)")
    expect(chosen).to_have_count(6)  # of 42
    expect(picture.locator(".tv-fill-sums b").first).to_have_text("6 / 42")
    expect(picture.get_by_role("row")).to_have_count(7)
    before = chosen.all_inner_texts()
    with visitor.redrawn(KEY):
        visitor.page.get_by_role("button", name=visitor.t("generate.fill.try.another"), exact=True).click()
    expect(picture.locator(".tv-badges .ok")).to_have_count(4)
    assert chosen.all_inner_texts() != before
    expect(picture.locator(".tv-fill-row button")).to_have_count(0)


def test_a_pair_gets_its_answer_in_both_orders(visit: Visit, folder: Callable[[str], Path]) -> None:
    visitor = visit(f"/?model={folder('bert-pretraining')}&text=the+cat+saw+the+door")
    picture = opened(visitor)
    expect(picture.get_by_text("Type a second sentence into")).to_be_visible()
    with visitor.redrawn(KEY):
        visitor.second.fill("it was too tired")
    rows = picture.locator(".tv-fill-pair li")
    expect(rows).to_have_text(
        [re.compile(r"the cat saw the door → it was too tired.*%"), re.compile(r"it was too tired → the cat.*%")]
    )


def test_t5_writes_what_it_was_not_shown(visit: Visit, folder: Callable[[str], Path]) -> None:
    visitor = visit(f"/?model={folder('t5-sentinels')}&text=the+cat+saw+the+other+cat+near+the+door")
    picture = opened(visitor)
    lines = picture.locator(".tv-fill-lines dd")
    expect(lines).to_have_count(4)
    expect(lines.first.locator(".mark")).to_have_text(["<extra_id_0>"])
    expect(lines.nth(1).locator(".mark")).to_have_text([re.compile("<extra_id_0>"), re.compile("<extra_id_1>")])
    expect(picture.locator(".tv-badges .ok")).to_have_count(4)
    with visitor.redrawn(KEY):
        mode(visitor, "drawn")
    expect(picture.locator(".tv-badges .ok")).to_have_count(4)
    with visitor.redrawn(KEY):
        mode(visitor, "hand")
    with visitor.redrawn(KEY):
        visitor.sentence.fill("the [MASK] saw the [MASK]")
    expect(lines).to_have_count(3)  # nobody knows what should be written
    expect(lines.first.locator(".mark")).to_have_text(["<extra_id_0>", "<extra_id_1>"])


def test_a_decoder_says_why_not_and_leads_to_the_next_token(visit: Visit) -> None:
    visitor = visit("/")
    picture = opened(visitor)
    expect(picture.get_by_text("is a decoder: it predicts the next token")).to_be_visible()
    picture.get_by_role("button", name=visitor.t("generate.fill.go"), exact=True).click()
    expect(visitor.page.locator("#generate-steps")).to_be_visible()


@pytest.mark.parametrize(("model", "says"), [("minilm-l6", "without a masked-word head"), ("dates", "never trained")])
def test_other_models_say_what_they_lack(visit: Visit, model: str, says: str) -> None:
    picture = opened(visit(f"/?model={model}&text=March+5,+2021"))
    expect(picture.get_by_text(says)).to_be_visible()
    expect(picture.get_by_text("Choose BERT, RoBERTa or ALBERT")).to_be_visible()


def test_it_fits_its_screen_and_axe_finds_nothing(visit: Visit, folder: Callable[[str], Path], axe_source: str) -> None:
    where = f"/zh?model={folder('bert-pretraining')}&text=the+cat+saw+the+door&second=it+was+too+tired"
    visitor = visit(where, color_scheme="light", reduced_motion="reduce", **DESK)
    opened(visitor)
    for width in both_looks(visitor):
        for way in ("hand", "drawn"):
            if not visitor.radio(visitor.t(f"generate.fill.mode.{way}")).is_checked():
                with visitor.redrawn(KEY):
                    mode(visitor, way)
            assert visitor.page.evaluate("document.documentElement.scrollWidth") == width
            assert violations(visitor, axe_source) == []
