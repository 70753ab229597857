"""Training tab, gradient clipping: the gradients of real steps before and after they are cut to length."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.figures.techniques import gradient_norms, norms_by_parameter
from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, significant

if TYPE_CHECKING:
    from tfviz.training.experiments.clipping import ClippedStep

FORMULA = (
    r"g \leftarrow g \cdot \min\left(1,\ \frac{c}{\lVert g \rVert}\right), \qquad \lVert g \rVert^2 = \sum_i g_i^2"
)
AT_A_TIME = 5  # steps from one picture to the next
SAME = rounding.once()  # torch divides by the norm + 1e-6, a tenth of it
TRIES = (Try("always", {"max_norm": 0.3}), Try("article", {"max_norm": 1}), Try("never", {"max_norm": 4}))


def picture(steps: "Sequence[ClippedStep]", names: Sequence[str], max_norm: float, n: int, t: Translator) -> Picture:
    """`steps` as far as they were taken, of `n`."""
    before, after = (np.array([getattr(step, side) for step in steps]) for side in ("before", "after"))
    norms, cut = np.linalg.norm(before, axis=1), np.linalg.norm(after, axis=1)
    at = int(norms.argmax())
    words = [t(f"clipping.{word}") for word in ("step", "norm", "before", "after")] + [f"c = {max_norm:g}"]
    curve = gradient_norms(norms, cut, max_norm, n, words=words)
    words = [t(f"clipping.{word}") for word in ("dot.before", "dot.after", "dot", "unclipped")]
    dots = norms_by_parameter(names, before[at], after[at], words=words)
    for figure in (curve, dots):
        figure.update_layout(height=340, margin={"l": 60, "r": 16, "t": 56, "b": 48})
    return Picture(
        [
            Panel(curve, t("clipping.curve"), t("clipping.curve.note")),
            Panel(dots, t("clipping.dots", step=at + 1), t("clipping.dots.note")),
        ],
        [
            _length(norms, cut, max_norm, t),
            _direction(np.array([step.cosine for step in steps]), t),
            Badge(None, t("clipping.badge.cut", cut=int((norms > max_norm).sum()), n=len(steps))),
        ],
        part=len(steps) / n if len(steps) < n else None,
    )


def _length(norms: np.ndarray, cut: np.ndarray, max_norm: float, t: Translator) -> Badge:
    off = float(np.abs(cut / np.minimum(norms, max_norm) - 1).max())
    return Badge(off < SAME, t("clipping.badge.length", off=significant(off)), t("clipping.badge.length.title"))


def _direction(cosines: np.ndarray, t: Translator) -> Badge:
    off = float(np.abs(cosines - 1).max())
    return Badge(off < SAME, t("clipping.badge.direction", off=significant(off)))


def controls(t: Translator) -> dict[str, Any]:
    return {"max_norm": gr.Slider(0.1, 4, value=1, step=0.1, label=t("clipping.max_norm"))}


def draw(scene: Scene, max_norm: float) -> Iterator[Picture]:
    from tfviz.training.experiments.clipping import STEPS, ClippedRun, advance

    limit = float(max_norm)  # a slider gives 1 for 1.0
    run = ClippedRun(limit)
    steps: list[ClippedStep] = []
    while len(steps) < STEPS and not scene.stop():
        run, more = scene.compute(advance, run, AT_A_TIME)
        steps += more
        yield picture(steps, run.names, limit, STEPS, scene.t)


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.training.experiments.clipping import ClippedRun

    return (ClippedRun,)


SECTION = Section(
    "training.clipping", draw, formulas=(FORMULA,), controls=controls, needs_trace=False, tries=TRIES, code=code
)
