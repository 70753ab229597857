"""The Positions tab as a person uses it: what the model uses, words shuffled, arrows turned, scales stretched."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.e2e.conftest import Visitor

Visit = Callable[..., Visitor]
SECTIONS = ("this", "order", "encoding", "rotation", "bias", "distance", "extrapolate")
SHORT = "?text=the+cat+saw+the+other+cat"


def opened(visitor: Visitor, section: str) -> Locator:
    return visitor.section("positions", f"positions.{section}")


def checked(picture: Locator) -> Locator:
    return picture.get_by_role("listitem").filter(has_text="holds")


def test_nothing_is_drawn_before_it_is_opened_and_the_facts_are_the_models(visit: Visit) -> None:
    visitor = visit("/" + SHORT + "&model=minilm-l6")
    expect(visitor.page.locator("#positions-this [data-drawn]")).to_have_count(0)
    picture = opened(visitor, "this")
    expect(picture.get_by_role("row", name=re.compile("^size"))).to_contain_text("512 × 384")
    expect(checked(picture)).to_have_text([re.compile(r"rows 0 to 7 .*difference 0\)")])
    visitor.choose_model("SmolLM2 135M Instruct")
    expect(picture.get_by_role("row", name=re.compile("^base b"))).to_contain_text("100,000")
    expect(picture.get_by_role("row", name=re.compile("^pairing"))).to_contain_text("i with i + 32")
    expect(checked(picture)).to_have_text([re.compile("layer 13: turning")])
    picture.get_by_role("spinbutton", name="layer").fill("4")
    expect(checked(picture)).to_have_text([re.compile("layer 4: turning")])


@pytest.mark.parametrize("model", ["smollm2-135m", "minilm-l6", "dates"])
def test_shuffled_words_give_the_same_matrix_without_positions(visit: Visit, model: str) -> None:
    text = "?text=12+May+2003" if model == "dates" else SHORT
    picture = opened(visit(f"/{text}&model={model}"), "order")
    expect(picture.locator(".heatmaplayer .hm")).to_have_count(6)
    expect(checked(picture)).to_have_text([re.compile("the same matrix"), re.compile("differs by up to")])


def test_moving_both_leaves_the_score_and_moving_one_does_not(visit: Visit) -> None:
    visitor = visit("/" + SHORT)
    picture = opened(visitor, "rotation")
    score = picture.locator(".tv-positions-read .score")
    before = score.inner_text()
    expect(picture.get_by_role("img", name=re.compile("^arrows of pair"))).to_have_count(4)
    both, alone = picture.get_by_role("slider").all()
    both.focus()
    both.press("End")
    expect(picture.get_by_text("move both by 512")).to_be_visible()
    expect(score).to_have_text(before)
    alone.focus()
    alone.press("End")
    expect(score).not_to_have_text(before)
    picture.get_by_role("button", name="Play", exact=True).click()
    expect(picture.get_by_text("move both by 512")).to_have_count(0)
    picture.get_by_role("button", name="Stop", exact=True).click()
    expect(picture.get_by_role("button", name="Play", exact=True)).to_be_visible()
    visitor.page.locator("#positions-rotation").get_by_role("toolbar", name=visitor.t("picture.query")).get_by_role(
        "button", name="saw", exact=True
    ).click()
    expect(picture.locator(".tv-positions-read .query")).to_contain_text("saw")


def test_controls_draw_again(visit: Visit) -> None:
    visitor = visit("/" + SHORT)
    picture, page = opened(visitor, "bias"), visitor.page
    page.get_by_role("button", name=visitor.t("positions.bias.try.twelve")).click()
    slopes = picture.locator(".tv-panel").last.locator(".scatterlayer .point")
    expect(slopes).to_have_count(12)
    picture = opened(visitor, "extrapolate")
    row = picture.get_by_role("row", name=re.compile("^as trained"))
    expect(row).to_contain_text("4.00x")
    page.get_by_role("button", name=visitor.t("positions.extrapolate.try.far")).click()
    expect(row).to_contain_text("32.00x")
    picture = opened(visitor, "encoding")
    page.get_by_role("button", name=visitor.t("positions.encoding.try.learned")).click()
    expect(picture.get_by_text(visitor.t("positions.no_table"))).to_be_visible()
