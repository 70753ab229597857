"""Layers, residual stream: how long each token's vector is, what each sublayer adds to it, how far it turns.

    pre        final = x_0 + sum over layers of (attention_out + feed_forward_out)
    post       x = norm(x + sublayer(x)): nothing adds up over layers, so lengths are compared instead

share of a sublayer = (its output . final) / (final . final); the shares of all, and of x_0, add up to 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.figures.layers import layer_lines, layer_shares, length_map
from tfviz.figures.theme import SERIES
from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, significant
from tfviz.ui.tabs.layers.feed_forward import TOKENS, side_of, window

if TYPE_CHECKING:  # torch comes with it
    from tfviz.introspection.anatomy import LayerSeen, NormSeen

QUANTITIES = ("resid_post", "attention_out", "cross_out", "feed_forward_out", "resid_mid")
ADDED = ("attention_out", "cross_out", "feed_forward_out")
COLOURS = dict(
    zip(
        ("attention_out", "cross_out", "feed_forward_out", "resid_post"),
        (SERIES[0], SERIES[2], SERIES[3], SERIES[5]),
        strict=True,
    )
)
ADDITIVE = {"pre", "parallel"}
FORMULAS = (
    r"\text{pre-norm:}\quad x \leftarrow x + \text{Sublayer}(\text{Norm}(x))",
    r"\text{post-norm:}\quad x \leftarrow \text{Norm}(x + \text{Sublayer}(x))",
)


@dataclass(frozen=True)
class Shown:
    """Everything that the picture is drawn from."""

    layers: Sequence["LayerSeen"]  # all of one side
    layer: int
    token: int
    tokens: Sequence[str]
    precision: str = "fp32"

    @property
    def seen(self) -> "LayerSeen":
        return self.layers[self.layer]

    @property
    def additive(self) -> bool:
        """Whether every layer only adds to the stream."""
        return all(layer.placement in ADDITIVE for layer in self.layers)


def draw(scene: Scene, quantity: str) -> Picture:
    from tfviz.introspection import anatomy

    assert scene.trace is not None
    stack, side = scene.trace.stacks[scene.place["kind"]], side_of(scene.place["kind"])
    seen = scene.examine(anatomy.examine)
    shown = Shown(
        layers=[seen.layers[side, i] for i in range(stack.n_layers)],
        layer=scene.place["layer"],
        token=scene.place["query"],
        tokens=[token.label for token in stack.query_tokens],
        precision=scene.trace.precision,
    )
    return picture(shown, quantity, scene.t)


def picture(shown: Shown, quantity: str, t: Translator) -> Picture:
    """Lengths over the sentence, then the chosen token's way through the layers."""
    notes = []
    if getattr(shown.seen, quantity) is None:
        quantity = "attention_out"
        notes.append(t("layers.residual.no_cross"))
    n = len(shown.tokens)
    first, end = window(n, shown.token, TOKENS)
    if end - first < n:
        notes.append(t("layers.window", first=first, last=end - 1, n=n))
    panels = [_map(shown, quantity, (first, end), t), _lengths(shown, t), _turns(shown, t), _added(shown, t)]
    return Picture(panels, _badges(shown, t), notes)


def lengths(layers: Sequence["LayerSeen"], quantity: str) -> np.ndarray:
    """[layer, token]: |quantity| of every token in every layer."""
    return np.stack([np.linalg.norm(getattr(layer, quantity), axis=1) for layer in layers])


def shares(layers: Sequence["LayerSeen"], token: int) -> tuple[float, dict[str, np.ndarray]]:
    """(share of x_0, shares of each kind of sublayer by layer) in the token's last vector, along it."""
    final = layers[-1].resid_post[token].astype(np.float64)
    along = final / max(float(final @ final), 1e-30)
    of = {
        name: np.array([float(getattr(layer, name)[token] @ along) for layer in layers])
        for name in ADDED
        if getattr(layers[0], name) is not None
    }
    return float(layers[0].resid_pre[token] @ along), of


