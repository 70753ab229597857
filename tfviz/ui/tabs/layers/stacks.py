"""The architecture map's stacks, bottom up as in the paper's figure: from the tokens through all layers upwards."""

import json
from html import escape
from typing import TYPE_CHECKING

from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.layers.drawing import Spot, arrow, shape, stream, text

if TYPE_CHECKING:
    from tfviz.sources.blocks import Block, Layer, Side

ADDED = {"learned", "sinusoidal"}  # schemes that are added to the embedding; the others act inside the layers
PLUS = '<div class="tv-map-plus" aria-hidden="true">+</div>'


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
    rows += [arrow(stream(side, spot.found.d_model)), _layers(spot, side)]
    last = side.layers[-1].blocks[-1].shape if side.layers and side.layers[-1].blocks else ()
    for block in side.after:
        rows += [arrow(shape(last)), plain(spot, side, block)]
        last = block.shape
    rows += [arrow(shape(last)), f'<div class="tv-map-end">{escape(_end(spot, side))}</div>']
    title = escape(t(f"layers.map.side.{side.name}"))
    items = "".join(f"<li>{row}</li>" for row in rows)
    count = sum(block.parameters for block in side.blocks)
    head = f'<h3>{title}<span class="tv-map-count">{count:,}</span></h3>'
    return f'<section class="tv-map-side" data-side="{side.name}" aria-label="{title}">{head}<ol>{items}</ol></section>'


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
        said = t("layers.map.reads", shape=stream(spot.found.sides[0], spot.found.d_model))
        inside.append(f'<p class="tv-map-reads">{escape(said)}</p>')
    group = f'<div class="tv-map-chips" role="group" aria-label="{escape(t("layers.map.choose"))}">{chips}</div>'
    return f'<div class="tv-map-stack">{head}{group}{"".join(inside)}</div>'


def _chip(side: "Side", layer: "Layer", i: int, chosen: bool, t: Translator) -> str:
    place = "" if layer.attention is None else json.dumps({"kind": side.name, "layer": layer.attention})
    data = f' data-select="{escape(place)}"' if place else " disabled"
    name = escape(t("layers.map.open", layer=i))
    return f'<button type="button" aria-pressed="{str(chosen).lower()}" aria-label="{name}"{data}>{i}</button>'
