"""Step by step, the cost of the naive form: time and memory as the text grows, measured on this machine against n^2."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfviz.figures.steps import cost_by_length
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene, Section
from tfviz.ui.i18n import Translator, megabytes, milliseconds, ratio, significant

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.experiments.cost import Cost

PAPER = (8, 64)  # heads and their width where no model is on the page
FORMULAS = (
    r"Q K^\top \in \mathbb{R}^{n \times n}: \qquad \text{time} \propto n^2 d_k, \qquad \text{memory} \propto n^2",
)
MEASURED = ("naive_memory", "flash_memory", "naive", "flash", "ratio")  # columns
CLEARLY_ABOVE = 2.1  # an exponent that asks for an explanation
MEMORY_OFF = 0.05  # the peak may differ so much from the formula, of the largest text


def draw(scene: Scene, measure: bool = False) -> Iterator[Picture]:
    from tfviz.inference.device import describe
    from tfviz.introspection.experiments import cost

    heads, width = PAPER
    if scene.trace is not None:
        layer = next(iter(next(iter(scene.trace.stacks.values())).layers.values()))
        heads, width = len(layer.query), layer.query.shape[-1]
    device = scene.bench.resident.device
    where = {"device": describe(device).name, "threads": describe(device).threads or 1}
    found: list[Cost] = []
    if not measure:
        yield picture(found, heads, width, where, scene.t)
        return
    for i, n in enumerate(cost.SIZES):
        if scene.stop():
            return
        found.append(scene.compute(cost.measure, n, heads, width, str(device)))
        yield picture(found, heads, width, where, scene.t, part=(i + 1) / len(cost.SIZES))
    yield picture(found, heads, width, where, scene.t)


def picture(
    found: Sequence["Cost"],
    heads: int,
    width: int,
    where: Mapping[str, Any],
    t: Translator,
    part: float | None = None,
) -> Picture:
    """Curves and numbers of what has been measured so far; before that, what would be."""
    from tfviz.introspection.experiments.cost import KERNELS, SIZES, exponent, score_bytes

    sizes, names = np.array(SIZES), {kernel: t(f"step.cost.{kernel}") for kernel in KERNELS}
    rows, heads_row = _rows(found, heads, t)
    said = t("step.cost.what", heads=heads, width=width, **where)
    numbers = Panel(html=table(t("step.cost.table"), heads_row, rows), title=t("step.cost.table"), note=said, wide=True)
    if not found:
        return Picture([numbers], notes=[t("step.cost.ready")], part=part)
    times = {
        names[kernel]: np.array(
            [(c.latency[kernel].low, c.latency[kernel].median, c.latency[kernel].high) for c in found]
        ).T
        * 1e3
        for kernel in KERNELS
    }
    bytes_of = {kernel: np.array([c.peak_bytes[kernel] for c in found]) / 2**20 for kernel in KERNELS}
    memory = {names[kernel]: np.tile(values, (3, 1)) for kernel, values in bytes_of.items()}
    last = found[-1]
    squares = last.latency["naive"].median * 1e3 * (sizes / last.n) ** 2
    words = [t("step.cost.n"), t("step.cost.ms"), t("step.cost.square")]
    left = cost_by_length(sizes, times, squares, words=words)
    words = [t("step.cost.n"), "MiB", t("step.cost.formula")]
    right = cost_by_length(sizes, memory, np.array([score_bytes(n, heads) for n in SIZES]) / 2**20, words=words)
    fits = [
        [
            exponent([c.n for c in found], values)
            for values in ([c.latency[k].median for c in found], [c.peak_bytes[k] for c in found])
        ]
        for k in KERNELS
    ]
    panels = [
        Panel(left, t("step.cost.time"), _fitted(t, "time", fits[0][0], fits[1][0])),
        Panel(right, t("step.cost.memory"), _fitted(t, "memory", fits[0][1], fits[1][1])),
        numbers,
    ]
    return Picture(panels, _badges(last, heads, t), part=part)


def _fitted(t: Translator, key: str, naive: float | None, flash: float | None) -> str:
    if naive is None or flash is None:
        return ""
    above = " " + t("step.cost.above") if naive > CLEARLY_ABOVE and key.endswith("time") else ""
    return t("step.cost.fit", naive=f"{naive:.2f}", flash=f"{flash:.2f}") + above


def _rows(found: Sequence["Cost"], heads: int, t: Translator) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """(a row for each size with what was measured of it, names of the columns); without a measurement the formula's."""
    from tfviz.introspection.experiments.cost import SIZES, score_bytes

    names = ["cells", "formula", *(MEASURED if found else ())]
    measured = {one.n: _measured(one) for one in found}
    rows = []
    for n in SIZES:
        cells = [f"{n * n:,}", megabytes(score_bytes(n, heads)), *measured.get(n, ["–"] * len(MEASURED))]
        rows.append((f"n\u00a0=\u00a0{n:,}", cells[: len(names)]))
    return rows, [t(f"step.cost.head.{name}") for name in names]


def _measured(one: "Cost") -> list[str]:
    slow, fast, peak = one.latency["naive"], one.latency["flash"], one.peak_bytes
    spread = f"{milliseconds(slow.median)} ({significant(slow.low * 1e3)}–{significant(slow.high * 1e3)})"
    times = [spread, milliseconds(fast.median), ratio(slow.median / fast.median)]
    return [megabytes(peak["naive"]), megabytes(peak["flash"]), *times]


def _badges(last: "Cost", heads: int, t: Translator) -> list[Badge]:
    from tfviz.introspection.experiments.cost import score_bytes

    predicted, peak = score_bytes(last.n, heads), last.peak_bytes["naive"]
    off = peak / predicted - 1
    fields = {
        "n": f"{last.n:,}",
        "peak": megabytes(peak),
        "predicted": megabytes(predicted),
        "off": f"{100 * off:+.1f} %",
    }
    gain = last.latency["naive"].median / last.latency["flash"].median
    faster = t(
        "step.badge.faster" if gain >= 1 else "step.badge.slower", n=f"{last.n:,}", ratio=ratio(max(gain, 1 / gain))
    )
    return [
        Badge(abs(off) <= MEMORY_OFF, t("step.badge.memory", **fields), t("step.badge.memory.title")),
        Badge(None, faster),
    ]


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.introspection.experiments.cost import exponent, measure
    from tfviz.model.attention import flash, naive

    return naive, flash, measure, exponent


SECTION = Section(
    key="step.cost",
    draw=draw,
    formulas=FORMULAS,
    button="step.cost.button",
    code=code,
)
