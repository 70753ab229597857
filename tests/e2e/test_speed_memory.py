"""The memory planner as a person uses it: a model on the page, one of the tries, a measurement."""

import re
from collections.abc import Callable

from playwright.sync_api import expect

from tests.e2e.conftest import Visitor

Visit = Callable[..., Visitor]


def test_the_planner_counts_measures_and_takes_a_try(visit: Visit) -> None:
    visitor = visit("/?model=dates&text=March+5,+2021")
    picture = visitor.section("speed", "speed.memory")
    expect(picture.locator(".tv-panels")).to_have_css("opacity", "1")
    expect(picture.locator(".tv-badges")).to_contain_text("weights: formula 3,756,544 B, loaded 3,756,544 B")
    picture.get_by_role("button", name=visitor.t("speed.memory.button")).click()
    expect(picture.get_by_role("row", name=re.compile("^gradients"))).to_be_visible()
    expect(picture.locator(".tv-badges .warn")).to_have_count(0)
    visitor.page.get_by_role("button", name=visitor.t("speed.memory.try.train")).click()
    expect(picture).to_contain_text("more than 80.0 GiB is needed")
    expect(picture.locator(".tv-plan-facts")).to_contain_text("8.030 G")
    expect(picture.locator(".tv-badges .warn")).to_have_count(0)
