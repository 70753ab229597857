"""What a person feels: click to painted, typing to painted, and start to the first answer, in a real browser.

Run: python benchmarks/page.py [--clicks 15]   (needs Chromium, see tests/e2e/conftest.py)
Painted = the view says which head is on its canvas, then two more animation frames have passed.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.e2e.conftest import QUIET, find_chromium  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
WORDS = "the animal did not cross the street because it was too tired and the road was wide and full of cars "
BARE = "import gradio as gr\nwith gr.Blocks() as demo: gr.Textbox()\ndemo.launch(quiet=True)\n"

PAINTED = """([before, act]) => new Promise((done, fail) => {
  setTimeout(() => fail(`nothing was painted after ${act.split('\\n').pop()}`), 10000);
  const root = document.querySelector('#attention-view .tv-attention'), start = performance.now();
  const seen = () => root.dataset.painted && root.dataset.painted !== before;
  const end = () => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
  const watch = new MutationObserver(() => { if (seen()) { watch.disconnect(); end(); } });
  watch.observe(root, { attributes: true, attributeFilter: ['data-painted'] });
  eval(act);
})"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--clicks", type=int, default=15)
    arguments.add_argument("--only", choices=["start", "clicks", "typing"])
    options = arguments.parse_args()
    if options.only in (None, "start"):
        starts()
    if options.only == "start":
        return
    with app() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_chromium(playwright), args=[*QUIET, "--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        if options.only in (None, "clicks"):
            clicks(page, url, options.clicks)
        if options.only in (None, "typing"):
            typing(page, url, options.clicks)
        browser.close()


def starts(rounds: int = 3) -> None:
    """Start of a process to HTTP 200, alternating with a bare Gradio app."""
    print("Start to HTTP 200, s")
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.py"
        bare.write_text(BARE)
        taken: dict[str, list[float]] = {"bare Gradio": [], "tfviz": []}
        for _ in range(rounds):
            for name, script in (("bare Gradio", bare), ("tfviz", ROOT / "app.py")):
                begin = time.perf_counter()
                with app(script):
                    taken[name].append(time.perf_counter() - begin)
    for name, seconds in taken.items():
        print(f"  {name:<12} {spread(seconds)}   {median(seconds) / median(taken['bare Gradio']):.2f}x")


def clicks(page: Page, url: str, n: int) -> None:
    """Choosing another head of SmolLM2 (another layer each time), by a click without a hover before it."""
    print("\nClick on another head to painted, ms (SmolLM2, 270 heads)")
    first = 0.0
    for tokens in (16, 128, 512, 1024):
        page.goto(f"{url}?model=smollm2-135m")
        page.wait_for_selector("[data-painted]", timeout=60_000)
        type_text(page, sentence(tokens))
        settle(page)
        taken = []
        for i in range(n):
            page.wait_for_timeout(700)  # what the view fetches ahead of time has come
            taken.append(act(page, f"choose({(7 * i + 3) % 30}, {i % 2})"))
        first = first or median(taken)
        print(f"  {tokens:>5} tokens  {spread(taken)}   {median(taken) / first:.2f}x of 16 tokens")


def typing(page: Page, url: str, n: int) -> None:
    """One more letter in MiniLM's sentence of 16 tokens, against the model's own forward time on the strip."""
    page.goto(f"{url}?model=minilm-l6")
    page.wait_for_selector("[data-painted]", timeout=60_000)
    type_text(page, sentence(14))
    settle(page)
    taken = []
    for i in range(n):
        settle(page, quiet=0.8)
        taken.append(act(page, f"type({'true' if i % 2 else 'false'})"))
    forward = page.locator("#tv-speed .tv-now td").first.inner_text()
    print(f"\nTyping to painted, ms (MiniLM, 16 tokens)\n  {spread(taken)}   the model's own forward pass: {forward}")


def sentence(tokens: int) -> str:
    return " ".join((WORDS * (tokens // 20 + 1)).split()[:tokens])


def type_text(page: Page, text: str) -> None:
    before = page.locator("#attention-view .tv-attention").get_attribute("data-trace")
    page.locator("#tv-first textarea").fill(text)
    page.wait_for_function(
        "before => { const r = document.querySelector('#attention-view .tv-attention').dataset; "
        "return r.trace && r.trace !== before && r.painted?.startsWith(r.trace) }",
        arg=before,
        timeout=120_000,
    )


def settle(page: Page, quiet: float = 2.0) -> None:
    """Until the background measurement has ended and the page has been still for a while."""
    page.wait_for_function("() => !document.querySelector('#tv-speed .tv-doing')", timeout=120_000)
    page.wait_for_timeout(1000 * quiet)


def act(page: Page, what: str) -> float:
    code = """
      const choose = (layer, head) => {
        const grid = root.querySelector('.tv-grid'), box = grid.getBoundingClientRect();
        const at = { clientX: box.left + (31 + 24.6 * head + 9.6 * Math.floor(head / 3)) / 281 * box.width, clientY: box.top + (layer + 1) / 31 * box.height };
        grid.dispatchEvent(new MouseEvent('click', { bubbles: true, ...at }));
      };
      const type = longer => {
        const box = document.querySelector('#tv-first textarea');
        box.value = longer ? box.value + 's' : box.value.slice(0, -1);
        box.dispatchEvent(new Event('input', { bubbles: true }));
      };
    """
    before = page.locator("#attention-view .tv-attention").get_attribute("data-painted")
    return float(page.evaluate(PAINTED, [before, code + what]))


@contextmanager
def app(script: Path = ROOT / "app.py"):  # type: ignore[no-untyped-def]
    """The app in a process of its own, from its start to its first HTTP 200 and until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "GRADIO_SERVER_PORT": str(port), "GRADIO_ANALYTICS_ENABLED": "False", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, str(script)], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT
    )
    url = f"http://127.0.0.1:{port}/"
    try:
        for _ in range(3000):
            try:
                urllib.request.urlopen(url, timeout=5).read()
                break
            except OSError:
                time.sleep(0.02)
        yield url
    finally:
        process.terminate()
        process.wait()


def spread(taken: list[float]) -> str:
    low, _, high = quantiles(taken, n=4) if len(taken) > 1 else (taken[0],) * 3
    return f"median {median(taken):8.3g}   quartiles {low:.3g} to {high:.3g}"


if __name__ == "__main__":
    main()
