"""Cache variants, fewer bits: INT8 and INT4 keys and values, their bytes and what they do to weights and outputs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tfviz.figures.cache_variants import channel_sizes, layer_errors
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene
from tfviz.ui.i18n import Translator, megabytes, significant
from tfviz.ui.tabs.cache.variant_shared import kept, layers_of, percent_of

if TYPE_CHECKING:  # torch comes with them
    from tfviz.inference.quantised_cache import Axis
    from tfviz.introspection.cache_variants import QuantisedLayer
    from tfviz.introspection.trace import AttentionStack, LayerAttention


def draw_bits(scene: Scene, stack: "AttentionStack", layer: "LayerAttention", bits: int) -> Picture:
    from tfviz.introspection.cache_variants import AXES, attend, output_errors, quantised

    head = scene.place["head"]
    own = attend(layer)
    found = {(b, axes): quantised(layer, head, b, axes, own) for b in (8, 4) for axes in AXES}
    errors = kept(scene, ("cache.bits", stack.kind, bits), output_errors, layers_of(stack), bits)
    place = head * len(layer.key) // len(layer.query)
    sizes = (np.abs(layer.key[place]).max(axis=0), np.abs(layer.value[place]).max(axis=0))
    return bits_picture(
        found, errors, sizes, layer.key.shape, layer.value.shape[-1], bits, scene.place["layer"], scene.t
    )


def bits_picture(
    found: "Mapping[tuple[int, tuple[Axis, Axis]], QuantisedLayer]",
    errors: np.ndarray,
    sizes: tuple[np.ndarray, np.ndarray],
    shape: tuple[int, ...],
    value_dim: int,
    bits: int,
    layer: int,
    t: Translator,
) -> Picture:
    """Bytes and errors of each way to quantise; `shape` of the layer's keys [kv_head, key, dim]."""
    from tfviz.inference.cache_size import CACHE_PRECISIONS

    heads = [
        t(f"cache.variants.bits.head.{one}")
        for one in ("bytes", "bits", "key", "value", "weights", "kl", "head", "all")
    ]
    count = shape[0] * shape[1] * (shape[2] + value_dim)
    rows = []
    for (width, axes), one in found.items():
        part = [
            significant(8 * one.nbytes / count),
            percent_of(one.key_error),
            percent_of(one.value_error),
            significant(one.weight_error),
        ]
        name = f"INT{width}, {_axes_name(axes, t)}"
        rows.append(
            (
                name,
                [
                    megabytes(one.nbytes),
                    *part,
                    significant(one.kl),
                    percent_of(one.head_error),
                    percent_of(one.output_error),
                ],
            )
        )
    named = {_axes_name(axes, t): errors[i] for i, axes in enumerate(dict.fromkeys(axes for _, axes in found))}
    figure = layer_errors(named, layer, words=(t("cache.variants.layer"), t("cache.variants.output_error")))
    channel_words = [t(f"cache.variants.bits.{one}") for one in ("channel", "size", "keys", "values")]
    panels = [
        Panel(
            html=table(t("cache.variants.bits.table"), heads, rows),
            title=t("cache.variants.bits.table"),
            note=t("cache.variants.bits.note"),
            wide=True,
        ),
        Panel(
            channel_sizes(*sizes, words=channel_words),
            t("cache.variants.bits.channels"),
            t("cache.variants.bits.channels.note"),
        ),
        Panel(
            figure,
            t("cache.variants.bits.layers", bits=bits),
            t("cache.variants.bits.layers.note"),
            select={"x": "layer"},
        ),
    ]
    badges = []
    for width in (8, 4):
        one = found[width, ("token", "token")]
        rule = CACHE_PRECISIONS[f"int{width}"]
        planned = shape[0] * shape[1] * (rule.vector_bytes(shape[2]) + rule.vector_bytes(value_dim))
        badges.append(
            Badge(
                one.nbytes == planned,
                t("cache.variants.badge.bytes", bits=width, bytes=f"{one.nbytes:,}", planned=f"{planned:,}"),
            )
        )
    finer = all(found[8, axes].output_error <= found[4, axes].output_error for _, axes in found)
    badges.append(Badge(finer, t("cache.variants.badge.finer")))
    here = [found[bits, axes].output_error for axes in dict.fromkeys(axes for _, axes in found)]
    agree = bool(np.abs(errors[:, layer] - here).max() <= 1e-4)
    badges.append(Badge(agree, t("cache.variants.badge.table")))
    return Picture(panels, badges)


def _axes_name(axes: tuple[str, str], t: Translator) -> str:
    return t(f"cache.variants.bits.{axes[0]}_{axes[1]}")
