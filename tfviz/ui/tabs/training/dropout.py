"""Training tab, dropout: the same input drawn several times, and what the mean of many draws comes to."""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.figures.techniques import mean_distances, probability_rows
from tfviz.ui.components.picture import Badge, Panel, Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, significant

if TYPE_CHECKING:
    from tfviz.training.experiments.dropout import Dropped

FORMULAS = (
    r"y_i = \frac{m_i}{1 - p}\, x_i, \qquad P(m_i = 0) = p",
    r"\mathbb{E}[y_i] = \frac{1 - p}{1 - p}\, x_i = x_i",
)
NEWS = 0.04  # seconds without a picture after which there is one
SIGMAS = 5  # a right share lies within so many standard deviations
SLOPE = 0.1  # of the line on logarithmic axes
TRIES = (Try("paper", {"p": 0.1}), Try("half", {"p": 0.5}), Try("most", {"p": 0.9}))


def picture(seen: "Dropped", p: float, n_rows: int, answer: Sequence[str], n: int, t: Translator) -> Picture:
    """`seen` is what was drawn so far, of `n` draws; `answer` the characters whose probabilities stand in it."""
    n_seen = len(seen.draws)
    labels = [t("dropout.draw", n=i + 1) for i in range(n_rows)]
    values = np.vstack([seen.evaluation, seen.draws[:n_rows], seen.draws.mean(axis=0)])
    labels = [t("dropout.evaluation"), *labels, t("dropout.mean", n=n_seen)]
    rows = probability_rows(values, labels, answer, words=[t("dropout.probability")])
    rows.update_layout(height=72 + 30 * len(labels), margin={"l": 104, "r": 0, "t": 32, "b": 8})
    words = [t("dropout.size"), t("dropout.distance"), "1/√m"]
    lines = {t("dropout.one_layer"): seen.one_layer, t("dropout.whole"): seen.whole}
    away = mean_distances(seen.sizes, lines, words=words)
    away.update_layout(height=340, margin={"l": 68, "r": 16, "t": 56, "b": 48})
    return Picture(
        [
            Panel(rows, t("dropout.rows"), t("dropout.rows.note")),
            Panel(away, t("dropout.away"), t("dropout.away.note")),
        ],
        [
            Badge(seen.twice == 0, t("dropout.badge.twice", off=significant(seen.twice))),
            _kept(seen, p, t),
            _slope(seen, t),
            Badge(None, t("dropout.badge.whole", off=significant(float(seen.whole[-1])), n=n_seen)),
        ],
        part=n_seen / n if n_seen < n else None,
    )


def _kept(seen: "Dropped", p: float, t: Translator) -> Badge:
    share, spread = seen.kept / seen.offered, (p * (1 - p) / seen.offered) ** 0.5
    words = {"share": f"{100 * share:.2f} %", "asked": f"{100 * (1 - p):.0f} %", "n": seen.offered}
    return Badge(abs(share - (1 - p)) <= SIGMAS * spread, t("dropout.badge.kept", **words))


def _slope(seen: "Dropped", t: Translator) -> Badge:
    """Fitted where each point is the mean over 4 groups of draws or more."""
    use = slice(0, len(seen.sizes) - 2)
    slope = float(np.polyfit(np.log(seen.sizes[use]), np.log(seen.one_layer[use]), 1)[0])
    return Badge(abs(slope + 0.5) <= SLOPE, t("dropout.badge.slope", slope=f"{slope:.2f}".replace("-", "−")))


def controls(t: Translator) -> dict[str, Any]:
    return {
        "p": gr.Slider(0.05, 0.9, value=0.1, step=0.05, label=t("dropout.p")),
        "draws": gr.Slider(1, 12, value=6, step=1, label=t("dropout.draws")),
    }


def draw(scene: Scene, p: float, draws: float) -> Iterator[Picture]:
    from tfviz.training.experiments.dropout import GROUP, GROUPS, QUESTION, drop

    answer = [*QUESTION.target, scene.t("dropout.end")]
    n, said = 1, perf_counter()
    while n <= GROUPS and not scene.stop():
        seen = scene.compute(drop, float(p), n)
        if n == GROUPS or perf_counter() - said > NEWS:
            said = perf_counter()
            yield picture(seen, p, int(draws), answer, GROUP * GROUPS, scene.t)
        n *= 2


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.training.experiments.dropout import distances, draw_group

    return draw_group, distances


SECTION = Section(
    "training.dropout", draw, formulas=FORMULAS, controls=controls, needs_trace=False, tries=TRIES, code=code
)
