"""Training tab, mixed precision: what becomes of real gradients in 16 bits, and what a loss scale does for them."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.figures.number_formats import format_ranges, gradient_histogram
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, percent, significant

if TYPE_CHECKING:
    from tfviz.training.experiments.precision import Cast, Limits

FORMULA = r"g \;\to\; \mathrm{fp16}\left(2^k \cdot g\right) \;\to\; 2^{-k} \cdot \mathrm{fp32}(\ldots)"
NAMES = {"fp16": "FP16", "bf16": "BF16", "fp32": "FP32"}
TRIES = (
    Try("none", {"model": "trained", "exponent": 0}),
    Try("scaled", {"model": "trained", "exponent": 16}),
    Try("fresh", {"model": "fresh", "exponent": 0}),
    Try("over", {"model": "fresh", "exponent": 24}),
)


def picture(
    histogram: tuple[np.ndarray, np.ndarray],
    casts: "Mapping[str, Cast]",
    limits: "Mapping[str, Limits]",
    exponent: int,
    t: Translator,
) -> Picture:
    """`histogram`: (middles of log10 |g|, shares), before the scale; `casts` and `limits` by the keys of NAMES."""
    middles, shares = histogram[0] + exponent * np.log10(2), histogram[1]
    marks = {name: np.log10([one.smallest / 2, one.normal, one.largest]) for name, one in limits.items()}
    words = [t(f"precision.{word}") for word in ("size", "share", "zero", "weak", "over")]
    bars = gradient_histogram(middles, shares, marks["fp16"].tolist(), words=words)
    bars.update_layout(height=300, margin={"l": 60, "r": 16, "t": 44, "b": 52})
    words = [t(f"precision.{word}") for word in ("size", "normal", "weak.line", "gradients")]
    ranges = {NAMES[name]: mark.tolist() for name, mark in marks.items()}
    reach = format_ranges(ranges, (float(middles[0]), float(middles[-1])), words=words)
    reach.update_layout(height=260, margin={"l": 60, "r": 16, "t": 64, "b": 52})
    heads = [NAMES[name] for name in casts]
    n = next(iter(casts.values())).n
    return Picture(
        [
            Panel(bars, t("precision.bars", k=exponent), t("precision.bars.note", n=n), wide=True),
            Panel(title=t("precision.table"), html=table(t("precision.table"), heads, _rows(casts, limits, t))),
            Panel(reach, t("precision.reach"), t("precision.reach.note")),
        ],
        [*(_zeros(NAMES[name], one, t) for name, one in casts.items()), *_errors(casts, limits, t)],
    )


def _rows(casts: "Mapping[str, Cast]", limits: "Mapping[str, Limits]", t: Translator) -> list[tuple[str, list[str]]]:
    counted = {name: [getattr(one, name) for one in casts.values()] for name in ("zero", "subnormal", "infinite")}
    n = [one.n for one in casts.values()]
    shares = [
        (t(f"precision.row.{name}"), [_share(k, of) for k, of in zip(counts, n, strict=True)])
        for name, counts in counted.items()
    ]
    shares.append((t("precision.row.mean"), [percent(one.mean_error) for one in casts.values()]))
    numbers = {
        "worst": [one.worst_error for one in casts.values()],
        "smallest": [limits[name].smallest for name in casts],
        "normal": [limits[name].normal for name in casts],
        "largest": [limits[name].largest for name in casts],
    }
    return [*shares, *((t(f"precision.row.{key}"), [_number(one) for one in row]) for key, row in numbers.items())]


def _share(count: int, n: int) -> str:
    return percent(count / n) if count else "0"


def _number(value: float) -> str:
    return significant(value) if value < 1e6 else f"{value:.2e}".replace("e+", "e")


def _zeros(name: str, one: "Cast", t: Translator) -> Badge:
    return Badge(one.zero == one.too_small, t("precision.badge.zero", name=name, zero=one.zero, small=one.too_small))


def _errors(casts: "Mapping[str, Cast]", limits: "Mapping[str, Limits]", t: Translator) -> list[Badge]:
    found = []
    for name, one in casts.items():
        words = {"worst": significant(one.worst_error), "limit": significant(limits[name].half_step)}
        fits = not one.worst_error > limits[name].half_step
        found.append(Badge(fits, t("precision.badge.error", name=NAMES[name], **words)))
    return found


def controls(t: Translator) -> dict[str, Any]:
    models = [(t(f"precision.model.{name}"), name) for name in ("trained", "fresh")]
    return {
        "exponent": gr.Slider(0, 24, value=0, step=1, label=t("precision.exponent")),
        "model": gr.Radio(models, value="trained", label=t("precision.model")),
    }


def draw(scene: Scene, exponent: float, model: str) -> Picture:
    from tfviz.training.experiments.precision import FORMATS, histogram, limits, look

    bins = scene.compute(histogram, model)
    casts = {name: look(model, name, int(exponent)) for name in FORMATS}
    return picture(bins, casts, {name: limits(name) for name in NAMES}, int(exponent), scene.t)


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.training.experiments.precision import cast, gradients

    return gradients, cast


SECTION = Section(
    "training.precision", draw, formulas=(FORMULA,), controls=controls, needs_trace=False, tries=TRIES, code=code
)
