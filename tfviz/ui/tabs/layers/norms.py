"""Layers tab, normalisation: a token before and after its norm, three norms on the same activations, and eps."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.errors import UnsupportedHere
from tfviz.figures import norms as figures
from tfviz.figures.theme import SERIES
from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, significant

if TYPE_CHECKING:
    from tfviz.introspection.anatomy import LayerSeen, NormSeen
    from tfviz.introspection.experiments.norms import Disturbance, EpsEffect, SideBySide

PADDINGS = (4, 16, 64)
EPSILONS = np.geomspace(1e-12, 1e-1, 34)
FORMULAS = (
    r"\text{LayerNorm}(x) = \gamma \odot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta",
    r"\text{RMSNorm}(x) = \gamma \odot \frac{x}{\sqrt{\text{mean}(x^2) + \epsilon}}",
)


def picture(
    norm: "NormSeen", token: int, label: str, eps: float, sigma: float, precision: str, t: Translator
) -> Picture:
    """`norm` as it worked on the whole sentence, looked at in position `token`, whose label it is."""
    from tfviz.introspection.experiments import norms as lab

    before, after = norm.before[token], norm.after[token]
    compared = lab.side_by_side(norm.before)
    words = [t(f"layers.norm.{word}") for word in ("value", "features", "mean", "sigma")]
    grey = figures.value_histogram(before, colour=SERIES[5], words=words)
    panels = [
        Panel(grey, t("layers.norm.before", token=label), t("layers.norm.before.note")),
        Panel(figures.value_histogram(after, words=words), t("layers.norm.after", token=label, norm=norm.name)),
        three(compared, token, t),
        Panel(title=t("layers.norm.numbers"), html=statistics(compared, token, t), note=t("layers.norm.numbers.note")),
        breaks(norm.before, token, lab.disturbances(norm.before, token, PADDINGS), t),
        *where_eps_stands(before, eps, sigma, t),
    ]
    own = lab.reproduce(norm.kind, norm.before, norm.weight, norm.bias, norm.eps)
    return Picture(panels, badges(norm, own, compared, token, precision, t))


def badges(
    norm: "NormSeen",
    own: np.ndarray | None,
    compared: Sequence["SideBySide"],
    token: int,
    precision: str,
    t: Translator,
) -> list[Badge]:
    """Whether our formula gives what the model's norm gave; what LayerNorm promises of a token."""
    made = {one.name: one for one in compared}
    mean, variance = made["layer"].token(token)
    promise = Badge(
        abs(mean) < 1e-4 and abs(variance - 1) < 0.02,
        t("layers.norm.unit", mean=significant(mean), variance=f"{variance:.4f}"),
    )
    if own is None:
        return [Badge(None, t("layers.norm.other", kind=norm.kind)), promise]
    gap = float(np.abs(own - norm.after).max()) / max(float(np.abs(norm.after).max()), 1e-30)
    said = t(
        "layers.norm.same", kind=t(f"layers.norm.kind.{norm.kind}"), eps=significant(norm.eps), gap=significant(gap)
    )
    return [Badge(gap <= rounding.once(precision), said, t("layers.norm.same.title")), promise]


def three(compared: Sequence["SideBySide"], token: int, t: Translator) -> Panel:
    """LayerNorm, RMSNorm and BatchNorm on the same activations."""
    outputs = {t(f"layers.norm.kind.{one.name}"): one.rows[token] for one in compared if one.name != "before"}
    words = [t("layers.norm.value"), t("layers.norm.features")]
    return Panel(figures.norms_compared(outputs, words=words), t("layers.norm.three"), t("layers.norm.three.note"))


def statistics(compared: Sequence["SideBySide"], token: int, t: Translator) -> str:
    """Over the token's features, and over the tokens."""
    rows = []
    for one in compared:
        numbers = (*one.token(token), *one.features())
        rows.append((t(f"layers.norm.kind.{one.name}"), tuple(significant(_settled(number)) for number in numbers)))
    heads = [t(f"layers.norm.head.{key}") for key in ("mean", "variance", "feature_mean", "feature_variance")]
    return table(t("layers.norm.numbers"), heads, rows)


def _settled(number: float) -> float:
    """What FP32 leaves of a zero is shown as 0."""
    return 0.0 if abs(number) < 5e-6 else number


