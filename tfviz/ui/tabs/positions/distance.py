"""Positions tab, distance: how like each other positions are, and what is left of a score between distant ones."""

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr
import numpy as np

from tfviz.figures.positions import Mark, position_curves, signed_heatmap
from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, significant
from tfviz.ui.tabs.positions.common import base_control, scheme_control
from tfviz.ui.tabs.positions.encoding import SCHEMES, Chosen, learned_rows

LENGTH = 128  # positions compared with each other
REACH = 4096  # distances of the decay
POINTS = 256


def controls(t: Translator) -> dict[str, Any]:
    return {
        "scheme": scheme_control(t, SCHEMES),
        "d": gr.Slider(8, 512, value=128, step=8, label=t("positions.encoding.d")),
        "base": base_control(t),
        "position": gr.Slider(0, LENGTH - 1, value=40, step=1, label=t("positions.distance.position")),
    }


def draw(scene: Scene, scheme: str, d: int, base: float, position: int) -> Picture:
    from tfviz.introspection import position_curves as curves

    d, base, position = int(d), float(base), int(position)
    if scheme == "learned":
        rows, notes = learned_rows(scene, Chosen(scheme, d, LENGTH, base, 0))
        return picture(curves.likeness(rows), None, position, scheme, scene.t, notes)
    said = curves.rope_angles(d, base)
    rows = curves.sinusoids(LENGTH, d, base) if scheme == "sinusoidal" else curves.turned_units(LENGTH, d, base)
    distances = np.unique(np.geomspace(1, REACH, POINTS).astype(np.int64))
    decay = {
        "score": curves.unit_scores(said, distances),
        "trend": curves.mean_scores(said, distances),
    }
    return picture(curves.likeness(rows), (distances, decay), position, scheme, scene.t)


def picture(
    alike: np.ndarray,
    decay: tuple[np.ndarray, dict[str, np.ndarray]] | None,
    position: int,
    scheme: str,
    t: Translator,
    notes: Sequence[str] = (),
) -> Picture:
    """All positions against all, the row of one, and (of schemes that have no last position) the decay far out."""
    n = len(alike)
    position = min(position, n - 1)
    words = (t("positions.position"), t("positions.position"))
    heat = signed_heatmap(alike, limit=1.0, marks=[Mark(position, axis="y")], words=words)
    title = t("positions.distance.all")
    panels = [Panel(heat, title=title, note=t(f"positions.distance.all.{scheme}"))]
    name = t("positions.distance.like", p=position)
    row = position_curves(
        np.arange(n),
        {name: alike[position]},
        words=(t("positions.position"), t("positions.distance.cosine")),
        marks=[Mark(position)],
    )
    panels.append(Panel(row, title=name, note=t("positions.distance.like.note")))
    if decay is not None:
        distances, curves = decay
        named = {t(f"positions.distance.{key}"): curve for key, curve in curves.items()}
        figure = position_curves(
            distances, named, words=(t("positions.distance"), t("positions.distance.share")), log=["x"]
        )
        note = t("positions.distance.decay.note")
        panels.append(Panel(figure, title=t("positions.distance.decay"), note=note, wide=True))
    return Picture(panels, _badges(alike, scheme, t), notes)


def _badges(alike: np.ndarray, scheme: str, t: Translator) -> list[Badge]:
    """Whether what is between two positions depends on their distance alone: every diagonal is one number."""
    spread = max(float(np.ptp(np.diagonal(alike, offset))) for offset in range(len(alike)))
    if scheme == "learned":
        return [Badge(None, t("positions.distance.varies", difference=significant(spread)))]
    allowed = rounding.layers() * float(np.abs(alike).max())
    return [Badge(spread <= allowed, t("positions.distance.only", difference=significant(spread)))]


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.introspection.position_curves import likeness, mean_scores, scores_of, unit_scores

    return likeness, scores_of, unit_scores, mean_scores


SECTION = Section(
    "positions.distance",
    draw,
    formulas=(r"\frac{PE(m)\cdot PE(n)}{d/2} = \frac{1}{d/2}\sum_i \cos\big((m-n)\,\theta_i\big)",),
    controls=controls,
    tries=(Try("base", {"base": 500_000}), Try("learned", {"scheme": "learned"})),
    code=code,
)
