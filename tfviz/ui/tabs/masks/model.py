"""Masks, section 4: the mask that the loaded model builds for this batch, read from each layer, against ours."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfviz.errors import UnsupportedHere
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.masks.bench import START, notes, place_in, read, row_title, run
from tfviz.ui.tabs.masks.grids import grid_data, mask_grid

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.mask_parts import Axes
    from tfviz.introspection.mask_read import MaskKind

DRAWN = 4  # different masks; the table has all of them
Array = np.ndarray


def picture(
    found: "Sequence[MaskKind]",
    others: "Sequence[tuple[MaskKind, Array]]",
    axes: "Sequence[Axes]",
    row: int,
    t: Translator,
    said: Sequence[str] = (),
) -> Picture:
    """`found`: the masks of the chosen kind, drawn for `row`; `others`: of all kinds with their queries' padding."""
    why: dict[str, Array] = {}
    strips = []
    for i, one in enumerate(found[:DRAWN]):
        own, ours, differ = f"read{i}", f"expected{i}", f"differ{i}"
        why |= {own: one.read[row], ours: one.expected[row]}
        grids = [mask_grid(t("masks.model.read"), [own]), mask_grid(t("masks.model.ours"), [ours])]
        if (one.read[row] != one.expected[row]).any():
            why[differ] = one.read[row] != one.expected[row]
            grids.append({**mask_grid(t("masks.model.differ"), [differ]), "kind": "flag"})
        strips.append((name_of(one, t), grids))
    data = grid_data(axes[row], why, strips, t, together=False)
    panels = [
        Panel(title=row_title(row, bool(axes[row].lengths), t), view="masks", data=data, wide=True),
        Panel(title=t("masks.model.table"), html=mask_table(others, t), wide=True),
    ]
    return Picture(panels, [badge(one, padding, t) for one, padding in others], said)


def name_of(one: "MaskKind", t: Translator) -> str:
    window = t("masks.model.full") if one.window is None else t("masks.model.window", n=one.window)
    return f"{t('masks.model.layers', layers=spans(one.layers))} · {window}"


def badge(one: "MaskKind", padding: Array, t: Translator) -> Badge:
    real, idle = one.differing(padding)
    values = {"kind": t(f"masks.kind.{one.kind}"), "layers": spans(one.layers)}
    if not real and not idle:
        return Badge(True, t("masks.badge.equal", **values, n=padding.shape[0] * one.read[0].size))
    if not real:
        return Badge(None, t("masks.badge.idle", **values, n=idle))
    return Badge(False, t("masks.badge.differs", **values, n=real, where=where(one, padding)))


def where(one: "MaskKind", padding: Array) -> str:
    """The first cells that differ: sentence: query → key."""
    places = [
        f"{row + 1}: {query} → {key}"
        for row, (own, ours) in enumerate(zip(one.read, one.expected, strict=True))
        for query, key in np.argwhere((own != ours) & ~padding[row][:, None])[:3]
    ]
    return ", ".join(places[:3])


def mask_table(others: "Sequence[tuple[MaskKind, Array]]", t: Translator) -> str:
    heads = [t(f"masks.model.head.{name}") for name in ("layers", "form", "shape", "window", "differ")]
    rows = []
    for one, padding in others:
        real, idle = one.differing(padding)
        shape = f"[{', '.join(map(str, one.shape))}]" if one.shape else "–"
        window = "–" if one.window is None else f"{one.window:,}"
        cells = (spans(one.layers), t(f"masks.form.{one.form}"), shape, window, f"{real + idle:,}")
        rows.append((t(f"masks.kind.{one.kind}"), cells))
    return table(t("masks.model.table"), heads, rows)


def spans(layers: Sequence[int]) -> str:
    """0–3, 5, 7–9"""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def draw(scene: Scene, **values: Any) -> Picture:
    from tfviz.introspection.mask_parts import axes_of, packed_axes
    from tfviz.introspection.mask_read import read_masks

    assert scene.trace is not None, "drawn without a trace"
    bench, kind, family = read(**values), scene.place["kind"], scene.trace.family
    found = run(scene, bench)
    if bench.packed and not found.packed:
        raise UnsupportedHere("masks.error.unpacked", model=found.label)
    row, _ = place_in(found, bench, kind)
    by_kind, others = {}, []
    for one in found.attentions:
        rows = 1 if bench.packed else len(found.batch.prompts)
        axes = [packed_axes(found.batch, one) if bench.packed else axes_of(found.batch, one, i) for i in range(rows)]
        causal = one == "decoder" or (one == "self" and family == "decoder")
        by_kind[one] = read_masks(found, one, axes, causal), axes
        padding = np.stack([each.query_padding for each in axes])
        others += [(mask, padding) for mask in by_kind[one][0]]
    return picture(by_kind[kind][0], others, by_kind[kind][1], row, scene.t, notes(found, bench, "", scene.t))


def code() -> Sequence[Any]:
    from tfviz.introspection.mask_read import read_masks
    from tfviz.sources.attention_bridge import bridge_attention

    return read_masks, bridge_attention


SECTION = Section(
    "masks.model",
    draw,
    selects=("kind",),
    tries=(
        Try("left", {**START, "side": "left"}),
        Try("packed", {**START, "packed": True}),
        Try("alone", {**START, "lines": "", "row": "1"}),
    ),
    code=code,
)
