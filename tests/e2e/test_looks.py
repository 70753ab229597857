"""How the page looks and is reached: phone, dark, keyboard, sizes, and what an accessibility checker finds."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import ElementHandle, expect

from tests.e2e.conftest import Visitor

Visit = Callable[..., Visitor]
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
PAPER = {"light": "rgb(247, 248, 251)", "dark": "rgb(13, 18, 36)"}  # --tv-bg of assets/css/tokens.css
NAME = "one => one.ariaLabel || one.value || one.textContent.trim()"
NOWHERE = "(nothing)"
DESK = {"viewport": {"width": 1280, "height": 900}}


def violations(visitor: Visitor, axe: str, within: str = "html") -> list[str]:
    """What axe-core finds in a part of the page, one line a place."""
    page = visitor.page
    if not page.evaluate("typeof axe !== 'undefined'"):
        page.evaluate(axe)
    run = "within => axe.run(within, {resultTypes: ['violations']}).then(results => results.violations)"
    found: list[dict[str, Any]] = page.evaluate(run, within)
    return [
        f"{one['id']} at {' '.join(map(str, node['target']))}: {node['failureSummary']}"
        for one in found
        for node in one["nodes"]
    ]


def expect_mode(visitor: Visitor, mode: str) -> None:
    """By the colour of the page, once it has settled."""
    expect(visitor.page.locator("body")).to_have_css("background-color", PAPER[mode])


def change_mode(visitor: Visitor, mode: str) -> None:
    visitor.page.locator(".tv-mode").click()
    expect_mode(visitor, mode)
    fading = "document.getAnimations().filter(one => one instanceof CSSTransition)"  # a spinner would go on for ever
    visitor.page.evaluate(f"Promise.all({fading}.map(one => one.finished.catch(() => 0)))")


def both_looks(visitor: Visitor) -> Iterator[int]:
    """A page that is light on a desk, then dark and as narrow as a phone: the width it must keep to."""
    yield DESK["viewport"]["width"]
    visitor.page.set_viewport_size({"width": 390, "height": 844})
    change_mode(visitor, "dark")
    yield 390


# ---- axe


@pytest.mark.parametrize("screen", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("address", ["/", "/zh"], ids=["en", "zh"])
def test_axe_finds_nothing(visit: Visit, axe_source: str, address: str, screen: dict) -> None:
    visitor = visit(address, color_scheme="light", reduced_motion="reduce", **screen).measured()
    expect_mode(visitor, "light")
    if screen is PHONE:
        visitor.fold.tap()
        expect(visitor.model).to_be_visible()
    assert violations(visitor, axe_source) == []
    change_mode(visitor, "dark")
    assert violations(visitor, axe_source) == []
    visitor.type_model("/no/such/folder")
    expect(visitor.error).to_be_visible()
    assert violations(visitor, axe_source) == []
    change_mode(visitor, "light")
    assert violations(visitor, axe_source) == []


def test_axe_finds_nothing_with_an_encoder_and_a_note(visit: Visit, axe_source: str) -> None:
    visitor = visit("/?model=minilm-l6&text=hello+[SEP]+you&second=two", color_scheme="dark", reduced_motion="reduce")
    expect(visitor.measured().note).to_be_visible()
    expect_mode(visitor, "dark")
    assert violations(visitor, axe_source) == []
    change_mode(visitor, "light")
    assert violations(visitor, axe_source) == []


# ---- light and dark


def test_light_and_dark_change_by_a_button_and_stay_after_a_reload(visit: Visit) -> None:
    visitor = visit(color_scheme="light")
    button = visitor.page.get_by_role("button", name="Light or dark")
    for mode in ("dark", "light"):
        button.click()
        expect_mode(visitor, mode)
        visitor.page.reload()
        visitor.painted()
        expect_mode(visitor, mode)


def test_the_picture_is_drawn_again_in_the_other_mode(visit: Visit) -> None:
    visitor = visit(color_scheme="light")
    pixels = "canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data].join()"
    canvases = [visitor.map.locator("canvas"), visitor.grid.locator("canvas")]
    light = [canvas.evaluate(pixels) for canvas in canvases]
    visitor.page.get_by_role("button", name="Light or dark").click()
    expect(visitor.page.locator("body")).to_have_class(re.compile("dark"))
    visitor.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert all(canvas.evaluate(pixels) != before for canvas, before in zip(canvases, light, strict=True))


# ---- sizes


def test_a_phone_shows_sentence_one_line_that_opens_and_closes_and_the_view(visit: Visit) -> None:
    visitor = visit(**PHONE).measured()
    expect(visitor.fold).to_have_text(re.compile("SmolLM2.* · flash · FP32"))
    boxes = [one.bounding_box() for one in (visitor.sentence, visitor.fold, visitor.map)]
    assert all(boxes)
    sentence, fold, map_ = (box["y"] for box in boxes if box)
    assert sentence < fold < map_
    assert boxes[1] and boxes[1]["height"] < 48
    assert visitor.page.evaluate("document.documentElement.scrollWidth") == 390
    expect(visitor.model).to_be_hidden()
    expect(visitor.fold).to_have_attribute("aria-expanded", "false")
    visitor.fold.tap()
    expect(visitor.fold).to_have_attribute("aria-expanded", "true")
    expect(visitor.model).to_be_visible()
    with visitor.new_trace():
        visitor.page.locator("#tv-side label").filter(has_text="naive").tap()
    expect(visitor.fold).to_contain_text("naive · FP32")
    expect(visitor.fold).to_have_attribute("aria-expanded", "true")  # it stays as it was left
    assert visitor.page.evaluate("document.documentElement.scrollWidth") == 390
    visitor.fold.tap()
    expect(visitor.fold).to_have_attribute("aria-expanded", "false")
    expect(visitor.model).to_be_hidden()


@pytest.mark.parametrize("address", ["/?text=" + "word+" * 300, "/zh?model=minilm-l6&text=" + "x" * 300])
def test_no_text_makes_a_phone_scroll_sideways(visit: Visit, address: str) -> None:
    visitor = visit(address, **PHONE).measured()
    assert visitor.page.evaluate("document.documentElement.scrollWidth") == 390


def test_the_map_fills_its_room_after_the_window_was_resized(visit: Visit) -> None:
    visitor = visit(viewport={"width": 1280, "height": 900})
    for width in (700, 1366, 390, 1280):
        visitor.page.set_viewport_size({"width": width, "height": 900})
        with visitor.new_trace():
            visitor.sentence.fill(f"{width} wide is this window now")
        room = visitor.view.locator(".tv-one").bounding_box()
        map_ = visitor.map.bounding_box()
        assert room and map_
        left = room["x"] + room["width"] - map_["x"] - map_["width"]
        assert -1 <= left <= 0.15 * room["width"] or map_["height"] > 540, (width, room, map_)
        assert visitor.page.evaluate("document.documentElement.scrollWidth") == width


# ---- keyboard


def test_the_keyboard_reaches_everything_in_the_order_it_stands(visit: Visit) -> None:
    visitor = visit(reduced_motion="reduce").measured()
    page = visitor.page
    page.get_by_role("button", name="Light or dark").focus()
    look = """one => new Promise(settled => requestAnimationFrame(() => requestAnimationFrame(settled))).then(() =>
        [one, one.closest('label'), one.closest('.wrap')].filter(Boolean).map(box => {
        const { outlineStyle, outlineWidth, outlineColor, borderColor } = getComputedStyle(box);
        return [outlineStyle === 'none' ? '' : outlineStyle + outlineWidth + outlineColor, borderColor] }).join())"""
    reached: list[str] = []
    looks: list[tuple[ElementHandle, str]] = []
    while len(reached) < 30 and reached[-2:] != [NOWHERE, NOWHERE]:
        page.keyboard.press("Tab")
        focused = page.evaluate_handle("document.activeElement").as_element()
        assert focused
        on_body = focused.evaluate("one => one === document.body")
        reached.append(NOWHERE if on_body else focused.evaluate(NAME))
        looks.append((focused, focused.evaluate(look)))
        if reached[-1].startswith("Attention weights"):
            break
    wanted = [
        "The animal didn't cross",
        "The animal didn't cross",
        "the cat saw",
        "法国",
        "今天",
        "Model",
        "flash",
        "fp32",
        "Measure all settings",
        "Attention",
        "it",
        "All heads: 30 layers",
        "Attention weights of layer 13, head 8",
    ]
    in_order = iter(reached)
    missing = [name for name in wanted if not any(one.startswith(name) for one in in_order)]
    assert not missing, f"Tab reached {reached}"
    for name, (element, focused_look) in zip(reached[:-1], looks[:-1], strict=True):
        assert element.evaluate(look) != focused_look, f"nothing shows that {name!r} has the focus"
    expect(visitor.view).to_have_attribute("data-painted", re.compile("/self/13/8$"))  # looking around changes nothing


def test_switches_and_model_are_chosen_with_the_keyboard_alone(visit: Visit) -> None:
    visitor = visit()
    for start, key, chosen in (("flash", "ArrowLeft", "naive"), ("FP32", "ArrowRight", "FP16")):
        visitor.radio(start).focus()
        with visitor.new_trace():
            visitor.page.keyboard.press(key)
        expect(visitor.radio(chosen)).to_be_checked()
        expect(visitor.radio(chosen)).to_be_focused()
    visitor.model.focus()
    with visitor.new_trace():
        visitor.page.keyboard.press("ArrowDown")
        visitor.page.keyboard.press("Enter")
    expect(visitor.page.get_by_text("6 layers × 12 heads", exact=True)).to_be_visible()


def test_focus_stays_in_the_sentence_while_traces_come(visit: Visit) -> None:
    visitor = visit()
    visitor.sentence.focus()
    with visitor.new_trace():
        visitor.page.keyboard.press("ControlOrMeta+End")
        visitor.page.keyboard.type(" of it all", delay=60)
    expect(visitor.tokens().last).to_have_text("all")
    expect(visitor.sentence).to_be_focused()
    expect(visitor.sentence).to_have_value(re.compile("too tired of it all$"))
