"""Positions tab, longer texts: what RoPE's angles do beyond the trained length, and the usual ways to stretch them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.figures.positions import Mark, position_curves
from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, ratio, significant
from tfviz.ui.tabs.positions.common import base_control

if TYPE_CHECKING:
    from tfviz.sources.positions import Angles

WAYS = ("linear", "ntk", "yarn")  # keys of tfviz.model.positions.rope.SCALINGS
HEAD_DIM = 64
POINTS = 256


@dataclass(frozen=True)
class Stretch:
    """What the controls say."""

    ways: Sequence[str]
    factor: float
    trained: int
    base: float
    pair: int

    @property
    def longest(self) -> int:
        return round(self.trained * max(self.factor, 2))  # without a factor there is still a beyond to look at


def controls(t: Translator) -> dict[str, Any]:
    ways = [(t(f"positions.scaling.{way}"), way) for way in WAYS]
    return {
        "ways": gr.CheckboxGroup(ways, value=list(WAYS), label=t("positions.this.scaling")),
        "factor": gr.Slider(1, 32, value=4, step=1, label=t("positions.extrapolate.factor")),
        "trained": gr.Slider(512, 8192, value=2048, step=512, label=t("positions.extrapolate.trained")),
        "base": base_control(t),
        "pair": gr.Slider(0, HEAD_DIM // 2 - 1, value=24, step=1, label=t("positions.pair")),
    }


def draw(scene: Scene, ways: Sequence[str], factor: float, trained: int, base: float, pair: int) -> Picture:
    chosen = Stretch([way for way in WAYS if way in ways], float(factor), int(trained), float(base), int(pair))
    return picture(stretched(chosen), chosen, scene.t)


def stretched(chosen: Stretch) -> "dict[str, Angles]":
    """Way -> angles; "none" first: as trained."""
    from tfviz.config import RopeScaling
    from tfviz.introspection.position_curves import rope_angles

    found = {"none": rope_angles(HEAD_DIM, chosen.base)}
    for way in chosen.ways:
        scaling = RopeScaling(way, chosen.factor, original=chosen.trained)
        found[way] = rope_angles(HEAD_DIM, chosen.base, scaling)
    return found


def picture(angles: "Mapping[str, Angles]", chosen: Stretch, t: Translator) -> Picture:
    """Wavelength of every pair, the angle of one, the reach of a score, and the same in numbers."""
    from tfviz.introspection.position_curves import mean_scores, wavelengths

    names = {way: t(f"positions.scaling.{way}") for way in angles}
    pairs, trained = np.arange(HEAD_DIM // 2), chosen.trained
    waves = {names[way]: wavelengths(said.theta) for way, said in angles.items()}
    words = (t("positions.pair"), t("positions.wavelength"))
    marks = [Mark(trained, t("positions.extrapolate.trained"), beyond=True, axis="y"), Mark(chosen.pair)]
    over = [names[way] for way in angles if way == WAYS[-1]]  # it lies on the others for many pairs
    left = position_curves(pairs, waves, words=words, marks=marks, log=["y"], dashed=over)
    panels = [Panel(left, title=t("positions.this.waves"), note=t("positions.extrapolate.waves.note"))]

    at = np.linspace(0, chosen.longest, POINTS)
    turns = {names[way]: at * said.theta[chosen.pair] / (2 * np.pi) for way, said in angles.items()}
    seen = trained * float(angles["none"].theta[chosen.pair]) / (2 * np.pi)
    marks = [Mark(trained, t("positions.extrapolate.trained"), beyond=True), Mark(seen, axis="y")]
    right = position_curves(
        at, turns, words=(t("positions.position"), t("positions.extrapolate.turns")), marks=marks, dashed=over
    )
    title = t("positions.extrapolate.angle", pair=chosen.pair)
    panels.append(Panel(right, title=title, note=t("positions.extrapolate.angle.note")))

    distances = np.unique(np.geomspace(1, chosen.longest, POINTS).astype(np.int64))
    reach = {names[way]: mean_scores(said, distances) for way, said in angles.items()}
    words = (t("positions.distance"), t("positions.extrapolate.mean"))
    marks = [Mark(trained, t("positions.extrapolate.trained"), beyond=True)]
    below = position_curves(distances, reach, words=words, marks=marks, log=["x"], dashed=over)
    note = t("positions.extrapolate.reach.note")
    panels.append(Panel(below, title=t("positions.extrapolate.reach"), note=note, wide=True))
    panels.append(Panel(html=_numbers(angles, chosen, t), wide=True))
    return Picture(panels, _badges(angles, chosen, t))


def _new_share(said: "Angles", trained_angles: "Angles", chosen: Stretch) -> np.ndarray:
    """The largest angle of each pair at the end of the longer text, by the largest it had in training."""
    end = chosen.trained * chosen.factor
    return end * said.theta.astype(np.float64) / (chosen.trained * trained_angles.theta.astype(np.float64))


def _unseen(said: "Angles", trained_angles: "Angles", chosen: Stretch) -> int:
    """Pairs that reach angles which training never showed: they made no whole turn in it, and now turn further."""
    whole = chosen.trained * trained_angles.theta >= 2 * np.pi
    return int((~whole & (_new_share(said, trained_angles, chosen) > 1 + 1e-4)).sum())


def _numbers(angles: "Mapping[str, Angles]", chosen: Stretch, t: Translator) -> str:
    none = angles["none"]
    rows = []
    for way, said in angles.items():
        cells = [
            significant(2 * np.pi / float(said.theta[chosen.pair])),
            ratio(float(_new_share(said, none, chosen)[chosen.pair])),
            t("positions.this.dims.of", n=_unseen(said, none, chosen), of=HEAD_DIM // 2),
            ratio(said.grown**2),
        ]
        rows.append((t(f"positions.scaling.{way}"), cells))
    heads = [t(f"positions.extrapolate.head.{key}", pair=chosen.pair) for key in ("wave", "angle", "unseen", "grown")]
    return table(t("positions.extrapolate.table"), heads, rows)


def _badges(angles: "Mapping[str, Angles]", chosen: Stretch, t: Translator) -> list[Badge]:
    """Linear scaling meets no angle that training did not show; a factor of 1 changes nothing."""
    none = angles["none"]
    if chosen.factor == 1:
        same = max(float(np.abs(said.theta - none.theta).max()) for said in angles.values())
        return [Badge(same < rounding.once(), t("positions.extrapolate.same", difference=significant(same)))]
    if "linear" not in angles:
        return []
    unseen = _unseen(angles["linear"], none, chosen)
    return [Badge(unseen == 0, t("positions.extrapolate.inside", n=unseen))]


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.introspection.position_curves import mean_scores
    from tfviz.model.positions.rope import angles, linear, ntk, yarn

    return angles, linear, ntk, yarn, mean_scores


SECTION = Section(
    "positions.extrapolate",
    draw,
    formulas=(
        r"\text{linear: } \frac{\theta_i}{s} \qquad \text{NTK: } \theta'_i = (b\, s^{d/(d-2)})^{-2i/d}"
        r"\qquad \text{YaRN: } \theta'_i = \gamma_i\,\theta_i + (1-\gamma_i)\,\frac{\theta_i}{s}",
    ),
    controls=controls,
    needs_trace=False,
    tries=(
        Try("far", {"factor": 32}),
        Try("fast", {"pair": 4}),
        Try("base", {"base": 500_000}),
        Try("one", {"factor": 1}),
    ),
    code=code,
)
