"""The architecture map as markup: stacks of blocks, bottom up as in the paper's figure, and one layer opened.

Blocks are buttons that lead to their tab; between them stands the shape that passes. Only markup is made here: which
blocks there are, in which order and with how many parameters comes from tfviz.sources.architecture.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from tfviz.ui.i18n import Translator, significant

if TYPE_CHECKING:
    from tfviz.sources.blocks import Architecture, Block, Layer, Side

INPUT = -1
LEADS = {  # kind of block -> (tab, section) that it opens
    "embedding": ("", ""),
    "positions": ("positions", ""),
    "norm": ("layers", "layers.norm"),
    "attention": ("attention", ""),
    "cross": ("attention", ""),
    "feed_forward": ("layers", "layers.ffn"),
    "add": ("layers", "layers.residual"),
}
ADDED = {"learned", "sinusoidal"}  # schemes that are added to the embedding; the others act inside the layers
PLUS = '<div class="tv-map-plus" aria-hidden="true">+</div>'


@dataclass(frozen=True)
class Spot:
    """What is drawn: the model, the stack and the layer that are opened, and the kind of attention chosen there."""

    found: "Architecture"
    side: str
    layer: int
    t: Translator

    def button(
        self, kind: str, inner: str, *, name: str, place: Mapping[str, Any] | None = None, extra: str = ""
    ) -> str:
        """A block that leads somewhere, or one that only stands there."""
        tab, section = LEADS.get(kind, ("", ""))
        classes = f"tv-map-block tv-map-{kind.replace('_', '-')} {extra}".strip()
        if not tab:
            return f'<div class="{classes}">{inner}</div>'
        return lead(inner, classes, self.t(f"layers.map.to.{section or tab}", name=name), tab, section, place)


def lead(
    inner: str, classes: str, says: str, tab: str, section: str = "", place: Mapping[str, Any] | None = None
) -> str:
    """A button that opens a tab, at a section and a place of the shared selection."""
    data = f' data-tab="{tab}"' + (f' data-section="{section}"' if section else "")
    data += f' data-select="{escape(json.dumps(dict(place)))}"' if place else ""
    hidden = f'<span class="tv-hidden">{escape(says)}</span>'
    return f'<button type="button" class="{classes}" title="{escape(says)}"{data}>{inner}{hidden}</button>'


def shape(sizes: Iterable[int]) -> str:
    return " × ".join(f"{size:,}" for size in sizes)


def text(name: str, more: str, count: int | None, t: Translator, *, tied: bool = False) -> str:
    """What stands in a block: its name, what is special about it, its parameters."""
    said = f'<span class="tv-map-more">{escape(more)}</span>' if more else ""
    number = t("layers.map.tied") if tied else "" if count is None else f"{count:,}"
    counted = f'<span class="tv-map-count">{escape(number)}</span>' if number else ""
    return f'<span class="tv-map-name">{escape(name)}</span>{counted}{said}'


def whole(spot: Spot) -> str:
    """The stacks, with the opened layer after the first: encoder, layer, decoder."""
    stacks = [stack(spot, side) for side in spot.found.sides]
    side = next(side for side in spot.found.sides if side.name == spot.side)
    opened = zoom(spot, side, side.layers[spot.layer]) if side.layers else ""
    parts = [stacks[0], opened, *stacks[1:]]
    return f'<div class="tv-map" data-stacks="{len(stacks)}" data-open="{escape(spot.side)}">{"".join(parts)}</div>'


# ---- one stack


def stack(spot: Spot, side: "Side") -> str:
    """From the tokens up to what the stack gives."""
    t = spot.t
    rows = [_tokens(side, t)]
    last: tuple[int, ...] = ()
    for block in side.before:
        if not _acts_inside(block):
            added = block.kind in {"segments", "positions"}
            rows += [PLUS if added else arrow(shape(last)), plain(spot, side, block)]
            last = block.shape or last
    rows += [arrow(_stream(side, spot.found.d_model)), _layers(spot, side)]
    last = side.layers[-1].blocks[-1].shape if side.layers and side.layers[-1].blocks else ()
    for block in side.after:
        rows += [arrow(shape(last)), plain(spot, side, block)]
        last = block.shape
    rows += [arrow(shape(last)), f'<div class="tv-map-end">{escape(_end(spot, side))}</div>']
    title = escape(t(f"layers.map.side.{side.name}"))
    items = "".join(f"<li>{row}</li>" for row in rows)
    count = sum(block.parameters for block in side.blocks)
    head = f'<h4>{title}<span class="tv-map-count">{count:,}</span></h4>'
    return f'<section class="tv-map-side" data-side="{side.name}" aria-label="{title}">{head}<ol>{items}</ol></section>'


def arrow(label: str = "", extra: str = "") -> str:
    said = f"<span>{escape(label)}</span>" if label else ""
    return f'<div class="tv-map-arrow {extra}">{said}</div>'


def _stream(side: "Side", d_model: int) -> str:
    return shape((side.n_tokens, d_model))


def _tokens(side: "Side", t: Translator) -> str:
    key = {"decoder": "layers.map.tokens.target"}.get(side.name, "layers.map.tokens")
    return f'<div class="tv-map-end">{escape(t(key, n=side.n_tokens))}</div>'


def _end(spot: Spot, side: "Side") -> str:
    """What the stack's last vectors are for."""
    last = side.after[-1] if side.after else None
    if side.name == "encoder":
        return spot.t("layers.map.memory")
    if last is not None and last.kind == "head":
        return spot.t("layers.map.logits")
    pooled = last is not None and last.shape[:1] == (1,) and side.n_tokens > 1
    return spot.t("layers.map.pooled" if pooled else "layers.map.vectors")


