"""KV cache, the planner's picture of one model's numbers: answers, curves by context, layers by kind, precisions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from tfviz.figures.cache_variants import bytes_by_context
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.i18n import Translator, megabytes, ratio, significant
from tfviz.ui.tabs.cache.variant_shared import counted

if TYPE_CHECKING:  # torch comes with its package
    from tfviz.inference.cache_size import CacheLayer, CacheShape

PRECISIONS = ("fp32", "fp16", "fp8", "int8", "int4")
POINTS, FIRST, LAST = 90, 16, 1 << 24  # of a curve: how many, and the contexts at its ends
CONTEXT, SOURCE = 8192, 512  # tokens that are meant where none are typed, or the model's limit
MOST_TOKENS, MOST_BATCH, MOST_GIB = 100_000_000, 100_000, 100_000


@dataclass(frozen=True)
class Wish:
    """What the controls say, in numbers."""

    context: int  # 0: the model's limit, at most CONTEXT
    batch: int
    precision: str
    memory: float  # bytes
    weight_bits: float  # of a parameter; 0: weights are left out
    parameters: float | None  # typed, for a config that does not say
    source: int  # 0: the model's limit, at most SOURCE


def picture(shape: "CacheShape", wish: Wish, t: Translator, measured: Sequence[int] | None = None) -> Picture:
    """Facts, the curves, layers by kind, precisions; `measured` are numbers per token of the loaded model's layers."""
    from tfviz.inference.cache_size import CACHE_PRECISIONS, cache_bytes, largest_context

    notes = [t(f"cache.planner.remark.{one}") for one in shape.remarks] + packed_note(shape, t)
    if shape.family == "encoder":
        return Picture([], notes=[t("cache.planner.encoder", model=shape.label)])
    if not any(layer.n_heads for layer in shape.layers):
        return Picture([], notes=[t("cache.planner.nothing", model=shape.label)])
    wish = within(shape, wish)
    weights = weight_bytes(shape, wish)
    if wish.weight_bits and weights is None:
        notes.append(t("cache.planner.no_parameters"))
    if weights and weights >= wish.memory:
        notes.append(t("cache.planner.too_large", weights=megabytes(weights), memory=megabytes(wish.memory)))
    if shape.limit is not None and wish.context > shape.limit:
        notes.append(t("cache.planner.beyond", n=f"{wish.context:,}", limit=f"{shape.limit:,}"))
    room = int(max(0, wish.memory - (weights or 0)))
    precision = CACHE_PRECISIONS[wish.precision]
    total = cache_bytes(shape, wish.context, wish.batch, precision, wish.source)
    fits = largest_context(shape, room, wish.batch, precision, wish.source)
    figure = _figure(shape, wish, room, fits, t)
    said = counted(t, "cache.planner.figure.note", wish.context, batch=f"{wish.batch:,}")
    panels = [
        Panel(html=facts(shape, wish, total, fits, room, weights, t), title=shape.label, wide=True),
        Panel(figure, t("cache.planner.figure"), said, wide=True),
        Panel(
            html=_kinds(shape, wish, total, t),
            title=t("cache.planner.layers"),
            note=_held_note(shape, wish, t),
            wide=True,
        ),
        Panel(
            html=_precisions(shape, wish, room, t),
            title=t("cache.planner.precisions"),
            note=t("cache.planner.scales"),
            wide=True,
        ),
    ]
    return Picture(panels, badges(shape, wish, total, fits, room, measured, t), notes)


def packed_note(shape: "CacheShape", t: Translator) -> list[str]:
    """What the config says of its own file: quantised, by which method, in how many bits."""
    if shape.packed is None:
        return []
    method, bits = shape.packed.method, shape.packed.bits
    known = "bits" if bits else "method" if method else "some"
    return [t(f"cache.planner.packed.{known}", method=f" ({method})" if method else "", bits=bits)]


def within(shape: "CacheShape", wish: Wish) -> Wish:
    """The same with numbers where none were typed."""
    context, source = (min(most, shape.limit or most) for most in (CONTEXT, SOURCE))
    return replace(wish, context=wish.context or context, source=wish.source or source)


def weight_bytes(shape: "CacheShape", wish: Wish) -> float | None:
    """Of all parameters at the wished width; None if nobody said how many there are, 0 if weights are left out."""
    count = shape.n_parameters or wish.parameters
    if not wish.weight_bits:
        return 0.0
    return None if count is None else count * wish.weight_bits / 8


