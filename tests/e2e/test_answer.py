"""The dates model in a browser: its examples, the answer token by token, other candidates, and how sure it is."""

import re
from collections.abc import Callable

from playwright.sync_api import Locator, expect

from tests.e2e.conftest import Visitor
from tests.e2e.test_looks import DESK, PHONE, both_looks, violations
from tfviz.ui.examples import examples
from tfviz.ui.i18n import Translator

Visit = Callable[..., Visitor]
DATES, SMOLLM2 = "Dates (our Transformer)", "SmolLM2 135M Instruct"
WATCH = """([row, readout, button]) => {  // what is to be seen at every change: (cells, the readout, the button)
  window.seen = [];
  const shown = () => [...row.children].filter(cell => cell.checkVisibility({ visibilityProperty: true })).length;
  new MutationObserver(() => seen.push([shown(), readout.textContent, button.textContent]))
    .observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true });
}"""
FIRST = ["2", "0", "2", "4", "-", "0", "3", "-", "0", "5", "</s>"]  # of "Tuesday, 5 March 2024"


class Panel:
    """The answer panel as a person finds it."""

    def __init__(self, visitor: Visitor) -> None:
        page, t = visitor.page, visitor.t
        self.row = page.get_by_role("toolbar", name=t("answer.label.tokens"))
        self.cells = self.row.get_by_role("button")
        self.chosen = self.row.get_by_role("button", pressed=True)
        self.whole = page.get_by_role("region", name=t("answer.label.title"))
        self.replay = page.get_by_role("button", name=t("answer.label.replay"), exact=True)
        self.stop = page.get_by_role("button", name=t("answer.label.stop"), exact=True)
        self.rewrite = page.get_by_role("button", name=t("answer.label.rewrite"), exact=True)
        self.beams = page.get_by_role("group").filter(has_text=t("answer.label.beams"))
        self.candidates = self.beams.get_by_role("button")
        self.tip = page.get_by_role("tooltip")


def chips(visitor: Visitor) -> Locator:
    return visitor.page.locator("#tv-chips").get_by_role("button")


def expect_cell(panel: Panel, i: int) -> None:
    expect(panel.chosen).to_have_accessible_name(re.compile(f"position {i}$"))


# ---- the model and its examples


def test_choosing_dates_brings_its_examples_and_its_answer_and_smollm2_takes_them_away(visit: Visit) -> None:
    visitor = visit("/?model=smollm2-135m")
    panel = Panel(visitor)
    expect(panel.row).to_have_count(0)
    with visitor.new_trace():
        visitor.choose_model(DATES)
    expect(visitor.sentence).to_have_value("Tuesday, 5 March 2024")
    expect(chips(visitor)).to_have_text(examples("dates"))
    expect(panel.whole).to_contain_text(re.compile(r"2024-03-05.*[\d.]+\s% for the whole answer"))
    expect(panel.cells).to_have_text(FIRST)
    expect(visitor.page.get_by_text("Numbers alone are read day, month, year: 03/04/2026 is 3 April.")).to_be_visible()
    expect(visitor.radio("Cross-attention")).to_be_checked()
    expect(visitor.readout).to_contain_text("<s> (0) → ")
    expect_cell(panel, 0)
    with visitor.new_trace():
        visitor.choose_model(SMOLLM2)
    expect(panel.row).to_have_count(0)
    expect(chips(visitor)).to_have_text(examples("smollm2-135m"))
    expect(visitor.sentence).to_have_value(examples("smollm2-135m")[0])
    expect(visitor.view).to_have_attribute("data-painted", re.compile("/self/13/8$"))


def test_a_sentence_of_ones_own_stays_when_the_model_is_switched(visit: Visit) -> None:
    visitor = visit("/?model=dates&text=7+May+2001")  # a link's text wins over the examples as well
    expect(visitor.sentence).to_have_value("7 May 2001")
    with visitor.new_trace():
        visitor.choose_model(SMOLLM2)
    expect(visitor.sentence).to_have_value("7 May 2001")
    expect(chips(visitor)).to_have_text(examples("smollm2-135m"))


# ---- cells and rows


def test_a_cell_and_its_row_of_the_map_are_chosen_together(visit: Visit) -> None:
    visitor = visit("/?model=dates")
    panel = Panel(visitor)
    panel.cells.nth(3).click()
    expect(visitor.readout).to_contain_text(re.compile(r"^2 \(3\) → "))
    expect_cell(panel, 3)
    visitor.page.keyboard.press("ArrowRight")
    expect(panel.cells.nth(4)).to_be_focused()
    expect(visitor.readout).to_contain_text(re.compile(r"^4 \(4\) → "))
    visitor.map.press("ArrowDown")
    expect_cell(panel, 5)
    visitor.radio("Decoder").click()
    panel.cells.nth(7).click()  # the decoder's own map has this row too
    expect(visitor.readout).to_contain_text(re.compile(r"^3 \(7\) → "))
    expect(visitor.radio("Decoder")).to_be_checked()
    visitor.radio("Encoder").click()
    expect(panel.chosen).to_have_count(0)
    panel.cells.nth(1).click()
    expect(visitor.radio("Cross-attention")).to_be_checked()
    expect(visitor.readout).to_contain_text(re.compile(r"^2 \(1\) → "))


