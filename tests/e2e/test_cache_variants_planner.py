"""The KV cache tab's variants and planner as a person uses them: pick, paste, mistype, click through to a layer."""

import re
from collections.abc import Callable

from playwright.sync_api import Locator, expect

from tests.e2e.conftest import Visitor
from tests.e2e.test_looks import DESK, both_looks, violations

Visit = Callable[..., Visitor]
VARIANTS = ("heads", "window", "growth", "bits", "cross")
LLAMA = '{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}'


def opened(visitor: Visitor, name: str) -> Locator:
    """The section's picture, drawn, with every check of it held."""
    picture = visitor.section("cache", f"cache.{name}")
    expect(picture.locator(".tv-panels")).to_have_css("opacity", "1")
    expect(picture.locator(".tv-badges .warn")).to_have_count(0)
    return picture


def pick(visitor: Visitor, variant: str) -> None:
    name = visitor.t(f"cache.variants.pick.{variant}")
    if not visitor.radio(name).is_checked():
        with visitor.redrawn("cache.variants"):
            visitor.radio(name).check()


def test_heads_are_drawn_as_this_model_shares_them(stay: Visit) -> None:
    picture = opened(stay("/"), "variants")
    expect(picture.locator(".tv-variant-card")).to_have_count(3)
    expect(picture.locator(".tv-variant-card.own h4")).to_have_text(re.compile("GQA, 3 KV heads.*this model"))
    expect(picture.locator(".tv-variant-card").last).to_contain_text("0.11x of MHA")


def test_a_window_forgets_and_a_sink_is_kept(visit: Visit) -> None:
    visitor = visit("/")
    picture = opened(visitor, "variants")
    pick(visitor, "window")
    expect(picture.locator(".tv-variant-strip").first.locator(".gone")).to_have_count(3)
    expect(picture.locator(".tv-variant-strip").last.locator(".sink")).to_have_text("The")
    with visitor.redrawn("cache.variants"):
        visitor.page.get_by_role("button", name=re.compile("where did the first token go")).click()
    expect(visitor.page.get_by_role("spinbutton", name="head")).to_have_value("6")
    expect(picture.locator(".tv-variant-strip")).to_have_count(1)
    expect(picture.get_by_role("row", name=re.compile("^window of 6"))).to_have_text(re.compile(r"9\d\.\d %"))


def test_controls_are_those_of_the_variant(stay: Visit) -> None:
    visitor = stay("/")
    opened(visitor, "variants")
    window = visitor.page.get_by_role("slider", name=re.compile("Window, tokens"))
    expect(window).to_have_count(0)
    pick(visitor, "window")
    expect(window).to_be_visible()
    pick(visitor, "bits")
    expect(window).to_have_count(0)
    with visitor.redrawn("cache.variants") as picture:
        visitor.page.locator("#tv-tabs").get_by_role("radio", name="INT8", exact=True).check()
    expect(picture.get_by_role("heading", name="Output error of every layer, INT8")).to_be_visible()
    expect(picture.locator(".tv-badges .ok")).to_have_count(4)


def test_growing_is_measured_here(stay: Visit) -> None:
    visitor = stay("/")
    picture = opened(visitor, "variants")
    pick(visitor, "growth")
    expect(picture.locator(".tv-badges")).to_have_text(
        re.compile(r"at 8,192 tokens held, writing in place is \d+\.\d\dx")
    )
    expect(picture.get_by_role("row", name=re.compile("^static"))).to_have_text(re.compile("45.0 MiB.*0 B$"))


def test_cross_attention_is_written_once(visit: Visit) -> None:
    visitor = visit("/?model=dates&text=March+5,+2021")
    picture = opened(visitor, "variants")
    pick(visitor, "cross")
    expect(picture.locator(".tv-badges .ok")).to_have_count(2)
    expect(picture.get_by_role("row", name=re.compile("^saved at each later step"))).to_have_text(
        re.compile("2 × 13 × 128")
    )


def test_the_planner_starts_with_the_model_on_the_page(stay: Visit) -> None:
    visitor = stay("/")
    picture = opened(visitor, "planner")
    expect(picture.locator(".tv-plan-facts dd").first).to_have_text("180 MiB")
    expect(picture.locator(".tv-badges .ok")).to_have_count(3)
    expect(picture.get_by_role("row", name=re.compile("^INT4"))).to_have_text(re.compile(r"5\.00.*56\.[23] MiB"))