def relative_lengths(layers: Sequence["LayerSeen"], token: int) -> dict[str, np.ndarray]:
    """|what a sublayer adds| / |what it is added to|, by layer."""
    read = {"attention_out": "resid_pre", "cross_out": "resid_mid", "feed_forward_out": "resid_mid"}
    if layers[0].resid_cross is not None:
        read["feed_forward_out"] = "resid_cross"
    given = {name: to for name, to in read.items() if getattr(layers[0], name) is not None}
    return {
        name: lengths(layers, name)[:, token] / np.maximum(lengths(layers, to)[:, token], 1e-30)
        for name, to in given.items()
    }


def cosines(rows: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> np.ndarray:
    """The cosine of each pair of vectors."""
    pairs = zip(rows, others, strict=True)
    return np.array([float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-30)) for a, b in pairs])


# ---- panels


def _map(shown: Shown, quantity: str, part: tuple[int, int], t: Translator) -> Panel:
    first, end = part
    values = lengths(shown.layers, quantity)[:, first:end]
    words = [t(f"layers.word.{word}") for word in ("layer", "length")]
    return Panel(
        title=t("layers.residual.map.title", quantity=t(f"layers.residual.{quantity}")),
        figure=length_map(values, shown.tokens[first:end], (shown.layer, shown.token), first=first, words=words),
        note=t("layers.residual.map.note"),
        wide=True,
        select={"x": "query", "y": "layer"},
    )


def _named(of: Mapping[str, np.ndarray], t: Translator) -> tuple[dict[str, np.ndarray], list[str]]:
    """(the same by their names on the page, the colour that each has in every figure here)."""
    return {t(f"layers.residual.{name}"): values for name, values in of.items()}, [COLOURS[name] for name in of]


def _lengths(shown: Shown, t: Translator) -> Panel:
    given = [name for name in ("resid_post", *ADDED) if getattr(shown.seen, name) is not None]
    of = {name: lengths(shown.layers, name)[:, shown.token] for name in given}
    words = [t("layers.word.layer"), t("layers.word.length")]
    named, colours = _named(of, t)
    return Panel(
        title=t("layers.residual.lengths.title", token=shown.tokens[shown.token]),
        figure=layer_lines(named, shown.layer, log=True, colours=colours, words=words),
        note=t("layers.residual.lengths.note"),
        select={"x": "layer"},
    )


def _added(shown: Shown, t: Translator) -> Panel:
    if shown.additive:
        start, of = shares(shown.layers, shown.token)
        words = [t("layers.word.layer"), t("layers.residual.word.share"), t("layers.residual.word.start")]
        named, colours = _named(of, t)
        figure = layer_shares(named, start, shown.layer, colours=colours, words=words)
        return Panel(
            title=t("layers.residual.shares.title"),
            figure=figure,
            note=t("layers.residual.shares.note"),
            select={"x": "layer"},
            wide=True,
        )
    words = [t("layers.word.layer"), t("layers.residual.word.ratio")]
    named, colours = _named(relative_lengths(shown.layers, shown.token), t)
    figure = layer_lines(named, shown.layer, colours=colours, words=words)
    return Panel(
        title=t("layers.residual.ratios.title"),
        figure=figure,
        note=t("layers.residual.ratios.note"),
        select={"x": "layer"},
        wide=True,
    )


def _turns(shown: Shown, t: Translator) -> Panel:
    before = [layer.resid_pre[shown.token] for layer in shown.layers]
    after = [layer.resid_post[shown.token] for layer in shown.layers]
    of = {"before": cosines(before, after), "last": cosines(after, [after[-1]] * len(after))}
    named = {t(f"layers.residual.word.{name}"): values for name, values in of.items()}
    words = [t("layers.word.layer"), t("layers.residual.word.cosine")]
    return Panel(
        title=t("layers.residual.turns.title"),
        figure=layer_lines(named, shown.layer, colours=(SERIES[0], SERIES[5]), words=words),
        note=t("layers.residual.turns.note"),
        select={"x": "layer"},
    )


# ---- checks


