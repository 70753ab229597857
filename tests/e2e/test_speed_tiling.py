"""How flash does it, as a person uses it: tiles are played without the server, rows and blocks are chosen."""

import re
from collections.abc import Callable

from playwright.sync_api import Locator, expect

from tests.e2e.conftest import Visitor

Visit = Callable[..., Visitor]


def opened(visitor: Visitor) -> Locator:
    """The section's picture, drawn, with every check of it held."""
    picture = visitor.section("speed", "speed.tiling")
    expect(picture.locator(".tv-badges .ok")).to_have_count(3)
    expect(picture.locator(".tv-badges .warn")).to_have_count(0)
    return picture


def said(picture: Locator) -> Locator:
    return picture.locator(".tv-tiling-said")


def press(picture: Locator, name: str) -> None:
    picture.get_by_role("button", name=name, exact=True).click()


def test_every_step_is_here_and_asks_nothing_of_the_server(stay: Visit) -> None:
    visitor = stay("/").measured()
    picture = opened(visitor)
    asked: list[str] = []
    visitor.page.on("request", lambda request: asked.append(request.url))
    slider = picture.get_by_role("slider", name="step")
    slider.fill("1")
    expect(said(picture)).to_have_text(re.compile(r"^queries 1/3 · keys 1/3.*16 scores exist"))
    expect(picture.locator(".of-exist .tv-tiling-big")).to_have_text("16 of 144")
    expect(picture.locator(".of-l .now").first).to_have_text("1.00")  # the first row sees itself alone
    press(picture, "step on")
    expect(said(picture)).to_have_text(re.compile(r"^queries 1/3Every key.*Skipped tiles in these rows: 2"))
    expect(picture.locator(".of-out b")).to_have_text(re.compile(r"^ = \["))
    visitor.page.keyboard.press("End")
    expect(said(picture)).to_have_text(re.compile("^queries 3/3"))
    expect(picture.locator(".of-moved .tv-tiling-big")).to_have_text("18,432 B")
    visitor.page.keyboard.press("Home")
    picture.get_by_role("combobox", name="speed").select_option("16")
    press(picture, "play")
    expect(said(picture)).to_have_text(re.compile("^queries 3/3Every"))
    expect(picture.get_by_role("button", name="play", exact=True)).to_be_visible()  # it stops at the end
    assert asked == []


def test_the_rows_sums_end_as_naive_and_a_row_is_chosen(visit: Visit) -> None:
    visitor = visit("/").measured()
    picture = opened(visitor)
    picture.get_by_role("slider", name="step").fill("9")
    output = picture.locator(".of-out b").inner_text()
    expect(picture.locator(".tv-tiling-sums dd b").nth(1)).to_have_text(output)
    press(picture, "row below")
    expect(picture.locator(".tv-tiling-sums h3")).to_have_text("row 9 was")
    picture.locator(".tv-tiling-names button").first.click()
    expect(picture.locator(".tv-tiling-sums h3")).to_have_text("row 0 The")
    expect(said(picture)).to_have_text(re.compile("^queries 1/3"))
    picture.locator(".tv-tiling-stage canvas").click(position={"x": 10, "y": 200})  # row 5 or 6, the first keys
    expect(said(picture)).to_have_text(re.compile("^queries 2/3 · keys 1/3"))


def test_one_block_is_the_naive_matrix(stay: Visit) -> None:
    visitor = stay("/").measured()
    picture = opened(visitor)
    with visitor.redrawn("speed.tiling"):
        visitor.page.get_by_role("button", name="one block = the naive matrix", exact=True).click()
    expect(picture.locator(".tv-player-place")).to_have_text("1 / 2")
    expect(picture.locator(".of-exist .tv-tiling-big")).to_have_text("144 of 144")
    expect(picture.locator(".tv-badges .ok")).to_have_count(3)
