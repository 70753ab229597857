"""Cache variants, static against dynamic memory: allocated, copied, and the time of one step on this machine."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tfviz.figures.cache_variants import allocation_growth, write_times
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene
from tfviz.ui.i18n import Translator, megabytes, ratio
from tfviz.ui.tabs.cache.variant_shared import counted, kept

if TYPE_CHECKING:  # torch comes with them
    from tfviz.inference.measure import Latency
    from tfviz.introspection.trace import AttentionStack

MOST_STEPS = 2048


def draw_growth(scene: Scene, stack: "AttentionStack", room: int) -> Picture:
    from tfviz.introspection.cache_variants import growth_times

    layer = next(iter(stack.layers.values()))
    shape = len(layer.key), layer.key.shape[-1], layer.value.shape[-1]
    device = str(scene.bench.resident.device)
    times = kept(scene, ("cache.growth", stack.kind), growth_times, *shape, device)
    token = 4 * sum(len(one.key) * (one.key.shape[-1] + one.value.shape[-1]) for one in stack.layers.values())
    return growth_picture(token, len(stack.query_tokens), room, times, shape, device, scene.t)


def growth_picture(
    token_bytes: int,
    start: int,
    room: int,
    times: "Mapping[tuple[str, int], Latency]",
    shape: tuple[int, int, int],
    device: str,
    t: Translator,
) -> Picture:
    """Bytes allocated by three ways to grow, and what a step of two of them takes on this machine."""
    from tfviz.introspection.cache_variants import GROWTHS, growth

    steps = min(max(room - start, 1), MOST_STEPS)
    ways = {way: growth(way, start, steps, room) for way in GROWTHS}
    length = start + np.arange(steps + 1)
    at = np.unique(np.linspace(0, steps, 200).round().astype(np.int64))
    names = {way: t(f"cache.variants.growth.{way}", room=f"{room:,}") for way in GROWTHS}
    allocated = {names[way]: token_bytes * one.allocated[at].astype(np.float64) for way, one in ways.items()}
    words = [t(f"cache.variants.growth.{one}") for one in ("tokens", "allocated", "used")]
    figure = allocation_growth(length[at], allocated, token_bytes * length[at].astype(np.float64), words=words)
    rows = []
    for way, one in ways.items():
        end = one.allocated[-1] * token_bytes
        used = (length / one.allocated).mean()
        rows.append(
            (names[way], [megabytes(end), f"{100 * used:.0f} %", megabytes(float(one.copied[-1]) * token_bytes)])
        )
    heads = [t(f"cache.variants.growth.head.{one}") for one in ("end", "used", "copied")]
    lengths = np.array(sorted({n for _, n in times}))
    measured = {
        names[way]: np.array([[getattr(times[way, int(n)], q) for n in lengths] for q in ("low", "median", "high")])
        for way in ("exact", "static")
    }
    time_words = (t("cache.variants.growth.held"), t("cache.variants.growth.us"))
    far = int(lengths[-1])
    gain = times["exact", far].median / times["static", far].median
    runs = times["exact", far].runs
    said = counted(t, "cache.variants.growth.measured", shape[0], width=shape[1], device=device, runs=runs)
    saved = ratio(max(gain, 1 / gain))
    enough = all(bool((one.allocated >= length).all()) for one in ways.values())
    badges = [
        Badge(enough, t("cache.variants.badge.room")),
        Badge(
            None,
            t("cache.variants.badge.faster" if gain >= 1 else "cache.variants.badge.slower", ratio=saved, n=f"{far:,}"),
        ),
    ]
    panels = [
        Panel(
            figure,
            t("cache.variants.growth.figure"),
            counted(t, "cache.variants.growth.note", start, steps=f"{steps:,}"),
        ),
        Panel(write_times(lengths, measured, words=time_words), t("cache.variants.growth.times"), said),
        Panel(
            html=table(t("cache.variants.growth.table"), heads, rows),
            title=t("cache.variants.growth.table"),
            note=t("cache.variants.growth.table.note"),
            wide=True,
        ),
    ]
    return Picture(panels, badges)
