"""Masks, section 1: a padded batch; each mask and all together; scores before and after, and the weights that remain.

blocked = padding | causal | window        scores[blocked] = -inf        weights = softmax(scores)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.components.speed_strip import precision_label
from tfviz.ui.i18n import Translator, percent, significant
from tfviz.ui.tabs.masks.bench import START, choice_of, notes, place_in, read, row_title, run
from tfviz.ui.tabs.masks.grids import Grid, grid_data, mask_grid, value_grid

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.batch import BatchRun, MaskedHead
    from tfviz.introspection.mask_parts import Axes

Array = np.ndarray
EXACT = rounding.once()  # what a row's sum may be off by
FORMULAS = (
    r"A = \mathrm{softmax}\!\left(\frac{QK^{\top}}{\sqrt{d_k}} + M\right)",
    r"M_{ij} = -\infty \text{ if } \text{pad}_{j} \lor \text{causal}_{ij} \lor \text{window}_{ij} \text{, else } 0",
)


@dataclass(frozen=True)
class Shown:
    """One row of the batch, with its masks and one head of one layer."""

    axes: "Axes"
    parts: Mapping[str, Array]  # name -> bool [query, key]
    head: "MaskedHead"
    row: int
    layer: int
    number: int  # of the head
    packed: bool

    @property
    def blocked(self) -> Array:
        return np.asarray(np.stack(list(self.parts.values())).any(axis=0))

    @property
    def nothing(self) -> Array:
        """Queries that may look at no key."""
        return np.asarray(self.blocked.all(axis=1))


def picture(shown: Shown, run: "BatchRun", t: Translator, said: Sequence[str] = ()) -> Picture:
    names = list(shown.parts)
    masks = [mask_grid(t(f"masks.part.{name}"), [name], sign="|" if i else "") for i, name in enumerate(names)]
    if len(masks) > 1:
        masks.append(mask_grid(t("masks.combined"), names, sign="="))
    strips = [
        (t("masks.strip.masks"), masks),
        (t("masks.strip.scores", layer=shown.layer, head=shown.number), _scores(shown, names, t)),
    ]
    panels = [
        Panel(title=_size(run, shown, t), html=rows_html(run, shown, t), wide=True),
        Panel(
            title=row_title(shown.row, shown.packed, t),
            view="masks",
            data=grid_data(shown.axes, shown.parts, strips, t),
            note=t("masks.batch.note"),
            wide=True,
        ),
    ]
    return Picture(panels, [*weight_badges(shown, t), *run_badges(run, shown.packed, t)], said)


def _scores(shown: Shown, names: Sequence[str], t: Translator) -> list[Grid]:
    """Scores -> masked -> weights; between them the softmax that gives NaN, if there is such a row."""
    head = shown.head
    largest = float(np.abs(head.before).max())
    grids = [
        value_grid(t("masks.scores"), head.before, "signed", largest=largest),
        value_grid(t("masks.masked"), head.after, "signed", sign="→", masks=names, largest=largest),
    ]
    if shown.nothing.any():
        grids.append(value_grid(t("masks.softmax"), head.softmax, "weight", sign="→", masks=names))
    return [*grids, value_grid(t("masks.weights"), head.weights, "weight", sign="→", masks=names)]


def _size(run: "BatchRun", shown: Shown, t: Translator) -> str:
    padding = run.batch.source.padding
    if shown.packed:
        lengths = [row.n_tokens for row in run.batch.prompts if row is not None]
        return t("masks.size.packed", n=sum(lengths), padded=max(lengths) * len(lengths))
    rows, length = padding.shape
    return t("masks.size", rows=rows, length=length, share=percent(padding.mean()) if padding.any() else "0 %")


def rows_html(run: "BatchRun", shown: Shown, t: Translator) -> str:
    """The batch as a table, a row a sentence; a row's button looks at it."""
    rows: Sequence[Sequence[Any]] = run.batch.source.tokens
    pads: Sequence[Sequence[bool]] = run.batch.source.padding.tolist()
    if shown.packed:
        rows = [row.source.tokens for row in run.batch.prompts if row is not None]
        pads = [[False] * len(row) for row in rows]
    body = "".join(_row_html(i, tokens, pads[i], shown, t) for i, tokens in enumerate(rows))
    label = escape(t("masks.batch.table"))
    return (
        f'<div class="tv-scroll tv-masks-rows" tabindex="0" role="group" aria-label="{label}">'
        f'<table><caption class="tv-hidden">{label}</caption><tbody>{body}</tbody></table></div>'
    )


def _row_html(i: int, tokens: Sequence[Any], pads: Sequence[bool], shown: Shown, t: Translator) -> str:
    chosen = i == shown.row and not shown.packed
    head = (
        f'<button type="button" data-masks-row="{i + 1}" aria-pressed="{str(chosen).lower()}"'
        f' aria-label="{escape(t("masks.look", row=i + 1))}">{i + 1}</button>'
    )
    if shown.packed:
        head = str(i + 1)
    cells = "".join(
        f'<td class="pad">{escape(token.label)}</td>' if pad else f"<td><bdi>{escape(token.label)}</bdi></td>"
        for token, pad in zip(tokens, pads, strict=True)
    )
    nothing = f'<td class="nothing">{escape(t("masks.view.nothing"))}</td>' if all(pads) else ""
    return f'<tr class="{"now" if chosen else ""}"><th scope="row">{head}</th>{cells}{nothing}</tr>'