def test_a_pasted_config_is_planned_and_a_bad_one_leaves_the_picture(stay: Visit) -> None:
    visitor = stay("/")
    picture = opened(visitor, "planner")
    box = visitor.page.get_by_role("textbox", name=re.compile("config.json"))
    with visitor.redrawn("cache.planner"):
        box.fill(LLAMA)
    facts = picture.locator(".tv-plan-facts dd")
    expect(facts.first).to_have_text("1.00 GiB")
    error = picture.get_by_role("alert")
    for text, said in (
        ("{oops", "not JSON"),
        (LLAMA.replace("32,", "-32,", 1), "num_hidden_layers is -32"),
        (LLAMA.replace('"num_key_value_heads": 8', '"num_key_value_heads": 5'), "cannot share key/value heads (5)"),
        ("<img src=x onerror=alert(1)>", "not JSON"),
    ):
        box.fill(text)
        expect(error).to_contain_text(said)
        expect(facts.first).to_have_text("1.00 GiB")  # the last picture stays
    box.fill(LLAMA)
    expect(error).to_be_hidden()
    visitor.page.get_by_role("combobox", name="Model", exact=True).last.click()  # another model: the text stays unread
    visitor.page.get_by_role("option", name="the model on this page").click()
    expect(facts.first).to_have_text("180 MiB")
    expect(picture.locator(".tv-note:visible")).to_have_count(0)
    box.fill(LLAMA.replace("32,", "16,", 1))
    expect(facts.first).to_have_text("512 MiB")
    box.fill("")  # nothing is pasted any more: the model on the page again
    expect(facts.first).to_have_text("180 MiB")
    expect(picture.locator(".tv-note:visible")).to_have_count(0)


def test_the_first_thing_pasted_on_a_fresh_page_is_planned_and_one_sentence_is_told(visit: Visit, app_url: str) -> None:
    page = visit("/").page
    page.goto(f"{app_url}/?tab=cache&section=cache.planner")
    picture = page.locator("#cache-planner")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    box = page.get_by_role("textbox", name=re.compile("config.json"))
    page.evaluate("text => navigator.clipboard.writeText(text)", LLAMA)
    box.click()
    page.keyboard.press("Control+V")
    expect(picture.locator(".tv-plan-facts dd").first).to_have_text("1.00 GiB")
    box.fill("")
    expect(picture.locator(".tv-plan-facts dd").first).to_have_text("180 MiB")
    box.fill("{not json")
    expect(picture.locator(".tv-note:visible")).to_have_text("This is not JSON: it breaks off at line 1, letter 2.")


def test_the_planner_of_a_small_model_starts_without_a_warning(visit: Visit) -> None:
    picture = opened(visit("/?model=dates&text=March+5,+2021"), "planner")
    expect(picture.locator(".tv-plan-facts dt").first).to_contain_text("cache of 64 tokens")
    expect(picture.locator(".tv-note:visible")).to_have_count(0)


def test_the_examples_differ_as_their_configs_do(stay: Visit) -> None:
    visitor = stay("/")
    picture = opened(visitor, "planner")
    for name, cache in (("Llama-2-7B", "16.0 GiB"), ("Llama-3-8B", "4.00 GiB"), ("Mistral-7B", "512 MiB")):
        visitor.page.get_by_role("button", name=re.compile(name)).click()
        expect(picture.locator(".tv-plan-facts dd").first).to_have_text(cache)
    expect(picture.locator(".tv-plan-facts")).to_contain_text("any number of")
    expect(picture.get_by_role("row", name=re.compile("^window of 4,096"))).to_contain_text("4,095")


def test_each_variant_fits_its_screen_and_axe_finds_nothing(visit: Visit, axe_source: str) -> None:
    visitor = visit("/zh", color_scheme="light", reduced_motion="reduce", **DESK)
    opened(visitor, "variants")
    for width in both_looks(visitor):
        for variant in VARIANTS:
            pick(visitor, variant)
            assert visitor.page.evaluate("document.documentElement.scrollWidth") == width
            assert violations(visitor, axe_source, "#tv-view") == []