def facts(
    shape: "CacheShape", wish: Wish, total: int, fits: int | None, room: int, weights: float | None, t: Translator
) -> str:
    """The answers in large type."""
    from tfviz.inference.cache_size import CACHE_PRECISIONS, cache_bytes

    precision = CACHE_PRECISIONS[wish.precision]
    more = cache_bytes(shape, wish.context + 1, wish.batch, precision, wish.source) - total
    name = t(f"cache.planner.{wish.precision}")
    asked = counted(t, "cache.planner.fact.total", wish.context, batch=f"{wish.batch:,}", precision=name)
    shown = [(megabytes(total), asked), (megabytes(more), t("cache.planner.fact.token", n=f"{wish.context:,}"))]
    where = counted(t, "cache.planner.fact.fits", fits, memory=megabytes(room))
    if weights:
        where = counted(t, "cache.planner.fact.after", fits, memory=megabytes(room), weights=megabytes(weights))
    shown.append((t("cache.planner.endless") if fits is None else f"{fits:,}", where))
    every = whole_bytes(shape, wish)
    if every > total:
        shown.append((ratio(every / total), t("cache.planner.fact.saved", whole=megabytes(every))))
    cards = "".join(f"<div><dt>{escape(said)}</dt><dd>{escape(value)}</dd></div>" for value, said in shown)
    return f'<dl class="tv-plan-facts">{cards}</dl>'


def whole_bytes(shape: "CacheShape", wish: Wish) -> int:
    """The same layers without what saves memory: a key and value for each query head, of all positions."""
    from tfviz.inference.cache_size import CACHE_PRECISIONS, KEEPING_NOTHING, cache_bytes

    def opened(layer: "CacheLayer") -> "CacheLayer":
        if layer.kind in KEEPING_NOTHING:
            return layer
        if layer.unfolded:
            return replace(layer, key_dim=layer.unfolded, value_dim=0, window=None)
        heads = max(layer.n_heads, shape.n_query_heads)
        kind = "cross" if layer.kind == "cross" else "full"
        return replace(layer, kind=kind, window=None, n_heads=heads)

    every = replace(shape, layers=tuple(opened(layer) for layer in shape.layers))
    return cache_bytes(every, wish.context, wish.batch, CACHE_PRECISIONS[wish.precision], wish.source)


def _figure(shape: "CacheShape", wish: Wish, room: int, fits: int | None, t: Translator) -> Any:
    from tfviz.inference.cache_size import CACHE_PRECISIONS, cache_bytes

    far = max(wish.context, shape.limit or 0, min(fits or 0, LAST), 1024)
    windows = [layer.window - 1 for layer in shape.kinds if layer.window]
    even = np.geomspace(FIRST, min(4 * far, 4 * MOST_TOKENS), POINTS)
    contexts = np.unique(np.concatenate([even, windows, [wish.context]]).round().astype(np.int64))
    contexts = contexts[contexts >= min(FIRST, wish.context)]
    curves = {
        t(f"cache.planner.{name}"): np.array(
            [cache_bytes(shape, int(n), wish.batch, CACHE_PRECISIONS[name], wish.source) for n in contexts],
            dtype=np.float64,
        )
        for name in PRECISIONS
    }
    words = [t(f"cache.planner.word.{one}") for one in ("context", "cache", "memory", "limit")]
    own = t(f"cache.planner.{wish.precision}")
    figure = bytes_by_context(
        contexts, curves, own, memory=room or None, limit=shape.limit, at=wish.context, words=words
    )
    return figure.update_layout(height=360)


def _kinds(shape: "CacheShape", wish: Wish, total: int, t: Translator) -> str:
    """A row for each kind of layer: how many, what one position takes, what is held, bytes and their share."""
    heads = [t(f"cache.planner.head.{one}") for one in ("layers", "heads", "numbers", "held", "bytes", "share")]
    rows = []
    for layer, n, n_bytes in kind_bytes(shape, wish):
        name = t(f"cache.planner.kind.{'latent' if layer.unfolded else layer.kind}", window=f"{layer.window or 0:,}")
        if not layer.n_heads:
            rows.append((name, [f"{n:,}", "–", "–", "–", "0 B", "–"]))
            continue
        held = f"{layer.held(wish.context, wish.source):,}"
        share = f"{100 * n_bytes / total:.1f} %" if total else "–"
        width = f"{layer.key_dim:,} + {layer.value_dim:,}"
        rows.append((name, [f"{n:,}", f"{layer.n_heads:,}", width, held, megabytes(n_bytes), share]))
    rows.append((t("cache.planner.sum"), [f"{len(shape.layers):,}", "", "", "", megabytes(total), ""]))
    return table(t("cache.planner.layers"), heads, rows)


