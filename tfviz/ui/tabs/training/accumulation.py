"""Training tab, gradient accumulation: a batch in parts against the batch at once, added up rightly and wrongly."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.figures.techniques import part_differences, token_says
from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, megabytes, significant

if TYPE_CHECKING:
    from tfviz.training.experiments.accumulation import Accumulated

FORMULA = r"\frac{\sum_j \nabla L_j}{\sum_j n_j} \;\neq\; \frac{1}{m} \sum_{j=1}^{m} \frac{\nabla L_j}{n_j}"
COUNTS = (1, 2, 4, 8, 16, 32)
SAME = rounding.once()  # of the gradient's length
NEWS = 0.15  # seconds between pictures
TRIES = (
    Try("rows", {"n": 32, "even": False}),
    Try("even", {"n": 8, "even": True}),
    Try("two", {"n": 2, "even": False}),
)


def picture(found: "Mapping[int, Accumulated]", n: int, t: Translator) -> Picture:
    """`found` by the number of micro-batches, as far as measured; `n` is the number shown."""
    one, parts = found[n], np.array(sorted(found))
    ways = {key: np.array([off(found[k], key) for k in parts.tolist()]) for key in ("by_tokens", "by_means")}
    named = {key: t(f"accumulation.{key}") for key in ways}
    words = [t(f"accumulation.{word}") for word in ("parts", "difference")]
    lines = part_differences(parts, {named[key]: far for key, far in ways.items()}, COUNTS[-1], n, words=words)
    says = one.tokens.sum() / (len(one.tokens) * one.tokens)  # (1 / m n_j) / (1 / sum n_j)
    words = [t(f"accumulation.{word}") for word in ("part", "say", "tokens")]
    bars = token_says(one.tokens, says, words=words)
    for figure in (lines, bars):
        figure.update_layout(height=320, margin={"l": 68, "r": 16, "t": 56, "b": 48})
    heads = [t("accumulation.head.most"), t("accumulation.head.relative")]
    rows = [(named[key], [significant(off(one, key)), significant(relative(one, key))]) for key in ways]
    return Picture(
        [
            Panel(lines, t("accumulation.lines"), t("accumulation.lines.note")),
            Panel(bars, t("accumulation.bars", n=n), t("accumulation.bars.note")),
            Panel(title=t("accumulation.table", n=n), html=table(t("accumulation.table", n=n), heads, rows), wide=True),
        ],
        [_right(one, n, t), _wrong(one, t), _memory(found, n, t)],
        part=len(found) / len(COUNTS) if len(found) < len(COUNTS) else None,
    )


def off(one: "Accumulated", way: str) -> float:
    """The largest difference of any value from the whole batch's gradient."""
    return float(np.abs(getattr(one, way) - one.whole).max())


def relative(one: "Accumulated", way: str) -> float:
    """The length of the difference, as a share of the gradient's length."""
    return float(np.linalg.norm(getattr(one, way) - one.whole) / np.linalg.norm(one.whole))


def _right(one: "Accumulated", n: int, t: Translator) -> Badge:
    return Badge(
        relative(one, "by_tokens") < SAME, t("accumulation.badge.right", n=n, off=significant(off(one, "by_tokens")))
    )


def _wrong(one: "Accumulated", t: Translator) -> Badge:
    """Equal parts must agree; unequal ones do not, which is no failure of the check but what it is about."""
    far = significant(100 * relative(one, "by_means"))
    if len(set(one.tokens.tolist())) == 1:
        return Badge(relative(one, "by_means") < SAME, t("accumulation.badge.equal", far=far))
    return Badge(None, t("accumulation.badge.wrong", far=far))


def _memory(found: "Mapping[int, Accumulated]", n: int, t: Translator) -> Badge:
    if 1 not in found:
        return Badge(None, t("accumulation.badge.part", bytes=megabytes(found[n].kept_bytes)))
    words = {"whole": megabytes(found[1].kept_bytes), "bytes": megabytes(found[n].kept_bytes)}
    return Badge(None, t("accumulation.badge.memory", **words), t("accumulation.badge.memory.title"))


def controls(t: Translator) -> dict[str, Any]:
    return {
        "n": gr.Radio(list(COUNTS), value=8, label=t("accumulation.n")),
        "even": gr.Checkbox(value=False, label=t("accumulation.even")),
    }


def draw(scene: Scene, n: int, even: bool) -> Iterator[Picture]:
    from tfviz.training.experiments.accumulation import accumulate

    found: dict[int, Accumulated] = {}
    said = perf_counter()
    for count in sorted(COUNTS, key=lambda count: (count != n, count)):  # the one that is shown comes first
        if scene.stop():
            return
        found[count] = scene.compute(accumulate, count, even)
        if perf_counter() - said > NEWS and len(found) < len(COUNTS):
            said = perf_counter()
            yield picture(found, n, scene.t)
    yield picture(found, n, scene.t)


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.training.experiments.accumulation import accumulate, gradient

    return accumulate, gradient


SECTION = Section(
    "training.accumulation", draw, formulas=(FORMULA,), controls=controls, needs_trace=False, tries=TRIES, code=code
)
