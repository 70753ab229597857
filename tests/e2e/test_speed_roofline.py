"""The roofline in the browser: a small model is measured, the points stand under the roof, and it fits a phone."""

import re
from collections.abc import Callable

from playwright.sync_api import Locator, expect

from tests.e2e.conftest import Heard, Visitor
from tests.e2e.test_looks import violations

Visit = Callable[..., Visitor]


def opened(visitor: Visitor) -> Locator:
    return visitor.section("speed", "speed.roofline")


def test_a_model_is_measured_and_its_parts_are_predicted(visit: Visit, axe_source: str) -> None:
    visitor = visit("/?model=dates&text=March+5,+2021")
    picture = opened(visitor)
    expect(picture.get_by_text("Nothing has been measured for this setting yet")).to_be_visible()
    expect(picture.locator(".js-plotly-plot")).to_have_count(1)
    found = r"ms.*ms.*%.*(bandwidth|calls|compute)"
    Heard(picture, "table", cue=f"Decode: decoder, output head{found}", press="Stop")  # what has been found stays
    picture.get_by_role("button", name="Measure on this machine").click()
    row = picture.get_by_role("row", name=re.compile("Decode: decoder, output head"))
    expect(row).to_have_text(re.compile(found))
    told = re.compile(r"median error of the prediction [\d.]+ %")
    expect(picture.locator(".tv-badges")).to_contain_text(told)
    expect(picture.locator(".tv-badges")).to_contain_text("equal the formula")
    expect(picture.locator(".js-plotly-plot")).to_have_count(2)
    assert violations(visitor, axe_source) == []