def test_a_cell_tells_the_five_most_probable_tokens_and_replay_walks_to_the_last(visit: Visit) -> None:
    visitor = visit("/?model=dates")
    panel = Panel(visitor)
    expect(panel.tip).to_be_hidden()
    panel.cells.nth(6).hover()
    expect(panel.tip).to_contain_text("position 6")
    expect(panel.tip.get_by_text(re.compile(r"^>?<?[\d.e-]+ %$"))).to_have_count(5)
    visitor.page.mouse.move(2, 2)
    expect(panel.tip).to_be_hidden()
    panel.cells.first.focus()
    expect(panel.tip).to_contain_text("position 0")
    expect(panel.cells.first).to_have_accessible_description(re.compile(r"position 0 *2.*%"))
    visitor.page.keyboard.press("Escape")
    expect(panel.tip).to_be_hidden()
    visitor.radio("Encoder").click()
    visitor.page.evaluate(WATCH, [one.element_handle() for one in (panel.row, visitor.readout, panel.replay)])
    panel.replay.click()
    expect(visitor.radio("Cross-attention")).to_be_checked()
    expect(panel.replay).to_be_visible()
    expect_cell(panel, 10)
    shown, read, button = zip(*visitor.page.evaluate("seen"), strict=True)
    assert 3 in shown and any("(2) → " in text for text in read)  # one by one, and the map goes along
    assert visitor.t("answer.label.stop") in button
    expect(panel.cells).to_have_text(FIRST)
    expect(visitor.readout).to_contain_text(re.compile(r"^5 \(10\) → "))


# ---- candidates and targets


def test_a_candidate_becomes_the_target_until_the_model_writes_again(visit: Visit) -> None:
    visitor = visit("/?model=dates")
    panel = Panel(visitor)
    expect(panel.candidates.first).to_have_text(re.compile(r"^1 *2024-03-05 *greedy.* %−?[\d.e-]+$"))
    other = re.search(r"\d{4}-\d\d-\d\d", panel.candidates.nth(1).inner_text())
    assert other and other[0] != "2024-03-05"
    with visitor.new_trace():
        panel.candidates.nth(1).click()
    expect(visitor.second).to_have_value(other[0])
    expect(panel.whole).to_contain_text("How probable the model finds the target you typed")
    expect(panel.whole).to_contain_text("The model finds this target unlikely")
    expect(panel.cells).to_have_text([*other[0], "</s>"])
    expect(visitor.tokens("attention.target")).to_have_text(["<s>", *other[0]])
    expect(panel.candidates.nth(1)).to_have_attribute("aria-current", "true")
    expect(panel.candidates.nth(1)).to_be_focused()
    with visitor.new_trace():
        panel.rewrite.click()
    expect(visitor.second).to_have_value("")
    expect(panel.cells).to_have_text(FIRST)
    panel.candidates.nth(1).click()
    expect(visitor.second).to_have_value(other[0])
    expect(panel.cells).to_have_text([*other[0], "</s>"])  # its trace is there, so that the next one is another
    with visitor.new_trace():  # a candidate means nothing for another sentence
        visitor.page.get_by_role("button", name="2024年3月5日 星期二", exact=True).click()
    expect(visitor.second).to_have_value("")
    expect(panel.rewrite).to_have_count(0)
    expect(panel.cells).to_have_text(FIRST)
    visitor.second.fill("2024-03-06")  # an example brings its own sentence and nothing of an earlier one
    expect(panel.cells).to_have_text([*"2024-03-06", "</s>"])
    with visitor.new_trace():
        visitor.page.get_by_role("button", name="5. März 2024", exact=True).click()
    expect(visitor.second).to_have_value("")
    expect(panel.cells).to_have_text(FIRST)
    with visitor.new_trace():  # whatever a person types is text
        visitor.second.fill("<b>1")
    expect(panel.cells).to_have_text(["<", "b", ">", "1", "</s>"])
    expect(panel.whole.locator("b")).to_have_count(0)


# ---- what is no date


def test_what_is_no_date_runs_and_is_said_to_be_unsure_in_chinese_as_well(visit: Visit) -> None:
    visitor = visit("/zh?model=dates&text=hello+world", reduced_motion="reduce")
    panel, unsure = Panel(visitor), Translator("zh")("answer.unsure", percent="#")
    expect(panel.whole).to_contain_text(re.compile(unsure.replace("#", r"[\d.e-]+\s%")))
    expect(panel.whole).to_contain_text("解码器一次写一个词元")
    expect(visitor.error).to_have_count(0)
    panel.replay.click()  # without motion it is at its end at once
    expect(panel.chosen).to_have_accessible_name(re.compile(r"位置 \d+$"))
    expect(panel.cells.last).to_have_attribute("aria-pressed", "true")
    expect(panel.stop).to_have_count(0)


# ---- phone, and what an accessibility checker finds


def test_on_a_phone_the_answer_fits_and_candidates_open_with_a_tap(visit: Visit, axe_source: str) -> None:
    visitor = visit("/?model=dates&text=hello+world", color_scheme="dark", reduced_motion="reduce", **PHONE)
    panel = Panel(visitor)
    expect(panel.whole).to_contain_text(re.compile(r"The model is unsure: it gives its whole answer [\d.e-]+\s%\."))
    expect(panel.candidates).to_have_count(0)
    panel.beams.get_by_text("Beam search").tap()
    expect(panel.candidates.first).to_be_visible()
    panel.cells.last.tap()
    expect(panel.tip).to_be_visible()
    assert visitor.page.evaluate("document.documentElement.scrollWidth") == 390
    assert violations(visitor, axe_source) == []


def test_axe_finds_nothing_in_a_typed_target(visit: Visit, axe_source: str) -> None:
    visitor = visit("/?model=dates&second=2024-01-01", color_scheme="light", reduced_motion="reduce", **DESK)
    panel = Panel(visitor)
    expect(panel.rewrite).to_be_visible()
    for _ in both_looks(visitor):
        panel.cells.nth(2).focus()
        expect(panel.tip).to_be_visible()
        assert violations(visitor, axe_source) == []
