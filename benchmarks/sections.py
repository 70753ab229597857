"""How long a section's picture takes to redraw: from choosing a token or moving a control to painted, in a browser.

Run: python benchmarks/sections.py [--repeats 9] [--model smollm2-135m]   (needs Chromium, see tests/e2e/conftest.py)
Painted = the picture says that all of it in the window is drawn, then two more animation frames have passed; panels
beyond the window's edge are drawn after that. The sentence has 32 tokens; ratios are to the limit of 150 ms.
"""

import argparse
import sys
from pathlib import Path
from statistics import median

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from page import PATIENCE, app, sentence, settle, spread, type_text  # noqa: E402

from tests.e2e.conftest import QUIET, find_chromium  # noqa: E402

LIMIT_MS = 150
TABS = ("step", "positions", "masks", "layers", "training", "generate", "cache", "speed")

REDRAW = """async ([id, turn]) => {
  const root = document.querySelector(`[id="${id}"] .tv-picture`), before = root.dataset.seen;
  const start = performance.now();
  const drawn = new Promise((done, fail) => {
    setTimeout(() => fail(new Error('nothing was drawn')), PATIENCE);
    new MutationObserver((_, watch) => {
      if (root.dataset.seen === before) return;
      watch.disconnect();
      requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
    }).observe(root, { attributes: true, attributeFilter: ['data-seen'] });
  });
  const chips = root.querySelectorAll('.tv-tokens button[aria-pressed=false]');
  const layer = root.querySelector('input[data-of=layer]');
  const all = root.closest('.tv-split')?.querySelectorAll('input[type=number]') ?? [];
  const inputs = [...all].filter(one => !one.dataset.of);
  const type = (input, value) => {
    Object.getOwnPropertyDescriptor(Object.getPrototypeOf(input), 'value').set.call(input, value);
    for (const name of ['input', 'change']) input.dispatchEvent(new Event(name, { bubbles: true }));
  };
  if (chips.length) chips[(5 * turn + 3) % chips.length].click();
  else if (layer && layer.max !== '0') type(layer, String((Number(layer.value) + 1) % (Number(layer.max) + 1)));
  else if (inputs.length) {
    const [input] = inputs, step = Number(input.step) || 1, up = Number(input.value) + step;
    type(input, String(turn % 2 || input.max && up > Number(input.max) ? up - 2 * step : up));
  } else return null;
  return drawn;
}""".replace("PATIENCE", str(PATIENCE))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--repeats", type=int, default=9)
    arguments.add_argument("--model", default="smollm2-135m")
    options = arguments.parse_args()
    with app() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(playwright), args=[*QUIET, "--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(PATIENCE)
        page.goto(f"{url}?model={options.model}")
        page.wait_for_selector("[data-painted]", timeout=PATIENCE)
        type_text(page, sentence(32))
        settle(page)
        print(f"Redraw of a section, ms ({options.model}, 32 tokens; limit {LIMIT_MS})")
        for tab in TABS:
            page.click(f'#tv-tabs button[role="tab"][data-tab-id="{tab}"]')
            page.wait_for_timeout(300)
            pills = page.locator(f'#tv-tabs .tv-pills button[role="tab"][data-tab-id^="{tab}."]')
            for key in [str(pill.get_attribute("data-tab-id")) for pill in pills.all()]:
                page.click(f'#tv-tabs button[role="tab"][data-tab-id="{key}"]')
                redraws(page, key, options.repeats)
        browser.close()


def redraws(page: Page, key: str, n: int) -> None:
    identity = key.replace(".", "-")
    page.wait_for_selector(f"#{identity} [data-drawn]", timeout=PATIENCE)
    taken = []
    for turn in range(n + 1):
        page.wait_for_timeout(200)
        took = page.evaluate(REDRAW, [identity, turn])
        if took is None:
            print(f"  {key:<24} nothing to move")
            return
        taken.append(float(took))
    print(f"  {key:<24} {spread(taken[1:])}   {median(taken[1:]) / LIMIT_MS:.2f}x of the limit", flush=True)


if __name__ == "__main__":
    main()