def weight_badges(shown: Shown, t: Translator) -> list[Badge]:
    """What must hold of the weights on screen, looked up in them."""
    weights, blocked, nothing = shown.head.weights, shown.blocked, shown.nothing
    badges = []
    if not nothing.all():
        off = float(np.abs(weights[~nothing].sum(axis=1) - 1).max())
        badges.append(Badge(off <= EXACT, t("masks.badge.sums", off=significant(off))))
    padded = weights[:, shown.axes.key_padding]
    if padded.size:
        largest = _largest(padded)
        badges.append(Badge(largest == 0, t("masks.badge.padding", n=padded.shape[1], largest=significant(largest))))
    if blocked.any():
        largest = _largest(weights[blocked])
        badges.append(Badge(largest == 0, t("masks.badge.blocked", n=int(blocked.sum()), largest=significant(largest))))
    if nothing.any():
        ours, theirs = weights[nothing], shown.head.softmax[nothing]
        said = t("masks.badge.nothing", n=int(nothing.sum()), nan=int(np.isnan(theirs).sum()), cells=theirs.size)
        badges.append(Badge(bool((ours == 0).all()), said, t("masks.badge.nothing.title")))
    return badges


def run_badges(run: "BatchRun", packed: bool, t: Translator) -> list[Badge]:
    """Whether each row gives what it gives alone, and whether the whole output is numbers."""
    badges = []
    found = [one for one in run.differences if one is not None]
    if found:
        worst, precision = max(found), precision_label(run.precision)
        ok = worst <= run.tolerance if precision == "FP32" else None
        key = "masks.badge.packed" if packed else "masks.badge.alone"
        title = t("masks.badge.alone.title", tolerance=significant(run.tolerance), largest=significant(run.largest))
        badges.append(Badge(ok, t(key, off=significant(worst), precision=precision), title))
    elif packed:
        badges.append(Badge(None, t("masks.badge.side_by_side")))
    if not run.finite or any(row is None for row in run.batch.prompts):
        badges.append(Badge(run.finite, t("masks.badge.finite")))
    return badges


def _largest(cells: Array) -> float:
    """NaN counts as the largest: it must not hide."""
    return float(np.nan if np.isnan(cells).any() else np.abs(cells).max())


def counting_note(run: "BatchRun", side: str, t: Translator) -> list[str]:
    """Why the rows differ, where a model cannot be told where its tokens stand."""
    found = [one for one in run.differences if one is not None]
    told = "position_ids" in run.batch.inputs or max(found) <= run.tolerance
    return [] if side == "right" or told else [t("masks.note.positions", model=run.label)]


def shown_of(scene: Scene, values: Mapping[str, Any]) -> "tuple[Shown, BatchRun, list[str]]":
    """What the workbench and the shared selection point at."""
    from tfviz.introspection.batch import masked_head
    from tfviz.introspection.mask_parts import mask_parts, together

    assert scene.trace is not None, "drawn without a trace"
    bench, kind, layer, number = read(**values), scene.place["kind"], scene.place["layer"], scene.place["head"]
    found = run(scene, bench)
    row, axes = place_in(found, bench, kind)
    choice = choice_of(bench, scene.trace.stacks[kind].causal, found.windows[kind][layer], len(axes.keys))
    parts = mask_parts(axes, kind, choice)
    head = masked_head(found.attentions[kind][layer], row, number, together(parts))
    said = notes(found, bench, kind, scene.t)
    if not bench.packed:
        said += counting_note(found, bench.side, scene.t)
    return Shown(axes, parts, head, row, layer, number, bench.packed), found, said


def draw(scene: Scene, **values: Any) -> Picture:
    shown, found, said = shown_of(scene, values)
    return picture(shown, found, scene.t, said)


def code() -> Sequence[Any]:
    from tfviz.introspection.batch import masked_head
    from tfviz.introspection.mask_parts import mask_parts
    from tfviz.model.attention import attention_scores, attention_weights
    from tfviz.model.masks import make_causal_mask, make_window_mask

    return mask_parts, make_causal_mask, make_window_mask, masked_head, attention_scores, attention_weights


SECTION = Section(
    "masks.batch",
    draw,
    formulas=FORMULAS,
    selects=("kind", "layer", "head"),
    tries=(
        Try("left", {**START, "side": "left"}),
        Try("window", {**START, "window": "3"}),
        Try("prefix", {**START, "pattern": "prefix", "prefix": "3"}),
        Try("packed", {**START, "packed": True}),
        Try("empty", {**START, "lines": "the cat was tired\n\nhello", "row": "3"}),
        Try("start", START),
    ),
    code=code,
)
