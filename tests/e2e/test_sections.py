"""Sections as a person meets them, in every tab: each draws for every kind of model, follows the shared selection,
comes back from its address, can be saved, and keeps its picture when something is wrong."""

import csv
import io
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.e2e.conftest import Visitor
from tests.e2e.test_looks import DESK, PHONE, violations
from tfviz.ui.tabs import TABS

Visit = Callable[..., Visitor]
SECTIONS = {tab.key: import_module(f"tfviz.ui.tabs.{tab.key}").SECTIONS for tab in TABS if tab.key != "attention"}
ERROR = ".tv-error:visible"


@pytest.mark.parametrize("tab", SECTIONS)
@pytest.mark.parametrize(
    ("address", "screen", "scheme"),
    [
        ("/?model=smollm2-135m", DESK, "light"),
        ("/zh?model=minilm-l6", DESK, "dark"),
        ("/zh?model=dates", PHONE, "dark"),
    ],
    ids=["smollm2", "minilm", "dates"],
)
def test_every_section_draws_holds_fits_and_axe_finds_nothing(
    visit: Visit, axe_source: str, tab: str, address: str, screen: dict, scheme: str
) -> None:
    visitor = visit(address, color_scheme=scheme, reduced_motion="reduce", **screen)
    for section in SECTIONS[tab]:
        picture = visitor.section(tab, section.key)
        expect(picture.locator(ERROR)).to_have_count(0)
        if not section.button:  # what is measured is another test's, on a machine that may be busy
            expect(picture.locator(":is(.tv-panel, .tv-note):visible")).not_to_have_count(0)  # a note: no such thing
            expect(picture.locator(".tv-badges .warn")).to_have_count(0)
        assert visitor.page.evaluate("document.documentElement.scrollWidth") == screen["viewport"]["width"]
        assert violations(visitor, axe_source, "#tv-view") == [], section.key


def test_nothing_is_drawn_in_a_section_nobody_opened(visit: Visit) -> None:
    visitor = visit("/")
    expect(visitor.page.locator(".js-plotly-plot")).to_have_count(0)
    visitor.section("layers", "layers.residual")
    drawn = visitor.page.locator(".tv-picture[data-drawn]")
    expect(drawn).to_have_count(len({"layers.residual", SECTIONS["layers"][0].key}))


def chips(picture: Locator, side: str) -> Locator:
    return picture.locator(f".tv-tokens[data-of={side}] button")


def test_a_token_chosen_in_one_tab_is_chosen_in_all(visit: Visit) -> None:
    visitor = visit("/?model=smollm2-135m")
    picture = visitor.section("step", "step.flow")
    expect(chips(picture, "query").nth(8)).to_have_attribute("aria-pressed", "true")
    with visitor.redrawn("step.flow"):
        chips(picture, "query").nth(3).click()
    with visitor.redrawn("step.flow"):
        picture.locator("input[data-of=layer]").fill("4")
    residual = visitor.section("layers", "layers.residual")
    expect(chips(residual, "query").nth(3)).to_have_attribute("aria-pressed", "true")
    expect(residual.locator("input[data-of=layer]")).to_have_value("4")
    visitor.page.get_by_role("tab", name=visitor.t("tab.attention"), exact=True).click()
    expect(visitor.view).to_have_attribute("data-painted", re.compile(r"/self/4/8$"))
    expect(visitor.readout).to_contain_text("(3)")


def test_a_new_sentence_reaches_the_open_section(visit: Visit) -> None:
    visitor = visit("/?model=smollm2-135m")
    picture = visitor.section("step", "step.flow")
    with visitor.redrawn("step.flow"):
        visitor.sentence.fill("the cat saw the other cat")
    expect(chips(picture, "query")).to_have_count(6)


def test_an_address_brings_its_section_back(visit: Visit) -> None:
    visitor = visit("/")
    visitor.section("positions", "positions.order")
    visitor.page.wait_for_url(re.compile("tab=positions.*section=positions.order"))
    visitor.page.reload()
    expect(visitor.drawn("positions.order")).to_be_visible()
    visitor.page.get_by_role("link", name="中文").click()
    visitor.page.wait_for_url(re.compile("/zh"))
    expect(visitor.drawn("positions.order")).to_be_visible()