def breaks(before: np.ndarray, token: int, found: Sequence["Disturbance"], t: Translator) -> Panel:
    """What moves the norm of one token although the token is the same."""
    from tfviz.introspection.experiments.norms import alone, refusal

    rows = [(t(f"layers.norm.{one.name}", n=one.n), (significant(one.batch), significant(one.layer))) for one in found]
    rows.append((t("layers.norm.alone"), (t("layers.norm.refused"), significant(alone(before, token)))))
    html = table(t("layers.norm.breaks"), (t("layers.norm.kind.batch"), t("layers.norm.kind.layer")), rows)
    note = t("layers.norm.breaks.note", error=refusal(before.shape[1]))
    return Panel(title=t("layers.norm.breaks"), html=html, note=note, wide=True)


def where_eps_stands(before: np.ndarray, eps: float, sigma: float, t: Translator) -> list[Panel]:
    """The article's sigma + eps against the root of variance + eps, on this token and on a nearly constant vector."""
    from tfviz.introspection.experiments.norms import eps_effect, nearly_constant

    vectors = {"token": before, "constant": nearly_constant(before, sigma)}
    curves: dict[str, np.ndarray] = {}
    rows = []
    for key, vector in vectors.items():
        effects = [eps_effect(vector, float(one)) for one in EPSILONS]
        name = t(f"layers.norm.vector.{key}")
        curves[f"{name}, √(σ² + ε)"] = np.array([one.under_root for one in effects])
        curves[f"{name}, σ + ε"] = np.array([one.beside_sigma for one in effects])
        rows.append((name, _effect(eps_effect(vector, eps))))
    words = ["ε", t("layers.norm.size"), t("layers.norm.now", eps=significant(eps))]
    figure = figures.eps_curves(EPSILONS, curves, eps, words=words)
    title = t("layers.norm.eps.table", eps=significant(eps))
    heads = (t("layers.norm.vector.sigma"), "√(σ² + ε)", "σ + ε", t("layers.norm.difference"))
    html = table(t("layers.norm.eps"), heads, rows)
    return [
        Panel(figure, t("layers.norm.eps"), t("layers.norm.eps.note"), wide=True),
        Panel(title=title, html=html, note=t("layers.norm.eps.table.note"), wide=True),
    ]


def _effect(one: "EpsEffect") -> tuple[str, ...]:
    numbers = (one.sigma, one.under_root, one.beside_sigma, one.difference)
    return tuple(significant(number) for number in numbers)


def chosen(seen: "LayerSeen", which: str) -> "NormSeen":
    """The norm at this place of the layer, or its last one."""
    if not seen.norms:
        raise UnsupportedHere("error.no_norms")
    return seen.norms[min(int(which), len(seen.norms) - 1)]


def draw(scene: Scene, which: str, eps: float, sigma: float) -> Picture:
    from tfviz.introspection.anatomy import examine

    assert scene.trace is not None
    place, stacks = scene.place, scene.trace.stacks
    side = "decoder" if place["kind"] == "cross" else place["kind"]
    norm = chosen(scene.examine(examine).layers[side, place["layer"]], which)
    tokens, token = stacks[place["kind"]].query_tokens, place["query"]
    return picture(norm, token, tokens[token].label, 10.0**eps, 10.0**sigma, scene.trace.precision, scene.t)


def controls(t: Translator) -> dict[str, Any]:
    which = [(t(f"layers.norm.which.{i}"), str(i)) for i in range(3)]
    return {
        "which": gr.Radio(which, value="0", label=t("layers.norm.which")),
        "eps": gr.Slider(-12, -1, value=-5, step=1, label=t("layers.norm.control.eps")),
        "sigma": gr.Slider(-8, 1, value=-3, step=1, label=t("layers.norm.control.sigma")),
    }


@cache
def code() -> Sequence[Callable[..., Any]]:
    from tfviz.introspection.experiments import norms as lab
    from tfviz.model.norm import layer_norm, rms_norm

    return layer_norm, rms_norm, lab.sigma_plus_eps, lab.batch_norm


TRIES = (
    Try("huge", place={"query": 0}),
    Try("tiny", values={"eps": -5, "sigma": -6}),
    Try("apart", values={"eps": -3, "sigma": -2}),
)
SECTION = Section(
    "layers.norm",
    draw,
    formulas=FORMULAS,
    controls=controls,
    selects=("layer", "query"),
    tries=TRIES,
    code=code,
)
