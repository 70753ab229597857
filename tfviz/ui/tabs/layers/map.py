"""Layers tab, architecture map: the loaded model drawn as the blocks it runs, with shapes and parameters."""

from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene, Section
from tfviz.ui.i18n import Translator, percent, significant
from tfviz.ui.tabs.layers.drawing import Spot, shape
from tfviz.ui.tabs.layers.opened import zoom
from tfviz.ui.tabs.layers.stacks import stack

if TYPE_CHECKING:
    from tfviz.sources.blocks import Architecture, Layer

SHARES = ("embedding", "positions", "segments", "attention", "cross", "feed_forward", "norm", "linear", "head", "other")


def picture(found: "Architecture", kind: str, layer: int, precision: str, t: Translator) -> Picture:
    """The whole model with `layer` of the stack that `kind` of attention belongs to opened."""
    side = "decoder" if kind == "cross" else kind
    opened = _opened(found, side, kind, layer)
    spot = Spot(found, side, opened, t)
    layers = next(one.layers for one in found.sides if one.name == side)
    panels = [
        Panel(view="architecture", data={"html": whole(spot)}, note=t("layers.map.note"), wide=True),
        Panel(title=t("layers.map.shares"), html=shares(found, t)),
        Panel(title=t("layers.map.modules", layer=opened), html=modules(layers[opened], t)),
    ]
    return Picture(panels, badges(found, precision, t), notes(found, t))


def whole(spot: Spot) -> str:
    """The stacks, with the opened layer after the first: encoder, layer, decoder."""
    stacks = [stack(spot, side) for side in spot.found.sides]
    side = next(side for side in spot.found.sides if side.name == spot.side)
    opened = zoom(spot, side, side.layers[spot.layer])
    parts = [stacks[0], opened, *stacks[1:]]
    return f'<div class="tv-map" data-stacks="{len(stacks)}" data-open="{escape(spot.side)}">{"".join(parts)}</div>'


def _opened(found: "Architecture", side: str, kind: str, layer: int) -> int:
    """Which run of a layer holds attention number `layer`."""
    layers = next(one.layers for one in found.sides if one.name == side)
    numbers = [one.cross if kind == "cross" else one.attention for one in layers]
    return numbers.index(layer) if layer in numbers else 0


def badges(found: "Architecture", precision: str, t: Translator) -> list[Badge]:
    """What was counted twice, and what was added up again."""
    counted = sum(block.parameters for block in found.blocks)
    said = t("layers.map.sum", n=f"{counted:,}", total=f"{found.total:,}")
    gaps = [layer.gap for side in found.sides for layer in side.layers]
    known = [gap for gap in gaps if gap is not None]
    sums = sum(block.kind == "add" for block in found.blocks)
    fits = len(known) == len(gaps) and max(known, default=0.0) <= rounding.once(precision)
    gap = max(known, default=0.0)
    said_gap = t("layers.map.sums", n=sums, gap=significant(gap)) if gap else t("layers.map.sums.exact", n=sums)
    adds = Badge(fits, said_gap, t("layers.map.sums.title"))
    return [Badge(counted == found.total, said, t("layers.map.sum.title")), adds]


def notes(found: "Architecture", t: Translator) -> list[str]:
    lost = sum(layer.gap is None for side in found.sides for layer in side.layers)
    said = [t("layers.map.lost", n=lost)] if lost else []
    count = sum(block.parameters for block in found.unused)
    return [*said, t("layers.map.unused", n=f"{count:,}", path=found.unused[0].path)] if count else said


def shares(found: "Architecture", t: Translator) -> str:
    """Where the parameters lie, as bars and numbers."""
    counts = {kind: sum(block.parameters for block in found.blocks if block.kind == kind) for kind in SHARES}
    total = max(1, sum(counts.values()))
    rows = [
        (t(f"layers.map.block.{kind}"), f"{count:,}", percent(count / total), 100 * count / max(counts.values()))
        for kind, count in counts.items()
        if count
    ]
    body = "".join(
        f'<tr><th scope="row">{name}</th><td class="tv-map-bar"><i style="width:{width:.1f}%"></i></td>'
        f"<td>{count}</td><td>{part}</td></tr>"
        for name, count, part, width in rows
    )
    caption = f'<caption class="tv-hidden">{t("layers.map.shares")}</caption>'
    return f'<table class="tv-table tv-map-shares">{caption}<tbody>{body}</tbody></table>'


def modules(layer: "Layer", t: Translator) -> str:
    """The opened layer's tensors by the names that they have in the checkpoint."""
    start = len(layer.path) + 1
    rows = [
        (weight.name[start:], (shape(weight.shape), f"{weight.count:,}"))
        for block in layer.blocks
        for weight in block.weights
    ]
    return table(t("layers.map.tensors"), (t("layers.map.shape"), t("layers.map.parameters")), rows)


def draw(scene: Scene) -> Picture:
    from tfviz.sources.architecture import architecture

    assert scene.trace is not None
    found = scene.examine(architecture)
    return picture(found, scene.place["kind"], scene.place["layer"], scene.trace.precision, scene.t)


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.sources import architecture, layer_blocks, residual_flow

    return architecture.architecture, layer_blocks.layer_of, residual_flow.find_flow


SECTION = Section("layers.map", draw, selects=("layer",), code=code)