@dataclass(frozen=True)
class Sum:
    """One equation of a layer: its right side as the model has it, and as made again from its parts."""

    name: str  # of its sentence
    given: np.ndarray
    made: np.ndarray

    @property
    def gap(self) -> float:
        return float(np.abs(self.given - self.made).max())

    def holds(self, tolerance: float) -> bool:
        """Whether no token is off by more than `tolerance` of its own largest number."""
        largest = np.maximum(np.abs(self.given), np.abs(self.made)).max(axis=1)
        return bool((np.abs(self.given - self.made).max(axis=1) <= tolerance * np.maximum(largest, 1e-30)).all())


def sums_of(layer: "LayerSeen") -> list[Sum]:
    """The equations that this layer's placement promises; none for "other"."""
    x, mid, y = layer.resid_pre, layer.resid_mid, layer.resid_post
    a, c, f = layer.attention_out, layer.cross_out, layer.feed_forward_out
    before_f = mid if layer.resid_cross is None else layer.resid_cross
    if layer.placement == "parallel":
        return [Sum("parallel", y, x + a + f)]
    if layer.placement == "pre":
        cross = [] if c is None or layer.resid_cross is None else [Sum("cross", layer.resid_cross, mid + c)]
        return [Sum("attention", mid, x + a), *cross, Sum("feed_forward", y, before_f + f)]
    if layer.placement == "post" and all(norm.kind in {"layer", "rms"} for norm in layer.norms):
        first, *between, last = layer.norms
        sums = [Sum("attention", mid, normed(x + a, first)), Sum("feed_forward", y, normed(before_f + f, last))]
        if c is not None and layer.resid_cross is not None:
            sums.insert(1, Sum("cross", layer.resid_cross, normed(mid + c, between[0])))
        return sums
    return []


def normed(rows: np.ndarray, norm: "NormSeen") -> np.ndarray:
    """The norm's formula (tfviz.model.norm) on these rows."""
    import torch

    from tfviz.model.norm import layer_norm, rms_norm

    x = torch.from_numpy(rows)
    gain = torch.ones(rows.shape[1]) if norm.weight is None else torch.from_numpy(norm.weight)
    if norm.kind == "rms":
        return rms_norm(x, gain, norm.eps).numpy()
    bias = torch.zeros(rows.shape[1]) if norm.bias is None else torch.from_numpy(norm.bias)
    return layer_norm(x, gain, bias, norm.eps).numpy()


def _badges(shown: Shown, t: Translator) -> list[Badge]:
    post = "post." if shown.seen.placement == "post" else ""
    allowed = rounding.layers if post else rounding.once  # a norm is computed again
    tolerance = allowed(shown.precision)
    badges = [
        Badge(one.holds(tolerance), t(f"layers.residual.badge.{post}{one.name}", gap=significant(one.gap)))
        for one in sums_of(shown.seen)
    ] or [Badge(None, t("layers.residual.badge.other"))]
    if shown.additive:
        start, of = shares(shown.layers, shown.token)
        gap = abs(start + sum(float(values.sum()) for values in of.values()) - 1)
        ok = gap <= len(shown.layers) * tolerance
        badges.append(Badge(ok, t("layers.residual.badge.shares", gap=significant(gap))))
    return badges


def _controls(t: Translator) -> dict[str, Any]:
    choices = [(t(f"layers.residual.{name}"), name) for name in QUANTITIES]
    label = t("layers.residual.quantity")
    return {"quantity": gr.Radio(choices, value="resid_post", label=label, elem_id="tv-layers-quantity")}


def _code() -> Sequence[Any]:
    from tfviz.model.residual import PostNorm, PreNorm

    return PostNorm, PreNorm


SECTION = Section(
    key="layers.residual",
    draw=draw,
    formulas=FORMULAS,
    controls=_controls,
    selects=("kind", "layer", "query"),
    tries=(
        Try("start", place={"query": 0}),
        Try("attention", values={"quantity": "attention_out"}),
        Try("last", place={"layer": 10_000}),
    ),
    code=_code,
)
