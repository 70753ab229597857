"""Layers, feed-forward: what the network after attention does with one token, unit by unit.

    hidden = f(x W_1 + b_1)  or  f(x W_1) * (x W_3),     FFN(x) = hidden W_2 + b_2

A unit is one of the d_ff hidden features. The curves are the model's own functions (tfviz.model.feed_forward), their
slopes come from autograd; which one this layer has was found from its numbers (tfviz.introspection.layer_parts).
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tfviz.figures.layers import activation_functions, layer_lines
from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, percent, significant

if TYPE_CHECKING:  # torch comes with it
    from tfviz.introspection.anatomy import LayerSeen

ACTIVE = 0.2  # |hidden| of an active unit; below zero GELU reaches -0.17 and SiLU -0.28 before they turn back
RELU = {"relu", "reglu", "relu2"}  # here a unit is active if it is above 0
TOP = 12
TOKENS = 128  # shown at once
VALUES = 49_152  # of units and tokens that travel to the browser
POINTS = 600  # drawn on a curve
REACH = 8.0  # the curves' widest range
NAMES = {
    "relu": "ReLU",
    "gelu": "GELU",
    "gelu_tanh": "GELU (tanh)",
    "silu": "SiLU",
    "quick_gelu": "QuickGELU",
    "relu2": "ReLU²",
    "tanh": "tanh",
    "swiglu": "SwiGLU",
    "geglu": "GEGLU",
    "geglu_tanh": "GEGLU (tanh)",
    "reglu": "ReGLU",
}
BENT_BY = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "reglu": "relu"}
# of the largest hidden value
FORMULAS = (
    r"\text{FFN}(x) = f(x W_1 + b_1)\, W_2 + b_2",
    r"\text{SwiGLU}(x) = \big(\text{SiLU}(x W_1) \odot x W_3\big)\, W_2",
)
WORDS = "unit units top tokens absent grid choose"


@dataclass(frozen=True)
class Shown:
    """Everything that the picture is drawn from."""

    id: str  # of model, side and layer: the unit that somebody chose stays while this stays
    layers: Sequence["LayerSeen"]  # all of this side
    layer: int
    token: int
    tokens: Sequence[str]
    precision: str = "fp32"

    @property
    def seen(self) -> "LayerSeen":
        return self.layers[self.layer]


def draw(scene: Scene) -> Picture:
    from tfviz.introspection import anatomy

    assert scene.trace is not None
    place, trace = scene.place, scene.trace
    seen, side = scene.examine(anatomy.examine), side_of(place["kind"])
    n = trace.stacks[place["kind"]].n_layers
    shown = Shown(
        id=f"{scene.trace_id}/{side}/{place['layer']}",
        layers=[seen.layers[side, i] for i in range(n)],
        layer=place["layer"],
        token=place["query"],
        tokens=[token.label for token in trace.stacks[place["kind"]].query_tokens],
        precision=trace.precision,
    )
    return picture(shown, scene.t)


def side_of(kind: str) -> str:
    """Cross attention belongs to the layers of the decoder."""
    return "decoder" if kind == "cross" else kind


def picture(shown: Shown, t: Translator) -> Picture:
    """The token's units, the function that bends them, how many are active, and where the parameters are."""
    seen = shown.seen
    if seen.hidden is None:
        return Picture([_parameters(shown, t)], notes=[t("layers.ffn.no_units", layer=shown.layer)])
    panels = [_units(shown, seen.hidden, t)]
    if seen.up is not None:
        panels += [_functions(shown, t), _slopes(shown, t)]
    panels += [_active(shown, t), _parameters(shown, t)]
    return Picture(panels, _badges(shown, t), _notes(shown, t))


# ---- the units of one token


def _units(shown: Shown, hidden: np.ndarray, t: Translator) -> Panel:
    token = shown.tokens[shown.token]
    return Panel(
        title=t("layers.ffn.units.title", token=token, layer=shown.layer, n=f"{hidden.shape[1]:,}"),
        note=t("layers.ffn.units.note"),
        view="units",
        data=units_data(shown, hidden, t),
        wide=True,
    )


