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
from itertools import cycle
from pathlib import Path
from statistics import median, quantiles

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.e2e.conftest import QUIET, find_chromium  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
WORDS = "the animal did not cross the street because it was too tired and the road was wide and full of cars "
BARE = "import gradio as gr\nwith gr.Blocks() as demo: gr.Textbox()\ndemo.launch(quiet=True)\n"

PATIENCE = 300_000  # ms: a slow machine is measured, not given up

WATCH = """() => {
  const root = document.querySelector('#attention-view .tv-attention'), before = root.dataset.painted;
  window.painted = new Promise((done, fail) => {
    let start = null;
    const begin = () => { start ??= performance.now(); };
    const end = () => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
    setTimeout(() => fail('nothing was painted'), PATIENCE);
    document.addEventListener('click', begin, { capture: true, once: true });
    document.addEventListener('input', begin, { capture: true, once: true });
    const watch = new MutationObserver(() => {
      if (root.dataset.painted && root.dataset.painted !== before) { watch.disconnect(); end(); }
    });
    watch.observe(root, { attributes: true, attributeFilter: ['data-painted'] });
  });
}""".replace("PATIENCE", str(PATIENCE))


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
        browser = playwright.chromium.launch(executable_path=find_chromium(playwright), args=[*QUIET, "--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(PATIENCE)
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
    """Choosing a head of another layer of SmolLM2: with the mouse, as a person does (the view fetches the head that the
    pointer comes to), and by a click out of nowhere, where nothing could be fetched ahead."""
    print("\nClick on another head to painted, ms (SmolLM2, 270 heads)")
    first, columns = dict[str, float](), cycle((0.055, 0.165))  # the first two heads in turn: never the one on show
    for tokens in (16, 128, 512, 1024):
        page.goto(f"{url}?model=smollm2-135m")
        page.wait_for_selector("[data-painted]", timeout=PATIENCE)
        type_text(page, sentence(tokens))
        for way in ("mouse", "out of nowhere"):
            settle(page)
            taken = []
            for i in range(n):
                page.wait_for_timeout(700)  # what the view fetches ahead of time has come
                box = page.locator(".tv-grid").bounding_box()
                assert box is not None
                x = box["x"] + box["width"] * next(columns)
                y = box["y"] + box["height"] * ((7 * i + (4 if way == "mouse" else 2)) % 20 + 1) / 31
                page.evaluate(WATCH)
                if way == "mouse":
                    page.mouse.move(x, y, steps=5)
                    page.mouse.click(x, y)
                else:
                    page.evaluate(CLICK, [x, y])
                taken.append(float(page.evaluate("window.painted")))
            first.setdefault(way, median(taken))
            print(f"  {tokens:>5} tokens  {way:<15} {spread(taken)}   {median(taken) / first[way]:.2f}x of 16 tokens")


CLICK = """([clientX, clientY]) =>
  document.querySelector('.tv-grid').dispatchEvent(new MouseEvent('click', { bubbles: true, clientX, clientY }))"""


def typing(page: Page, url: str, n: int) -> None:
    """One more letter in MiniLM's sentence of 16 tokens, against the model's own forward time on the strip."""
    page.goto(f"{url}?model=minilm-l6")
    page.wait_for_selector("[data-painted]", timeout=PATIENCE)
    type_text(page, sentence(14))
    page.locator("#tv-first textarea").press("End")
    taken, forwards = [], []
    for i in range(n):
        settle(page, quiet=0.5)
        forwards.append(float(page.locator("#tv-speed .tv-now td").first.inner_text().split()[0]))
        page.evaluate(WATCH)
        page.keyboard.press("s" if i % 2 == 0 else "Backspace")
        taken.append(float(page.evaluate("window.painted")))
    print(f"\nTyping to painted, ms (MiniLM, 16 tokens)\n  {spread(taken)}")
    print(
        f"  limit {2 * median(forwards) + 100:.0f}: twice the model's own forward pass ({median(forwards):.3g}) + 100"
    )


def sentence(tokens: int) -> str:
    return " ".join((WORDS * (tokens // 20 + 1)).split()[:tokens])


def type_text(page: Page, text: str) -> None:
    before = page.locator("#attention-view .tv-attention").get_attribute("data-trace")
    page.locator("#tv-first textarea").fill(text)
    page.wait_for_function(
        "before => { const r = document.querySelector('#attention-view .tv-attention').dataset; "
        "return r.trace && r.trace !== before && r.painted?.startsWith(r.trace) }",
        arg=before,
        timeout=PATIENCE,
    )


def settle(page: Page, quiet: float = 2.0) -> None:
    """Until the background measurement has ended and the page has been still for a while."""
    page.wait_for_function("() => !document.querySelector('#tv-speed .tv-doing')", timeout=PATIENCE)
    page.wait_for_timeout(1000 * quiet)


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
