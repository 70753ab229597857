"""Browser tests: which browser, the app to look at, and the promise that a page asks nothing of the outside.

TFVIZ_CHROMIUM=PATH      the browser to use instead of the one that is found
pytest --base-url URL    an app that is already running, instead of one started here
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Dialog,
    Locator,
    Page,
    Playwright,
    Request,
    expect,
    sync_playwright,
)

from tfviz.ui.i18n import Translator

ROOT = Path(__file__).resolve().parents[2]
LOCAL = {"127.0.0.1", "localhost"}
PATIENCE = 180_000  # ms, of every wait: one that is met costs nothing, and a shared machine may be ten times as slow
START_SECONDS = PATIENCE / 1000  # the first start on a slow disk imports torch cold
QUIET = [  # a browser in a test draws, and does nothing else
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
APP_LOG = pytest.StashKey[Path]()
FAILED = pytest.StashKey[bool]()
HEAR = """(view, [place, cue, button]) => {  // what a place says, change by change; at the cue a button is pressed
  const named = one => (one.ariaLabel || one.textContent).trim() === button;
  view.heard = [];
  const hear = () => {
    const said = [...view.querySelectorAll(place)].map(one => one.textContent).join('\\n');
    if (said === view.heard.at(-1)) return;
    view.heard.push(said);
    const found = cue && new RegExp(cue, 's').test(said) && [...view.querySelectorAll('button')].find(named);
    if (found) { cue = ''; found.click(); }
  };
  hear();
  new MutationObserver(hear).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""

expect.set_options(timeout=PATIENCE)


def find_chromium(playwright: Playwright) -> str | None:
    """$TFVIZ_CHROMIUM, else Playwright's own browser, else the first on PATH; None where there is no browser."""
    on_path = (
        shutil.which(name) for name in ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    )
    own = playwright.chromium.executable_path
    candidates = (os.environ.get("TFVIZ_CHROMIUM"), own if Path(own).exists() else None, *on_path)
    return next(filter(None, candidates), None)


def is_outside(url: str) -> bool:
    """Whether a request for `url` leaves this machine; `data:`, `blob:` and the like never do."""
    parts = urlsplit(url)
    return parts.scheme in {"http", "https", "ws", "wss"} and parts.hostname not in LOCAL


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("e2e")


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any], playwright: Playwright) -> dict[str, Any]:
    browser = find_chromium(playwright)
    if browser is None:
        pytest.fail("no Chromium: `make test` installs one, or set TFVIZ_CHROMIUM to its path", pytrace=False)
    flags = QUIET + (["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else [])
    return {**browser_type_launch_args, "executable_path": browser, "args": flags}


@pytest.fixture(scope="session")
def app_url(base_url: str | None, pytestconfig: pytest.Config, tmp_path_factory: Any) -> Iterator[str]:
    """The address of a running app, started here unless `--base-url` names one; stopped at the end."""
    if base_url:
        yield base_url
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    log = tmp_path_factory.mktemp("app") / "log.txt"
    server = {"GRADIO_SERVER_NAME": "127.0.0.1", "GRADIO_SERVER_PORT": str(port), "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as sink:
        app = subprocess.Popen(
            [sys.executable, "app.py"], cwd=ROOT, env={**os.environ, **server}, stdout=sink, stderr=subprocess.STDOUT
        )
        try:
            wait_until_it_answers(url, app, log)
            pytestconfig.stash[APP_LOG] = log
            yield url
        finally:
            app.terminate()
            try:
                app.wait(timeout=10)
            except subprocess.TimeoutExpired:
                app.kill()
                app.wait()


def wait_until_it_answers(url: str, app: subprocess.Popen[bytes], log: Path) -> None:
    """Until HTTP 200; a failure shows what the app said."""
    http = build_opener(ProxyHandler({}))  # this machine needs no proxy to reach itself
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if app.poll() is not None:
            pytest.fail(f"app.py ended with status {app.returncode}:\n{tail(log)}", pytrace=False)
        try:
            if http.open(url, timeout=5).status == 200:
                return
        except (URLError, OSError):
            time.sleep(0.1)  # nobody tells us when a server is up, so we ask
    pytest.fail(f"app.py did not answer within {START_SECONDS} s:\n{tail(log)}", pytrace=False)


def tail(log: Path, lines: int = 60) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: pytest.TestReport = yield
    log = item.config.stash.get(APP_LOG, None)
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    if report.failed and log is not None:
        report.sections.append(("the app's log", tail(log)))
    return report


@pytest.fixture
def outside_requests() -> Iterator[list[str]]:
    """Every address beyond this machine that the test's pages asked for. It must stay empty: checked at the end."""
    found: list[str] = []
    yield found
    assert not found, f"the page asked for {found}"


@pytest.fixture
def new_context(new_context: Callable[..., BrowserContext], outside_requests: list[str]) -> Callable[..., Any]:
    """pytest-playwright's own, with every request watched; `context` and `page` come from here too."""
    return lambda **options: watched(new_context(**options), outside_requests)


def watched(context: BrowserContext, outside: list[str]) -> BrowserContext:
    """The context, which from now on notes what it asks of the outside."""

    def note(url: str) -> None:
        if is_outside(url):
            outside.append(url)

    def on_request(request: Request) -> None:
        note(request.url)

    context.set_default_timeout(PATIENCE)
    context.on("request", on_request)
    context.on("page", lambda page: page.on("websocket", lambda ws: note(ws.url)))
    return context


class Heard:
    """Everything that a place in a view says from now on: what is seen in passing is not missed, however slow the test.

    At the `cue`, a pattern of what is said, the button of that name is pressed, in the page itself and at once.
    """

    def __init__(self, view: Locator, place: str, cue: str = "", press: str = "") -> None:
        self.view = view
        view.evaluate(HEAR, [place, cue, press])

    def texts(self) -> list[str]:
        return list(self.view.evaluate("view => view.heard"))


class Visitor:
    """A person with a page of the app open: finds things by what they are called, waits for what comes of an action."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url, self.t = page, url, Translator("en")
        self.began = ""  # the place where this visit began
        self.outside: list[str] = []  # addresses beyond this machine that were asked for
        self.surprises: list[str] = []  # errors of scripts and dialogs: there must be none
        page.on("pageerror", lambda error: self.surprises.append(f"error: {error}"))
        page.on("dialog", self._dismiss)
        self.view = page.locator("#attention-view .tv-attention")
        self.readout = self.view.locator(".tv-read")
        self.fold = page.locator("#tv-fold")
        self.grid = page.get_by_role("application").first
        self.map = page.get_by_role("application").last
        self.error = page.locator("#tv-notice").get_by_role("alert")
        self.note = page.locator("#tv-notice").get_by_role("status")
        self.settings = page.locator("#tv-speed").get_by_role("rowheader")  # of the speed strip
        self.now = page.locator("#tv-speed tr[aria-current=true]")  # its row of the switches on screen

    def open(self, address: str = "/") -> "Visitor":
        """Goes to a page, and waits until it has painted by itself."""
        self.t = Translator("zh" if address.startswith("/zh") else "en")
        self.page.goto(self.url + address)
        return self.painted()

    def place(self) -> str:
        """The sentence's trace, and the head, query and key that the page looks at."""
        return str(self.page.evaluate("JSON.stringify([tfviz.scene?.trace, tfviz.scene?.sel])"))

    def painted(self) -> "Visitor":
        expect(self.view).to_have_attribute("data-painted", re.compile("."))
        return self

    def measured(self) -> "Visitor":
        """Waits until the setting on screen has its figure."""
        expect(self.now).to_have_text(re.compile(r"\d\.\d\dx$"))
        expect(self.page.locator(".tv-doing").filter(visible=True)).to_have_count(0)
        return self

    @contextmanager
    def new_trace(self) -> Iterator[None]:
        """What is done inside brings another trace; its map is painted when the block ends."""
        before = str(self.view.get_attribute("data-trace"))
        yield
        expect(self.view).not_to_have_attribute("data-trace", before)
        self.painted()

    @contextmanager
    def same_picture(self) -> Iterator[None]:
        """Whatever is done inside, the picture on screen stays."""
        before = str(self.view.get_attribute("data-painted"))
        yield
        expect(self.view).to_have_attribute("data-painted", before)

    @property
    def sentence(self) -> Locator:
        return self.page.get_by_role("textbox", name=self.t("page.sentence"), exact=True)

    @property
    def second(self) -> Locator:
        return self.page.locator("#tv-second").get_by_role("textbox")

    @property
    def model(self) -> Locator:
        return self.page.get_by_role("combobox", name=self.t("page.model"))

    def radio(self, name: str) -> Locator:
        return self.page.get_by_role("radio", name=name, exact=True)

    def switch(self, name: str) -> None:
        """Presses one of the segments, as the person sees it: its label."""
        self.page.locator("#tv-side label").filter(has_text=re.compile(f"^\\s*{name}\\s*$")).click()

    def choose_model(self, label: str) -> None:
        self.model.click()
        self.page.get_by_role("option", name=label).click()

    def type_model(self, name: str) -> None:
        self.model.fill(name)
        self.model.press("Enter")

    def tokens(self, strip: str = "attention.tokens") -> Locator:
        return self.page.get_by_role("toolbar", name=self.t(strip), exact=True).get_by_role("button")

    def section(self, tab: str, key: str) -> Locator:
        """Opens a tab and one of its sections; its picture, once it is drawn."""
        for name in (f"tab.{tab}", f"{key}.name"):
            button = self.page.get_by_role("tab", name=self.t(name), exact=True)
            if name == f"tab.{tab}" or button.count():  # a tab of one section has no pills
                button.click()
        return self.drawn(key)

    def drawn(self, key: str) -> Locator:
        """A section's picture, once it shows what the page looks at and no wish is under way."""
        picture = self.page.locator(f"#{key.replace('.', '-')} .tv-picture")
        picture.scroll_into_view_if_needed()  # what nobody sees is not drawn
        expect(picture).to_have_attribute("data-drawn", re.compile("."))
        return picture

    @contextmanager
    def redrawn(self, key: str) -> Iterator[Locator]:
        """What is done inside brings another picture to a section; it is drawn when the block ends."""
        picture = self.drawn(key)
        before = str(picture.get_attribute("data-drawn"))
        yield picture
        expect(picture).not_to_have_attribute("data-drawn", before)

    def row(self, name: str) -> Locator:
        """A measured row of the speed strip: its name, its time and its ratio."""
        return self.page.get_by_role("row", name=re.compile(rf"^{name} [\d.,]+ m?s \d+\.\d\dx$"))

    def _dismiss(self, dialog: Dialog) -> None:
        self.surprises.append(f"dialog: {dialog.message}")
        dialog.dismiss()


@pytest.fixture
def visit(new_context: Callable[..., BrowserContext], app_url: str) -> Iterator[Callable[..., Visitor]]:
    """`visit("/zh", viewport=...)`: a new person at that address, in a browser context of their own."""
    visitors: list[Visitor] = []

    def come(address: str = "/", **options: Any) -> Visitor:
        visitors.append(Visitor(new_context(**options).new_page(), app_url))
        return visitors[-1].open(address)

    yield come
    assert not [surprise for visitor in visitors for surprise in visitor.surprises]


@pytest.fixture(scope="module")
def staying() -> Iterator[dict[str, Visitor]]:
    """Who stays from test to test of a file: nobody, or one person."""
    visitors: dict[str, Visitor] = {}
    yield visitors
    for visitor in visitors.values():
        visitor.page.context.close()


@pytest.fixture
def stay(
    request: pytest.FixtureRequest,
    browser: Browser,
    app_url: str,
    staying: dict[str, Visitor],
    outside_requests: list[str],
) -> Iterator[Callable[..., Visitor]]:
    """`stay("/zh", viewport=...)`: like `visit`, but whoever came there in the test before is still there.

    Opening a page takes longer than most of what is looked at in it. A page is opened anew where the sentence or the
    place in it has changed since, or where a test failed; controls that a test moves stay moved.
    """

    def come(address: str = "/", **options: Any) -> Visitor:
        name = f"{address} {options}"
        if name not in staying or staying[name].place() != staying[name].began:
            leave()
            outside: list[str] = []
            visitor = Visitor(watched(browser.new_context(**options), outside).new_page(), app_url)
            staying[name] = visitor.open(address)
            visitor.began, visitor.outside = visitor.place(), outside
        return staying[name]

    def leave() -> None:
        while staying:
            staying.popitem()[1].page.context.close()

    yield come
    surprises = [surprise for visitor in staying.values() for surprise in visitor.surprises]
    for visitor in staying.values():
        outside_requests += visitor.outside
    if surprises or outside_requests or request.node.stash.get(FAILED, False):
        leave()
    assert not surprises


@pytest.fixture(scope="session")
def axe_source() -> str:
    """The axe-core accessibility checker, to run with `page.evaluate`; `make test` fetches it where npm is there."""
    script = ROOT / ".venv" / "npm" / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        pytest.skip("axe-core is not installed: it needs npm, then `make test` fetches it")
    return script.read_text(encoding="utf-8")


if __name__ == "__main__":
    with sync_playwright() as running:
        browser = find_chromium(running)
    print(f"Browser for the tests: {browser or 'none'}")
    sys.exit(browser is None)