def test_a_failed_run_keeps_the_picture(visit: Visit) -> None:
    visitor = visit("/?model=smollm2-135m")
    picture = visitor.section("layers", "layers.residual")
    before = picture.locator(".tv-panels").inner_text()
    visitor.type_model("/no/such/folder")
    expect(visitor.error).to_be_visible()
    assert picture.locator(".tv-panels").inner_text() == before


def test_fast_clicking_ends_at_the_last_choice(visit: Visit) -> None:
    visitor = visit("/?model=smollm2-135m")
    picture = visitor.section("step", "step.flow")
    for i in (1, 5, 2, 7, 3, 9, 4, 10):
        chips(picture, "query").nth(i).click()
    expect(picture).to_have_attribute("data-drawn", re.compile(r"\"self\",13,8,10"))
    visitor.page.wait_for_timeout(1000)  # longer than any redraw: no answer to an older click may come after the last
    expect(picture).to_have_attribute("data-drawn", re.compile(r"\"self\",13,8,10"))


def test_figures_are_saved_whole(visit: Visit, tmp_path: Path) -> None:
    visitor = visit("/?model=smollm2-135m")
    picture = visitor.section("layers", "layers.residual")
    menu = picture.locator(".tv-save").first
    menu.locator("summary").click()
    saved = {}
    for kind in ("PNG", "SVG", "HTML", "CSV"):
        with visitor.page.expect_download() as download:
            menu.get_by_role("button", name=kind, exact=True).click()
        saved[kind] = tmp_path / download.value.suggested_filename
        download.value.save_as(saved[kind])
    assert saved["PNG"].read_bytes().startswith(b"\x89PNG") and "<svg" in saved["SVG"].read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(saved["CSV"].read_text(encoding="utf-8-sig"))))
    assert len(rows) == 30 * 12 and {row["layer"] for row in rows} == {"13"}
    assert {row["x label"] for row in rows} >= {"animal", "tired"} and all(float(row["value"]) > 0 for row in rows)
    offline = visitor.page.context.browser.new_context(offline=True).new_page()  # type: ignore[union-attr]
    offline.goto(saved["HTML"].as_uri())
    expect(offline.locator(".heatmaplayer image").first).to_be_attached()
    offline.context.close()


def test_a_phone_page_does_not_move_sideways(visit: Visit) -> None:
    visitor = visit("/?model=minilm-l6", **PHONE)
    for tab, key in (("positions", "positions.extrapolate"), ("training", "training.accumulation")):
        visitor.section(tab, key)
        left = visitor.page.locator(f"#{key.replace('.', '-')}").bounding_box()
        assert left is not None and left["x"] == pytest.approx(14, abs=1)


def test_a_measurement_waits_for_another_and_both_can_be_stopped(visit: Visit) -> None:
    first, second = visit("/"), visit("/zh")
    pictures = [visitor.section("speed", "speed.kernels") for visitor in (first, second)]
    for visitor, picture in zip((first, second), pictures, strict=True):
        with visitor.redrawn("speed.kernels"):  # the longest there is: it must not end before it is stopped
            visitor.page.get_by_label(visitor.t("speed.kernels.largest")).click()
            visitor.page.get_by_role("option", name="8,192", exact=True).click()
        with visitor.redrawn("speed.kernels"):  # of a size of its own: what is measured is there for every later page
            visitor.page.locator("#tv-tabs").get_by_role("radio", name="128", exact=True).check()
        picture.locator(".tv-measure").click()
        expect(picture.locator(".tv-doing")).to_be_visible()
    expect(pictures[0].get_by_role("progressbar")).to_be_visible()
    expect(pictures[1].locator(".tv-doing")).to_contain_text("前面还有 1 项测量")
    pictures[0].get_by_role("button", name="Stop", exact=True).click()
    expect(pictures[0].locator(".tv-doing")).to_be_hidden()
    expect(pictures[1].get_by_role("progressbar")).to_be_visible()
    pictures[1].get_by_role("button", name="停止", exact=True).click()
    expect(pictures[1].locator(".tv-doing")).to_be_hidden()
    expect(pictures[1].locator(".tv-error:visible")).to_have_count(0)
