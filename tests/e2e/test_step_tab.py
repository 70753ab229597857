"""The Step by step tab as a person uses it: one head flows stage by stage, and its other sections follow controls."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.e2e.conftest import Heard, Visitor
from tests.e2e.test_looks import DESK, both_looks, violations

Visit = Callable[..., Visitor]
SECTIONS = ("flow", "scale", "heads", "cost")


def opened(visitor: Visitor, name: str) -> Locator:
    """The section's picture, drawn, with every check of it held."""
    picture = visitor.section("step", f"step.{name}")
    expect(picture.locator(".tv-panels")).to_have_css("opacity", "1")
    expect(picture.locator(".tv-badges .warn")).to_have_count(0)
    return picture


def said(picture: Locator) -> Locator:
    return picture.locator(".tv-step-said")


def press(picture: Locator, name: str) -> None:
    picture.get_by_role("button", name=name, exact=True).click()


def test_the_numbers_of_the_first_example_flow_and_its_checks_hold(stay: Visit) -> None:
    picture = opened(stay("/"), "flow")
    expect(picture.locator(".tv-badges .ok")).to_have_count(4)
    weights = picture.locator(".of-weights .tv-step-body div")
    expect(weights).to_have_count(12)
    expect(weights.nth(1)).to_have_text("0.750")  # "it" looks at "animal"
    expect(picture.get_by_role("button", name="animal", exact=True).last).to_have_attribute("aria-pressed", "true")
    expect(picture.locator(".of-scores .blocked")).to_have_count(3)


def test_stages_are_stepped_by_button_key_and_heading(stay: Visit) -> None:
    visitor = stay("/")
    picture = opened(visitor, "flow")
    picture.get_by_role("button", name="Scale ÷ √64").click()
    expect(said(picture)).to_have_text(re.compile(r"4\. Scale.*49\.26 ÷ √64 = 6\.16"))
    expect(picture.locator(".of-weights .tv-step-body div").first).to_be_hidden()  # not computed yet
    press(picture, "one stage on")
    press(picture, "one stage on")
    expect(said(picture)).to_have_text(re.compile(r"6\. Softmax.*= 0\.750"))
    visitor.page.keyboard.press("ArrowLeft")
    expect(said(picture)).to_have_text(re.compile("5. Mask.*may look at “animal”"))
    visitor.page.keyboard.press("End")
    expect(said(picture)).to_have_text(re.compile("Output projection"))


def test_walking_the_rows_moves_the_shared_selection_and_play_walks_on(visit: Visit) -> None:
    visitor = visit("/")
    picture = opened(visitor, "flow")
    with visitor.redrawn("step.flow"):
        press(picture, "next token")
    expect(picture.locator(".tv-step-names .tv-step-top")).to_have_text("was")
    chip = picture.get_by_role("toolbar").get_by_role("button", name="was", exact=True)
    expect(chip).to_have_attribute("aria-pressed", "true")
    with visitor.redrawn("step.flow"):
        picture.get_by_role("toolbar").get_by_role("button", name="cross", exact=True).click()
    expect(picture.locator(".of-scores .blocked")).to_have_count(7)
    picture.get_by_role("combobox", name="speed").select_option("4")
    stages = Heard(visitor.page.locator("#step-flow"), ".tv-step-said")
    Heard(picture, ".tv-step-names .tv-step-top", cue="^the$", press="pause")  # the next row
    press(picture, "play")
    expect(picture.locator(".tv-step-names .tv-step-top")).to_have_text("the")
    assert any("Dot products" in text for text in stages.texts())
    expect(picture.get_by_role("button", name="play", exact=True)).to_be_visible()


def test_a_key_is_followed_and_a_head_that_shares_it_is_one_click_away(visit: Visit) -> None:
    visitor = visit("/")
    picture = opened(visitor, "flow")
    picture.get_by_role("button", name="Softmax α").click()
    picture.locator(".of-weights .tv-step-body div").nth(2).click()
    expect(said(picture)).to_have_text(re.compile("goes to “didn”"))
    with visitor.redrawn("step.flow"):
        picture.locator(".tv-step-shared").get_by_role("button", name="head 7").click()
    expect(picture.get_by_role("spinbutton", name="head")).to_have_value("7")
    expect(said(picture)).to_have_text(re.compile("Softmax.*goes to “didn”"))  # the same stage and key