def units_data(shown: Shown, hidden: np.ndarray, t: Translator) -> dict[str, Any]:
    """What assets/js/views/units.js draws: this token's units, and the strongest of them over the sentence.

    Values over the sentence are 16-bit steps of each unit's own largest one; the token's own are FP32.
    """
    first, last = window(len(shown.tokens), shown.token, TOKENS)
    row = hidden[shown.token]
    strongest = np.argsort(-np.abs(row), kind="stable")[: max(TOP, VALUES // (last - first))]
    over = hidden[first:last, strongest].T
    step = np.maximum(np.abs(over).max(axis=1), 1e-30) / 32767
    return {
        "id": shown.id,
        "row": packed(row, np.float32),
        "units": packed(strongest, np.uint16 if hidden.shape[1] < 65_536 else np.uint32),
        "wide": hidden.shape[1] >= 65_536,
        "step": packed(step, np.float32),
        "over": packed(np.round(over / step[:, None]), np.int16),
        "tokens": list(shown.tokens[first:last]),
        "first": first,
        "query": shown.token,
        "top": TOP,
        "words": {word: t(f"layers.ffn.word.{word}") for word in WORDS.split()},
    }


def window(n: int, at: int, most: int) -> tuple[int, int]:
    """(first, end) of at most so many positions around `at`."""
    first = max(0, min(at - most // 2, n - most))
    return first, min(n, first + most)


def packed(array: np.ndarray, dtype: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype=dtype).tobytes()).decode()


# ---- the function


@cache
def curves() -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(x, f(x) by name, f'(x) by name) of every activation that is known; slopes by autograd."""
    import torch

    from tfviz.introspection.layer_parts import ACTIVATIONS

    x = torch.linspace(-REACH, REACH, 321, requires_grad=True)
    values, slopes = {}, {}
    for name, f in ACTIVATIONS.items():
        y = f(x)
        values[name] = y.detach().numpy()
        slopes[name] = torch.autograd.grad(y.sum(), x)[0].numpy()
    return x.detach().numpy(), values, slopes


def _chosen(shown: Shown, of: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], str]:
    """(ReLU, GELU, SiLU and the layer's own if it is another, by label; the label of its own)."""
    own = BENT_BY.get(shown.seen.activation, shown.seen.activation)
    keys = ["relu", "gelu_tanh" if own == "gelu_tanh" else "gelu", "silu"]
    keys += [own] if own not in keys else []
    return {NAMES[key]: of[key] for key in keys}, NAMES[own]


def _range(up: np.ndarray, x: np.ndarray) -> slice:
    """The part of the curves that this token's units reach: at least -4 to 4, at most -8 to 8."""
    low, high = min(-4.0, float(up.min()) * 1.05), max(4.0, float(up.max()) * 1.05)
    return slice(int(np.searchsorted(x, low)), int(np.searchsorted(x, high, side="right")))


def _functions(shown: Shown, t: Translator) -> Panel:
    x, values, _ = curves()
    named, own = _chosen(shown, values)
    assert shown.seen.up is not None
    up = shown.seen.up[shown.token]
    part = _range(up, x)
    strongest = float(up[_strongest(shown)])
    inside = up[(up >= x[part][0]) & (up <= x[part][-1])]
    drawn = np.sort(inside)[:: -(-len(inside) // POINTS)] if len(inside) else inside
    words = [t(f"layers.ffn.word.{word}") for word in ("before", "after", "each", "strongest")]
    note = "layers.ffn.functions.gated" if shown.seen.through is not None else "layers.ffn.functions.note"
    return Panel(
        title=t("layers.ffn.functions.title", name=own),
        figure=activation_functions(
            x[part],
            {name: y[part] for name, y in named.items()},
            own,
            units=drawn,
            mark=strongest if x[part][0] <= strongest <= x[part][-1] else None,
            words=words,
        ),
        note=("" if t.language == "zh" else " ").join(
            [t(note, name=NAMES[shown.seen.activation], f=own), *_left_out(len(up), len(inside), len(drawn), t)]
        ),
    )


def _left_out(n: int, inside: int, drawn: int, t: Translator) -> list[str]:
    """What the figure does not show of the token's units."""
    beyond = [t("layers.ffn.functions.outside", n=f"{n - inside:,}", reach=f"{REACH:.0f}")] if n > inside else []
    some = [t("layers.ffn.functions.some", drawn=f"{drawn:,}", n=f"{inside:,}")] if inside > drawn else []
    return beyond + some


def _slopes(shown: Shown, t: Translator) -> Panel:
    x, _, slopes = curves()
    named, own = _chosen(shown, slopes)
    part = _range(np.zeros(1), x)  # the same for every token: nothing is drawn anew
    words = [t("layers.ffn.word.before"), t("layers.ffn.word.slope"), "", ""]
    return Panel(
        title=t("layers.ffn.slopes.title"),
        figure=activation_functions(x[part], {name: y[part] for name, y in named.items()}, own, words=words),
        note=t("layers.ffn.slopes.note"),
    )


def _strongest(shown: Shown) -> int:
    assert shown.seen.hidden is not None
    return int(np.abs(shown.seen.hidden[shown.token]).argmax())


# ---- how many, and where


def active_share(hidden: np.ndarray, activation: str) -> np.ndarray:
    """For each token the share of units that are active: above 0 after ReLU, else |hidden| > `ACTIVE`."""
    active = hidden > 0 if activation in RELU else np.abs(hidden) > ACTIVE
    return active.mean(axis=-1)


def _active(shown: Shown, t: Translator) -> Panel:
    key = "relu" if shown.seen.activation in RELU else "other"
    shares = [
        np.nan if one.hidden is None else 100 * active_share(one.hidden[shown.token], one.activation)
        for one in shown.layers
    ]
    lines = {shown.tokens[shown.token]: np.array(shares)}
    return Panel(
        title=t("layers.ffn.active.title", token=shown.tokens[shown.token]),
        figure=layer_lines(lines, shown.layer, words=[t("layers.word.layer"), t("layers.ffn.word.active")]),
        note=t(f"layers.ffn.active.{key}", threshold=ACTIVE),
        select={"x": "layer"},
    )


@cache
def paper_base(side: str) -> dict[str, int]:
    """Parameters of one layer of the paper's base model, "encoder" or "decoder": attention, cross, feed_forward."""
    from tfviz.config import PRESETS
    from tfviz.model.parameters import count_parts_of

    config = PRESETS["paper-base"]
    counts = {part.name: part.count for part in count_parts_of(config)}
    n, names = (
        config.n_encoder_layers,
        {"attention": "attention", "cross": "cross_attention", "feed_forward": "feed_forward"},
    )
    return {name: counts.get(f"{side}.{part}", 0) // n for name, part in names.items()}


def _parameters(shown: Shown, t: Translator) -> Panel:
    side = "decoder" if shown.seen.parameters["cross"] else "encoder"
    columns = [shown.seen.parameters, paper_base(side)]
    parts = [name for name in ("attention", "cross", "feed_forward") if shown.seen.parameters[name]]
    rows = [(t(f"layers.ffn.parameters.{name}"), [f"{one[name]:,}" for one in columns]) for name in parts]
    shares = [percent(one["feed_forward"] / max(1, sum(one[name] for name in parts))) for one in columns]
    rows.append((t("layers.ffn.parameters.share"), shares))
    own, paper = (
        t("layers.ffn.parameters.layer", layer=shown.layer),
        t(f"layers.ffn.parameters.{side}"),
    )
    title = t("layers.ffn.parameters.title")
    return Panel(title=title, html=table(title, [own, paper], rows), note=t("layers.ffn.parameters.note"))


# ---- checks


def _badges(shown: Shown, t: Translator) -> list[Badge]:
    seen = shown.seen
    assert seen.hidden is not None
    share = float(active_share(seen.hidden[shown.token], seen.activation))
    badges = [Badge(None, t("layers.ffn.badge.active", share=percent(share)))]
    if seen.up is None:
        return badges
    gap = bent_gap(seen)
    ok = gap <= rounding.layers(shown.precision) * float(np.abs(seen.hidden).max())
    name = NAMES[seen.activation]
    title = t("layers.ffn.badge.bent.title", name=name)
    return [Badge(ok, t("layers.ffn.badge.bent", name=name, gap=significant(gap)), title), *badges]


def bent_gap(seen: "LayerSeen") -> float:
    """max |hidden - f(up)|, or |hidden - f(up) * through| in a gated network, over all tokens."""
    import torch

    from tfviz.introspection.layer_parts import ACTIVATIONS

    f = ACTIVATIONS[BENT_BY.get(seen.activation, seen.activation)]
    assert seen.hidden is not None and seen.up is not None
    bent = f(torch.from_numpy(np.ascontiguousarray(seen.up))).numpy()
    made = bent if seen.through is None else bent * seen.through
    return float(np.abs(made - seen.hidden).max())


def _notes(shown: Shown, t: Translator) -> list[str]:
    n = len(shown.tokens)
    first, last = window(n, shown.token, TOKENS)
    return [t("layers.window", first=first, last=last - 1, n=n)] if last - first < n else []


def _code() -> Sequence[Any]:
    from tfviz.model.feed_forward import FeedForward, GatedFeedForward

    return FeedForward, GatedFeedForward


SECTION = Section(
    key="layers.ffn",
    draw=draw,
    formulas=FORMULAS,
    selects=("kind", "layer", "query"),
    tries=(
        Try("first", place={"layer": 0}),
        Try("start", place={"query": 0}),
        Try("again", sentence="The cat saw the other cat near the door"),
    ),
    code=_code,
)
