"""Attention kernels in the browser: a small sweep runs to its end, a larger one is stopped and keeps its points."""

import re
from collections.abc import Callable

from playwright.sync_api import Locator, expect

from tests.e2e.conftest import Heard, Visitor
from tests.e2e.test_looks import violations

Visit = Callable[..., Visitor]


def opened(visitor: Visitor) -> Locator:
    return visitor.section("speed", "speed.kernels")


def largest(visitor: Visitor, n: str) -> None:
    with visitor.redrawn("speed.kernels"):
        visitor.page.get_by_label("largest n (tokens)").click()
        visitor.page.get_by_role("option", name=n, exact=True).click()


def measure(picture: Locator) -> None:
    picture.get_by_role("button", name="Measure on this machine").click()


def test_a_small_sweep_runs_to_its_end_and_a_larger_one_can_be_stopped(visit: Visit, axe_source: str) -> None:
    visitor = visit("/?model=dates&text=March+5,+2021")
    picture = opened(visitor)
    expect(picture.get_by_text("Nothing has been measured yet")).to_be_visible()
    expect(picture.locator(".js-plotly-plot")).to_have_count(1)
    largest(visitor, "512")
    measure(picture)
    expect(picture.locator(".tv-badges .ok")).to_have_count(3)
    expect(picture.locator(".tv-badges .warn")).to_have_count(0)
    expect(picture.locator(".js-plotly-plot")).to_have_count(3)
    expect(picture.get_by_role("row", name=re.compile("n = 512 "))).to_have_text(re.compile(r"ms.*ms.*x.*16\.0 MiB"))
    assert violations(visitor, axe_source) == []
    visitor.page.get_by_role("checkbox", name="forward + backward").check()
    expect(picture.get_by_text("Nothing has been measured yet")).to_be_visible()  # another setting
    greyed = visitor.page.locator("#speed-kernels-flex label")
    expect(greyed).to_have_attribute("title", re.compile("measured forward only"))
    assert violations(visitor, axe_source) == []
    heads = visitor.page.get_by_role("spinbutton", name="number input for heads")
    heads.fill("99")
    heads.press("Enter")
    expect(heads).to_have_value("32")  # as it counts, without leaving the box
    with visitor.redrawn("speed.kernels"):
        heads.fill("8")
        heads.press("Enter")
    largest(visitor, "8,192")
    Heard(picture, "table", cue=r"n\s=\s128[\d.,]+\sms", press="Stop")
    measure(picture)
    expect(picture.get_by_role("row", name=re.compile("n = 128 "))).to_have_text(re.compile("ms"))
    expect(picture.get_by_text(re.compile("Stopped: measured up to n"))).to_be_visible()
    expect(picture.get_by_role("progressbar")).to_have_count(0)
