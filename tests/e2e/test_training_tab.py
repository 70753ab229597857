"""The Training tab as a person uses it: open a section, move a slider, try what is offered, take the code."""

import re
from collections.abc import Callable

from playwright.sync_api import Locator, expect

from tests.e2e.conftest import Visitor

Visit = Callable[..., Visitor]
SECTIONS = ("rate", "smoothing", "clipping", "dropout", "tying", "precision", "accumulation")
TABLET = {"viewport": {"width": 820, "height": 1100}}


def key(name: str) -> str:
    return f"training.{name}"


def opened(visitor: Visitor, name: str) -> Locator:
    """The section's picture, drawn, with every check of it held."""
    picture = visitor.section("training", key(name))
    expect(picture.locator(".js-plotly-plot .xaxislayer-above").first).to_be_attached()
    expect(picture.locator(".tv-badges .warn")).to_have_count(0)
    return picture


def panel(visitor: Visitor) -> Locator:
    return visitor.page.get_by_role("tabpanel").filter(visible=True).last


def test_the_curve_follows_the_controls(stay: Visit) -> None:
    visitor = stay("/")
    picture, section = opened(visitor, "rate"), panel(visitor)
    table = picture.get_by_role("table").first
    row = table.get_by_role("row", name=re.compile("^Noam"))
    expect(row).to_have_text(re.compile(r"1\.75e-7\s*6\.99e-4\s*4,000\s*3\.13e-4"))
    expect(section.locator(".katex").first).to_be_visible()
    section.get_by_role("spinbutton", name="d_model").fill("1024")
    expect(row).to_have_text(re.compile(r"4\.94e-4\s*4,000"))
    section.get_by_role("checkbox", name="cosine to 0").check()
    expect(table.get_by_role("row")).to_have_count(3)
    expect(picture.locator(".scatterlayer .trace")).to_have_count(4)  # two lines, two marks
    section.get_by_role("button", name="warm-up beyond the end").click()
    expect(picture.get_by_text("never reaches its peak")).to_be_visible()
    section.get_by_role("button", name="no warm-up at all").click()
    expect(picture.get_by_text("warmup_steps = 0")).to_be_visible()
    expect(table.get_by_role("row")).to_have_count(2)  # the cosine does not divide by it


def test_smoothing_is_drawn_and_follows_its_slider(stay: Visit) -> None:
    visitor = stay("/")
    picture = opened(visitor, "smoothing")
    row = picture.get_by_role("row", name=re.compile("^over all"))
    expect(row).to_have_text(re.compile(r"0\.910\s*0\.0100\s*0\.0100\s*0\.910"))
    expect(picture.locator(".barlayer .trace")).to_have_count(2)
    panel(visitor).get_by_role("spinbutton", name="ε").fill("0.2")
    expect(row).to_have_text(re.compile(r"0\.820\s*0\.0200"))


def test_clipping_is_measured_anew_for_each_length(stay: Visit) -> None:
    visitor = stay("/")
    picture = opened(visitor, "clipping")
    expect(picture.get_by_text(re.compile(r"^\d+ of 60 steps were cut$"))).to_be_visible()
    with visitor.redrawn(key("clipping")):
        panel(visitor).get_by_role("button", name="c = 4").click()
    expect(picture.get_by_text("0 of 60 steps were cut", exact=True)).to_be_visible()


def test_more_dropout_moves_the_mean_further_away(stay: Visit) -> None:
    visitor = stay("/")
    picture = opened(visitor, "dropout")

    def away() -> float:
        said = str(picture.get_by_text(re.compile("mean of 256 stays")).text_content())
        return float(said.split("stays ")[1].split(" ")[0])

    before = away()
    with visitor.redrawn(key("dropout")):
        panel(visitor).get_by_role("spinbutton", name="p, the share").fill("0.5")
    assert away() > before


def test_another_preset_is_counted(stay: Visit) -> None:
    visitor = stay("/")
    picture = opened(visitor, "tying")
    expect(picture.get_by_role("heading", name=re.compile("37,888,000 parameters saved"))).to_be_visible()
    panel(visitor).get_by_role("button", name="llama-tiny").click()
    expect(picture.get_by_role("heading", name=re.compile("llama-tiny: 8,192,000"))).to_be_visible()


def test_a_loss_scale_brings_lost_gradients_back(stay: Visit) -> None:
    visitor = stay("/")
    picture = opened(visitor, "precision")
    row = picture.get_by_role("row", name=re.compile("^become 0"))
    expect(row).to_have_text(re.compile(r"become 0\s*[3-9]\d\.\d %\s*0$"))
    panel(visitor).get_by_role("button", name="2^16").click()
    expect(row).to_have_text(re.compile(r"become 0\s*0\.\d+ %\s*0$"))


def test_equal_lengths_make_the_mean_of_means_right(stay: Visit) -> None:
    visitor = stay("/")
    picture = opened(visitor, "accumulation")
    expect(picture.get_by_text(re.compile("^mean of means is .* % off$"))).to_be_visible()
    panel(visitor).get_by_role("checkbox", name="all words of one length").check()
    expect(picture.get_by_text(re.compile("equal parts: mean of means is right too"))).to_be_visible()


def test_code_is_there_to_take_and_to_read(visit: Visit) -> None:
    visitor = visit("/zh")
    page = visitor.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    picture = opened(visitor, "rate")
    picture.get_by_role("button", name="复制").first.click()
    expect(picture.get_by_role("button", name="已复制")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert "LambdaLR(optimizer, rate)" in copied and "D_MODEL = 512" in copied
    picture.get_by_text("查看代码").first.click()
    expect(picture.get_by_text("def noam_lr(")).to_be_visible()


def test_each_section_fits_a_tablet(visit: Visit) -> None:
    visitor = visit("/", reduced_motion="reduce", **TABLET)
    for name in SECTIONS:
        opened(visitor, name)
        assert visitor.page.evaluate("document.documentElement.scrollWidth") == TABLET["viewport"]["width"]
