"""Masks, section 3: a few new queries over a cache of keys, and which corner the causal triangle is laid into."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.errors import TfvizError
from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, significant
from tfviz.ui.tabs.masks.grids import grid_data, mask_grid, value_grid

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.alignment import Alignments
    from tfviz.introspection.mask_parts import Axes

MOST = 12
TEXTS = ("1", "0")
FORMULA = r"\text{query } i \text{ sees key } j \iff j \le i + (n_{key} - n_{query})"


def picture(found: "Alignments", axes: "Axes", t: Translator, said: Sequence[str] = ()) -> Picture:
    why = {"top_left": found.top_left, "bottom_right": found.bottom_right}
    masks = [mask_grid(t(f"masks.decode.{name}"), [name], texts=TEXTS) for name in why]
    weights = [
        value_grid(t("masks.weights"), found.weights_top_left, "weight", masks=["top_left"]),
        value_grid(t("masks.weights"), found.weights_bottom_right, "weight", masks=["bottom_right"]),
    ]
    strips = [(t("masks.decode.masks"), masks), (t("masks.decode.weights"), weights)]
    panel = Panel(
        view="masks", data=grid_data(axes, why, strips, t, together=False), note=t("masks.decode.note"), wide=True
    )
    return Picture([panel], badges(found, t), said)


def badges(found: "Alignments", t: Translator) -> list[Badge]:
    """Which triangle gives the rows of the whole text, and which one torch's flag means: both measured."""
    ours, theirs = _apart(found.out_bottom_right, found.out_whole), _apart(found.out_top_left, found.out_whole)
    to_left, to_right = _apart(found.out_flag, found.out_top_left), _apart(found.out_flag, found.out_bottom_right)
    allowed = rounding.once() * float(np.abs(found.out_whole).max())
    return [
        Badge(ours <= allowed, t("masks.badge.bottom_right", off=significant(ours))),
        Badge(None, t("masks.badge.top_left", off=significant(theirs))),
        Badge(to_left <= allowed, t("masks.badge.flag", left=significant(to_left), right=significant(to_right))),
    ]


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max())


def draw(scene: Scene, n_query: float, n_key: float) -> Picture:
    from tfviz.introspection.alignment import alignments
    from tfviz.introspection.mask_parts import Axes

    assert scene.trace is not None, "drawn without a trace"
    t, kind = scene.t, scene.place["kind"]
    kind = "decoder" if kind in {"cross", "encoder"} and "decoder" in scene.trace.stacks else kind
    stack = scene.trace.stacks[kind]
    layer = min(scene.place["layer"], stack.n_layers - 1)
    tokens = stack.key_tokens
    keys = min(int(n_key), len(tokens))
    queries = min(int(n_query), keys) if keys < int(n_key) else int(n_query)
    said = [] if keys == int(n_key) else [t("masks.decode.short", n=len(tokens))]
    if queries > keys:
        raise TfvizError("masks.error.queries", n_query=queries, n_key=keys)
    found = alignments(stack.layers[layer], min(scene.place["head"], stack.n_heads - 1), queries, keys)
    none = np.zeros(keys, dtype=bool)
    axes = Axes(tuple(tokens[keys - queries : keys]), tuple(tokens[:keys]), none[:queries], none)
    return picture(found, axes, t, said)


def controls(t: Translator) -> dict[str, Any]:
    return {
        "n_query": gr.Slider(1, MOST, value=2, step=1, label=t("masks.decode.n_query")),
        "n_key": gr.Slider(1, MOST, value=5, step=1, label=t("masks.decode.n_key")),
    }


def code() -> Sequence[Any]:
    from tfviz.introspection.alignment import alignments
    from tfviz.model.masks import make_causal_mask

    return make_causal_mask, alignments


SECTION = Section(
    "masks.decode",
    draw,
    formulas=(FORMULA,),
    controls=controls,
    selects=("layer", "head"),
    tries=(
        Try("one", {"n_query": 1, "n_key": 5}),
        Try("square", {"n_query": 5, "n_key": 5}),
        Try("chunk", {"n_query": 4, "n_key": 8}),
    ),
    code=code,
)
