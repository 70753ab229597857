"""Layers tab, pre-norm against post-norm: gradients and sublayers of models that nobody has trained yet, measured."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.figures import norms as figures
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, significant

if TYPE_CHECKING:
    from tfviz.introspection.experiments.depth import Depth

Run = tuple[str, int, int, int, str]  # placement, layers, d_model, seed, how the outputs are scaled at the start

PLACEMENTS = ("post", "pre")
DEPTHS = (2, 4, 8, 16, 24, 48)
OPENS_AT = [2, 8, 24, 48]
WIDTHS = (32, 64, 128)
SCALES = ("xavier", "scaled", "zero")
SLOPE = {"post": 0.0, "pre": -0.5}  # of the last layer's gradient over depth, both logarithmic: Xiong et al.
SLACK = 0.2
KEPT = 600
FORMULAS = (
    r"\text{post: } x \leftarrow \text{Norm}(x + f(x))",
    r"\text{pre: } x \leftarrow x + f(\text{Norm}(x))",
    r"\left\lVert \frac{\partial L}{\partial W_{last}} \right\rVert \sim "
    r"\begin{cases} \text{const} & \text{post} \\ 1/\sqrt{layers} & \text{pre} \end{cases}",
)
_measured: "OrderedDict[Run, Depth]" = OrderedDict()  # a run is the same however often it is asked for


def runs_for(depths: Sequence[int], d_model: int, seed: int) -> list[Run]:
    """What has to be measured, shallow models first; the scales of the start at the deepest only."""
    runs = [(placement, n, d_model, seed, "xavier") for n in sorted(depths) for placement in PLACEMENTS]
    deepest = max(depths, default=0)
    more = [(placement, deepest, d_model, seed, scale) for scale in SCALES[1:] for placement in PLACEMENTS]
    return [*runs, *more] if deepest else []


def picture(found: Sequence[tuple[Run, "Depth"]], n_runs: int, t: Translator) -> Picture:
    """What has been measured so far."""
    plain = {run[:2]: depth for run, depth in found if run[4] == "xavier"}
    depths = sorted({n for _, n in plain if all((one, n) in plain for one in PLACEMENTS)})
    top = 1.08 * max((float(depth.gradients.max()) for depth in plain.values()), default=1.0)
    words = [t("layers.depth.layer"), t("layers.depth.gradient")]
    panels = []
    for placement in PLACEMENTS:
        curves = {t("layers.depth.layers", n=n): plain[placement, n].gradients for n in depths}
        figure = figures.gradients_by_layer(curves, top, words=words)
        panels.append(Panel(figure, t(f"layers.depth.{placement}"), t(f"layers.depth.{placement}.note")))
    panels += [
        last(plain, depths, t),
        Panel(title=t("layers.depth.start"), html=start(found, t), note=t("layers.depth.start.note")),
    ]
    done = len(found) == n_runs
    return Picture(panels, badges(plain, depths, t) if done else (), part=None if done else len(found) / n_runs)


def slope(depths: Sequence[int], values: Sequence[float]) -> float:
    """Of the straight line through the points on two logarithmic axes."""
    return float(np.polyfit(np.log(depths), np.log(values), 1)[0])


def last(plain: "dict[tuple[str, int], Depth]", depths: Sequence[int], t: Translator) -> Panel:
    """The last layer's gradient by depth, with the paper's lines through the shallowest model."""
    x = np.array(depths, dtype=np.float32)
    ends = {one: np.array([plain[one, n].gradients[-1] for n in depths]) for one in PLACEMENTS}
    names = {one: t(f"layers.depth.{one}") for one in PLACEMENTS}
    measured = {names[one]: ends[one] for one in PLACEMENTS}
    lines = {
        t("layers.depth.predicted", placement=names[one]): ends[one][:1] * (x / x[0]) ** SLOPE[one]
        for one in PLACEMENTS
        if len(depths)
    }
    words = [t("layers.depth.depth"), t("layers.depth.last.gradient")]
    figure = figures.last_layer_by_depth(x, measured, lines, words=words)
    return Panel(figure, t("layers.depth.last"), t("layers.depth.last.note"))


def start(found: Sequence[tuple[Run, "Depth"]], t: Translator) -> str:
    """How large a sublayer's output is beside the stream that it is added to, by how its last matrix starts."""
    deepest = max((run[1] for run, _ in found), default=0)
    rows = []
    for run, depth in found:
        if run[1] == deepest:
            name = f"{t(f'layers.depth.{run[0]}')}, {t(f'layers.depth.scale.{run[4]}')}"
            numbers = (depth.attention[0], depth.attention.mean(), depth.feed_forward[0], depth.feed_forward.mean())
            rows.append((name, tuple(significant(float(number)) for number in numbers)))
    heads = [t(f"layers.depth.head.{key}") for key in ("attention.first", "attention", "forward.first", "forward")]
    return table(t("layers.depth.start"), heads, rows)


