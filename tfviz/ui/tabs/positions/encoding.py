"""Positions tab, encodings: sinusoids, a learned table, RoPE; all of it, and one dimension over the positions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.figures.positions import Mark, position_curves, signed_heatmap
from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, significant
from tfviz.ui.tabs.positions.common import base_control, own_kind, scheme_control, thinned, thinned_note

if TYPE_CHECKING:
    from tfviz.sources.positions import Table

SCHEMES = ("sinusoidal", "learned", "rope")


@dataclass(frozen=True)
class Chosen:
    """What the controls say."""

    scheme: str
    d: int
    length: int
    base: float
    dimension: int


def controls(t: Translator) -> dict[str, Any]:
    return {
        "scheme": scheme_control(t, SCHEMES),
        "d": gr.Slider(8, 512, value=64, step=8, label=t("positions.encoding.d")),
        "length": gr.Slider(16, 512, value=128, step=16, label=t("positions.length")),
        "base": base_control(t),
        "dimension": gr.Slider(0, 511, value=12, step=1, label=t("positions.dimension")),
    }


def draw(scene: Scene, scheme: str, d: int, length: int, base: float, dimension: int) -> Picture:
    from tfviz.introspection import position_curves as curves

    chosen = Chosen(scheme, int(d), int(length), float(base), int(dimension))
    if scheme != "learned":
        make = curves.sinusoids if scheme == "sinusoidal" else curves.turned_units
        return picture(make(chosen.length, chosen.d, chosen.base), chosen, scene.t)
    rows, notes = learned_rows(scene, chosen)
    return picture(rows, chosen, scene.t, notes)


def learned_rows(scene: Scene, chosen: Chosen) -> tuple[np.ndarray, list[str]]:
    """The loaded checkpoint's own table, or else a fresh one; and what to say about it."""
    from tfviz.introspection.position_curves import fresh_table
    from tfviz.introspection.positions import look

    table = own_table(scene, look)
    if table is None:
        return fresh_table(chosen.length, chosen.d), [scene.t("positions.no_table")]
    rows = table.rows[: chosen.length, : chosen.d]
    return rows, [] if rows.shape == (chosen.length, chosen.d) else [
        scene.t("positions.smaller", rows=len(rows), columns=rows.shape[1])
    ]


def own_table(scene: Scene, look: Callable[..., Any]) -> "Table | None":
    """The learned table of the loaded model, if it has one."""
    from tfviz.introspection.position_checks import sinusoid_layout

    assert scene.trace is not None
    table = scene.examine(look).facts.tables.get(own_kind(scene.place))
    return None if table is None or sinusoid_layout(table) is not None else table


def picture(rows: np.ndarray, chosen: Chosen, t: Translator, notes: Sequence[str] = ()) -> Picture:
    """Heatmap, the chosen dimension and its partner as curves, and the wavelength (a table's: the length) of each."""
    n, d = rows.shape
    dimension = min(chosen.dimension, d - 1)
    said = [*notes] if dimension == chosen.dimension else [*notes, t("positions.clipped", dimension=dimension, d=d)]
    cells, positions, dimensions, step = thinned(rows)
    heat = signed_heatmap(
        cells,
        row_numbers=positions,
        column_numbers=dimensions,
        marks=[Mark(dimension)],
        words=(t("positions.position"), t("positions.dimension")),
    )
    note = f"{t(f'positions.encoding.{chosen.scheme}')} {thinned_note(step, t)}"
    panels = [Panel(heat, title=t(f"positions.scheme.{chosen.scheme}"), note=note.strip())]
    panels.append(_curves(rows, dimension, chosen.scheme, t))
    panels.append(_sizes(rows, t) if chosen.scheme == "learned" else _waves(d, n, dimension // 2, chosen.base, t))
    return Picture(panels, _badges(rows, chosen, t), said)


def _curves(rows: np.ndarray, dimension: int, scheme: str, t: Translator) -> Panel:
    """One dimension over all positions, and of pairs its partner too."""
    other = dimension ^ 1 if scheme != "learned" else dimension
    shown = {i: rows[:, i] for i in sorted({dimension, other}) if i < rows.shape[1]}
    named = {t("positions.dimension.n", n=i): curve for i, curve in shown.items()}
    figure = position_curves(np.arange(len(rows)), named, words=(t("positions.position"), t("positions.value")))
    note = t("positions.encoding.curve" if scheme != "learned" else "positions.encoding.curve.learned")
    return Panel(figure, title=t("positions.encoding.curves"), note=note)


def _waves(d: int, n: int, pair: int, base: float, t: Translator) -> Panel:
    from tfviz.introspection.position_curves import pair_angles, wavelengths

    waves = wavelengths(pair_angles(d, base))
    words = (t("positions.pair"), t("positions.wavelength"))
    marks = [Mark(n, t("positions.length"), axis="y"), Mark(pair)]
    figure = position_curves(np.arange(len(waves)), {words[1]: waves}, words=words, marks=marks, dots=True, log=["y"])
    note = t("positions.encoding.waves.note", i=pair, wave=significant(float(waves[min(pair, len(waves) - 1)])))
    return Panel(figure, title=t("positions.this.waves"), note=note, wide=True)


def _sizes(rows: np.ndarray, t: Translator) -> Panel:
    words = (t("positions.position"), t("positions.size"))
    figure = position_curves(np.arange(len(rows)), {words[1]: np.linalg.norm(rows, axis=1)}, words=words)
    return Panel(figure, title=t("positions.encoding.sizes"), note=t("positions.encoding.sizes.note"), wide=True)


def _badges(rows: np.ndarray, chosen: Chosen, t: Translator) -> list[Badge]:
    """What holds for every sinusoid and every turned unit: sin^2 + cos^2 = 1 in each pair."""
    if chosen.scheme == "learned" or rows.shape[1] < 2:
        return []
    pairs = rows[:, : rows.shape[1] // 2 * 2].reshape(len(rows), -1, 2)
    off = float(np.abs((pairs.astype(np.float64) ** 2).sum(axis=-1) - 1).max())
    return [Badge(off < rounding.once(), t("positions.encoding.unit", difference=significant(off)))]


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.model.positions.learned import Learned
    from tfviz.model.positions.rope import Rope
    from tfviz.model.positions.rotation import Rotation
    from tfviz.model.positions.sinusoidal import frequencies, sinusoidal_encoding

    return frequencies, sinusoidal_encoding, Learned, Rope, Rotation


SECTION = Section(
    "positions.encoding",
    draw,
    formulas=(r"PE_{(pos,\,2i)} = \sin\frac{pos}{b^{2i/d}},\qquad PE_{(pos,\,2i+1)} = \cos\frac{pos}{b^{2i/d}}",),
    controls=controls,
    tries=(
        Try("base", {"base": 100}),
        Try("long", {"length": 512, "dimension": 40}),
        Try("learned", {"scheme": "learned"}),
    ),
    code=code,
)
