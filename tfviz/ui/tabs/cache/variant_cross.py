"""Cache variants, cross attention: keys and values of the source, written at the first step and read at all others."""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tfviz.figures.cache_variants import allocation_growth
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene
from tfviz.ui.i18n import Translator, megabytes, significant
from tfviz.ui.tabs.cache.variant_shared import counted

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.cache_variants import CrossSeen


def draw_cross(scene: Scene) -> Picture:
    from tfviz.introspection.cache_variants import cross_twice

    assert scene.trace is not None
    if "cross" not in scene.trace.stacks:
        return Picture([], notes=[scene.t("cache.variants.no_cross", model=scene.trace.model_label)])
    seen = scene.examine(partial(cross_twice, kernel=scene.trace.kernel))
    layer = next(iter(scene.trace.stacks["cross"].layers.values()))
    width = len(layer.key) * (layer.key.shape[-1] + layer.value.shape[-1])
    return cross_picture(seen, width, scene.trace.stacks["cross"].n_layers, scene.t)


def cross_picture(seen: "CrossSeen", width: int, n_layers: int, t: Translator) -> Picture:
    """`width`: numbers of one source token's key and value, all heads of one layer."""
    steps = np.arange(1, 4 * max(seen.n_source, seen.self_length) + 1)
    per_step = seen.self_bytes / seen.self_length
    fixed = np.full(len(steps), float(seen.cross_bytes))
    names = [t("cache.variants.cross.cross"), t("cache.variants.cross.self")]
    words = [t(f"cache.variants.cross.{one}") for one in ("tokens", "bytes", "sum")]
    figure = allocation_growth(
        steps, {names[0]: fixed, names[1]: per_step * steps}, fixed + per_step * steps, words=words
    )
    saved = n_layers * seen.n_source * seen.d_model * width  # multiply-adds of W_K and W_V on the whole memory
    once = n_layers * seen.d_model * width  # what a new token's own keys and values take
    rows = [
        (
            t("cache.variants.cross.row.bytes"),
            [megabytes(seen.cross_bytes), counted(t, "cache.variants.cross.row.bytes.why", seen.n_source)],
        ),
        (
            t("cache.variants.cross.row.saved"),
            [f"{saved:,}", f"{n_layers} × {seen.n_source:,} × {seen.d_model:,} × {width:,}"],
        ),
        (t("cache.variants.cross.row.own"), [f"{once:,}", f"{n_layers} × {seen.d_model:,} × {width:,}"]),
    ]
    heads = [t("cache.variants.cross.head.value"), t("cache.variants.cross.head.from")]
    planned = n_layers * seen.n_source * width * 4
    badges = [
        Badge(seen.change == 0, t("cache.variants.badge.once", change=significant(seen.change))),
        Badge(
            seen.cross_bytes == planned,
            t("cache.variants.badge.cross", bytes=f"{seen.cross_bytes:,}", planned=f"{planned:,}"),
        ),
    ]
    panels = [
        Panel(figure, t("cache.variants.cross.figure"), counted(t, "cache.variants.cross.note", seen.n_source)),
        Panel(
            html=table(t("cache.variants.cross.table"), heads, rows),
            title=t("cache.variants.cross.table"),
            note=t("cache.variants.cross.table.note"),
        ),
    ]
    return Picture(panels, badges)
