"""The Masks tab as a person uses it: sentences in, masks and weights out, on a decoder, an encoder and our dates."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.e2e.conftest import Visitor

Visit = Callable[..., Visitor]
SECTIONS = {"/": ("Batch", "Conventions", "Decoding", "The model's own"), "/zh": ("批次", "约定", "解码", "模型自己的")}


def opened(visitor: Visitor) -> Locator:
    """The tab's own panel, its first section drawn."""
    visitor.page.get_by_role("tab", name=visitor.t("tab.masks"), exact=True).click()
    panel = visitor.page.get_by_role("tabpanel").filter(has=visitor.page.locator("#masks-bench"))
    return drawn(panel)


def drawn(panel: Locator) -> Locator:
    picture = panel.locator(".tv-picture").filter(visible=True)
    picture.scroll_into_view_if_needed()  # nothing is drawn below the screen
    expect(picture).to_have_attribute("data-drawn", re.compile("."))
    expect(picture).not_to_have_attribute("data-busy", re.compile(".*"))
    return panel


def section(panel: Locator, name: str) -> Locator:
    panel.get_by_role("tab", name=name).click()
    return drawn(panel)


def badge(panel: Locator, text: str) -> Locator:
    return panel.locator(".tv-badges li").filter(visible=True).filter(has_text=text)


def test_a_batch_of_a_decoder_step_by_step(visit: Visit) -> None:
    panel = opened(visit("/"))
    rows = panel.locator(".tv-masks-rows tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(1).locator("td.pad")).to_have_count(8)
    titles = panel.locator(".tv-masks-grid figcaption span").filter(visible=True)
    expect(titles).to_have_text(["padding", "causal", "combined", "scores", "after the mask", "weights"])
    expect(badge(panel, "what it gives alone")).to_have_class("ok")
    panel.get_by_role("button", name="pad on the left").click()
    expect(titles).to_have_text(
        ["padding", "causal", "combined", "scores", "after the mask", "softmax alone", "weights"]
    )
    expect(badge(panel, "nothing allowed: 8")).to_have_class("ok")
    expect(badge(panel, "what it gives alone")).to_have_class("ok")
    panel.get_by_role("button", name="Look at sentence 3").click()
    expect(badge(panel, "nothing allowed: 11")).to_have_class("ok")
    panel.get_by_role("button", name="pack instead of pad").click()
    expect(titles.first).to_have_text("documents")
    expect(badge(panel, "in the packed row what it gives alone")).to_have_class("ok")
    panel.get_by_role("button", name="an empty line").click()
    expect(rows.nth(2)).to_contain_text("nothing allowed")
    expect(badge(panel, "no NaN in the whole batch")).to_have_class("ok")
    expect(panel.get_by_role("radio", name="right")).to_be_checked()


def test_the_keyboard_reads_a_cell_in_every_grid(visit: Visit) -> None:
    panel = opened(visit("/?text=one+two+three"))
    grids = panel.get_by_role("application").filter(visible=True)
    grids.press("PageUp")
    grids.press("End")
    expect(grids.locator(".tv-masks-read")).to_contain_text("blocked")
    expect(grids.locator("figcaption b").last).to_have_text("0")
    grids.press("Home")
    expect(grids.locator(".tv-masks-read")).to_contain_text("open")
    expect(grids.locator("figcaption b").last).to_have_text("1.00")  # the first token sees nothing but itself


def test_what_makes_no_mask_is_said_and_the_picture_stays(visit: Visit) -> None:
    panel = opened(visit("/"))
    panel.get_by_role("textbox", name="window").fill("0")
    expect(panel.get_by_role("alert").filter(visible=True)).to_contain_text("0 is no width for a window")
    expect(panel.locator(".tv-masks-rows tr")).to_have_count(3)
    panel.get_by_role("textbox", name="window").fill("2")
    expect(panel.locator(".tv-masks-grid figcaption span").nth(2)).to_have_text("window")
    expect(panel.get_by_role("alert").filter(visible=True)).to_have_count(0)
    panel.get_by_role("textbox", name="More sentences").fill("a\nb\nc\nd\ne\nf")
    expect(panel.get_by_role("alert").filter(visible=True)).to_contain_text("at most 6 sentences")
    panel.get_by_role("textbox", name="More sentences").fill("<b>bold</b>")
    expect(panel.locator(".tv-masks-rows tr")).to_have_count(2)
    assert panel.locator(".tv-masks-rows b").count() == 0


def test_conventions_come_with_code_that_was_run(stay: Visit) -> None:
    visitor = stay("/")
    visitor.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panel = section(opened(visitor), "Conventions")
    expect(badge(panel, "this code was run just now: 0 of 576 values differ")).to_have_class("ok")
    panel.get_by_role("button", name="Copy").filter(visible=True).first.click()
    copied = visitor.page.evaluate("navigator.clipboard.readText()")
    namespace: dict = {}
    exec(copied, namespace)
    assert namespace["blocked"].shape == (3, 1, 12, 12) and not namespace["allowed"][1, 0, 0, 1:].any()


def test_decoding_measures_both_corners(stay: Visit) -> None:
    panel = section(opened(stay("/")), "Decoding")
    expect(badge(panel, "bottom right gives the rows")).to_have_class("ok")
    expect(badge(panel, "torch's is_causal is top left")).to_have_class("ok")
    expect(panel.locator("#masks-bench")).to_be_hidden()  # it has its own two numbers
    panel.get_by_role("button", name="one query, five keys").click()
    expect(panel.locator(".tv-masks-queries bdi").filter(visible=True)).to_have_count(4)  # one in each of four grids


@pytest.mark.parametrize("model", ["smollm2-135m", "minilm-l6"])
def test_the_models_own_masks_are_as_expected(visit: Visit, model: str) -> None:
    panel = section(opened(visit(f"/?model={model}")), "The model's own")
    expect(badge(panel, "as expected in all")).to_have_class("ok")
    panel.get_by_role("button", name="one sentence alone").click()
    expect(
        panel.get_by_role("cell", name="the causal flag alone" if model == "smollm2-135m" else "nothing")
    ).to_be_visible()


def test_all_three_masks_of_the_dates_model(visit: Visit) -> None:
    panel = section(opened(visit("/?model=dates")), "The model's own")
    expect(badge(panel, "as expected in all")).to_have_count(3)
    panel = section(panel, "Batch")
    expect(panel.locator(".tv-masks-grid figcaption span").filter(visible=True).first).to_have_text("padding")
    panel.get_by_role("button", name="Decoder", exact=True).filter(visible=True).click()
    expect(panel.locator(".tv-masks-grid figcaption span").filter(visible=True).nth(1)).to_have_text("causal")
