"""Training tab: how fast to learn, step by step. The curves are those of the functions that train our models."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.errors import TfvizError
from tfviz.figures import learning_rates
from tfviz.ui.components.code import code_block, show_code
from tfviz.ui.context import AppContext
from tfviz.ui.i18n import Translator, significant
from tfviz.ui.tab import Tab
from tfviz.ui.tabs import smoothing

if TYPE_CHECKING:  # tfviz.training brings torch
    import plotly.graph_objects as go

    from tfviz.training.schedule import Schedule

SCHEDULES = ("noam", "inverse_sqrt", "linear", "cosine", "wsd", "constant")
POINTS = 300  # of a curve
PAPER = {"d_model": 512, "warmup": 4000, "total": 20_000}
BESIDE = ((256, 4000), (512, 8000), (1024, 4000))  # (d_model, warm-up) of other Noam curves
TRIES = (
    ("double", {"d_model": 1024}),
    ("early", {"warmup": 400}),
    ("never", {"warmup": 30_000}),
    ("zero", {"warmup": 0}),
)
FORMULA = r"$$lr = d_{\text{model}}^{-0.5} \cdot \min\left(step^{-0.5},\ step \cdot warmup^{-1.5}\right)$$"
LATEX: list[dict[str, str | bool]] = [{"left": "$$", "right": "$$", "display": True}]


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


def draw(chosen: Rates, t: Translator) -> "tuple[go.Figure, str, str]":
    """(figure, what it says in numbers, code to take away)"""
    from tfviz.training.snippets import lambda_lr

    made, refused = schedules(chosen, t)
    ends = {schedule.warmup_steps for schedule in made.values()}
    steps = np.unique(np.concatenate([steps_of(chosen.total, end) for end in ends or {chosen.warmup}]))
    curves = {label: np.array([schedule(int(step)) for step in steps]) for label, schedule in made.items()}
    words = (t("training.step"), t("training.rate"), t("training.peak"))
    figure = learning_rates(steps, curves, log_steps="x" in chosen.log, log_rates="y" in chosen.log, words=words)
    figure.update_layout(height=380, margin={"l": 80, "r": 16, "t": 48, "b": 48})
    rows = [_row(label, steps, curve) for label, curve in curves.items()]
    notes = [t("training.never", total=chosen.total, warmup=chosen.warmup)] if chosen.warmup > chosen.total else []
    said = "".join(f'<p class="tv-note" role="status">{escape(note)}</p>' for note in [*refused, *notes])
    code = lambda_lr(next(iter(made.values()))) if made else ""
    return figure, _table(rows, t) + said, code_block(code, t) if code else ""


def _row(label: str, steps: np.ndarray, curve: np.ndarray) -> str:
    top = int(curve.argmax())
    numbers = (significant(curve[0]), significant(curve[top]), f"{int(steps[top]):,}", significant(curve[-1]))
    cells = "".join(f"<td>{number}</td>" for number in numbers)
    return f'<tr><th scope="row">{escape(label)}</th>{cells}</tr>'


def _table(rows: Sequence[str], t: Translator) -> str:
    if not rows:
        return f'<p class="tv-note" role="status">{escape(t("training.nothing"))}</p>'
    heads = (t("training.first"), t("training.peak"), t("training.peak.at"), t("training.last"))
    head = "".join(f'<th scope="col">{escape(word)}</th>' for word in heads)
    caption = f'<caption class="tv-hidden">{escape(t("training.table"))}</caption>'
    body = f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<table class="tv-table">{caption}{body}</table>'


def build(ctx: AppContext) -> None:
    t = ctx.t
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    title, intro = t("training.rate.title"), t("training.rate.intro")
    gr.Markdown(f"## {title}\n\n{intro}\n\n{FORMULA}", latex_delimiters=LATEX, elem_classes=["tv-text"])
    with gr.Row(elem_classes=["tv-split"]):
        with gr.Column(scale=3, min_width=320):
            plot = gr.Plot(show_label=False, container=False, elem_id="training-rates")
            table = gr.HTML("", apply_default_css=False)
        with gr.Column(scale=1, min_width=240):
            d_model = gr.Slider(64, 4096, value=PAPER["d_model"], step=64, label="d_model")
            warmup = gr.Slider(0, 40_000, value=PAPER["warmup"], step=100, label=t("training.warmup"))
            total = gr.Slider(1000, 100_000, value=PAPER["total"], step=1000, label=t("training.total"))
            choices = [(t(f"training.schedule.{name}"), name) for name in SCHEDULES]
            names = gr.CheckboxGroup(choices, value=["noam"], label=t("training.schedules"))
            pairs = [(t("training.beside", d_model=d, warmup=w), f"{d}/{w}") for d, w in BESIDE]
            beside = gr.CheckboxGroup(pairs, value=[], label=t("training.besides"))
            axes = [(t("training.log.x"), "x"), (t("training.log.y"), "y")]
            log = gr.CheckboxGroup(axes, value=[], label=t("training.axes"))
    gr.HTML(f'<p class="tv-soft">{escape(t("training.try"))}</p>', apply_default_css=False)
    with gr.Row(elem_classes=["tv-tries"]):
        tries = [(gr.Button(t(f"training.try.{key}"), size="sm", elem_classes=["tv-chip"]), to) for key, to in TRIES]
    gr.HTML(f'<p class="tv-soft">{escape(t("training.code"))}</p>', apply_default_css=False)
    code = gr.HTML("", apply_default_css=False, elem_id="training-code")
    source = gr.HTML("", apply_default_css=False, elem_id="training-source")
    controls: list[Any] = [d_model, warmup, total, names, beside, log]

    def show(*values: Any) -> tuple[Any, ...]:
        return draw(Rates(*values), t)

    def first(*values: Any) -> tuple[Any, ...]:
        from tfviz.training.schedule import Schedule, noam_lr

        return *draw(Rates(*values), t), show_code(t, noam_lr, Schedule)

    ctx.opened(first, controls, [plot, table, code, source], **quiet)
    changes = [control.change for control in controls]
    gr.on(changes, show, controls, [plot, table, code], trigger_mode="always_last", **quiet)
    for button, to in tries:
        values = [{**PAPER, **to}[name] for name in PAPER]
        button.click(lambda values=values: values, None, [d_model, warmup, total], **quiet)
    smoothing.section(ctx)


TAB = Tab("training", "tab.training", frozenset(), build)
