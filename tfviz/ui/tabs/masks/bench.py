"""The workbench above the sections: the sentences of the batch, the side of the padding, which masks.

All sections draw from one `Bench`; what it asks of the model is run once for each batch and kept with the trace.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import gradio as gr

from tfviz.errors import TfvizError
from tfviz.ui.components.section import Scene
from tfviz.ui.i18n import Translator

if TYPE_CHECKING:  # torch comes with it
    from tfviz.introspection.batch import BatchRun
    from tfviz.introspection.mask_parts import Axes, MaskChoice

ROWS = 6  # the page's sentence and five more
PATTERNS = ("model", "causal", "prefix", "none")
START: dict[str, Any] = {"row": "2", "side": "right", "pattern": "model", "window": "", "packed": False}


@dataclass(frozen=True)
class Bench:
    """What the controls say."""

    lines: tuple[str, ...]  # after the page's own sentence
    row: int  # from 0
    side: str = "right"
    pattern: str = "model"
    window: int | None = None
    prefix: int = 4
    packed: bool = False


def controls(t: Translator) -> dict[str, Any]:
    """The widgets, in the order of `read`."""
    with gr.Row(elem_classes=["tv-split", "tv-masks-bench"], elem_id="masks-bench"):
        with gr.Column(scale=2, min_width=260):
            lines = gr.Textbox(
                t("masks.lines.first"),
                label=t("masks.lines"),
                lines=4,
                max_lines=5,
                max_length=4000,
                elem_id="masks-lines",
            )
        with gr.Column(scale=3, min_width=300):
            with gr.Row(elem_classes=["tv-masks-line"]):
                rows = [str(i + 1) for i in range(ROWS)]
                row = gr.Radio(rows, value=START["row"], label=t("masks.row"), elem_id="masks-row")
                sides = [(t(f"masks.side.{side}"), side) for side in ("right", "left")]
                side = gr.Radio(sides, value=START["side"], label=t("masks.side"), elem_id="masks-side")
            with gr.Row(elem_classes=["tv-masks-line"]):
                patterns = [(t(f"masks.pattern.{one}"), one) for one in PATTERNS]
                pattern = gr.Radio(patterns, value=START["pattern"], label=t("masks.pattern"), elem_id="masks-pattern")
                short: dict[str, Any] = {
                    "max_lines": 1,
                    "max_length": 6,
                    "min_width": 90,
                }  # a gr.Number reads empty as 0
                prefix = gr.Textbox("4", label=t("masks.prefix"), elem_id="masks-prefix", **short)
                window = gr.Textbox("", label=t("masks.window"), elem_id="masks-window", **short)
            packed = gr.Checkbox(False, label=t("masks.packed"), elem_id="masks-packed")
    made = (lines, row, side, pattern, prefix, window, packed)
    return dict(zip(("lines", "row", "side", "pattern", "prefix", "window", "packed"), made, strict=True))


def read(
    lines: str, row: str | None, side: str | None, pattern: str | None, prefix: str, window: str, packed: bool
) -> Bench:
    """The controls' values as a `Bench`. `TfvizError` in one sentence for what makes no mask."""
    typed = tuple(lines.rstrip("\n").split("\n")) if lines.strip("\n") else ()
    if len(typed) + 1 > ROWS:
        raise TfvizError("masks.error.rows", n=len(typed) + 1, most=ROWS)
    width = _count(window, "masks.error.window") if window.strip() else None
    open_to_all = _count(prefix, "masks.error.prefix") if pattern == "prefix" else 0
    return Bench(typed, int(row or 1) - 1, side or "right", pattern or "model", width, open_to_all, bool(packed))


def _count(typed: str, error: str) -> int:
    """A whole number, 1 or more."""
    if not typed.strip().isdecimal() or int(typed) < 1:
        raise TfvizError(error, value=typed.strip() or "–")
    return int(typed)


def run(scene: Scene, bench: Bench) -> "BatchRun":
    """The batch through the traced model."""
    from tfviz.introspection.batch import run_batch
    from tfviz.introspection.packing import run_packed

    assert scene.trace is not None, "a batch needs a traced model"
    given: dict[str, Any] = {"text": scene.trace.text, "lines": bench.lines, "kernel": scene.trace.kernel}
    job = partial(run_packed, **given) if bench.packed else partial(run_batch, **given, side=bench.side)
    found: BatchRun = scene.examine(job)
    return found


def place_in(run: "BatchRun", bench: Bench, kind: str) -> "tuple[int, Axes]":
    """(the row that is looked at, what stands along its mask); the last row if there are fewer."""
    from tfviz.introspection.mask_parts import axes_of, packed_axes

    if bench.packed:
        return 0, packed_axes(run.batch, kind)
    row = min(bench.row, len(run.batch.prompts) - 1)
    return row, axes_of(run.batch, kind, row)


def choice_of(bench: Bench, causal: bool, reach: int | None, n_key: int) -> "MaskChoice":
    """`causal` and `reach` (a window): what the model's own attention does here, for whoever leaves it to the model."""
    from tfviz.introspection.mask_parts import MaskChoice

    as_model = bench.pattern == "model"
    prefix = bench.prefix if bench.pattern == "prefix" else None
    window = reach if bench.window is None and as_model and reach is not None and reach < n_key else bench.window
    return MaskChoice((as_model and causal) or bench.pattern == "causal", prefix, window)


def row_title(row: int, packed: bool, t: Translator) -> str:
    return t("masks.packed.title") if packed else t("masks.row.title", row=row + 1)


def notes(run: "BatchRun", bench: Bench, kind: str, t: Translator) -> list[str]:
    """What was cut or does not apply, in sentences."""
    rows = [row for row in run.batch.prompts if row is not None]
    said = [
        t("masks.note.cut", row=i + 1, n=row.source.total, most=len(row.source.tokens))
        for i, row in enumerate(run.batch.prompts)
        if row is not None and row.source.total > len(row.source.tokens)
    ]
    there = len(run.batch.prompts)
    if not bench.packed and bench.row >= there:
        said.append(t("masks.note.row", row=bench.row + 1, n=there))
    if bench.packed and len(rows) < 1 + sum(bool(line.strip()) for line in bench.lines):
        said.append(t("masks.note.left_out", n=len(rows)))
    if kind == "cross" and (bench.pattern != "model" or bench.window is not None):
        said.append(t("masks.note.cross"))
    return said
