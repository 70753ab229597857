"""The architecture map's opened layer: its blocks in the order of the run, and the ways around that end in a plus."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from tfviz.ui.i18n import Translator, significant
from tfviz.ui.tabs.layers.drawing import Spot, arrow, lead, shape, stream, text

if TYPE_CHECKING:
    from tfviz.sources.blocks import Block, Layer, Side

INPUT = -1  # what the layer reads; as in tfviz.sources.blocks, which brings torch


def zoom(spot: Spot, side: "Side", layer: "Layer") -> str:
    """The opened layer: blocks in the order in which they run, and the ways around them that end in a plus."""
    t = spot.t
    units = arrange(layer.blocks)
    rows, n = [], 2 * len(units) + 1
    for i, unit in enumerate(units):
        below, here = n - 2 * i, n - 2 * i - 1  # grid rows, counted from the top
        fork = " tv-map-fork" if len(unit) > 1 else " tv-map-join" if i and len(units[i - 1]) > 1 else ""
        rows.append(_cell(arrow(_shape_into(units, i, layer, side, spot), fork), below))
        rows.append(_cell(_unit(spot, side, layer, unit), here))
    rows.append(_cell(arrow(stream(side, spot.found.d_model)), 1))
    rows += [_way_around(start, end, n) for start, end in ways_around(layer.blocks, units)]
    title = t(f"layers.map.opened.{side.name}", layer=spot.layer)
    head = f'<h3>{escape(title)}<span class="tv-map-count">{layer.parameters:,}</span></h3>'
    inner = f'{head}<div class="tv-map-layer">{"".join(rows)}</div>'
    return f'<section class="tv-map-zoom" aria-label="{escape(title)}">{inner}</section>'


def arrange(blocks: Sequence["Block"]) -> list[list[list[int]]]:
    """The layer as a row of units from below: each a list of branches side by side (mostly one), each of blocks."""
    readers = [sum(i in block.reads for block in blocks) for i in range(len(blocks))]
    branches: dict[int, list[list[int]]] = {}
    for block in blocks:
        if block.kind == "add" and len(block.reads) > 2:
            chains = [_chain(end, blocks, readers) for end in sorted(block.reads)[1:]]
            branches[min(chain[0] for chain in chains)] = chains
    inside = {i for chains in branches.values() for chain in chains for i in chain}
    return [branches.get(i) or [[i]] for i in range(len(blocks)) if i in branches or i not in inside]


def _chain(end: int, blocks: Sequence["Block"], readers: Sequence[int]) -> list[int]:
    """What leads to block `end` and to nothing else."""
    chain = [end]
    while len(blocks[chain[0]].reads) == 1 and (before := blocks[chain[0]].reads[0]) != INPUT and readers[before] == 1:
        chain.insert(0, before)
    return chain


def ways_around(blocks: Sequence["Block"], units: Sequence[Sequence[Sequence[int]]]) -> list[tuple[int, int]]:
    """(unit after which a residual connection leaves the stream, or INPUT; unit of the plus where it comes back)."""
    at = {i: u for u, unit in enumerate(units) for branch in unit for i in branch} | {INPUT: INPUT}
    return [(at[min(block.reads)], at[i]) for i, block in enumerate(blocks) if block.kind == "add" and block.reads]


def _cell(inner: str, row: int) -> str:
    return f'<div class="tv-map-cell" style="grid-row:{row}">{inner}</div>'


def _way_around(start: int, end: int, n: int) -> str:
    top, bottom = n - 2 * end - 1, n - 2 * (start + 1)
    return f'<div class="tv-map-way" style="grid-row:{top}/{bottom + 1}" aria-hidden="true"></div>'


def _shape_into(units: Sequence[Any], i: int, layer: "Layer", side: "Side", spot: Spot) -> str:
    if i == 0 or len(units[i - 1]) > 1:
        return stream(side, spot.found.d_model)
    return shape(layer.blocks[units[i - 1][0][-1]].shape)


def _unit(spot: Spot, side: "Side", layer: "Layer", unit: Sequence[Sequence[int]]) -> str:
    if len(unit) == 1:
        return _inside(spot, side, layer, layer.blocks[unit[0][0]])
    branches = []
    for branch in unit:
        drawn = [_inside(spot, side, layer, layer.blocks[i]) for i in branch]
        rise = '<div class="tv-map-rise"></div>'  # fills up to the longest branch
        branches.append(f'<div class="tv-map-branch">{arrow().join(drawn)}{rise}</div>')
    return f'<div class="tv-map-branches">{"".join(branches)}</div>'


def _inside(spot: Spot, side: "Side", layer: "Layer", block: "Block") -> str:
    """A block of the opened layer."""
    t, name = spot.t, spot.t(f"layers.map.block.{block.kind}")
    place = {"kind": "cross" if block.kind == "cross" else side.name}
    number = layer.cross if block.kind == "cross" else layer.attention
    where = None if number is None else place | {"layer": number}
    if block.kind == "add":
        factor = float(block.detail.get("factor", 1.0))
        scaled = "" if factor == 1 else f'<span class="tv-map-more">× {escape(significant(factor))}</span>'
        return spot.button("add", f'<span aria-hidden="true">+</span>{scaled}', name=name, place=where)
    tied = not block.parameters and bool(block.weights)
    inner = text(name, _more(block, t), block.parameters, t, tied=tied)
    drawn = spot.button(block.kind, inner, name=name, place=where)
    return f"<div>{drawn}{_heads(block, where, t)}</div>" if block.kind in {"attention", "cross"} else drawn


def _more(block: "Block", t: Translator) -> str:
    """What is special about a block, in its own numbers."""
    detail = block.detail
    if block.kind in {"attention", "cross"}:
        sizes = t("layers.map.heads", heads=detail["heads"], dim=detail["head_dim"])
        grouped = detail["kv_heads"] != detail["heads"]
        sizes += t("layers.map.grouped", kv_heads=detail["kv_heads"]) if grouped else ""
        return f"{sizes} · {t('layers.map.memory.keys')}" if block.kind == "cross" else sizes
    if block.kind == "feed_forward":
        widths = " → ".join(f"{size:,}" for size in (block.shape[-1], detail["hidden"], block.shape[-1]))
        gated = t("layers.map.gated") if detail["matrices"] > 2 and not detail["experts"] else ""
        experts = t("layers.map.experts", n=detail["experts"]) if detail["experts"] else ""
        return " · ".join(part for part in (widths, f"{detail['activation']}{gated}".lstrip(",， "), experts) if part)
    return str(detail.get("class", "")) if block.kind == "norm" else block.path


def _heads(block: "Block", where: Mapping[str, Any] | None, t: Translator) -> str:
    """Inside an attention: its arrays with their shapes, each leading to where it is shown."""
    one = block.detail
    q = shape((one["heads"], one["n_query"], one["head_dim"]))
    k = shape((one["kv_heads"], one["n_key"], one["head_dim"]))
    v = shape((one["kv_heads"], one["n_key"], one["value_dim"]))
    weights = shape((one["heads"], one["n_query"], one["n_key"]))
    parts = [
        lead(f"<i>q</i> {q}", "tv-map-q", t("layers.map.to.step"), "step", "", where),
        lead(f"<i>k</i> {k}", "tv-map-k", t("layers.map.to.step"), "step", "", where),
        lead(f"<i>v</i> {v}", "tv-map-k", t("layers.map.to.step"), "step", "", where),
        lead(f"{escape(t('layers.map.mask'))}", "", t("layers.map.to.masks"), "masks"),
        lead(f"{escape(t('layers.map.weights'))} {weights}", "", t("layers.map.to.weights"), "attention", "", where),
    ]
    return f'<div class="tv-map-inner">{"".join(parts)}</div>'
