"""The table of claims as a person uses it: a row is measured, verdicts are filtered, a link opens what shows it."""

import re
from collections.abc import Callable

from playwright.sync_api import expect

from tests.e2e.conftest import Visitor

Visit = Callable[..., Visitor]


def test_a_row_is_measured_filtered_and_followed(visit: Visit) -> None:
    visitor = visit("/?model=dates&text=March+5,+2021")
    picture = visitor.section("speed", "speed.claims")
    expect(picture.locator("#claim-heads")).to_contain_text("1,048,576")  # counted without a button
    row = picture.locator("#claim-identity")
    expect(row).to_contain_text("not measured yet")
    others = picture.locator("[id^=claim-].of-open:not(#claim-identity)")
    still_open = others.count()
    row.get_by_role("button", name=re.compile("^Measure here: ")).click()
    expect(row).to_have_class("of-fails")
    expect(others).to_have_count(still_open)  # a row's button measures that row
    expect(row.get_by_role("button", name=re.compile("^Measure again: "))).to_be_focused()
    picture.get_by_role("button", name="does not hold here").click()
    expect(row).to_be_visible()
    expect(picture.locator("#claim-heads")).to_be_hidden()
    row.get_by_role("button", name="Layers › Pre or post").click()
    expect(visitor.page.locator("#layers-depth .tv-picture")).to_be_visible()
