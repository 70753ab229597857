"""Speed, how flash does it: one head of the sentence attended tile by tile, and the bytes that this saves.

Every number of the run is sent once; assets/js/views/tiling.js plays it.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tfviz.ui.components.picture import Badge, Panel, Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, significant
from tfviz.ui.tabs.speed.tiling_traffic import LENGTHS, MEMORIES, SENTENCE, Wish, traffic

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.tiles import Tiling

SHOWN = 64  # queries and keys
INK_CELLS, FEW_CELLS = 40_000, 8_192  # numbers of a kind that are sent at most: all of it stays under 200 KB
SAME = 1e-5  # of the largest output: how far FP32 sums in another order may lie apart
FORMULAS = (
    r"m' = \max(m, \max_j s_j), \quad \alpha = e^{m - m'}, \quad"
    r" \ell' = \alpha\,\ell + \sum_j e^{s_j - m'}, \quad O' = \alpha\,O + \sum_j e^{s_j - m'} v_j",
    r"\text{at the end: } \frac{O}{\ell} = \sum_j \operatorname{softmax}(s)_j\, v_j, \qquad L = m + \ln \ell",
)
WORDS = (
    "player back play pause next up down row speed slider grid query key"
    " first tile grew same write skipped_too now done later skipped blocked acc out"
    " exist exist.of holds moved tiled naive so_far whole nothing over"
    " line.first line.naive"
).split()
FIELDS = ("i", "n", "rows", "columns", "cells", "k", "r", "all", "row", "token", "keys", "numbers", "bytes", "features")


def draw(scene: Scene, query_block: int, key_block: int, memory: int, length: int) -> Picture:
    from tfviz.introspection.tiles import head_tiling

    assert scene.trace is not None
    place = scene.place
    stack = scene.trace.stacks[place["kind"]]
    layer = stack.layers[place["layer"]]
    tiling = head_tiling(layer, place["head"], int(query_block), int(key_block), SHOWN)
    shown_id = "/".join(str(part) for part in (scene.trace_id, place["kind"], place["layer"], place["head"]))
    labels = [[token.label for token in tokens] for tokens in (stack.query_tokens, stack.key_tokens)]
    wish = Wish(int(query_block), int(key_block), int(memory), int(length), stack.causal)
    return picture(tiling, labels, wish, scene.t, shown_id, place["query"])


def picture(
    tiling: "Tiling", labels: Sequence[Sequence[str]], wish: Wish, t: Translator, shown_id: str = "", row: int = 0
) -> Picture:
    """The player, the bytes beside it, and what was checked on the arrays that are sent."""
    queries, keys = labels
    n_query, n_key = tiling.scores.shape
    data = {
        "id": shown_id,
        "queries": list(queries[:n_query]),
        "keys": list(keys[:n_key]),
        "row": min(row, n_query - 1),
        "blocks": [tiling.query_block, tiling.key_block],
        "dims": [tiling.dim, tiling.value.shape[1]],
        "words": {word: t(f"speed.tiling.{word}", **{name: f"{{{name}}}" for name in FIELDS}) for word in WORDS},
        **_arrays(tiling),
    }
    notes = []
    if max(len(queries), len(keys)) > SHOWN:
        notes.append(t("speed.tiling.note.cut", shown=SHOWN, n=max(len(queries), len(keys))))
    player = Panel(view="tiling", data=data, wide=True, note=t("speed.tiling.note"))
    return Picture([player, *traffic(tiling, len(queries), len(keys), wish, t)], badges(tiling, t), notes)


def _arrays(tiling: "Tiling") -> dict[str, Any]:
    """Numbers of every step; of the output rows all colours (or as many as there is room for) and the first numbers."""
    n_query, across, width = tiling.accumulator.shape
    features = int(np.clip(INK_CELLS // (n_query * across), 1, width))
    few = int(np.clip(FEW_CELLS // (n_query * across), min(2, width), min(4, width)))
    ink = {}
    for name, array in (("accumulator", tiling.accumulator), ("output", tiling.output)):
        most = float(np.abs(array).max(initial=0)) or 1.0
        ink[name] = _pack(np.rint(array[..., :features] / most * 127), "i1")
    numbers = {name: getattr(tiling, name) for name in ("scores", "maximum", "total", "correction")}
    first = {name: getattr(tiling, name)[..., :few] for name in ("accumulator", "output", "naive")}
    return {
        "numbers": {name: _pack(array, "<f4") for name, array in (numbers | first).items()},
        "ink": ink,
        "features": features,
        "few": few,
        "skipped": _pack(tiling.skipped, "u1"),
    }


def _pack(array: np.ndarray, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype=kind).tobytes()).decode("ascii")


# ---- what was checked


def badges(tiling: "Tiling", t: Translator) -> list[Badge]:
    """Of the arrays that are sent: the end against the naive form, every running number against the scores."""
    largest = max(1.0, float(np.abs(tiling.naive).max(initial=0)))
    last, total = tiling.accumulator[:, -1], tiling.total[:, -1:]
    ended = last / np.where(total == 0, 1, total)  # O / l of the numbers that are shown
    off = max(_apart(ended, tiling.naive), _apart(tiling.output, tiling.naive))
    running = running_error(tiling)
    said = {
        "same": Badge(off <= SAME * largest, t("speed.tiling.badge.same", off=significant(off))),
        "running": Badge(running <= SAME, t("speed.tiling.badge.running", off=significant(running))),
    }
    checked = [replace(badge, title=t(f"speed.tiling.badge.{name}.title")) for name, badge in said.items()]
    skips = "skipped" if tiling.skipped.any() else "none_skipped"
    skipped = t(f"speed.tiling.badge.{skips}", skipped=int(tiling.skipped.sum()), n=tiling.skipped.size)
    saved = t("speed.tiling.badge.saved", n=len(tiling.scores), cells=tiling.scores.size)
    return [*checked, Badge(_rightly_skipped(tiling), skipped), Badge(None, saved)]


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one.astype(np.float64) - other).max(initial=0)) if np.isfinite(one).all() else np.inf


def running_error(tiling: "Tiling") -> float:
    """max, over all steps, of m, l and a against their definition on the scores met so far; l relative to its size."""
    worst, size = 0.0, tiling.key_block
    before = np.full(len(tiling.scores), -np.inf)
    for j in range(tiling.total.shape[1]):
        met = tiling.scores[:, : (j + 1) * size].astype(np.float64)
        maximum = met.max(axis=1)
        shift = np.where(np.isinf(maximum), 0, maximum)
        total = np.exp(met - shift[:, None]).sum(axis=1)
        went_by = tiling.skipped[:, j].repeat(tiling.query_block)[: len(met)]
        correction = np.where(went_by, 1, np.exp(before - shift))
        shown = (tiling.maximum[:, j], tiling.total[:, j], tiling.correction[:, j])
        with np.errstate(invalid="ignore"):
            apart = [np.where(maximum == shown[0], 0, np.abs(maximum - shown[0]) / np.maximum(1, np.abs(shift)))]
        apart += [np.abs(total - shown[1]) / np.maximum(1, total), np.abs(correction - shown[2])]
        worst = float(np.max([worst, *(one.max(initial=0) for one in apart)]))  # NaN stays NaN
        before = maximum
    return worst if not np.isnan(worst) else np.inf


def _rightly_skipped(tiling: "Tiling") -> bool:
    """A tile is skipped where no cell of it has a score, and nowhere else."""
    rows, columns = tiling.query_block, tiling.key_block
    empty = [
        [
            np.isneginf(tiling.scores[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]).all()
            for j in range(across)
        ]
        for across in [tiling.skipped.shape[1]]
        for i in range(len(tiling.skipped))
    ]
    return bool((np.array(empty) == tiling.skipped).all())


def controls(t: Translator) -> dict[str, Any]:
    import gradio as gr

    from tfviz.inference.traffic import fast_memory
    from tfviz.ui.i18n import megabytes

    own = fast_memory()
    named = [(megabytes(one * 1024), one) for one in MEMORIES if one * 1024 != own]
    if own is not None:
        named = sorted(
            [*named, (t("speed.tiling.memory.own", size=megabytes(own)), own // 1024)], key=lambda one: one[1]
        )
    lengths = [(t("speed.tiling.length.sentence"), SENTENCE), *((f"{n:,}", n) for n in LENGTHS)]
    return {
        "query_block": gr.Slider(1, SHOWN, value=4, step=1, label=t("speed.tiling.query_block")),
        "key_block": gr.Slider(1, SHOWN, value=4, step=1, label=t("speed.tiling.key_block")),
        "memory": gr.Dropdown(named, value=128, label=t("speed.tiling.memory"), filterable=False),
        "length": gr.Dropdown(lengths, value=4096, label=t("speed.tiling.length"), filterable=False),
    }


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.inference.traffic import blocks_that_fit, keys_read, naive_traffic, tiled_traffic
    from tfviz.model.tiling import absorb, divide, tiled_attention, tiles

    return tiles, absorb, divide, tiled_attention, naive_traffic, tiled_traffic, keys_read, blocks_that_fit


SECTION = Section(
    key="speed.tiling",
    draw=draw,
    formulas=FORMULAS,
    controls=controls,
    selects=("kind", "layer", "head"),
    tries=(
        Try("one", values={"query_block": 1, "key_block": 1}),
        Try("whole", values={"query_block": SHOWN, "key_block": SHOWN}),
        Try("tall", values={"query_block": 8, "key_block": 2}),
        Try("first", place={"layer": 0, "head": 0}),
    ),
    code=code,
)