def _acts_inside(block: "Block") -> bool:
    """Positions that are not added to the embedding: they stand with the layers in which they act."""
    return block.kind == "positions" and block.detail["scheme"] not in ADDED


def plain(spot: Spot, side: "Side", block: "Block") -> str:
    """A block outside the layers."""
    t = spot.t
    tied = block.kind in {"embedding", "head"} and block.parameters == 0 and any(one.shared for one in block.weights)
    table = next((one.shape for one in block.weights if len(one.shape) == 2), ())
    more = shape(table)
    if block.kind == "positions":
        more = t(f"layers.map.scheme.{block.detail['scheme']}") + (f" {more}" if more else "")
    elif block.kind in {"linear", "norm", "other"}:
        more = str(block.detail["class"]) if block.kind == "norm" else block.path
    name = t(f"layers.map.block.{block.kind}")
    count = block.parameters if block.weights else None
    kind = "plain-norm" if block.kind == "norm" else block.kind  # it belongs to no layer, so it leads to none
    place = {"kind": side.name, "layer": 0} if block.kind == "positions" else None
    return spot.button(kind, text(name, more, count, t, tied=tied), name=name, place=place)


def _layers(spot: Spot, side: "Side") -> str:
    """The stack: a button a layer, filled from below as the stream runs."""
    t, here = spot.t, spot.side == side.name
    chips = "".join(_chip(side, layer, i, here and i == spot.layer, t) for i, layer in enumerate(side.layers))
    sizes = sorted({layer.parameters for layer in side.layers if layer.parameters})
    each = " – ".join(f"{size:,}" for size in ([sizes[0], sizes[-1]] if len(sizes) > 1 else sizes))
    once = sum(layer.parameters == 0 for layer in side.layers) == len(side.layers) - 1 > 0
    said = t("layers.map.once" if once else "layers.map.each", n=each)
    head = f"<b>{len(side.layers)} ×</b> {escape(t('layers.map.layer'))}"
    head += f'<span class="tv-map-more">{escape(said)}</span>'
    inside = [plain(spot, side, block) for block in side.before if _acts_inside(block)]
    if side.name == "decoder" and any(block.kind == "cross" for layer in side.layers for block in layer.blocks):
        said = t("layers.map.reads", shape=_stream(spot.found.sides[0], spot.found.d_model))
        inside.append(f'<p class="tv-map-reads">{escape(said)}</p>')
    group = f'<div class="tv-map-chips" role="group" aria-label="{escape(t("layers.map.choose"))}">{chips}</div>'
    return f'<div class="tv-map-stack">{head}{group}{"".join(inside)}</div>'


def _chip(side: "Side", layer: "Layer", i: int, chosen: bool, t: Translator) -> str:
    place = "" if layer.attention is None else json.dumps({"kind": side.name, "layer": layer.attention})
    data = f' data-select="{escape(place)}"' if place else " disabled"
    name = escape(t("layers.map.open", layer=i))
    return f'<button type="button" aria-pressed="{str(chosen).lower()}" aria-label="{name}"{data}>{i}</button>'


# ---- one layer


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
    rows.append(_cell(arrow(_stream(side, spot.found.d_model)), 1))
    rows += [_way_around(start, end, n) for start, end in ways_around(layer.blocks, units)]
    title = t(f"layers.map.opened.{side.name}", layer=spot.layer)
    head = f'<h4>{escape(title)}<span class="tv-map-count">{layer.parameters:,}</span></h4>'
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
        return _stream(side, spot.found.d_model)
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
        return " · ".join(part for part in (widths, f"{detail['activation']}{gated}".strip(), experts) if part)
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
