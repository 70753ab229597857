"""The Training tab as a person uses it: open it, move a slider, try what is offered, take the code."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.conftest import Visitor
from tests.e2e.test_looks import DESK, PHONE, violations

Visit = Callable[..., Visitor]


def opened(page: Page, name: str) -> Locator:
    page.get_by_role("tab", name=name).click()
    panel = page.get_by_role("tabpanel").filter(visible=True)
    expect(panel.locator(".js-plotly-plot .scatterlayer .trace").first).to_be_visible()
    return panel


def test_the_curve_follows_the_controls(visit: Visit) -> None:
    page = visit("/").page
    expect(page.locator(".js-plotly-plot")).to_have_count(0)  # nothing is drawn in a tab nobody opened
    panel = opened(page, "Training")
    table = panel.get_by_role("table").first
    row = table.get_by_role("row", name=re.compile("^Noam"))
    expect(row).to_have_text(re.compile(r"1\.75e-7\s*6\.99e-4\s*4,000\s*3\.13e-4"))
    expect(panel.locator(".katex").first).to_be_visible()
    panel.get_by_role("spinbutton", name="d_model").fill("1024")
    expect(row).to_have_text(re.compile(r"4\.94e-4\s*4,000"))
    panel.get_by_role("checkbox", name="cosine to 0").check()
    expect(table.get_by_role("row")).to_have_count(3)
    expect(panel.locator("#training-rates .scatterlayer .trace")).to_have_count(4)  # two lines, two marks
    panel.get_by_role("button", name="warm-up beyond the end").click()
    expect(panel.get_by_role("status").filter(has_text="never reaches its peak")).to_be_visible()
    panel.get_by_role("button", name="no warm-up at all").click()
    expect(panel.get_by_role("status").filter(has_text="warmup_steps = 0")).to_be_visible()
    expect(table.get_by_role("row")).to_have_count(2)  # the cosine does not divide by it


def test_smoothing_is_drawn_and_follows_its_slider(visit: Visit) -> None:
    panel = opened(visit("/").page, "Training")
    row = panel.get_by_role("row", name=re.compile("^over all"))
    expect(row).to_have_text(re.compile(r"0\.910\s*0\.0100\s*0\.0100\s*0\.910"))
    expect(panel.locator("#smoothing-targets .barlayer .trace")).to_have_count(2)
    panel.get_by_role("spinbutton", name="ε").fill("0.2")
    expect(row).to_have_text(re.compile(r"0\.820\s*0\.0200"))


def test_code_is_there_to_take_and_to_read(visit: Visit) -> None:
    page = visit("/zh").page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panel = opened(page, "训练")
    panel.get_by_role("button", name="复制").first.click()
    expect(panel.get_by_role("button", name="已复制")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert "LambdaLR(optimizer, rate)" in copied and "D_MODEL = 512" in copied
    panel.get_by_text("查看代码").first.click()
    expect(panel.get_by_text("def noam_lr(")).to_be_visible()


@pytest.mark.parametrize("screen, scheme", [(DESK, "light"), (DESK, "dark"), (PHONE, "dark")])
def test_it_fits_its_screen_and_axe_finds_nothing(visit: Visit, axe_source: str, screen: dict, scheme: str) -> None:
    visitor = visit("/", color_scheme=scheme, reduced_motion="reduce", **screen)
    opened(visitor.page, "Training")
    assert visitor.page.evaluate("document.documentElement.scrollWidth") == screen["viewport"]["width"]
    assert violations(visitor, axe_source) == []
