"""Masks, section 2: one mask in the four conventions that libraries use, and the code that makes it.

blocked = True | allowed = ~blocked | additive = 0 or -inf | ones = 1 or 0
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfviz.ui.components.code import code_block
from tfviz.ui.components.picture import Badge, Panel, Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.masks.bench import START, Bench, choice_of, notes, place_in, read, row_title, run
from tfviz.ui.tabs.masks.grids import grid_data, mask_grid
from tfviz.ui.tabs.masks.snippet import CONVENTIONS, Recipe, mask_code, run_code

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.batch import BatchRun
    from tfviz.introspection.mask_parts import Axes, MaskChoice

TEXTS = {"blocked": ("F", "T"), "allowed": ("T", "F"), "additive": ("0", "−∞"), "ones": ("1", "0")}
OPEN = {"blocked": 0, "allowed": 1, "additive": 0.0, "ones": 1}  # the value of a cell that may be looked at
SHUT = {"blocked": 1, "allowed": 0, "additive": -np.inf, "ones": 0}


def picture(axes: "Axes", blocked: np.ndarray, row: int, code: str, t: Translator, said: Sequence[str] = ()) -> Picture:
    grids = [mask_grid(t(f"masks.convention.{name}"), ["combined"], texts=TEXTS[name]) for name in CONVENTIONS]
    data = grid_data(axes, {"combined": blocked}, [("", grids)], t)
    panels = [
        Panel(title=row_title(row, bool(axes.lengths), t), view="masks", data=data, wide=True),
        Panel(title=t("masks.code.title"), html=code_block(code, t), note=t("masks.code.note", row=row), wide=True),
    ]
    return Picture(panels, [code_badge(code, blocked, row, t)], said)


def code_badge(code: str, blocked: np.ndarray, row: int, t: Translator) -> Badge:
    """Runs the code as it stands there, and compares each of its four masks with the one on screen."""
    made = run_code(code)
    wrong = sum(
        int((made[name][row, 0].numpy() != np.where(blocked, SHUT[name], OPEN[name])).sum()) for name in CONVENTIONS
    )
    return Badge(wrong == 0, t("masks.badge.code", n=wrong, cells=blocked.size * len(CONVENTIONS)))


def recipe_of(found: "BatchRun", axes: "Axes", kind: str, bench: Bench, choice: "MaskChoice") -> Recipe:
    """What the mask on screen is made of; cross attention has no order of time."""
    order: Mapping[str, Any] = {"causal": choice.causal, "prefix": choice.prefix, "window": choice.window}
    order = {} if kind == "cross" else order
    if bench.packed:
        return Recipe(lengths=axes.lengths, **order)
    keys = found.batch.sides(kind)[1]
    n_query = len(axes.queries) if kind == "cross" else None
    return Recipe((~keys.padding).astype(int).tolist(), n_query, **order)


def draw(scene: Scene, **values: Any) -> Picture:
    from tfviz.introspection.mask_parts import mask_parts, together

    assert scene.trace is not None, "drawn without a trace"
    bench, kind = read(**values), scene.place["kind"]
    found = run(scene, bench)
    row, axes = place_in(found, bench, kind)
    reach = found.windows[kind][scene.place["layer"]]
    choice = choice_of(bench, scene.trace.stacks[kind].causal, reach, len(axes.keys))
    blocked = together(mask_parts(axes, kind, choice))
    code = mask_code(recipe_of(found, axes, kind, bench, choice))
    return picture(axes, blocked, row, code, scene.t, notes(found, bench, kind, scene.t))


SECTION = Section(
    "masks.conventions",
    draw,
    selects=("kind", "layer"),
    tries=(
        Try("window", {**START, "window": "3"}),
        Try("prefix", {**START, "pattern": "prefix", "prefix": "3"}),
        Try("packed", {**START, "packed": True}),
    ),
)
