"""The Attention view in a browser, on synthetic data: what is drawn, what moves it, and what it tells Python."""

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, Request, expect

from tests.e2e import view_harness
from tfviz.messages import ASSETS, LANGUAGES
from tfviz.ui.components.attention_view import view_labels


@pytest.fixture(scope="module")
def harness() -> Iterator[str]:
    demo = view_harness.build()
    yield view_harness.launch(demo)
    demo.close()


@pytest.fixture
def view(page: Page, harness: str) -> Locator:
    """The view, open on the first example with its map painted."""
    page.goto(harness)
    root = page.locator("#attention-view .tv-attention")
    expect(root).to_have_attribute("data-painted", "t-smollm/self/13/8")
    return root


def load(page: Page, case: str) -> None:
    page.get_by_role("button", name=case, exact=True).click()
    expect(page.locator(f".tv-attention[data-trace='t-{case}'][data-painted]")).to_be_visible()


def click_head(view: Locator, layer: int, head: int) -> None:
    """Where a person sees that head: the frame around the chosen one says how large and how far apart they are."""
    view.locator(".tv-grid").press("Home")
    frame = view.locator(".tv-grid .tv-frame:not(.light)")
    first = frame.bounding_box()
    view.locator(".tv-grid").press("ArrowDown")
    expect(frame).not_to_have_attribute("style", re.compile(r"translate\(\S+?, ?13px\)"))
    second = frame.bounding_box()
    assert first and second
    step, groups = second["y"] - first["y"], head // 3
    view.page.mouse.click(first["x"] + 8 + head * step + groups * 8, first["y"] + 8 + layer * step)


def test_it_opens_where_python_says_and_reads_the_cell(view: Locator) -> None:
    expect(view.get_by_role("heading", name="Layer 13, head 8")).to_be_visible()
    expect(view.locator(".tv-read")).to_have_text("␣it (8) → ␣animal (1): 0.749 · row sum 1.000 · column sum 2.20")
    expect(view.get_by_text("30 layers × 9 heads · 3 per key/value")).to_be_visible()


def test_a_clicked_head_is_painted_and_told_to_python(view: Locator, page: Page) -> None:
    click_head(view, 5, 3)
    expect(view).to_have_attribute("data-painted", "t-smollm/self/5/3")
    expect(view.get_by_role("heading", name="Layer 5, head 3")).to_be_visible()
    expect(page.get_by_text('"layer"')).to_be_visible()  # the harness shows the event
    expect(view.get_by_role("listitem").filter(has_text="of layer 5")).to_be_visible()


def test_the_keyboard_alone_reaches_and_moves_everything(view: Locator, page: Page) -> None:
    page.keyboard.press("Tab")
    view.get_by_role("button", name="␣it", exact=True).focus()
    page.keyboard.press("ArrowRight")
    expect(view.locator(".tv-read")).to_contain_text("␣was (9)")
    page.keyboard.press("Tab")  # one stop for the whole strip, then the heads
    page.keyboard.press("ArrowUp")
    expect(view).to_have_attribute("data-painted", "t-smollm/self/12/8")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    expect(view.locator(".tv-read")).to_contain_text("␣was (9) → ␣didn (2)")
    page.keyboard.press("End")
    expect(view.locator(".tv-read")).to_contain_text("blocked")


def test_a_late_answer_is_not_painted_over_a_newer_choice(view: Locator, page: Page) -> None:
    def asks_for_slow(request: Request) -> bool:
        sent = json.loads(request.post_data or "{}").get("data") or {}
        return isinstance(sent, dict) and (sent.get("layer"), sent.get("head")) == view_harness.SLOW

    grid = view.locator(".tv-grid")
    with page.expect_response(lambda response: asks_for_slow(response.request)):
        with page.expect_request(asks_for_slow):
            for key in ("Home", "ArrowDown", "ArrowDown"):  # rests on SLOW until it has been asked for, then moves on
                grid.press(key)
        grid.press("End")
    expect(view).to_have_attribute("data-painted", "t-smollm/self/29/8")
    expect(view.get_by_role("heading", name="Layer 29, head 8")).to_be_visible()


def test_an_error_is_said_and_the_last_picture_stays(view: Locator) -> None:
    click_head(view, *view_harness.BROKEN)
    expect(view.get_by_role("alert")).to_have_text("This head could not be read.")
    expect(view).to_have_attribute("data-painted", re.compile(r"t-smollm/self/\d+/0"))


def test_cross_attention_has_two_strips_and_three_kinds(view: Locator, page: Page) -> None:
    load(page, "translation")
    expect(view).to_have_attribute("data-painted", "t-translation/cross/1/2")
    view.get_by_role("toolbar", name="Source").get_by_role("button", name="street").click()
    view.get_by_role("toolbar", name="Target").get_by_role("button", name="animal").click()
    expect(view.locator(".tv-read")).to_contain_text("animal (2) → street (6)")
    view.get_by_role("radio", name="Encoder").click()
    expect(view).to_have_attribute("data-painted", re.compile("^t-translation/encoder/"))
    expect(view.get_by_role("toolbar", name="Target").get_by_role("button").first).to_be_disabled()
    expect(view.get_by_text("3 layers × 4 heads")).to_be_visible()


def test_text_of_a_visitor_stays_text(view: Locator, page: Page) -> None:
    load(page, "chinese")
    view.get_by_role("button", name="<b>&amp;", exact=True).click()
    expect(view.locator(".tv-read")).to_contain_text("<b>&amp; (10)")
    expect(view.get_by_role("button", name="鑫 2/3")).to_be_visible()
    assert view.locator("bdi b").count() == 0


def test_a_long_text_reads_approximately_at_once_and_then_exactly(view: Locator, page: Page) -> None:
    load(page, "512")
    view.locator(".tv-map").hover(position={"x": 20, "y": 300})
    expect(view.locator(".tv-read b")).to_have_text(re.compile(r"^[0-9]"))
    expect(view.locator(".tv-read")).to_contain_text("row sum 1.000 · column sum ≈")


def test_a_trace_no_longer_kept_is_reported(view: Locator, page: Page) -> None:
    load(page, "16")
    page.get_by_role("button", name="forget").click()
    click_head(view, 7, 4)
    expect(page.get_by_text('"gone"')).to_be_visible()


def test_without_a_value_it_says_what_to_do(view: Locator, page: Page) -> None:
    page.get_by_role("button", name="none", exact=True).click()
    expect(view.get_by_text(view_labels("en")["view.empty"])).to_be_visible()
    load(page, "smollm")


@pytest.mark.parametrize("case", ["smollm", "1024", "big"])
def test_a_phone_never_scrolls_sideways(view: Locator, page: Page, case: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    load(page, case)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    heads, map_ = (view.locator(name).bounding_box() for name in (".tv-heads", ".tv-map"))
    assert heads and map_ and heads["y"] > map_["y"]


def test_every_sentence_exists_in_every_language() -> None:
    assert len({frozenset(view_labels(language)) for language in LANGUAGES}) == 1
    assert all(text.strip() for language in LANGUAGES for text in view_labels(language).values())


def test_the_style_survives_gradios_template_string() -> None:
    css = (ASSETS / "css" / "attention_view.css").read_text(encoding="utf-8")
    assert not re.search(r"[\\`]|\$\{|\{\{", css)