def kind_bytes(shape: "CacheShape", wish: Wish) -> "list[tuple[CacheLayer, int, int]]":
    """(layer, how many of it, bytes of them all) for each kind."""
    from tfviz.inference.cache_size import CACHE_PRECISIONS

    one = CACHE_PRECISIONS[wish.precision]
    return [
        (layer, n, wish.batch * n * layer.held(wish.context, wish.source) * layer.position_bytes(one))
        for layer, n in shape.kinds.items()
    ]


def _held_note(shape: "CacheShape", wish: Wish, t: Translator) -> str:
    """What a window holds; where other layers hold everything, also what one size of pages for them all would cost."""
    from tfviz.inference.cache_size import CACHE_PRECISIONS, cache_bytes

    window = next((layer.window for layer in shape.layers if layer.window), None)
    if window is None:
        return ""
    said = t("cache.planner.window.note", window=f"{window:,}", held=f"{window - 1:,}")
    if not shape.grows:
        return said
    paged = replace(shape, layers=tuple(replace(layer, window=None) for layer in shape.layers))
    whole = cache_bytes(paged, wish.context, wish.batch, CACHE_PRECISIONS[wish.precision], wish.source)
    return f"{said} {t('cache.planner.window.pages', whole=megabytes(whole))}"


def _precisions(shape: "CacheShape", wish: Wish, room: int, t: Translator) -> str:
    from tfviz.inference.cache_size import CACHE_PRECISIONS, cache_bytes, largest_context

    rows = []
    for name in PRECISIONS:
        one = CACHE_PRECISIONS[name]
        total = cache_bytes(shape, wish.context, wish.batch, one, wish.source)
        fits = largest_context(shape, room, wish.batch, one, wish.source)
        numbers = max((layer for layer in shape.layers if layer.n_heads), key=lambda layer: layer.key_dim)
        bits = 8 * one.vector_bytes(numbers.key_dim) / numbers.key_dim
        far = t("cache.planner.endless") if fits is None else f"{fits:,}"
        rows.append((t(f"cache.planner.{name}"), [significant(bits), megabytes(total), far]))
    heads = [t(f"cache.planner.head.{one}") for one in ("bits", "bytes", "fits")]
    return table(t("cache.planner.precisions"), heads, rows)


def badges(
    shape: "CacheShape",
    wish: Wish,
    total: int,
    fits: int | None,
    room: int,
    measured: Sequence[int] | None,
    t: Translator,
) -> list[Badge]:
    """The parts add up to the whole, the largest context is the largest, and the real model's tensors agree."""
    from tfviz.inference.cache_size import CACHE_PRECISIONS, cache_bytes

    summed = sum(n_bytes for _, _, n_bytes in kind_bytes(shape, wish))
    made = [Badge(summed == total, t("cache.planner.badge.sum", total=megabytes(total)))]
    if fits:
        precision = CACHE_PRECISIONS[wish.precision]
        here, next_ = (cache_bytes(shape, n, wish.batch, precision, wish.source) for n in (fits, fits + 1))
        said = counted(t, "cache.planner.badge.fits", fits, next=f"{fits + 1:,}")
        made.append(Badge(here <= room < next_, said, f"{here:,} ≤ {room:,} < {next_:,}"))
    unfolded = any(layer.unfolded for layer in shape.layers)  # then attention reads more than the cache holds
    return made if measured is None or unfolded else [*made, _measured(shape, measured, t)]


def _measured(shape: "CacheShape", measured: Sequence[int], t: Translator) -> Badge:
    """Numbers per token of the arrays that attention read, against the config's; layers without any are left out."""
    own = [layer.n_heads * (layer.key_dim + layer.value_dim) for layer in shape.layers if layer.kind != "cross"]
    stored = [numbers for numbers in own if numbers]
    matched = len(measured) == len(own)
    real = [numbers for numbers, mine in zip(measured, own, strict=True) if mine] if matched else list(measured)
    said = counted(t, "cache.planner.badge.measured", len(real), real=f"{sum(real):,}", own=f"{sum(stored):,}")
    return Badge(real == stored, said, t("cache.planner.badge.measured.title"))
