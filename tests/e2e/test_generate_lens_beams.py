"""The logit lens and the beam search as a person uses them: grids and trees that answer pointer and keyboard."""

import re
from collections.abc import Callable

from playwright.sync_api import Locator, expect

from tests.e2e.conftest import Visitor

Visit = Callable[..., Visitor]
FACT = "/?text=The+capital+of+France+is+Paris.+The+capital+of+Japan+is"
DATES = "/?model=dates&text=March+5,+2021"


def opened(visitor: Visitor, name: str) -> Locator:
    """The section's picture, drawn, with every check of it held."""
    picture = visitor.section("generate", f"generate.{name}")
    expect(picture.locator(".tv-panels")).to_have_css("opacity", "1")
    expect(picture.locator(".tv-badges .warn")).to_have_count(0)
    return picture


def opened_early(visitor: Visitor, name: str) -> Locator:
    """The section's picture, which may still be growing."""
    for key in ("tab.generate", f"generate.{name}.name"):
        visitor.page.get_by_role("tab", name=visitor.t(key), exact=True).click()
    return visitor.page.locator(f"#generate-{name} .tv-picture")


def cell(picture: Locator, row: int, column: int) -> Locator:
    return picture.locator(f'td[data-row="{row}"][data-column="{column}"]')


def test_the_lens_shows_a_fact_arrive_in_the_last_layers(stay: Visit) -> None:
    picture = opened(stay(FACT), "lens")
    expect(picture.locator(".tv-badges .ok")).to_have_count(3)
    expect(picture.get_by_role("grid").get_by_role("gridcell")).to_have_count(31 * 12)
    expect(cell(picture, 30, 11)).to_have_text("Tokyo")  # "The capital of Japan is"
    expect(cell(picture, 0, 11)).to_have_text("is")  # tied head: the embedding says the token itself


def test_a_cell_is_read_by_pointer_and_keys_without_a_new_picture(stay: Visit) -> None:
    visitor = stay(FACT)
    picture = opened(visitor, "lens")
    before, reader = picture.get_attribute("data-drawn"), picture.locator(".tv-lens-reader")
    cell(picture, 30, 4).hover()
    expect(reader.locator(".tv-lens-title")).to_have_text(re.compile("layer 29.*is"))
    expect(reader.locator("li")).to_have_count(10)
    expect(reader.locator("li.same")).to_have_text(re.compile(r"%$"))
    cell(picture, 30, 4).focus()
    visitor.page.keyboard.press("ArrowDown")
    visitor.page.keyboard.press("ArrowRight")
    expect(reader.locator(".tv-lens-title")).to_have_text(re.compile("layer 28.*Paris"))
    visitor.page.keyboard.press("PageDown")
    expect(reader.locator(".tv-lens-title")).to_have_text(re.compile("layer 23"))
    assert picture.get_attribute("data-drawn") == before


def test_a_chosen_cell_moves_the_page(visit: Visit) -> None:
    visitor = visit(FACT)
    picture = opened(visitor, "lens")
    with visitor.redrawn("generate.lens"):
        cell(picture, 20, 3).click()
    expect(picture.get_by_role("spinbutton", name="layer")).to_have_value("19")
    expect(picture.get_by_role("toolbar").get_by_role("button", name="France", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )
    expect(cell(picture, 20, 3)).to_have_attribute("aria-selected", "true")
    expect(picture.locator("h3").nth(1)).to_have_text(re.compile("At “France”"))
    with visitor.redrawn("generate.lens"):
        picture.get_by_role("toolbar").get_by_role("button", name="Japan", exact=True).click()
    expect(cell(picture, 20, 10)).to_have_attribute("aria-selected", "true")


def test_colours_change_without_asking(stay: Visit) -> None:
    picture = opened(stay(FACT), "lens")
    before, colour = picture.get_attribute("data-drawn"), cell(picture, 5, 2)
    first = colour.evaluate("node => node.style.background")
    picture.get_by_role("button", name="rank of the final token", exact=True).click()
    expect(colour).not_to_have_attribute("style", re.compile(re.escape(first)))
    expect(picture.locator(".tv-lens-legend span").last).to_have_text("1")
    picture.get_by_role("button", name="KL", exact=True).click()
    expect(picture.locator(".tv-lens-legend span").first).to_have_text(re.compile("nats$"))
    assert picture.get_attribute("data-drawn") == before


def test_a_long_text_shows_the_part_around_the_chosen_token(visit: Visit) -> None:
    visitor = visit("/?text=" + "the+cat+saw+the+other+cat+near+the+door+" * 8)
    picture = opened_early(visitor, "lens")
    expect(picture.locator(".tv-note:not(.tv-error)")).to_have_text(re.compile("Tokens 0 to 47 of 7"))
    picture.get_by_role("toolbar").get_by_role("button").nth(60).click()
    expect(picture.locator(".tv-note:not(.tv-error)")).to_have_text(re.compile("Tokens 2"))
    expect(picture.locator("thead th.now")).to_have_attribute("title", re.compile("^60:"))


def test_an_encoder_without_a_head_is_told_what_is_missing(visit: Visit) -> None:
    visitor = visit("/?model=minilm-l6&text=the+cat")
    for name, words in (("lens", "output head"), ("beams", "writes no text")):
        picture = visitor.section("generate", f"generate.{name}")
        expect(picture.locator(".tv-note:not(.tv-error)")).to_contain_text(words)
        expect(picture.locator(".tv-panel")).to_have_count(0)


def test_the_tree_grows_and_its_texts_are_ranked(visit: Visit) -> None:
    picture = opened(visit("/"), "beams")
    expect(picture.locator(".tv-badges .ok")).to_have_count(4)
    expect(picture.locator(".tv-beams-tree button")).to_have_count(1 + 12 * (4 + 6))
    rows = picture.get_by_role("rowheader")
    expect(rows).to_have_count(5)
    expect(rows.first).to_have_text(re.compile("^1. to do so"))
    expect(rows.last).to_have_text(re.compile("^Greedy: "))


def test_one_beam_is_greedy_and_eight_are_kept(visit: Visit) -> None:
    visitor = visit(DATES)
    picture = opened(visitor, "beams")
    with visitor.redrawn("generate.beams"):
        visitor.page.get_by_role("button", name="One beam: greedy", exact=True).click()
    expect(picture.locator(".tv-badges")).to_contain_text("one beam writes what greedy writes")
    expect(picture.get_by_role("rowheader").first).to_have_text("1. 2021-03-05")
    with visitor.redrawn("generate.beams"):
        visitor.page.get_by_role("button", name="Eight beams", exact=True).click()
    expect(picture.get_by_role("rowheader")).to_have_count(9)


def test_the_tree_is_walked_by_keys_and_read_by_pointer(visit: Visit) -> None:
    visitor = visit(DATES)
    picture = opened(visitor, "beams")
    said, keys = picture.locator(".tv-beams-said"), visitor.page.keyboard
    expect(said).to_contain_text("2 · 0 · 2 · 1 · - · 0 · 3 · - · 0 · 5 · </s>")  # the best text
    picture.locator('.tv-beams-tree [data-node="0"]').focus()
    keys.press("ArrowRight")
    expect(said).to_have_text(re.compile(r"… 2\s*step\s*1\s*probability"))
    keys.press("ArrowDown")
    expect(said).to_have_text(re.compile(r"candidates\s*2\s*kept"))
    keys.press("ArrowLeft")
    expect(said).to_contain_text("the prompt")
    picture.locator(".tv-beams-tree button.dropped").first.hover()
    expect(said).to_have_text(re.compile(r"cut\s*$"))
