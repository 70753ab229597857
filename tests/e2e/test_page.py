"""The page in a browser with the real models: what a person types, clicks, links and shares, and what they then see."""

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from playwright.sync_api import BrowserContext, Locator, Request, Route, expect

from tests.e2e.conftest import PATIENCE, Visitor, is_outside
from tfviz.messages import ASSETS, sentences

Visit = Callable[..., Visitor]
HOSTILE = "</script><script>alert(1)</script> <b>&\"'"
EMOJI = "Hi 👩‍👩‍👧 🇨🇳 👍🏽 !"
NUMBERS = "one two three four five six seven eight nine ten eleven twelve"  # 12 tokens, as the first sentence has
TALL = {"width": 1280, "height": 1200}  # all heads of SmolLM2 are in sight
CATS = "the cat saw the other cat near the door"
LABELS = (
    *("page.tagline", "page.sentence", "page.model", "page.model.info", "page.kernel", "page.precision"),
    *("speed.caption", "speed.run_all", "tab.attention", "view.heads", "view.direction", "view.legend"),
)


def words(tokens: Locator) -> str:
    """What a strip of tokens reads as."""
    return " ".join(tokens.all_inner_texts())


class Heads:
    """Where each head of a grid is on screen; asks the frame, which shows how large and how far apart they are."""

    def __init__(self, visitor: Visitor, layers: int, heads: int, groups: int = 1) -> None:
        self.visitor, self.per_group = visitor, heads // groups
        frame = visitor.view.locator(".tv-grid .tv-frame:not(.light)")
        visitor.grid.press("End")
        expect(visitor.view).to_have_attribute("data-painted", re.compile(f"/{layers - 1}/{heads - 1}$"))
        last = frame.bounding_box()
        visitor.grid.press("Home")
        expect(visitor.view).to_have_attribute("data-painted", re.compile("/0/0$"))
        first = frame.bounding_box()
        assert first and last
        self.x, self.y = first["x"] + first["width"] / 2, first["y"] + first["height"] / 2
        self.down = (last["y"] - first["y"]) / (layers - 1)
        self.right = (last["x"] - first["x"] - 8 * (groups - 1)) / (heads - 1)

    def click(self, layer: int, head: int) -> None:
        x = self.x + self.right * head + 8 * (head // self.per_group)
        self.visitor.page.mouse.click(x, self.y + self.down * layer)


# ---- what is there at once


def test_the_page_opens_by_itself_where_it_looks_at_animal_and_its_checks_hold(visit: Visit) -> None:
    visitor = visit().measured()
    expect(visitor.model).to_have_value("SmolLM2 135M Instruct · 30×9")
    expect(visitor.view).to_have_attribute("data-painted", re.compile("/self/13/8$"))
    expect(visitor.page.get_by_role("heading", name="Layer 13, head 8")).to_be_visible()
    expect(visitor.readout).to_contain_text(re.compile(r"^it \(8\) → animal \(1\): 0\.750? "))
    expect(visitor.page.get_by_text("30 layers × 9 heads · 3 per key/value")).to_be_visible()
    expect(visitor.row("flash · FP32")).to_contain_text("1.00x")
    expect(visitor.page.locator(".tv-device")).to_have_text(re.compile(r"^(CPU · \d+ threads|NVIDIA .+)$"))
    badges = visitor.view.locator(".tv-badges").get_by_role("listitem")
    expect(badges.nth(0)).to_have_text(re.compile(r"Checked:.*rows sum to 1 \(off by (0|\d\.\d\de-\d+)\)"))
    expect(badges.nth(1)).to_have_text(re.compile(r"Checked:.*nothing looks ahead \(66 cells, max 0\)"))
    expect(badges.nth(2)).to_have_text(re.compile(r"Checked:.*flash = naive"))
    expect(badges.nth(3)).to_contain_text("recomputed from q and k of layer 13")


# ---- the sentence


def test_each_way_of_changing_the_sentence_brings_its_trace(visit: Visit) -> None:
    visitor = visit()
    page, box = visitor.page, visitor.sentence
    with visitor.new_trace():  # typed
        box.press("ControlOrMeta+End")
        page.keyboard.type(" again")
    expect(visitor.tokens().last).to_have_text("again")
    with visitor.new_trace():  # deleted
        for _ in " again":
            box.press("Backspace")
    expect(visitor.tokens().last).to_have_text("tired")
    with visitor.new_trace():  # chip
        page.get_by_role("button", name=CATS).click()
    expect(box).to_have_value(CATS)
    expect(visitor.tokens()).to_have_count(9)
    with visitor.new_trace():  # cut, then pasted twice
        box.press("ControlOrMeta+A")
        box.press("ControlOrMeta+X")
        box.press("ControlOrMeta+V")
        box.press("Space")
        box.press("ControlOrMeta+V")
    expect(box).to_have_value(f"{CATS} {CATS}")
    expect(visitor.tokens()).to_have_count(18)
    with visitor.new_trace():  # all at once
        box.fill("Paris is nice")
    expect(visitor.tokens()).to_have_text(["Paris", "is", "nice"])
    expect(visitor.error).to_have_count(0)


def test_every_example_chip_types_its_own_sentence(visit: Visit) -> None:
    visitor = visit()
    chips = visitor.page.locator("#tv-chips").get_by_role("button")
    for i in [*range(1, chips.count()), 0]:
        with visitor.new_trace():
            chips.nth(i).click()
        expect(visitor.sentence).to_have_value(chips.nth(i).inner_text().strip())
    assert words(visitor.tokens()).split()[-1] == "tired"


def test_equal_words_keep_rows_and_columns_of_their_own(visit: Visit) -> None:
    visitor = visit(f"/?text={quote(CATS)}")
    expect(visitor.tokens()).to_have_text(CATS.split())
    expect(visitor.map).to_have_accessible_name(re.compile("9 queries by 9 keys"))
    for axis in (".tv-axis.queries", ".tv-axis.keys"):
        expect(visitor.view.locator(f"{axis} .tv-label:not(.chosen)")).to_have_text(CATS.split())
    visitor.tokens().nth(5).click()
    for position in (1, 5):
        visitor.map.press("Home")
        for _ in range(position):
            visitor.map.press("ArrowRight")
        cell = rf"^cat \(5\) → cat \({position}\): [\d.]+ · row sum 1\.000"
        expect(visitor.readout).to_contain_text(re.compile(cell))


# ---- heads and cells


def test_a_clicked_head_and_the_arrow_keys_change_the_picture(visit: Visit) -> None:
    visitor = visit(viewport=TALL)
    Heads(visitor, 30, 9, groups=3).click(5, 3)
    expect(visitor.page.get_by_role("heading", name="Layer 5, head 3")).to_be_visible()
    for key, place in {
        "ArrowUp": "4/3",
        "ArrowRight": "4/4",
        "ArrowDown": "5/4",
        "ArrowLeft": "5/3",
        "End": "29/8",
    }.items():
        visitor.grid.press(key)
        expect(visitor.view).to_have_attribute("data-painted", re.compile(f"/self/{place}$"))
    visitor.grid.press("ArrowDown")  # there is nothing below the last
    visitor.grid.press("Home")
    expect(visitor.page.get_by_role("heading", name="Layer 0, head 0")).to_be_visible()


def test_the_arrow_keys_move_the_cell_that_is_read_and_a_head_stays_with_the_next_sentence(visit: Visit) -> None:
    visitor = visit()
    before = visitor.readout.inner_text()
    for key, cell in {
        "ArrowDown": "was (9) → animal (1)",
        "ArrowRight": "was (9) → didn (2)",
        "End": "was (9) → tired (11): blocked",
        "Home": "was (9) → The (0)",
        "ArrowLeft": "was (9) → The (0)",
        "ControlOrMeta+End": "tired (11) → tired (11)",
        "ControlOrMeta+Home": "The (0) → The (0): 1.000",
    }.items():
        visitor.map.press(key)
        expect(visitor.readout).to_contain_text(cell)
    assert visitor.readout.inner_text() != before
    visitor.grid.press("ArrowUp")
    expect(visitor.view).to_have_attribute("data-painted", re.compile("/self/12/8$"))
    with visitor.new_trace():
        visitor.sentence.fill(CATS)
    expect(visitor.view).to_have_attribute("data-painted", re.compile("/self/12/8$"))


def test_twenty_fast_clicks_and_a_sentence_typed_meanwhile_end_at_the_last(visit: Visit) -> None:
    visitor = visit(viewport=TALL)
    heads = Heads(visitor, 30, 9, groups=3)
    for i in range(20):
        heads.click(i, 7 * i % 9)
        if i == 10:
            visitor.sentence.fill(NUMBERS)
    expect(visitor.tokens()).to_have_text(NUMBERS.split())
    expect(visitor.view).to_have_attribute("data-painted", re.compile(f"/self/19/{7 * 19 % 9}$"))
    expect(visitor.view).to_have_attribute("data-busy", "false")
    visitor.measured()
    expect(visitor.tokens()).to_have_text(NUMBERS.split())  # nothing older came after it
    expect(visitor.view).to_have_attribute(
        "data-painted", re.compile(f"{visitor.view.get_attribute('data-trace')}/self/19/7$")
    )
    expect(visitor.map).to_have_accessible_name(re.compile("layer 19, head 7: 12 queries by 12 keys"))


# ---- the switches and what they cost


def test_each_switch_traces_again_and_adds_its_own_row(visit: Visit) -> None:
    visitor = visit().measured()
    tried = ["flash · FP32"]
    for name, row in {
        "naive": "naive · FP32",
        "FP16": "naive · FP16",
        "BF16": "naive · BF16",
        "INT8": "naive · INT8",
        "flash": "flash · INT8",
    }.items():
        with visitor.new_trace():
            visitor.switch(name)
        expect(visitor.radio(name)).to_be_checked()
        visitor.measured()
        tried.append(row)
        for each in tried:
            expect(visitor.row(each)).to_have_count(1)
        expect(visitor.settings).to_have_count(len(tried))
        expect(visitor.now).to_have_text(re.compile(f"^{row}"))
    with visitor.new_trace():  # back: measured before, so it is not measured again
        visitor.switch("FP32")
    expect(visitor.now).to_have_text(re.compile(r"^flash · FP32.*1\.00x$"))
    expect(visitor.settings).to_have_count(len(tried))


def test_measuring_all_settings_fills_twelve_rows_that_another_sentence_empties(visit: Visit) -> None:
    visitor = visit(f"/?model=dates&text={quote('one two three')}").measured()  # a small model is soon measured
    visitor.page.get_by_role("button", name="Measure all settings").click()
    expect(visitor.settings).to_have_count(12)
    expect(visitor.page.locator(".tv-doing")).to_have_count(0)
    for precision in ("FP32", "FP16", "BF16", "INT8 w", "INT8", "INT4"):
        for kernel in ("naive", "flash"):
            expect(visitor.row(f"{kernel} · {precision}")).to_be_visible()
    weights = visitor.page.get_by_role(
        "cell", name=re.compile(r"^weights [\d.]+ [KM]iB · \+[\d.]+ [KM]iB peak · differs ")
    )
    expect(weights).to_have_count(12)
    with visitor.new_trace():
        visitor.sentence.fill("four five six")
    visitor.measured()
    expect(visitor.settings).to_have_text(["flash · FP32"])


# ---- texts that break things


def test_no_text_is_answered_with_a_sentence_or_with_visible_blanks(visit: Visit) -> None:
    visitor = visit()
    with visitor.same_picture():
        visitor.sentence.fill("")
        expect(visitor.error).to_have_text(re.compile("^Type something: SmolLM2 135M Instruct adds no token"))
    with visitor.new_trace():
        visitor.sentence.fill("here again")
    expect(visitor.error).to_have_count(0)
    for text in ("   ", "\n\n \t"):
        with visitor.new_trace():
            visitor.sentence.fill(text)
        assert set(words(visitor.tokens())) <= set("␣⏎⇥ ")
        assert all(visitor.tokens().all_inner_texts())
    visitor.sentence.fill("")
    expect(visitor.error).to_be_visible()
    visitor.page.reload()  # an emptied sentence stays empty
    expect(visitor.error).to_be_visible()
    expect(visitor.sentence).to_have_value("")


def test_one_token_looks_at_itself_alone(visit: Visit) -> None:
    visitor = visit("/?text=The")
    expect(visitor.tokens()).to_have_text(["The"])
    expect(visitor.view.get_by_text("Reduced")).to_have_count(0)
    expect(visitor.readout).to_contain_text("The (0) → The (0): 1.000 · row sum 1.000 · column sum 1.000")
    visitor.measured()


def test_emoji_and_chinese_show_whole_characters_and_right_to_left_text_is_isolated(visit: Visit) -> None:
    visitor = visit(f"/?text={quote(EMOJI)}")
    shown = words(visitor.tokens())
    for character in "👩👧🇨🇳👍🏽":
        assert character in shown, character
    assert "�" not in visitor.view.inner_text()
    with visitor.new_trace():
        visitor.sentence.fill("法国的首都是巴黎")
    shown = words(visitor.tokens())
    assert all(character in shown for character in "法国的首都是巴黎")
    assert "�" not in visitor.view.inner_text()
    expect(visitor.error).to_have_count(0)
    with visitor.new_trace():
        visitor.sentence.fill("שלום world مرحبا")
    assert "ש" in words(visitor.tokens())
    assert visitor.view.locator(".tv-read bdi").evaluate_all("all => all.every(one => one.dir === 'auto')")
    visitor.map.press("ControlOrMeta+End")
    expect(visitor.readout).to_contain_text(re.compile(r"\((\d+)\) → .* \(\1\): "))


def test_more_tokens_than_the_page_shows_are_cut_in_the_open(visit: Visit) -> None:
    visitor = visit()
    with visitor.new_trace():
        visitor.sentence.fill("word " * 1100)
    expect(visitor.note).to_have_text(
        re.compile(r"^This text is 1,10\d tokens; .* is shown 1,024 of them, the limit here\. Left out from “")
    )
    expect(visitor.map).to_have_accessible_name(re.compile("1,?024 queries by 1,?024 keys"))
    expect(visitor.tokens()).to_have_count(1024)
    reduced = visitor.view.get_by_text(re.compile(r"1,?024 × 1,?024 weights on 24 × 24 cells.* of its 43 × 43 block"))
    expect(reduced).to_be_visible()
    visitor.map.press("ControlOrMeta+End")
    expect(visitor.readout).to_contain_text(re.compile(r"\(1023\) → .*\(1023\): [0-9.e−]+ · row sum 1\.000"))


def test_markup_in_a_sentence_is_text_everywhere(visit: Visit) -> None:
    visitor = visit()
    elements = visitor.page.locator("#tv-page :is(script, b, i, img)")
    before = elements.count()
    with visitor.new_trace():
        visitor.sentence.fill(HOSTILE)
    assert words(visitor.tokens()).replace(" ", "").startswith("</script><script>alert(1)")
    for _ in range(visitor.tokens().count()):
        visitor.map.press("ArrowRight")
    visitor.page.reload()
    visitor.painted()
    expect(visitor.sentence).to_have_value(HOSTILE)
    assert elements.count() == before
    visitor.measured()


# ---- links, languages, several people


def test_a_link_restores_sentence_model_kernel_and_precision(visit: Visit) -> None:
    visitor = visit("/?text=hello+world&second=how+are+you&model=minilm-l6&kernel=naive&precision=bf16")
    expect(visitor.tokens()).to_have_text("[CLS] hello world [SEP] how are you [SEP]".split())
    expect(visitor.sentence).to_have_value("hello world")
    expect(visitor.second).to_have_value("how are you")
    expect(visitor.model).to_have_value(re.compile("^MiniLM"))
    expect(visitor.radio("naive")).to_be_checked()
    expect(visitor.radio("BF16")).to_be_checked()
    expect(visitor.measured().row("naive · BF16")).to_be_visible()
    still_whole(visitor)


def test_what_is_typed_while_a_link_opens_stays(new_context: Callable[..., BrowserContext], app_url: str) -> None:
    visitor, asked = Visitor(new_context().new_page(), app_url), list[Route]()
    visitor.page.route("**/queue/join*", lambda route: asked.append(route), times=1)
    visitor.page.goto(f"{app_url}/?model=minilm-l6&text={quote('one two three')}", wait_until="commit")
    visitor.sentence.fill("here again")
    for _ in range(PATIENCE // 50):  # until the page asks what its link says
        if not asked:
            visitor.page.wait_for_timeout(50)
    (question,) = asked
    question.continue_()  # only now the page hears what its link says
    expect(visitor.tokens()).to_have_text("[CLS] here again [SEP]".split())
    expect(visitor.sentence).to_have_value("here again")
    still_whole(visitor)
    assert not visitor.surprises


def still_whole(visitor: Visitor) -> None:
    """Once everything has been answered: nothing that was on the page has gone again."""
    visitor.measured()
    expect(visitor.page.locator(".tv-header")).to_be_visible()
    expect(visitor.page.locator("#attention-view [data-empty]")).to_have_count(0)


def test_a_link_means_the_same_after_other_programs_have_handled_it(visit: Visit) -> None:
    text, visitor = 'C++ & C# cost 100% = 5+5? "ok".', visit("/?model=minilm-l6&text=one&second=two")
    visitor.second.fill("Yes.")
    with visitor.new_trace():
        visitor.sentence.fill(text)
    address = visitor.page.url.removeprefix(visitor.url)
    assert "+" not in address and not address.endswith(".")
    assert parse_qs(urlsplit(address).query, keep_blank_values=True)["text"] == [text]
    visitor.page.evaluate("sessionStorage.setItem('tfviz-typed', JSON.stringify(['stored here', 'before']))")
    for one in (visit(address, color_scheme="dark"), visitor.open(address)):  # the link wins over what the tab had kept
        expect(one.sentence).to_have_value(text)
        expect(one.second).to_have_value("Yes.")
        expect(one.model).to_have_value(re.compile("^MiniLM"))
        link = one.page.get_by_role("link", name="中文")
        link.dispatch_event("pointerdown")
        assert urlsplit(str(link.get_attribute("href"))).query == urlsplit(address).query
    expect(visitor.open("/?model=minilm-l6").sentence).not_to_have_value("stored here")


def test_what_is_typed_while_the_server_is_away_is_there_and_traced_when_it_is_back(visit: Visit) -> None:
    """The page reloads itself as soon as the server answers again."""
    visitor = visit("/?model=minilm-l6&text=one&second=two").measured()
    visitor.page.route("**/queue/*", lambda route: None)  # no answer, so that what is typed next waits for its turn
    visitor.second.fill("five six")
    visitor.sentence.press_sequentially(" and four")
    visitor.page.unroute("**/queue/*")
    visitor.page.evaluate("history.replaceState(null, '', '/?model=minilm-l6&text=one&second=two')")  # a run was on
    visitor.page.reload()
    expect(visitor.tokens()).to_have_text("[CLS] one and four [SEP] five six [SEP]".split())
    expect(visitor.sentence).to_have_value("one and four")
    still_whole(visitor)


@pytest.mark.parametrize(
    "width, begun, ended",
    [
        (390, ["z", "zh", "zhe", "zheng", "zheng'zai"], "正在"),
        (1440, ["z", "zh", "zhe", "zheng", "zheng'zai"], "正在"),
        (1440, ["ㅎ", "하", "한"], "한"),
    ],
)
def test_an_input_method_is_left_alone_until_it_has_chosen(
    visit: Visit, width: int, begun: list[str], ended: str
) -> None:
    visitor = visit("/zh?model=minilm-l6", viewport={"width": width, "height": 800})
    before = "如果用拼音输入法，输入的内容刚好触发换行，就会导致"
    visitor.sentence.fill(before)
    visitor.sentence.press("End")
    method = visitor.page.context.new_cdp_session(visitor.page)
    for typed in begun:
        method.send(
            "Input.imeSetComposition", {"text": typed, "selectionStart": len(typed), "selectionEnd": len(typed)}
        )
        expect(visitor.sentence).to_have_value(before + typed)
    with visitor.new_trace():
        method.send("Input.insertText", {"text": ended})
    visitor.measured()
    expect(visitor.sentence).to_have_value(before + ended)
    assert visitor.sentence.evaluate("box => box.selectionStart") == len(before + ended)
    assert parse_qs(urlsplit(visitor.page.url).query)["text"] == [before + ended]


def test_a_text_too_long_for_an_address_survives_reloading(visit: Visit) -> None:
    visitor, long = visit("/?model=minilm-l6"), "天气很好" * 500
    with visitor.new_trace():
        visitor.sentence.fill(long)
    assert "text" not in parse_qs(urlsplit(visitor.page.url).query)
    visitor.page.reload()
    expect(visitor.sentence).to_have_value(long)


def test_nonsense_in_a_link_is_ignored(visit: Visit) -> None:
    visitor = visit("/?kernel=%3Cb%3E&precision=fp99&layer=x&__proto__=1&text=good+day&text=other")
    expect(visitor.radio("flash")).to_be_checked()
    expect(visitor.radio("FP32")).to_be_checked()
    expect(visitor.error).to_have_count(0)
    assert visitor.tokens().count() in (1, 2)


def test_the_address_follows_and_reloading_gives_the_same_page(visit: Visit) -> None:
    visitor = visit()
    with visitor.new_trace():
        visitor.switch("naive")
    with visitor.new_trace():
        visitor.sentence.fill("& so = it + goes %20")
    shown = parse_qs(urlsplit(visitor.page.url).query)
    assert shown["text"] == ["& so = it + goes %20"] and shown["kernel"] == ["naive"]
    visitor.page.reload()
    visitor.painted()
    expect(visitor.sentence).to_have_value("& so = it + goes %20")
    expect(visitor.radio("naive")).to_be_checked()
    assert words(visitor.tokens()).startswith("& so")
    still_whole(visitor)


def test_the_other_language_opens_with_the_same_state(visit: Visit) -> None:
    visitor = visit()
    page = visitor.page
    expect(page.locator("html")).to_have_attribute("lang", "en")
    with visitor.new_trace():
        visitor.choose_model("MiniLM")
    with visitor.new_trace():
        visitor.sentence.fill("hello world")
    with visitor.new_trace():
        visitor.switch("naive")
    with visitor.new_trace():
        visitor.switch("BF16")
    page.get_by_role("link", name="中文").click()
    page.wait_for_url("**/zh?*")
    visitor.t = type(visitor.t)("zh")
    visitor.painted()
    expect(page.locator("html")).to_have_attribute("lang", "zh-Hans")
    expect(visitor.sentence).to_have_value("hello world")
    expect(visitor.model).to_have_value(re.compile("^MiniLM"))
    expect(visitor.radio("naive")).to_be_checked()
    expect(visitor.radio("BF16")).to_be_checked()
    expect(visitor.tokens()).to_have_text(["[CLS]", "hello", "world", "[SEP]"])
    page.get_by_role("link", name="EN").click()
    page.wait_for_url(lambda url: "/zh" not in url)
    visitor.t = type(visitor.t)("en")
    visitor.painted()
    expect(visitor.sentence).to_have_value("hello world")


def test_the_chinese_page_has_no_english_sentence_left(visit: Visit) -> None:
    visitor = visit("/zh").measured()
    page, shown = visitor.page, sentences("zh")
    for key in LABELS:
        expect(page.get_by_text(shown[key], exact=True).filter(visible=True).first).to_be_visible()
    visible = page.locator("body").inner_text()
    labels = page.locator("#tv-page [aria-label], #tv-page [title]").evaluate_all(
        "all => all.flatMap(one => [one.ariaLabel, one.title])"
    )
    everything = "\n".join([visible, *filter(None, labels)])
    example = set(re.findall("[A-Za-z]+", (ASSETS / "examples" / "sentences.json").read_text(encoding="utf-8")))
    left = [run for run in re.findall(r"[A-Za-z]+(?: [A-Za-z]+){2,}", everything) if not set(run.split()) <= example]
    assert not left
    with visitor.same_picture():
        visitor.sentence.fill("")
        expect(visitor.error).to_contain_text("请输入文字")


def test_two_people_never_see_each_others_sentence_or_switches(visit: Visit) -> None:
    one, two = visit(), visit("/zh")
    texts = {one: "red green blue", two: "six seven eight nine"}
    for _ in range(2):
        for visitor, text in texts.items():
            visitor.sentence.fill("")
            visitor.sentence.fill(text)
        one.switch("naive")
        two.switch("BF16")
        one.switch("flash")
        one.switch("naive")
    for visitor, text in texts.items():
        expect(visitor.tokens()).to_have_text(text.split())
        visitor.measured()
        expect(visitor.sentence).to_have_value(text)
    expect(one.settings).not_to_have_text(["flash · BF16"])
    expect(one.now).to_have_text(re.compile("^naive · FP32"))
    expect(two.now).to_have_text(re.compile("^flash · BF16"))
    expect(two.settings).to_have_text(["flash · BF16"])
    expect(one.fold).to_contain_text("naive · FP32")
    expect(two.fold).to_contain_text("flash · BF16")


def test_the_page_works_where_nothing_but_this_machine_answers(new_context: Callable[..., Any], app_url: str) -> None:
    visitor = Visitor(new_context().new_page(), app_url)
    refused: list[str] = []

    def only_here(route, request: Request) -> None:
        if is_outside(request.url):
            refused.append(request.url)
            route.abort()
        else:
            route.continue_()

    visitor.page.context.route("**/*", only_here)
    visitor.open()
    with visitor.new_trace():
        visitor.sentence.fill("no network here")
    expect(visitor.tokens()).to_have_text("no network here".split())
    assert visitor.page.evaluate(
        "document.fonts.ready.then(fonts => [...fonts].some(font => font.status === 'loaded'))"
    )
    assert not refused and not visitor.surprises
