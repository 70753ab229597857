"""Training tab, label smoothing: what the loss asks of each token, and how sure a model is best to be."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
import numpy as np

from tfviz.figures import losses_by_confidence, target_distributions
from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, significant

PADDING, RIGHT = 0, 3  # ids in the picture
DEFINITIONS = ("all", "allowed")  # keys of tfviz.training.loss.SMOOTHINGS
FORMULAS = (
    r"q_k = (1 - \epsilon)\,[k = \text{right}] + \frac{\epsilon}{|V|}",
    r"loss = -\sum_k q_k \log p_k, \qquad \frac{\partial\, loss}{\partial\, logit_k} = p_k - q_k",
)
SURE = 0.99
CONFIDENCES = np.unique([*np.linspace(0.01, 0.999, 300), SURE])
TRIES = (Try("none", {"epsilon": 0}), Try("strong", {"epsilon": 0.4}), Try("few", {"vocab_size": 5}))


@dataclass(frozen=True)
class Smoothing:
    """What the controls say."""

    epsilon: float
    vocab_size: int


@dataclass(frozen=True)
class Asked:
    """What one definition makes of the same logits: its target, and loss and slope at each of CONFIDENCES."""

    target: np.ndarray  # [vocab]
    loss: np.ndarray
    slope: np.ndarray  # of the loss by the right token's logit


def look(chosen: Smoothing) -> dict[str, Asked]:
    """Definition -> what it asks; the probability that the right token leaves is shared evenly by all others."""
    import torch

    from tfviz.training.loss import LabelSmoothingLoss, smoothed_targets

    right, n = torch.tensor([RIGHT]), len(CONFIDENCES)
    found = {}
    for name, epsilon, over in [*((over, chosen.epsilon, over) for over in DEFINITIONS), ("none", 0.0, "all")]:
        logits = torch.from_numpy(logits_of(chosen.vocab_size)).requires_grad_()
        q = smoothed_targets(right, chosen.vocab_size, epsilon, PADDING, over)[0].double()
        loss = -(q * logits.log_softmax(-1)).sum(-1)  # - sum_k q_k log p_k
        (LabelSmoothingLoss(chosen.vocab_size, PADDING, epsilon, over)(logits, right.expand(n)) * n).backward()
        assert logits.grad is not None
        found[name] = Asked(q.numpy(), loss.detach().numpy(), logits.grad[:, RIGHT].numpy())
    return found


def logits_of(vocab_size: int) -> np.ndarray:
    """[confidence, vocab]"""
    probs = ((1 - CONFIDENCES) / (vocab_size - 1))[:, None].repeat(vocab_size, axis=1)
    probs[:, RIGHT] = CONFIDENCES
    return np.log(probs)


def torchs_loss(chosen: Smoothing) -> np.ndarray:
    """The same logits through `nn.CrossEntropyLoss(label_smoothing=)`."""
    import torch

    loss = torch.nn.CrossEntropyLoss(label_smoothing=chosen.epsilon, reduction="none")
    return loss(torch.from_numpy(logits_of(chosen.vocab_size)), torch.tensor([RIGHT]).expand(len(CONFIDENCES))).numpy()


def picture(asked: Mapping[str, Asked], torchs: np.ndarray, t: Translator) -> Picture:
    """Target bars, loss curves, and what they say in numbers."""
    named = {key: t(f"smoothing.over.{key}") for key in asked}
    words = [t(f"smoothing.{word}") for word in ("token", "target", "right", "padding")]
    bars = target_distributions({named[key]: asked[key].target for key in DEFINITIONS}, RIGHT, PADDING, words=words)
    words = [t(f"smoothing.{word}") for word in ("confidence", "loss", "lowest")]
    losses = losses_by_confidence(CONFIDENCES, {named[key]: one.loss for key, one in asked.items()}, words=words)
    words = [t(f"smoothing.{word}") for word in ("confidence", "slope", "nearest")]
    slopes = losses_by_confidence(
        CONFIDENCES, {named[key]: one.slope for key, one in asked.items()}, words=words, mark_at=_zero
    )
    for figure in (bars, losses, slopes):
        figure.update_layout(height=320, margin={"l": 64, "r": 16, "t": 84, "b": 48})
    bars.update_layout(height=240, margin={"t": 48})
    heads = [t(f"smoothing.head.{key}") for key in ("right", "other", "padding", "best", "loss", "slope")]
    rows = [(named[key], _numbers(one)) for key, one in asked.items()]
    return Picture(
        [
            Panel(bars, t("smoothing.bars"), t("smoothing.bars.note"), wide=True),
            Panel(losses, t("smoothing.losses"), t("smoothing.losses.note")),
            Panel(slopes, t("smoothing.slopes"), t("smoothing.slopes.note")),
            Panel(title=t("smoothing.table"), html=table(t("smoothing.table"), heads, rows), wide=True),
        ],
        [_sums(asked, t), _as_torch(asked["all"].loss, torchs, t)],
    )


def _zero(slope: np.ndarray) -> int:
    return int(np.abs(slope).argmin())


def _at_sure(curve: np.ndarray) -> float:
    return float(curve[np.flatnonzero(CONFIDENCES == SURE)[0]])


def _numbers(one: Asked) -> list[str]:
    best = int(one.loss.argmin())
    numbers = [one.target[RIGHT], one.target[RIGHT + 1], one.target[PADDING]]
    said = [significant(float(n)) for n in (*numbers, CONFIDENCES[best], one.loss[best], _at_sure(one.slope))]
    if best == len(CONFIDENCES) - 1:  # it goes on beyond what is drawn: the best is certainty
        said[-3:-1] = [f">{said[-3]}", f"<{said[-2]}"]
    return said


def _sums(asked: Mapping[str, Asked], t: Translator) -> Badge:
    off = max(abs(float(one.target.sum()) - 1) for one in asked.values())
    return Badge(off < rounding.once(), t("smoothing.badge.sum", off=significant(off)))


def _as_torch(ours: np.ndarray, torchs: np.ndarray, t: Translator) -> Badge:
    off = float(np.abs(ours - torchs).max())
    same = off <= rounding.once() * float(np.abs(torchs).max())
    return Badge(same, t("smoothing.badge.torch", off=significant(off)), t("smoothing.badge.torch.title"))


def controls(t: Translator) -> dict[str, Any]:
    return {
        "epsilon": gr.Slider(0, 0.5, value=0.1, step=0.01, label=t("smoothing.epsilon")),
        "vocab_size": gr.Slider(5, 40, value=10, step=1, label=t("smoothing.vocab")),
    }


def draw(scene: Scene, epsilon: float, vocab_size: float) -> Picture:
    chosen = Smoothing(float(epsilon), int(vocab_size))
    return picture(look(chosen), torchs_loss(chosen), scene.t)


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.training.loss import LabelSmoothingLoss, over_all, over_allowed

    return over_all, over_allowed, LabelSmoothingLoss


SECTION = Section(
    "training.smoothing", draw, formulas=FORMULAS, controls=controls, needs_trace=False, tries=TRIES, code=code
)
