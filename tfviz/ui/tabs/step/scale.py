"""Step by step, why the square root of d_k: the article's proof, each line beside what random vectors measure."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.figures.steps import dot_products, softness_by_width, variance_by_width
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, percent, significant

if TYPE_CHECKING:
    from tfviz.introspection.trace import LayerAttention, Trace

Own = Mapping[str, tuple[int, np.ndarray]]
CHOICES = (4, 16, 64, 128, 256, 1024, 4096)  # of the widths that are measured
FORMULAS = (
    r"\mathrm{Var}(q \cdot k) = \sum_{i=1}^{d_k} \mathrm{Var}(q_i k_i) = d_k, \qquad "
    r"\mathrm{Var}\left(\frac{q \cdot k}{\sqrt{d_k}}\right) = 1",
    r"\frac{\partial p_i}{\partial s_j} = p_i\,([i = j] - p_j), \qquad p = \text{softmax}(s)",
)
ERRORS = 4  # standard errors that a measurement may be off: one draw in 16,000 is
OWN_POSITIONS = 64  # of a long text, so many tokens are enough for a variance


def draw(scene: Scene, d_k: int = 64, n_keys: int = 64, seed: int = 0) -> Picture:
    own = {} if scene.trace is None else own_variances(scene.trace)
    return picture(int(d_k), int(n_keys), max(0, int(seed or 0)), scene.t, own)


def picture(d_k: int, n_keys: int, seed: int, t: Translator, own: Own | None = None) -> Picture:
    """`own`: name of a model -> its d_k, and the least, median and largest variance of its heads' raw scores."""
    from tfviz.introspection.experiments.scaling import D_KS, sample, softness, standard_error

    drawn, widths = [sample(one, n_keys, seed) for one in D_KS], np.array(D_KS)
    chosen = drawn[D_KS.index(d_k)]
    variances = np.array([one.dots.var(dtype=np.float64) for one in drawn])
    scaled = np.array([one.scaled.var(dtype=np.float64) for one in drawn])
    names = t("step.scale.without"), t("step.scale.with")
    soft = {
        name: [softness(one, n_keys, seed, on) for one in D_KS] for name, on in zip(names, (False, True), strict=True)
    }
    words = [t("step.scale.dots"), t("step.scale.density"), *names]
    bells = dot_products(chosen.dots, chosen.scaled, words=words)
    words = ["d_k", t("step.scale.variance"), *names]
    spread = variance_by_width(widths, variances, scaled, d_k, own, words=words)
    entropy = {name: np.array([one.entropy for one in found]) for name, found in soft.items()}
    gradient = {
        name: np.array([(one.gradient_low, one.gradient, one.gradient_high) for one in found]).T
        for name, found in soft.items()
    }
    words = ["d_k", t("step.scale.entropy"), t("step.scale.gradient")]
    curves = softness_by_width(widths, entropy, gradient, d_k, words=words)
    at, allowed = D_KS.index(d_k), ERRORS * standard_error(d_k, n_keys)
    proof = [
        ("E[qᵢkᵢ] = E[qᵢ] E[kᵢ]", ("0", significant(chosen.mean_part))),
        ("Var(qᵢkᵢ) = E[qᵢ²] E[kᵢ²]", ("1", significant(chosen.variance_part))),
        ("Var(q·k) = Σ Var(qᵢkᵢ)", (f"{d_k:,}", significant(variances[at]))),
        ("Var(q·k ÷ √d_k) = Var(q·k) ÷ d_k", ("1", significant(scaled[at]))),
    ]
    heads = (t("step.scale.predicted"), t("step.scale.measured"))
    lines = table(t("step.scale.proof"), heads, proof)
    weak, strong = (found[at] for found in soft.values())
    share = significant(100 * weak.gradient / strong.gradient)
    fields = {"d": f"{d_k:,}", "weak": percent(weak.largest), "strong": percent(strong.largest)}
    return Picture(
        [
            Panel(html=lines, title=t("step.scale.proof"), note=t("step.scale.proof.note")),
            Panel(spread, t("step.scale.spread"), t("step.scale.spread.own" if own else "step.scale.spread.note")),
            Panel(bells, t("step.scale.bells", d=f"{d_k:,}"), t("step.scale.bells.note", **fields)),
            Panel(curves, t("step.scale.softness"), t("step.scale.softness.note", d=f"{d_k:,}", share=share)),
        ],
        [
            _near("step.badge.variance", float(variances[at]), d_k, allowed, t),
            _near("step.badge.unit", float(scaled[at]), 1, allowed, t),
        ],
    )


def _near(key: str, measured: float, predicted: float, allowed: float, t: Translator) -> Badge:
    """Whether a measured variance is the predicted one, as far as so few vectors can tell."""
    off = measured / predicted - 1
    text = t(key, measured=significant(measured), predicted=f"{predicted:,}", off=f"{100 * off:+.1f} %")
    return Badge(abs(off) <= allowed, text, t("step.badge.variance.title", errors=ERRORS, allowed=percent(allowed)))


def own_variances(trace: "Trace") -> Own:
    """Of all heads of the model on the page: the variance of q . k over the pairs that may look at each other."""
    found: list[float] = []
    for stack in trace.stacks.values():
        for layer in stack.layers.values():
            found += [value for value in raw_variances(layer) if value > 0]
    if not found:
        return {}
    width = next(iter(next(iter(trace.stacks.values())).layers.values())).query.shape[-1]
    return {trace.model_label: (width, np.quantile(found, (0, 0.5, 1)))}


def raw_variances(layer: "LayerAttention") -> np.ndarray:
    """One number a head; of a long text some positions are enough."""
    n_query, n_key = layer.blocked.shape[1:]
    rows, columns = (np.unique(np.linspace(0, n - 1, OWN_POSITIONS).round().astype(int)) for n in (n_query, n_key))
    group = len(layer.query) // len(layer.key)
    raw = layer.query[:, rows] @ np.repeat(layer.key[:, columns], group, axis=0).transpose(0, 2, 1)
    allowed = np.broadcast_to(~layer.blocked[:, rows][:, :, columns], raw.shape)
    count = np.maximum(allowed.sum(axis=(1, 2)), 1)
    mean = (raw * allowed).sum(axis=(1, 2)) / count
    variances: np.ndarray = ((raw - mean[:, None, None]) ** 2 * allowed).sum(axis=(1, 2)) / count
    return variances


def controls(t: Translator) -> dict[str, Any]:
    return {
        "d_k": gr.Radio([(f"{one:,}", one) for one in CHOICES], value=64, label="d_k"),
        "n_keys": gr.Slider(8, 512, value=64, step=8, label=t("step.scale.keys")),
        "seed": gr.Number(0, precision=0, minimum=0, maximum=9999, label=t("step.scale.seed")),
    }


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.introspection.experiments.scaling import jacobian_norm, sample, soften

    return sample, soften, jacobian_norm


SECTION = Section(
    key="step.scale",
    draw=draw,
    formulas=FORMULAS,
    controls=controls,
    needs_trace=False,
    tries=(
        Try("wide", values={"d_k": 4096}),
        Try("narrow", values={"d_k": 4}),
        Try("crowd", values={"n_keys": 512}),
        Try("again", values={"seed": 7}),
    ),
    code=code,
)
