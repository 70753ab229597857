"""Cache variants, a sliding window: which keys are gone, what weight lay on them, what the first tokens do."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from tfviz.figures.cache_variants import mass_outside
from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.i18n import Translator, significant
from tfviz.ui.tabs.cache.variant_shared import counted, percent_of

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.trace import LayerAttention

SHOWN_FIRST, SHOWN_LAST = 8, 56  # keys of a long sentence that are drawn
MOST_WINDOWS = 24  # points of a curve over windows
BAR = 50  # pixels of a weight of 1
ROUNDING = rounding.once()  # of a sum of FP32 weights


def window_picture(
    layer: "LayerAttention", head: int, query: int, window: int, sinks: int, labels: Sequence[str], t: Translator
) -> Picture:
    """Which keys are held for one query, and what weight and output the rest would have given."""
    from tfviz.introspection.cache_variants import held_keys, outside, windowed_error

    weights = layer.weights(head)[0]
    value = layer.value[head * len(layer.value) // len(layer.query)]
    n = weights.shape[1]
    windows = np.unique(np.geomspace(1, n, MOST_WINDOWS).round().astype(np.int64))
    every = np.unique(np.append(windows, min(window, n)))
    missing = {kept_first: outside(weights, every, kept_first) for kept_first in (0, sinks)}
    errors = {kept_first: windowed_error(weights, value, window, kept_first) for kept_first in (0, sinks)}
    chosen = int(np.searchsorted(every, min(window, n)))
    rows, strips = [], []
    for kept_first in dict.fromkeys((0, sinks)):
        held = held_keys(n, query, window, kept_first)
        name = t(
            "cache.variants.window.sinks" if kept_first else "cache.variants.window.plain",
            sinks=kept_first,
            window=window,
        )
        lost = missing[kept_first][chosen]
        strips.append(_strip(name, weights[query], held, kept_first, query, labels, t))
        cells = [f"{int(held.sum()):,}", percent_of(lost[query]), percent_of(float(lost.mean()))]
        rows.append(
            (name, [*cells, percent_of(errors[kept_first][query]), percent_of(float(errors[kept_first].mean()))])
        )
    heads = [t(f"cache.variants.window.head.{one}") for one in ("held", "mass", "mass_mean", "error", "error_mean")]
    curves = {}
    for kept_first in dict.fromkeys((0, sinks)):
        said = t("cache.variants.window.with", sinks=kept_first) if kept_first else ""
        curves[t("cache.variants.window.query", token=labels[query]) + said] = missing[kept_first][:, query]
        curves[t("cache.variants.window.mean") + said] = missing[kept_first].mean(axis=1)
    words = (t("cache.variants.window.axis"), t("cache.variants.window.outside"))
    ends = missing[0][-1]
    summed = float(abs(weights[query].sum() - 1))
    badges = [
        Badge(summed <= ROUNDING, t("cache.variants.badge.row", difference=significant(summed))),
        Badge(bool(every[-1] == n and np.abs(ends).max() <= ROUNDING), t("cache.variants.badge.window", n=n)),
    ]
    panels = [
        Panel(
            html="".join(strips),
            title=t("cache.variants.window.title", token=labels[query]),
            note=t("cache.variants.window.note"),
            wide=True,
        ),
        Panel(
            mass_outside(every, curves, window, words=words),
            t("cache.variants.window.figure"),
            _lost(missing, chosen, sinks, t),
            wide=True,
        ),
        Panel(
            html=table(t("cache.variants.window.table"), heads, rows),
            title=t("cache.variants.window.table"),
            note=t("cache.variants.window.trained"),
            wide=True,
        ),
    ]
    notes = [counted(t, "cache.variants.window.wide", n)] if window >= n else []
    return Picture(panels, badges, notes)


def _lost(missing: dict[int, np.ndarray], chosen: int, sinks: int, t: Translator) -> str:
    """How much of what the window loses the first tokens bring back, in this head's mean."""
    plain, kept_first = (float(missing[one][chosen].mean()) for one in (0, sinks))
    if not sinks:
        return t("cache.variants.window.note.plain", lost=percent_of(plain))
    left = percent_of(kept_first)
    return counted(t, "cache.variants.window.note.sinks", sinks, lost=percent_of(plain), left=left)


def _strip(
    name: str, row: np.ndarray, held: np.ndarray, sinks: int, query: int, labels: Sequence[str], t: Translator
) -> str:
    """The keys before one query: held, kept as sinks, or gone, each with its weight as a bar."""
    seen = range(query + 1)
    shown = [j for j in seen if j < SHOWN_FIRST or j > query - SHOWN_LAST]
    cells = []
    for j in shown:
        if j and j - 1 not in shown:
            cells.append(f'<li class="more">{escape(t("cache.variants.window.more", n=query + 1 - len(shown)))}</li>')
        state = "gone" if not held[j] else "sink" if j < sinks else "held"
        said = escape(f"{labels[j]}: {t(f'cache.variants.window.{state}')}, {percent_of(float(row[j]))}")
        bar = f'<i style="height:{BAR * float(row[j]):.1f}px"></i>'
        cells.append(f'<li class="{state}" title="{said}">{bar}<span>{escape(labels[j])}</span></li>')
    head = f"<h4>{escape(name)}</h4>"
    return f'{head}<ol class="tv-variant-strip" tabindex="0" aria-label="{escape(name)}">{"".join(cells)}</ol>'
