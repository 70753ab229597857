"""Training tab: how fast to learn, step by step. The curves are those of the functions that train our models."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.errors import TfvizError
from tfviz.figures import learning_rates
from tfviz.ui.components.code import code_block
from tfviz.ui.components.picture import Panel, Picture, table
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, significant

if TYPE_CHECKING:  # tfviz.training brings torch
    from tfviz.training.schedule import Schedule

SCHEDULES = ("noam", "inverse_sqrt", "linear", "cosine", "wsd", "constant")
POINTS = 300  # of a curve
PAPER = {"d_model": 512, "warmup": 4000, "total": 20_000}
BESIDE = ((256, 4000), (512, 8000), (1024, 4000))  # (d_model, warm-up) of other Noam curves
TRIES = (
    Try("double", {**PAPER, "d_model": 1024}),
    Try("early", {**PAPER, "warmup": 400}),
    Try("never", {**PAPER, "warmup": 30_000}),
    Try("zero", {**PAPER, "warmup": 0}),
)
FORMULA = r"lr = d_{\text{model}}^{-0.5} \cdot \min\left(step^{-0.5},\ step \cdot warmup^{-1.5}\right)"


@dataclass(frozen=True)
class Rates:
    """What the controls say."""

    d_model: int
    warmup: int
    total: int
    names: Sequence[str]
    beside: Sequence[str]  # "256/4000"
    log: Sequence[str]  # "x", "y"


def steps_of(total: int, warmup: int) -> np.ndarray:
    """The steps that a curve is drawn at: evenly on both kinds of axis, with the end of the warm-up among them."""
    even, by_size = np.linspace(1, total, POINTS), np.geomspace(1, total, POINTS)
    own = [warmup] if 1 <= warmup <= total else []
    return np.unique(np.concatenate([even, by_size, own]).round().astype(np.int64))


def schedules(chosen: Rates, t: Translator) -> "tuple[dict[str, Schedule], list[str]]":
    """(the curves by their labels, a sentence for each that cannot be drawn)"""
    from tfviz.training.schedule import Schedule

    made: dict[str, Schedule] = {}
    refused: list[str] = []
    wanted = [(t(f"training.schedule.{name}"), name, chosen.d_model, chosen.warmup) for name in chosen.names]
    for d_model, warmup in (map(int, one.split("/")) for one in chosen.beside):
        wanted.append((t("training.beside", d_model=d_model, warmup=warmup), "noam", d_model, warmup))
    for label, name, d_model, warmup in wanted:
        try:
            made[label] = Schedule(d_model, warmup, name=name, total_steps=chosen.total)
        except TfvizError as error:
            refused.append(f"{label}: {t.error(error)}")
    return made, refused


def picture(chosen: Rates, t: Translator) -> Picture:
    """Curves, what they say in numbers, and the first of them as code to take away."""
    from tfviz.training.snippets import lambda_lr

    made, notes = schedules(chosen, t)
    if chosen.warmup > chosen.total:
        notes.append(t("training.never", total=chosen.total, warmup=chosen.warmup))
    ends = {schedule.warmup_steps for schedule in made.values()}
    steps = np.unique(np.concatenate([steps_of(chosen.total, end) for end in ends or {chosen.warmup}]))
    curves = {label: np.array([schedule(int(step)) for step in steps]) for label, schedule in made.items()}
    words = (t("training.step"), t("training.rate"), t("training.peak"))
    figure = learning_rates(steps, curves, log_steps="x" in chosen.log, log_rates="y" in chosen.log, words=words)
    figure.update_layout(height=360, margin={"l": 76, "r": 16, "t": 48, "b": 48})
    if not made:
        return Picture([Panel(figure, wide=True)], notes=[*notes, t("training.nothing")])
    heads = [t(f"training.{key}") for key in ("first", "peak", "peak.at", "last")]
    rows = [(label, _numbers(steps, curve)) for label, curve in curves.items()]
    return Picture(
        [
            Panel(figure, wide=True),
            Panel(html=table(t("training.table"), heads, rows), wide=True),
            Panel(title=t("training.code"), html=code_block(lambda_lr(next(iter(made.values()))), t), wide=True),
        ],
        notes=notes,
    )


def _numbers(steps: np.ndarray, curve: np.ndarray) -> list[str]:
    top = int(curve.argmax())
    return [significant(curve[0]), significant(curve[top]), f"{int(steps[top]):,}", significant(curve[-1])]


def controls(t: Translator) -> dict[str, Any]:
    choices = [(t(f"training.schedule.{name}"), name) for name in SCHEDULES]
    pairs = [(t("training.beside", d_model=d, warmup=w), f"{d}/{w}") for d, w in BESIDE]
    axes = [(t("training.log.x"), "x"), (t("training.log.y"), "y")]
    return {
        "d_model": gr.Slider(64, 4096, value=PAPER["d_model"], step=64, label="d_model"),
        "warmup": gr.Slider(0, 40_000, value=PAPER["warmup"], step=100, label=t("training.warmup")),
        "total": gr.Slider(1000, 100_000, value=PAPER["total"], step=1000, label=t("training.total")),
        "names": gr.CheckboxGroup(choices, value=["noam"], label=t("training.schedules")),
        "beside": gr.CheckboxGroup(pairs, value=[], label=t("training.besides")),
        "log": gr.CheckboxGroup(axes, value=[], label=t("training.axes")),
    }


def draw(scene: Scene, **chosen: Any) -> Picture:
    return picture(Rates(**chosen), scene.t)


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.training.schedule import Schedule, noam_lr

    return noam_lr, Schedule


SECTION = Section(
    "training.rate", draw, formulas=(FORMULA,), controls=controls, needs_trace=False, tries=TRIES, code=code
)