def badges(plain: "dict[tuple[str, int], Depth]", depths: Sequence[int], t: Translator) -> list[Badge]:
    """The measured slopes against those of the paper's theorem."""
    if len(depths) < 2:
        return []
    found = []
    for one in PLACEMENTS:
        steep = slope(depths, [plain[one, n].gradients[-1] for n in depths])
        values = {"slope": f"{steep:.2f}", "theory": f"{SLOPE[one]:g}"}
        said = t("layers.depth.slope", placement=t(f"layers.depth.{one}"), **values)
        found.append(Badge(abs(steep - SLOPE[one]) <= SLACK, said, t("layers.depth.slope.title")))
    return found


def draw(scene: Scene, depths: Sequence[int], d_model: int, seed: int, measure: bool) -> Iterator[Picture]:
    """Curves appear as they are measured; what was measured before stands there at once."""
    runs = runs_for([int(n) for n in depths], int(d_model), int(seed))
    if not runs:
        yield Picture((), notes=[scene.t("layers.depth.nothing")])
        return
    if not measure and not all(run in _measured for run in runs):
        yield Picture((), notes=[scene.t("layers.depth.what", n=len(runs), deepest=max(run[1] for run in runs))])
        return
    yield from _measure(scene, runs)


def _measure(scene: Scene, runs: Sequence[Run]) -> Iterator[Picture]:
    from tfviz.introspection.experiments.depth import measure_depth

    found = []
    for run in runs:
        new = run not in _measured
        if new:
            _measured[run] = scene.compute(measure_depth, *run)
            while len(_measured) > KEPT:
                _measured.popitem(last=False)
        found.append((run, _measured[run]))
        if scene.stop():
            return
        if new and run[0] == PLACEMENTS[-1] and run != runs[-1]:
            yield picture(found, len(runs), scene.t)
    yield picture(found, len(runs), scene.t)


def controls(t: Translator) -> dict[str, Any]:
    return {
        "depths": gr.CheckboxGroup(
            [(str(n), n) for n in DEPTHS], value=OPENS_AT, label=t("layers.depth.control.depths")
        ),
        "d_model": gr.Radio([(str(n), n) for n in WIDTHS], value=64, label="d_model"),
        "seed": gr.Slider(0, 20, value=0, step=1, label=t("layers.depth.control.seed")),
    }


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.introspection.experiments.depth import measure_depth
    from tfviz.model.residual import PostNorm, PreNorm

    return PostNorm, PreNorm, measure_depth


TRIES = (
    Try("all", values={"depths": list(DEPTHS)}),
    Try("wide", values={"d_model": 128}),
    Try("again", values={"seed": 1}),
)
SECTION = Section(
    "layers.depth",
    draw,
    formulas=FORMULAS,
    controls=controls,
    needs_trace=False,
    button="layers.depth.measure",
    tries=TRIES,
    code=code,
)
