"""Cache variants, fewer key/value heads: MHA, GQA and MQA at the model's dimensions, and what pooling does."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from tfviz.figures.cache_variants import layer_errors
from tfviz.ui.components.picture import Badge, Panel, Picture
from tfviz.ui.components.section import Scene
from tfviz.ui.i18n import Translator, megabytes, ratio
from tfviz.ui.tabs.cache.variant_shared import counted, kept, layers_of, percent_of

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.trace import AttentionStack, LayerAttention


@dataclass(frozen=True)
class Sharing:
    """One number of KV heads: bytes of a token in all layers, and the error that pooling alone would make here."""

    n_kv_heads: int
    token_bytes: int  # FP16
    error: float | None  # None: nothing is lost


def draw_heads(scene: Scene, stack: "AttentionStack", layer: "LayerAttention") -> Picture:
    from tfviz.introspection.cache_variants import attend, head_counts, pooling_error, pooling_errors

    n_heads, own = len(layer.query), len(layer.key)
    numbers = sum(one.key.shape[-1] + one.value.shape[-1] for one in stack.layers.values())  # of a token and head
    seen = attend(layer)
    rows = [
        Sharing(n, 2 * n * numbers, None if n >= own else pooling_error(layer, n, seen))
        for n in head_counts(n_heads, own)
    ]
    fewer = [row.n_kv_heads for row in rows if row.n_kv_heads < own]
    errors = np.empty((0, stack.n_layers), dtype=np.float32)
    if fewer:
        errors = kept(scene, ("cache.pooled", stack.kind), pooling_errors, layers_of(stack), fewer)
    return heads_picture(rows, n_heads, own, errors, scene.place["layer"], scene.t)


def heads_picture(
    rows: Sequence[Sharing], n_heads: int, own: int, errors: np.ndarray, layer: int, t: Translator
) -> Picture:
    """The heads drawn as they share; `errors` [count below own, layer] of all layers."""
    cards = "".join(_sharing(row, rows[0], n_heads, own, t) for row in rows)
    groups = Panel(
        html=f'<div class="tv-variant-cards">{cards}</div>',
        title=t("cache.variants.heads.title"),
        note=t("cache.variants.heads.note"),
        wide=True,
    )
    fewer = [row for row in rows if row.n_kv_heads < own]
    panels = [groups]
    if fewer:
        named = {_sharing_name(row.n_kv_heads, n_heads, t): errors[i] for i, row in enumerate(fewer)}
        words = (t("cache.variants.layer"), t("cache.variants.output_error"))
        figure = layer_errors(named, layer, words=words)
        panels.append(
            Panel(
                figure,
                t("cache.variants.heads.layers"),
                t("cache.variants.heads.trained"),
                wide=True,
                select={"x": "layer"},
            )
        )
    first, last = rows[0], rows[-1]
    badges = [
        Badge(
            first.token_bytes * last.n_kv_heads == last.token_bytes * first.n_kv_heads,
            t(
                "cache.variants.badge.heads",
                ratio=ratio(first.token_bytes / last.token_bytes),
                n=first.n_kv_heads // last.n_kv_heads,
            ),
        )
    ]
    if fewer:
        here = [row.error for row in fewer]
        agree = all(abs(float(errors[i, layer]) - float(e or 0)) <= 1e-4 for i, e in enumerate(here))
        badges.append(Badge(agree, t("cache.variants.badge.pooled")))
    return Picture(panels, badges)


def _sharing_name(n: int, n_heads: int, t: Translator) -> str:
    kind = "mha" if n == n_heads else "mqa" if n == 1 else "gqa"
    return t(f"cache.variants.{kind}", n=n)


def _sharing(row: Sharing, first: Sharing, n_heads: int, own: int, t: Translator) -> str:
    """A card: query heads above the key/value head that they share."""
    group = n_heads // row.n_kv_heads
    boxes = "".join(
        f'<span class="tv-variant-group"><i>{"<b></b>" * group}</i><u></u></span>' for _ in range(row.n_kv_heads)
    )
    name = escape(_sharing_name(row.n_kv_heads, n_heads, t))
    mine = f" <em>{escape(t('cache.variants.own'))}</em>" if row.n_kv_heads == own else ""
    said = escape(
        t(
            "cache.variants.token_bytes",
            bytes=megabytes(row.token_bytes),
            ratio=ratio(row.token_bytes / first.token_bytes),
        )
    )
    if row.n_kv_heads == own:
        error = t("cache.variants.as_it_is")
    elif row.error is None:
        error = t("cache.variants.repeated")
    else:
        error = t("cache.variants.pooled_error", error=percent_of(row.error))
    picture = escape(counted(t, "cache.variants.heads.drawn", row.n_kv_heads, heads=n_heads))
    return (
        f'<div class="tv-variant-card{" own" if mine else ""}"><h4>{name}{mine}</h4>'
        f'<div class="tv-variant-heads" role="img" aria-label="{picture}">{boxes}</div>'
        f"<p>{said}</p><p>{escape(error)}</p></div>"
    )
