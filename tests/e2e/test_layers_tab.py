"""The Layers tab as a person uses it: units of a token, the stream through the layers, any model, any screen."""

import re
from collections.abc import Callable

from playwright.sync_api import Locator, expect

from tests.e2e.conftest import Visitor

Visit = Callable[..., Visitor]
FFN, RESIDUAL = "layers.ffn", "layers.residual"


def opened(visitor: Visitor, key: str) -> Locator:
    """The section's picture, drawn, with every check of it held."""
    picture = visitor.section("layers", key)
    expect(picture.locator(".js-plotly-plot .xaxislayer-above").first).to_be_attached()
    expect(picture.locator(".tv-badges .ok").first).to_be_visible()
    expect(picture.locator(".tv-badges .warn")).to_have_count(0)
    return picture


def top_units(picture: Locator) -> Locator:
    return picture.get_by_role("group", name="Strongest units").get_by_role("button")


def test_a_unit_is_chosen_followed_over_the_sentence_and_found_by_the_pointer(visit: Visit) -> None:
    visitor = visit("/")
    picture = opened(visitor, FFN)
    expect(picture.get_by_role("heading", name="“it” in layer 13: 1,536 units")).to_be_visible()
    expect(top_units(picture)).to_have_count(12)
    third = top_units(picture).nth(2)
    unit = str(third.get_attribute("data-unit"))
    third.click()
    expect(third).to_have_attribute("aria-pressed", "true")
    expect(picture.get_by_role("heading", name=f"unit {unit}: its value at every token")).to_be_visible()
    tokens = picture.get_by_role("group", name="Tokens of the sentence").get_by_role("button")
    expect(tokens).to_have_count(12)
    with visitor.redrawn(FFN):
        tokens.nth(1).click()
    expect(picture.get_by_role("heading", name="“animal” in layer 13")).to_be_visible()
    expect(picture.get_by_role("heading", name=f"unit {unit}: its value at every token")).to_be_visible()  # it stays
    grid = picture.get_by_role("img", name=re.compile("^1536 hidden units"))
    grid.hover(position={"x": 3, "y": 3})
    expect(picture.locator(".tv-units-tip")).to_have_text(re.compile("^unit 0: "))
    grid.click(position={"x": 3, "y": 3})
    expect(picture.get_by_role("heading", name="unit 0: its value at every token")).to_be_visible()


def test_another_layer_is_chosen_in_the_bar_and_on_a_figure(visit: Visit) -> None:
    visitor = visit("/")
    picture = opened(visitor, RESIDUAL)
    with visitor.redrawn(RESIDUAL):
        picture.get_by_role("spinbutton", name="layer").fill("3")
    with visitor.redrawn(RESIDUAL):
        visitor.page.get_by_role("radio", name="what attention adds", exact=True).check(force=True)
    expect(picture.get_by_role("heading", name="Length: what attention adds")).to_be_visible()
    figure = picture.locator(".js-plotly-plot").first
    with visitor.redrawn(RESIDUAL):
        figure.locator(".nsewdrag").first.click(position={"x": 20, "y": 20})
    expect(picture.get_by_role("spinbutton", name="layer")).to_have_value(re.compile("2[5-9]"))


def test_an_encoder_decoder_shows_both_sides_and_its_own_function(visit: Visit) -> None:
    visitor = visit("/?model=dates")
    picture = opened(visitor, FFN)
    expect(picture.get_by_role("heading", name="This layer's function: ReLU")).to_be_visible()
    expect(picture.get_by_role("rowheader", name="cross-attention")).to_be_visible()
    with visitor.redrawn(FFN):
        picture.get_by_role("button", name="Encoder", exact=True).click()
    expect(picture.get_by_role("rowheader", name="cross-attention")).to_have_count(0)
    residual = opened(visitor, RESIDUAL)
    expect(residual.get_by_text("norm(resid_pre + attention_out) = resid_mid")).to_be_visible()
    expect(residual.get_by_role("heading", name="How much is added, against what is there")).to_be_visible()


def test_other_precisions_keep_their_checks(visit: Visit) -> None:
    visitor = visit("/")
    for key in (FFN, RESIDUAL):
        opened(visitor, key)
        for precision in ("BF16", "INT8", "FP32"):
            with visitor.redrawn(key):
                visitor.switch(precision)
            opened(visitor, key)


def test_what_is_offered_to_try_works(visit: Visit) -> None:
    visitor = visit("/")
    picture = opened(visitor, FFN)
    with visitor.redrawn(FFN):
        visitor.page.get_by_role("button", name="the first layer", exact=True).click()
    expect(picture.get_by_role("heading", name="“it” in layer 0")).to_be_visible()
    with visitor.redrawn(FFN):
        visitor.page.get_by_role("button", name="the same word twice", exact=False).click()
    expect(picture.get_by_role("group", name="Tokens of the sentence")).to_contain_text("door")
