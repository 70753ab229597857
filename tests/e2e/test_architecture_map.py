"""The Layers tab's map, norms and depths as a person uses them: open layers, follow blocks to their tabs, measure."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.e2e.conftest import Visitor

Visit = Callable[..., Visitor]


def opened(visitor: Visitor, key: str) -> Locator:
    """The section's picture, drawn, with every check of it held."""
    picture = visitor.section("layers", f"layers.{key}")
    expect(picture.locator(".tv-badges .warn")).to_have_count(0)
    expect(picture.locator(".tv-panels")).to_have_css("opacity", "1")
    return picture


def layer(picture: Locator, i: int, side: str = "") -> Locator:
    place = picture.get_by_role("region", name=side, exact=True) if side else picture
    return place.get_by_role("button", name=f"Open layer {i}", exact=True)


def test_the_model_is_drawn_with_its_shapes_and_all_its_parameters(stay: Visit) -> None:
    picture = opened(stay("/"), "map")
    expect(picture.locator(".tv-badges .ok")).to_have_count(2)
    expect(picture.locator(".tv-badges")).to_contain_text("134,515,008 of 134,515,008")
    expect(picture.get_by_role("region", name="The model", exact=True)).to_contain_text("12 × 49,152")
    zoom = picture.get_by_role("region", name="Layer 13, opened")
    for said in ("9 heads × 64, 3 for k and v", "9 × 12 × 12", "576 → 1,536 → 576", "884,736", "2,654,208"):
        expect(zoom).to_contain_text(said)


def test_a_layer_opens_by_mouse_and_by_keyboard_and_keeps_the_focus(visit: Visit) -> None:
    visitor = visit("/")
    picture = opened(visitor, "map")
    with visitor.redrawn("layers.map"):
        layer(picture, 29).click()
    expect(picture.get_by_role("region", name="Layer 29, opened")).to_be_visible()
    expect(layer(picture, 29)).to_have_attribute("aria-pressed", "true")
    layer(picture, 28).focus()
    with visitor.redrawn("layers.map"):
        visitor.page.keyboard.press("Enter")
    expect(picture.get_by_role("region", name="Layer 28, opened")).to_be_visible()
    expect(layer(picture, 28)).to_be_focused()


def test_blocks_lead_to_their_tabs_at_the_opened_layer(visit: Visit) -> None:
    visitor = visit("/")
    picture = opened(visitor, "map")
    with visitor.redrawn("layers.map"):
        layer(picture, 5).click()
    picture.get_by_role("button", name=re.compile("^Self-attention")).click()
    expect(visitor.page.get_by_role("tab", name="Attention", exact=True)).to_have_attribute("aria-selected", "true")
    expect(visitor.view).to_have_attribute("data-painted", re.compile("/self/5/"))
    picture = opened(visitor, "map")
    picture.get_by_role("button", name=re.compile("^Norm")).first.click()
    norm = visitor.drawn("layers.norm")
    expect(norm.get_by_role("spinbutton", name="layer")).to_have_value("5")


def test_an_encoder_decoder_has_two_stacks_and_one_opened_layer(visit: Visit) -> None:
    visitor = visit("/?model=dates&text=5+March+2021")
    picture = opened(visitor, "map")
    zoom = picture.get_by_role("region", name="Decoder layer 1, opened")
    expect(zoom.get_by_role("button", name=re.compile("^Cross attention"))).to_contain_text("k, v from the encoder")
    with visitor.redrawn("layers.map"):
        layer(picture, 0, "Encoder").click()
    zoom = picture.get_by_role("region", name="Encoder layer 0, opened")
    expect(zoom.get_by_role("button", name=re.compile("^Cross attention"))).to_have_count(0)
    order = zoom.get_by_role("button", name=re.compile("^(Self|Feed|Norm|Addition|\\+)"))
    expect(order).to_have_count(6)


def test_an_encoder_shows_what_it_has(visit: Visit) -> None:
    picture = opened(visit("/?model=minilm-l6"), "map")
    expect(picture.get_by_role("region", name="The model", exact=True)).to_contain_text("Segments")
    expect(picture.locator(".tv-badges")).to_contain_text("22,713,216 of 22,713,216")


@pytest.mark.parametrize("model", ["smollm2-135m", "minilm-l6", "dates"])
def test_the_models_norm_is_our_formula(visit: Visit, model: str) -> None:
    visitor = visit(f"/?model={model}")
    picture = opened(visitor, "norm")
    expect(picture.locator(".tv-badges .ok").first).to_contain_text("our formula gives the model's own output")
    expect(picture.locator(".js-plotly-plot")).to_have_count(4)
    rows = picture.get_by_role("row", name=re.compile("padding"))
    expect(rows).to_have_count(3)
    expect(rows.first).to_have_text(re.compile(r"\d\s*0$"))


def test_another_norm_and_eps_are_followed(stay: Visit) -> None:
    visitor = stay("/")
    opened(visitor, "norm")
    with visitor.redrawn("layers.norm") as picture:
        visitor.page.get_by_role("radio", name="second", exact=True).check()
    expect(picture).to_contain_text("After post_attention_layernorm")
    with visitor.redrawn("layers.norm"):
        visitor.page.get_by_role("button", name="ε = 1e-3, σ = 0.01", exact=False).click()
    expect(picture.get_by_role("heading", name="σ of the output at ε = 0.00100")).to_be_visible()


def test_depths_are_measured_on_the_button_and_kept(visit: Visit, stay: Visit) -> None:
    visitor = stay("/")
    picture = opened(visitor, "depth")
    expect(picture.locator(".js-plotly-plot")).to_have_count(0)
    with visitor.redrawn("layers.depth"):
        picture.get_by_role("button", name="Measure").click()
    expect(picture.locator(".tv-badges .ok")).to_have_count(2)
    expect(picture.locator(".js-plotly-plot")).to_have_count(3)
    again = opened(visit("/"), "depth")  # another visitor, the same measurement
    expect(again.locator(".tv-badges .ok")).to_have_count(2)
