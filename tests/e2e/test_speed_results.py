"""Path length and results as a person uses them: a measurement that is stopped, its figures saved and compared."""

import json
import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Locator, expect

from tests.e2e.conftest import Heard, Visitor

Visit = Callable[..., Visitor]
DATES = "?model=dates&text=March+5,+2021"


def test_a_stopped_measurement_is_saved_and_compared(visit: Visit, tmp_path: Path) -> None:
    visitor = visit(f"/{DATES}")
    path = visitor.section("speed", "speed.recurrent")
    Heard(path, ".tv-caption", cue="random starts", press="Stop")
    path.get_by_role("button", name="Measure on this machine").click()
    expect(path.get_by_text("The measurement was stopped")).to_be_visible()

    results = visitor.section("speed", "speed.results")
    row = results.get_by_role("row", name=re.compile("gradient, factor a step.*layer = rnn"))
    expect(row).to_contain_text("0.4")
    with visitor.page.expect_download() as download:
        results.get_by_role("button", name="JSON", exact=True).click()
    assert re.fullmatch(r"tfviz-results-\d{4}-\d\d-\d\d\.json", download.value.suggested_filename)
    saved = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    assert saved["tfviz"] == 1 and saved["records"]

    saved["machine"]["device"] = "<b>another</b>"
    other = tmp_path / "other <i>.json"
    other.write_text(json.dumps(saved), encoding="utf-8")
    results.locator("input[type=file]").set_input_files(other)
    expect(results.get_by_role("cell", name="<b>another</b>")).to_be_visible()
    expect(results.locator(".tv-badges")).to_contain_text(f"{len(saved['records'])} rows matched")
    expect(results.get_by_text("other <i>.json")).to_be_visible()

    results.locator("input[type=file]").set_input_files({"name": "a.txt", "mimeType": "", "buffer": b"hello"})
    expect(results.get_by_role("alert").filter(has_text="not a results file of tfviz")).to_be_visible()
    expect(results.get_by_role("cell", name="<b>another</b>")).to_be_visible()  # the last good one stays

    saved["machine"]["device"] = "dragged here"
    drop(results.locator(".tv-results-drop"), json.dumps(saved), "dragged.json")
    expect(results.get_by_role("cell", name="dragged here")).to_be_visible()
    expect(results.get_by_text("dragged.json")).to_be_visible()
    for content, sentence in (("", "The file is empty"), ("x" * 20_000_000, "larger than 1 MB"), ("{", "not JSON")):
        drop(results.locator(".tv-results-drop"), content, "bad.json")
        expect(results.get_by_role("alert").filter(has_text=sentence)).to_be_visible()
    expect(results.get_by_role("cell", name="dragged here")).to_be_visible()
    expect(results.get_by_text("dragged.json")).to_be_visible()

    saved["machine"]["device"] = "pasted here"
    paste(results.get_by_role("textbox"), json.dumps(saved))
    expect(results.get_by_role("cell", name="pasted here")).to_be_visible()
    paste(results.get_by_role("textbox"), " ")
    expect(results.get_by_role("alert").filter(has_text="The file is empty")).to_be_visible()
    expect(results.get_by_role("cell", name="pasted here")).to_be_visible()
    results.get_by_role("button", name="Remove").click()
    expect(results.get_by_role("cell", name="pasted here")).to_have_count(0)


def drop(place: Locator, content: str, name: str) -> None:
    """A file let go over it, with the events that a browser sends."""
    make = """([content, name]) => {
        const data = new DataTransfer();
        data.items.add(new File([content], name, { type: 'application/json' }));
        return data;
    }"""
    data = place.page.evaluate_handle(make, [content, name])
    for event in ("dragenter", "dragover", "drop"):
        place.dispatch_event(event, {"dataTransfer": data})


def paste(box: Locator, text: str) -> None:
    """Text on the clipboard, into a box."""
    data = "text => { const data = new DataTransfer(); data.setData('text/plain', text); return data; }"
    box.evaluate(
        f"(box, text) => box.dispatchEvent(new ClipboardEvent('paste', "
        f"{{ clipboardData: ({data})(text), bubbles: true, cancelable: true }}))",
        text,
    )


def test_a_text_that_is_no_file_is_refused_in_the_pages_language(visit: Visit) -> None:
    visitor = visit(f"/zh{DATES}")
    results = visitor.section("speed", "speed.results")
    expect(results.get_by_role("button", name=visitor.t("speed.results.refresh"))).to_be_visible()
    results.get_by_role("textbox").fill("{")
    results.get_by_role("textbox").press("Enter")
    expect(results.get_by_role("alert").filter(has_text="JSON")).to_be_visible()
