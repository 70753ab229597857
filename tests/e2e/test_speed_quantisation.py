"""Inside quantisation as a person uses it: the slider goes down to 2 bits, a method is chosen, a phone shows it all."""

import re
from collections.abc import Callable

from playwright.sync_api import expect

from tests.e2e.conftest import Visitor

Visit = Callable[..., Visitor]
KEY = "speed.quantisation"


def test_fewer_bits_and_another_method_are_drawn(visit: Visit) -> None:
    visitor = visit("/?model=dates&text=March+5,+2021")
    picture = visitor.section("speed", KEY)
    expect(picture.locator(".tv-badges")).to_contain_text("2^4 = 16 allowed")
    expect(picture.locator(".tv-badges .warn")).to_have_count(0)
    expect(picture.locator(".js-plotly-plot")).to_have_count(4)
    canvas = picture.locator(".of-after canvas")
    canvas.focus()
    before = picture.locator(".tv-quantised-read").inner_text()
    visitor.page.keyboard.press("ArrowUp")
    expect(picture.locator(".tv-quantised-read")).not_to_have_text(before)
    with visitor.redrawn(KEY):
        visitor.page.get_by_role("spinbutton", name="bits").fill("2")
        visitor.page.keyboard.press("Enter")
    expect(picture.locator(".tv-badges")).to_contain_text("2^2 = 4 allowed")
    with visitor.redrawn(KEY):
        visitor.page.get_by_role("radio", name="GPTQ").check()
    expect(picture.get_by_role("row", name=re.compile("^GPTQ"))).to_have_text(re.compile(r"\d %"))
