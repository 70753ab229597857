"""Generate, steps, as a person uses it: a text streams, is looked back over, branched, stopped, and joins Attention."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from playwright.sync_api import Locator, Page, expect

from tests.e2e.conftest import Heard, Visitor
from tests.e2e.test_looks import DESK, both_looks, violations

Visit = Callable[..., Visitor]


def written(visitor: Visitor) -> Locator:
    """The section's drawing, once its text has ended and every check of it holds."""
    picture = visitor.section("generate", "generate.steps")
    expect(picture.locator(".tv-badges .warn")).to_have_count(0)
    return ended(picture.locator(".tv-decode"))


def ended(view: Locator) -> Locator:
    expect(view.and_(view.page.locator(":not([data-going])[data-steps]"))).to_be_visible()
    return view


def press(view: Locator, name: str) -> None:
    view.get_by_role("button", name=name, exact=True).click()


def generated(view: Locator) -> list[str]:
    return view.locator(".tv-decode-text .new bdi").all_inner_texts()


@contextmanager
def no_request(page: Page) -> Iterator[None]:
    """Whatever is done inside asks the server nothing."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    yield
    page.wait_for_timeout(300)  # a request that is late would be one as well
    assert not asked


def test_a_text_goes_on_by_itself_and_its_first_token_does_not_wait_for_the_last(visit: Visit) -> None:
    visitor = visit("/")
    heard = Heard(visitor.page.locator("body"), "#generate-steps .tv-decode-state")
    visitor.page.get_by_role("tab", name="Generate", exact=True).click()
    view = ended(visitor.page.locator("#generate-steps .tv-decode"))
    assert any(re.match(r"Writing: \d of 24 tokens", text) for text in heard.texts()), heard.texts()
    assert view.get_attribute("data-steps") == "24" and len(generated(view)) == 24
    expect(view.locator(".tv-decode-table tbody tr")).to_have_count(21)  # all tokens listed and all others
    expect(view.locator(".tv-decode-state")).to_have_text(re.compile("all 24 new tokens"))


def test_looking_back_over_a_finished_run_asks_the_server_nothing(stay: Visit) -> None:
    visitor = stay("/").measured()  # in the background, by requests of its own
    view = written(visitor)
    title, place = view.locator(".tv-decode-next > h3"), view.locator(".tv-player-place")
    texts = generated(view)
    with no_request(visitor.page):
        press(view, "first step")
        expect(place).to_have_text("step 1 of 24")
        expect(title).to_have_text(re.compile("after tired$"))
        expect(view.locator(".taken th")).to_have_text(texts[0])
        press(view, "one step on")
        expect(title).to_have_text(re.compile(f"after {re.escape(texts[0])}$"))
        view.get_by_role("slider", name="step").focus()
        visitor.page.keyboard.press("End")
        expect(place).to_have_text("step 24 of 24")
        view.locator(".tv-decode-text .new").nth(9).click()
        expect(place).to_have_text("step 10 of 24")
        visitor.page.keyboard.press("ArrowLeft")
        expect(place).to_have_text("step 9 of 24")
        view.get_by_role("combobox", name="speed").select_option("8")
        press(view, "play")
        expect(place).to_have_text("step 24 of 24")
        expect(view.get_by_role("button", name="play", exact=True)).to_be_visible()


def test_another_token_makes_a_branch_and_the_way_back_computes_nothing(stay: Visit) -> None:
    visitor = stay("/")
    view = written(visitor)
    before = generated(view)
    view.locator(".tv-decode-text .new").nth(3).click()
    other = view.locator(".tv-decode-table tbody tr:not(.taken):not(.rest) th button").first
    picked = other.inner_text()
    with visitor.redrawn("generate.steps"):
        other.click()
    ended(view)
    after = generated(view)
    assert after[:3] == before[:3] and after[3] == picked != before[3]
    expect(view.locator(".tv-decode-text .taken")).to_have_text(picked)
    texts = view.locator(".tv-decode-branches button")
    expect(texts).to_have_count(2)
    texts.first.click()
    assert generated(view) == before
    expect(texts.first).to_have_attribute("aria-pressed", "true")


def test_stop_is_heard_within_a_step_and_the_text_can_go_on(visit: Visit) -> None:
    visitor = visit("/")
    view = written(visitor)
    box = visitor.page.get_by_role("spinbutton", name=re.compile("new tokens"))
    Heard(view, ".tv-decode-state", cue=r" (2[5-9]|[3-9]\d|1\d\d) of 128", press="Stop")
    box.fill("128")
    box.press("Enter")
    expect(view.locator(".tv-decode-state")).to_have_text(re.compile(r"^Stopped: \d+ of 128 tokens\.$"))
    ended(view)
    stopped = int(str(view.get_attribute("data-steps")))
    assert 25 <= stopped < 128
    expect(view.locator(".tv-decode-state")).to_have_text(f"Stopped: {stopped} of 128 tokens.")
    before = generated(view)
    press(view, "Go on: 16 more")
    expect(view.locator(".tv-decode-text .new")).to_have_count(stopped + 16)
    assert generated(view)[:stopped] == before


def test_another_head_redraws_the_same_run_and_greedy_text_is_the_same_each_time(visit: Visit) -> None:
    visitor = visit("/")
    view = written(visitor)
    before = generated(view)
    with visitor.redrawn("generate.steps") as picture:
        picture.get_by_role("spinbutton", name="head").fill("3")
    expect(view.locator(".tv-decode-read h3")).to_have_text("What layer 13, head 3 read")
    assert generated(view) == before
    texts = []
    for _ in range(2):
        with visitor.redrawn("generate.steps") as picture:
            visitor.page.get_by_role("button", name="Top-k 1: is it greedy?", exact=True).click()
        texts.append(generated(ended(view)))
        with visitor.redrawn("generate.steps") as picture:
            visitor.page.get_by_role("button", name="Temperature 0: always the most probable", exact=True).click()
        texts.append(generated(ended(view)))
    assert texts[0] == texts[1] == texts[2] == texts[3]
    expect(picture.locator(".tv-badges")).to_contain_text("The most probable token was taken in 24 of 24 greedy steps")


def test_a_date_is_written_from_what_the_cross_attention_reads(stay: Visit) -> None:
    visitor = stay("/?model=dates&text=March+5,+2021")
    view = written(visitor)
    expect(view.locator(".tv-decode-state")).to_have_text("The model has said its end token.")
    assert "".join(generated(view)).startswith("2021-03-05")
    assert len(view.locator(".tv-decode-line").first.locator(".given").all()) >= len("March 5, 2021")
    expect(view.get_by_role("button", name=re.compile(r"^Go on: \d+ more$"))).to_be_hidden()
    others = view.locator(".tv-decode-table .rest")
    expect(others.locator("td").first).not_to_have_text("cut")  # however little they have, the model cuts nothing
    expect(others.locator("td").last).to_have_text("cut")  # top-k 40, of which 20 are listed, then top-p
    expect(visitor.page.get_by_role("checkbox", name=re.compile("chat template"))).to_be_disabled()


def test_a_model_that_writes_no_text_says_what_to_choose(visit: Visit) -> None:
    visitor = visit("/?model=minilm-l6")
    picture = visitor.section("generate", "generate.steps")
    expect(picture.locator(".tv-note").filter(has_text=re.compile("writes no text.*Choose"))).to_be_visible()


def test_generated_tokens_join_the_attention_tab_until_another_sentence_is_typed(visit: Visit) -> None:
    visitor = visit("/")
    view = written(visitor)
    drawn = str(visitor.drawn("generate.steps").get_attribute("data-drawn"))
    with visitor.new_trace():
        visitor.page.get_by_role("tab", name="Attention", exact=True).click()
    note = visitor.view.locator(".tv-grown")
    expect(note).to_contain_text("23 generated tokens are shown as well")  # the last one was never read
    expect(visitor.view.locator(".tv-tokens button")).to_have_count(12 + 23)
    expect(visitor.view.locator(".tv-tokens button.written")).to_have_count(23)
    assert view.get_attribute("data-steps") == "24"
    visitor.page.get_by_role("tab", name="Generate", exact=True).click()
    assert visitor.drawn("generate.steps").get_attribute("data-drawn") == drawn  # nothing began again
    visitor.page.get_by_role("tab", name="Attention", exact=True).click()
    with visitor.new_trace():
        note.get_by_role("button", name="Only the typed sentence", exact=True).click()
    expect(visitor.view.locator(".tv-tokens button")).to_have_count(12)
    with visitor.new_trace():
        note.get_by_role("button", name="Show the generated tokens too", exact=True).click()
    with visitor.new_trace():
        visitor.sentence.fill("the cat sat on the mat")
    expect(note).to_be_hidden()
    expect(visitor.view.locator(".tv-tokens button.written")).to_have_count(0)


def test_a_text_goes_on_without_a_chat_template_where_there_is_none(stay: Visit) -> None:
    visitor = stay("/?model=dates&text=March+5,+2021")
    view = written(visitor)
    with visitor.redrawn("generate.steps") as picture:
        visitor.page.get_by_role("button", name="A question in the chat template", exact=True).click()
    ended(view)
    expect(picture.locator(".tv-note").filter(has_text="has no chat template")).to_be_visible()
    box = visitor.page.get_by_role("checkbox", name=re.compile("chat template"))
    expect(box).to_be_enabled()
    with visitor.redrawn("generate.steps"):
        box.uncheck()
    expect(box).to_be_disabled()


def test_pieces_of_a_character_are_called_so_and_what_they_end_stands_beside_them(visit: Visit) -> None:
    visitor = visit("/?text=今天天气很好，我们去公园")
    view = written(visitor)
    with visitor.redrawn("generate.steps"):
        visitor.page.get_by_role("button", name="Temperature 0: always the most probable", exact=True).click()
    ended(view)
    view.locator(".tv-decode-text .new").filter(has_text=re.compile("₃$")).first.click()  # the last of three
    expect(view.locator(".tv-decode-hint").filter(has_text="is a piece of a character")).to_be_visible()
    expect(view.locator(".tv-decode-table .taken th small")).to_have_text(re.compile("^ → [一-鿿]$"))
    expect(view.locator(".tv-decode-table .taken th button")).to_have_attribute("title", re.compile("^E. .. .. → .$"))


def test_what_the_chat_template_feeds_is_shown(visit: Visit) -> None:
    visitor = visit("/?text=Hello!")
    view = written(visitor)
    with visitor.redrawn("generate.steps"):
        visitor.page.get_by_role("checkbox", name=re.compile("chat template")).check()
    ended(view)
    given = view.locator(".tv-decode-text .given").all_inner_texts()
    assert "<|im_start|>" in given and "user" in given and "Hello" in given and "assistant" in given


def test_it_is_accessible_and_fits(visit: Visit, axe_source: str) -> None:
    visitor = visit("/zh", color_scheme="light", reduced_motion="reduce", **DESK)
    view = written(visitor)
    press(view, "第一步")
    for _ in both_looks(visitor):
        wide = visitor.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0
        expect(view.get_by_role("slider", name="步")).to_be_visible()
        assert violations(visitor, axe_source) == []