def test_values_are_read_by_pointer_and_by_arrow_keys(stay: Visit) -> None:
    visitor = stay("/")
    picture = opened(visitor, "flow")
    tip, grid = picture.locator(".tv-step-tip"), picture.get_by_role("application")
    picture.locator(".of-values canvas").hover(position={"x": 3, "y": 3})
    expect(tip).to_have_text(re.compile(r"^v\(The\) \[\d\] = −?\d"))
    grid.focus()
    for _ in range(2):
        visitor.page.keyboard.press("ArrowRight")
    expect(tip).to_have_text(re.compile(r"^k\(animal\) \[1\] = −?\d"))
    visitor.page.keyboard.press("ArrowDown")
    expect(tip).to_have_text(re.compile(r"^k\(didn\) \[1\] = "))


@pytest.mark.parametrize("model", ["dates", "minilm-l6"])
def test_other_models_flow_too(visit: Visit, model: str) -> None:
    visitor = visit(f"/?model={model}&text=March+5,+2021")
    picture = opened(visitor, "flow")
    expect(picture.locator(".tv-badges .ok")).to_have_count(3)  # nothing is blocked: that is a note
    for kind in picture.locator(".tv-seg").get_by_role("button").all():
        if kind.get_attribute("aria-pressed") != "true":
            with visitor.redrawn("step.flow"):
                kind.click()
        expect(picture.locator(".tv-badges .warn")).to_have_count(0)


def test_the_proof_follows_d_k(stay: Visit) -> None:
    visitor = stay("/")
    picture = opened(visitor, "scale")
    row = picture.get_by_role("row", name=re.compile(r"^Var\(q·k\)"))
    expect(row).to_have_text(re.compile(r"64\s*6\d\.\d$"))
    with visitor.redrawn("step.scale"):
        visitor.page.get_by_role("radio", name="4,096", exact=True).check()
    expect(row).to_have_text(re.compile(r"4,096\s*(3,9|4,[012])\d\d$"))
    expect(picture.get_by_role("heading", name="Dot products, d_k = 4,096")).to_be_visible()


def test_heads_are_compared_and_can_be_picked(visit: Visit) -> None:
    visitor = visit("/")
    picture = opened(visitor, "heads")
    expect(picture.get_by_role("row", name=re.compile("^W_K"))).to_have_text(
        re.compile(r"576 × 192\s*110,592\s*331,776")
    )
    pick = picture.locator(".tv-step-pairs").get_by_role("button").first
    name = str(pick.text_content()).removeprefix("head ")
    with visitor.redrawn("step.heads"):
        pick.click()
    expect(picture.get_by_role("spinbutton", name="head")).to_have_value(name)


def test_the_cost_is_measured_when_asked(stay: Visit) -> None:
    visitor = stay("/")
    picture = opened(visitor, "cost")
    expect(picture.get_by_text("Nothing has been measured yet")).to_be_visible()
    expect(picture.locator(".js-plotly-plot")).to_have_count(0)
    press(picture, "Measure on this machine")
    expect(picture.locator(".tv-badges .ok")).to_have_text(re.compile("n = 2,048"))
    expect(picture.get_by_role("row", name=re.compile("n = 2,048"))).to_have_text(re.compile(r"288 MiB.*\d\.\d\dx$"))


def test_a_flow_half_way_fits_its_screen_and_axe_finds_nothing(visit: Visit, axe_source: str) -> None:
    visitor = visit("/zh", color_scheme="light", reduced_motion="reduce", **DESK)
    opened(visitor, "flow").locator(".tv-step-head").nth(3).click()
    for width in both_looks(visitor):
        assert visitor.page.evaluate("document.documentElement.scrollWidth") == width
        assert violations(visitor, axe_source) == []
