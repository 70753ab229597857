"""Training tab, label smoothing: what the loss asks of each token, and how sure a model is best to be."""

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.figures import losses_by_confidence, target_distributions
from tfviz.ui.components.code import show_code
from tfviz.ui.context import AppContext
from tfviz.ui.i18n import Translator, significant

if TYPE_CHECKING:
    import plotly.graph_objects as go

PADDING, RIGHT = 0, 3  # ids in the picture
DEFINITIONS = ("all", "allowed")  # keys of tfviz.training.loss.SMOOTHINGS
FORMULAS = (
    r"$$q_k = (1 - \epsilon)\,[k = \text{right}] + \frac{\epsilon}{|V|}$$",
    r"$$loss = -\sum_k q_k \log p_k$$",
)
LATEX: list[dict[str, str | bool]] = [{"left": "$$", "right": "$$", "display": True}]
CONFIDENCES = np.linspace(0.01, 0.999, 300)


@dataclass(frozen=True)
class Smoothing:
    """What the controls say."""

    epsilon: float
    vocab_size: int


def targets(chosen: Smoothing) -> dict[str, np.ndarray]:
    """Definition -> the probability that each token is asked to have."""
    import torch

    from tfviz.training.loss import smoothed_targets

    right = torch.tensor([RIGHT])
    return {
        over: smoothed_targets(right, chosen.vocab_size, chosen.epsilon, PADDING, over)[0].numpy()
        for over in DEFINITIONS
    }


def losses(chosen: Smoothing) -> dict[str, np.ndarray]:
    """Definition -> the loss at each of CONFIDENCES, the rest of the probability shared evenly by all other tokens."""
    import torch

    from tfviz.training.loss import LabelSmoothingLoss

    p = torch.from_numpy(CONFIDENCES)
    probs = ((1 - p) / (chosen.vocab_size - 1))[:, None].repeat(1, chosen.vocab_size)
    probs[:, RIGHT] = p
    right = torch.tensor([RIGHT])
    found = {}
    for name, epsilon, over in [*((over, chosen.epsilon, over) for over in DEFINITIONS), ("none", 0.0, "all")]:
        loss = LabelSmoothingLoss(chosen.vocab_size, PADDING, epsilon, over)
        found[name] = np.array([float(loss(row.log()[None], right)) for row in probs])
    return found


def gradients(chosen: Smoothing, confidence: float = 0.99) -> dict[str, float]:
    """Definition -> derivative of the loss by the right token's logit at this confidence: p - q."""
    import torch

    from tfviz.training.loss import LabelSmoothingLoss

    probs = torch.full((1, chosen.vocab_size), (1 - confidence) / (chosen.vocab_size - 1), dtype=torch.float64)
    probs[0, RIGHT] = confidence
    found = {}
    for name, epsilon, over in [*((over, chosen.epsilon, over) for over in DEFINITIONS), ("none", 0.0, "all")]:
        logits = probs.log().requires_grad_()
        LabelSmoothingLoss(chosen.vocab_size, PADDING, epsilon, over)(logits, torch.tensor([RIGHT])).backward()
        assert logits.grad is not None
        found[name] = float(logits.grad[0, RIGHT])
    return found


def draw(chosen: Smoothing, t: Translator) -> "tuple[go.Figure, go.Figure, str]":
    """(target bars, loss curves, what they say in numbers)"""
    bars, curves, slopes = targets(chosen), losses(chosen), gradients(chosen)
    words = [t(f"smoothing.{word}") for word in ("token", "target", "right", "padding")]
    named = {t(f"smoothing.over.{over}"): q for over, q in bars.items()}
    left = target_distributions(named, RIGHT, PADDING, words=words)
    words = [t(f"smoothing.{word}") for word in ("confidence", "loss", "lowest")]
    right = losses_by_confidence(CONFIDENCES, {t(f"smoothing.over.{k}"): v for k, v in curves.items()}, words=words)
    for figure in (left, right):
        figure.update_layout(height=320, margin={"l": 64, "r": 16, "t": 56, "b": 48})
    rows = []
    for name, curve in curves.items():
        q = bars.get(name)
        asked = [1.0, 0.0, 0.0] if q is None else [q[RIGHT], q[RIGHT + 1], q[PADDING]]
        best = int(curve.argmin())
        numbers = [*asked, float(CONFIDENCES[best]), float(curve[best]), slopes[name]]
        cells = "".join(f"<td>{significant(float(number))}</td>" for number in numbers)
        rows.append(f'<tr><th scope="row">{escape(t(f"smoothing.over.{name}"))}</th>{cells}</tr>')
    heads = [t(f"smoothing.head.{key}") for key in ("right", "other", "padding", "best", "loss", "slope")]
    head = "".join(f'<th scope="col">{escape(word)}</th>' for word in heads)
    caption = f'<caption class="tv-hidden">{escape(t("smoothing.table"))}</caption>'
    body = f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return left, right, f'<div class="tv-scroll" tabindex="0"><table class="tv-table">{caption}{body}</table></div>'


def section(ctx: AppContext) -> None:
    """Widgets and wiring, inside the Training tab."""
    t = ctx.t
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    parts = (f"## {t('smoothing.title')}", t("smoothing.intro"), *FORMULAS, t("smoothing.article"))
    gr.Markdown("\n\n".join(parts), latex_delimiters=LATEX, elem_classes=["tv-text"])
    with gr.Row(elem_classes=["tv-split"]):
        epsilon = gr.Slider(0, 0.5, value=0.1, step=0.01, label=t("smoothing.epsilon"))
        vocab_size = gr.Slider(5, 40, value=10, step=1, label=t("smoothing.vocab"))
    with gr.Row():
        with gr.Column(min_width=320):
            bars = gr.Plot(show_label=False, container=False, elem_id="smoothing-targets")
        with gr.Column(min_width=320):
            curves = gr.Plot(show_label=False, container=False, elem_id="smoothing-losses")
    table = gr.HTML("", apply_default_css=False, elem_id="smoothing-table")
    source = gr.HTML("", apply_default_css=False)
    controls: list[Any] = [epsilon, vocab_size]

    def show(*values: Any) -> tuple[Any, ...]:
        return draw(Smoothing(*values), t)

    def first(*values: Any) -> tuple[Any, ...]:
        from tfviz.training.loss import LabelSmoothingLoss, over_all, over_allowed

        return *show(*values), show_code(t, over_all, over_allowed, LabelSmoothingLoss)

    ctx.opened(first, controls, [bars, curves, table, source], **quiet)
    changes = [control.change for control in controls]
    gr.on(changes, show, controls, [bars, curves, table], trigger_mode="always_last", **quiet)
