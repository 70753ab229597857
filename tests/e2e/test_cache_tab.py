"""The KV cache tab as a person uses it: a real generation is scrubbed and played, and its cost is measured."""

import re
from collections.abc import Callable

from playwright.sync_api import Locator, expect

from tests.e2e.conftest import Heard, Visitor

Visit = Callable[..., Visitor]


def opened(visitor: Visitor, name: str = "steps") -> Locator:
    """The section's picture, drawn, with every check of it held."""
    picture = visitor.section("cache", f"cache.{name}")
    expect(picture.locator(".tv-panels")).to_have_css("opacity", "1")
    expect(picture.locator(".tv-badges .warn")).to_have_count(0)
    return picture


def said(picture: Locator) -> Locator:
    return picture.locator(".tv-cache-said")


def press(picture: Locator, name: str) -> None:
    picture.get_by_role("button", name=name, exact=True).click()


def test_the_first_example_goes_on_and_its_checks_hold(stay: Visit) -> None:
    picture = opened(stay("/"))
    expect(picture.locator(".tv-badges .ok")).to_have_count(5)
    expect(picture.locator(".tv-badges")).to_contain_text("1,244,160 B")  # 27 x 46,080
    expect(said(picture)).to_have_text(re.compile(r"^Step 16 of 16.*27 keys and values are read"))
    card = picture.locator(".tv-cache-card.of-memory")
    expect(card).to_contain_text("2 × 30 × 3 × 64 × 4 B = 46,080 B a token")
    expect(card).to_contain_text("1,244,160 B = 27 × 46,080 B")
    expect(picture.locator(".tv-cache-card.of-work .tv-cache-big")).to_have_text("21.6x less work")
    times = picture.locator(".tv-cache-card.of-time").inner_text()  # the ratio is that of the two medians under it
    found = re.search(r"([\d.]+)x (faster|slower)[^:]*: ([\d.]+) ms with, ([\d.]+) ms without", times)
    assert found is not None
    gain = float(found[4]) / float(found[3])
    assert (
        abs(float(found[1]) / max(gain, 1 / gain) - 1) < 0.02
    )  # each has three digits, the ratio two behind the point
    expect(picture.locator(".of-q .shape")).to_have_text("[9, 1, 64]")
    expect(picture.locator(".of-K .shape")).to_have_text("[3, 27, 64]")


def test_scrubbing_asks_nothing_of_the_server(stay: Visit) -> None:
    visitor = stay("/").measured()
    picture = opened(visitor)
    asked: list[str] = []
    visitor.page.on("request", lambda request: asked.append(request.url))
    slider = picture.get_by_role("slider", name="step")
    slider.fill("1")
    expect(said(picture)).to_have_text(re.compile("^Step 1 of 16.*Prefill: all 12 prompt tokens"))
    expect(picture.locator(".of-k .shape")).to_have_text("[3, 12, 64]")
    expect(picture.locator(".of-memory .tv-cache-big")).to_have_text("540 KiB")
    press(picture, "step on")
    expect(said(picture)).to_have_text(re.compile("^Step 2 of 16.*Decode: only"))
    visitor.page.keyboard.press("End")
    expect(said(picture)).to_have_text(re.compile("^Step 16"))
    visitor.page.keyboard.press("ArrowLeft")
    expect(said(picture)).to_have_text(re.compile("^Step 15"))
    visitor.page.keyboard.press("Home")
    picture.get_by_role("combobox", name="speed").select_option("4")
    heard = Heard(picture, ".tv-cache-said", cue="^Step 4 ", press="pause")
    press(picture, "play")
    expect(said(picture)).to_have_text(re.compile("^Step 4 "))
    expect(picture.get_by_role("button", name="play", exact=True)).to_be_visible()
    assert [text.split(" of ")[0] for text in heard.texts()] == ["Step 1", "Step 2", "Step 3", "Step 4"]
    assert asked == []


def test_another_head_keeps_the_step_and_more_tokens_go_on(stay: Visit) -> None:
    visitor = stay("/")
    picture = opened(visitor)
    picture.get_by_role("slider", name="step").fill("5")
    with visitor.redrawn("cache.steps"):
        canvas = picture.locator(".of-own canvas")
        canvas.click(position={"x": 20, "y": 80})  # a row of the cache
    expect(said(picture)).to_have_text(re.compile("^Step 5 of 16"))
    expect(picture.get_by_role("spinbutton", name="layer")).not_to_have_value("13")
    press(picture, "go on to 32 tokens")
    expect(said(picture)).to_have_text(re.compile("^Step 32 of 32"))
    expect(picture.locator(".tv-badges .ok")).to_have_count(5)


def test_an_encoder_decoder_writes_its_answer_and_reads_the_source_from_a_cache(visit: Visit) -> None:
    visitor = visit("/?model=dates&text=March+5,+2021")
    picture = opened(visitor)
    expect(said(picture)).to_have_text(re.compile("With it the model ends its text"))
    expect(picture.locator(".tv-cache-once")).to_have_text(
        re.compile("Computed once, in step 1, from the 13 source tokens")
    )
    expect(picture.locator(".of-K .shape")).to_have_text("[4, 13, 32]")  # the page opens on cross-attention
    with visitor.redrawn("cache.steps"):
        picture.locator(".tv-seg").get_by_role("button", name="Decoder", exact=True).click()
    expect(picture.locator(".of-K .shape")).to_have_text("[4, 11, 32]")
    expect(picture.locator(".tv-badges .ok")).to_have_count(5)


def test_a_model_that_writes_nothing_says_so(visit: Visit) -> None:
    visitor = visit("/?model=minilm-l6")
    for name in ("steps", "cost"):
        picture = visitor.section("cache", f"cache.{name}")
        expect(picture).to_contain_text("writes no text")


def test_the_cost_is_measured_when_asked(visit: Visit) -> None:
    visitor = visit("/?model=dates&text=March+5,+2021")
    picture = opened(visitor, "cost")
    expect(picture.get_by_text("Nothing has been measured yet")).to_be_visible()
    expect(picture.locator(".js-plotly-plot")).to_have_count(2)
    press(picture, "Measure on this machine")
    expect(picture.locator(".tv-badges .ok")).to_have_text(re.compile("cache bytes equal the formula"))
    expect(picture.locator(".js-plotly-plot")).to_have_count(4)
    expect(picture.get_by_text(re.compile(r"the time goes as n\^"))).to_be_visible()
    expect(picture.get_by_role("row", name=re.compile("n = 8 "))).to_have_text(re.compile(r"ms.*ms.*x"))
