"""The precision section as a person uses it: a real measurement on a small model, stopped and taken up again."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.e2e.conftest import Visitor

Visit = Callable[..., Visitor]


def test_a_small_model_is_measured_in_every_precision_and_a_click_chooses_a_head(visit: Visit) -> None:
    visitor = visit("/?model=dates").measured()
    picture = visitor.section("speed", "speed.precision")
    picture.get_by_role("button", name="Measure every precision").click()
    row = picture.get_by_role("row", name=re.compile(r"^INT4 [\d.]+ KiB [\d.]+ % .* ms"))
    expect(row).to_be_visible()
    expect(picture.locator(".tv-badges .ok")).to_have_count(2)
    expect(picture.locator(".tv-badges .warn")).to_have_count(0)
    expect(picture).to_contain_text("Attention moved by INT4")
    with visitor.redrawn("speed.precision"):
        picture.page.locator("#tv-tabs").get_by_role("radio", name="BF16", exact=True).check()
    expect(picture).to_contain_text("Attention moved by BF16")


@pytest.mark.parametrize("address", ["/", "/zh"])
def test_the_six_precisions_stand_inside_their_column(visit: Visit, address: str) -> None:
    visitor = visit(address)
    column = visitor.page.locator("#tv-side").bounding_box()
    switch = visitor.page.locator("#tv-precision .wrap").last.bounding_box()
    assert column and switch and switch["x"] + switch["width"] <= column["x"] + column["width"]
    expect(visitor.page.locator("#tv-precision label")).to_have_count(6)
    visitor.page.evaluate("window.tfviz.grey({'tv-precision': {int4: 'why'}})")
    expect(visitor.page.locator("#tv-precision [data-lacks]")).to_have_attribute("title", "why")
    expect(visitor.radio("INT4")).to_have_attribute("aria-description", "why")
