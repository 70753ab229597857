"""Training tab, weight tying: what one matrix for tokens saves, and that it is one matrix."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.config import PRESETS
from tfviz.figures.techniques import stacked_counts
from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, megabytes, percent, significant

if TYPE_CHECKING:
    from tfviz.training.experiments.tying import Counts, Shared

FORMULA = r"\text{logits} = x E^{\top}, \qquad \text{logit}_k = x \cdot E_k"
PARTS = ("embedding", "output", "attention", "feed_forward", "rest")  # what tfviz.model.parameters' parts make up
TRIES = (Try("big", {"preset": "paper-big"}), Try("llama", {"preset": "llama-tiny"}), Try("dates", {"preset": "dates"}))


def grouped(counts: Mapping[str, int]) -> dict[str, int]:
    """Parts of all stacks together, by the keys of PARTS."""
    found = dict.fromkeys(PARTS, 0)
    for name, count in counts.items():
        kind = name.rsplit(".")[-1].replace("cross_attention", "attention")
        found[kind if kind in found else "rest"] += count
    return found


def picture(preset: str, counts: "Counts", shared: "Shared", t: Translator) -> Picture:
    """`shared` is of a small copy of the preset."""
    separate, tied = grouped(counts.separate), grouped(counts.tied)
    whole, left = sum(separate.values()), sum(tied.values())
    named = {key: t(f"tying.part.{key}") for key in PARTS}
    bars = stacked_counts(
        [t("tying.separate"), t("tying.tied")],
        {named[key]: np.array([separate[key], tied[key]], dtype=float) for key in PARTS},
        marked=[named["embedding"], named["output"]],
        words=[t("tying.parameters")],
    )
    bars.update_layout(height=230, margin={"l": 104, "r": 24, "t": 48, "b": 48})
    saved = {"saved": whole - left, "percent": percent((whole - left) / whole), "bytes": megabytes(4 * (whole - left))}
    rows = [(named[key], _numbers(separate[key], tied[key])) for key in PARTS]
    rows.append((t("tying.all"), _numbers(whole, left)))
    heads = [t("tying.separate"), t("tying.tied"), t("tying.saved")]
    return Picture(
        [
            Panel(bars, t("tying.bars", preset=preset, **saved), wide=True),
            Panel(title=t("tying.table"), html=table(t("tying.table"), heads, rows)),
            Panel(title=t("tying.uses"), html=_uses(shared, t), note=t("tying.uses.note")),
        ],
        [_one_place(shared, t), _same_rows(shared, t), _gradients(shared, t)],
    )


def _numbers(separate: int, tied: int) -> list[str]:
    return [f"{separate:,}", f"{tied:,}", f"{separate - tied:,}"]


def _uses(shared: "Shared", t: Translator) -> str:
    rows = [
        (t(f"tying.use.{use}"), [f"…{place % 16**7:07x}", significant(float(np.linalg.norm(shared.by_use[use])))])
        for use, place in shared.addresses.items()
    ]
    rows.append((t("tying.use.sum"), ["", significant(float(np.linalg.norm(shared.gradient)))]))
    return table(t("tying.uses"), [t("tying.address"), t("tying.gradient")], rows)


def _one_place(shared: "Shared", t: Translator) -> Badge:
    n = len(set(shared.addresses.values()))
    return Badge(n == 1, t("tying.badge.one", uses=len(shared.addresses), n=n), t("tying.badge.one.title"))


def _same_rows(shared: "Shared", t: Translator) -> Badge:
    off = float(np.abs(shared.embedding - shared.output).max())
    return Badge(off == 0, t("tying.badge.rows", off=significant(off)))


def _gradients(shared: "Shared", t: Translator) -> Badge:
    off = float(np.abs(sum(shared.by_use.values()) - shared.gradient).max())
    allowed = rounding.once() * float(np.abs(shared.gradient).max())
    return Badge(off <= allowed, t("tying.badge.gradient", off=significant(off)), t("tying.badge.gradient.title"))


def controls(t: Translator) -> dict[str, Any]:
    return {"preset": gr.Dropdown(list(PRESETS), value="paper-base", label=t("tying.preset"), filterable=False)}


def draw(scene: Scene, preset: str) -> Picture:
    from tfviz.training.experiments.tying import count, share

    return picture(preset, count(preset), share(preset), scene.t)


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.training.experiments.tying import share, uses

    return share, uses


SECTION = Section(
    "training.tying", draw, formulas=(FORMULA,), controls=controls, needs_trace=False, tries=TRIES, code=code
)
