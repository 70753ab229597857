"""Generate, section 4: hidden words filled in by what pre-training taught: masks, spans, and whether B follows A."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr

from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, percent, significant
from tfviz.ui.tabs.generate import fill_masks, fill_spans
from tfviz.ui.tabs.generate.fill_row import asked

if TYPE_CHECKING:  # torch comes with it
    from tfviz.introspection.filling import Ability, Follows

MODES = ("hand", "drawn")
SEEDS = 99
SAME = rounding.once()
FORMULA = r"\mathcal{L} = -\frac{1}{|M|} \sum_{i \in M} \ln P(x_i \mid \tilde{x})"


def draw(scene: Scene, mode: str, seed: float, ask: Mapping[str, Any]) -> Picture:
    from tfviz.introspection import filling, spans

    assert scene.trace is not None, "drawn without a trace"
    t, text, able = scene.t, scene.trace.text, scene.examine(filling.ability)
    drawn, hidden = mode == "drawn", asked(ask)
    if able.kind == "masks":
        job = partial(filling.fill_drawn, seed=int(seed)) if drawn else partial(filling.fill_chosen, masked=hidden)
        shown = fill_masks.picture(scene.examine(partial(job, text=text)), drawn, t)
    elif able.kind == "spans":
        how: dict[str, Any] = {"seed": int(seed)} if drawn else {"hidden": hidden}
        shown = fill_spans.picture(scene.examine(partial(spans.fill_spans, text=text, **how)), drawn, t)
    else:
        shown = cannot(able, t)
    if scene.trace.family != "encoder":
        return shown
    paired = {one.segment for one in scene.trace.source_tokens if not one.special} == {0, 1}
    return with_pair(shown, able, scene.examine(filling.pair) if able.follows and paired else None, t)


def cannot(able: "Ability", t: Translator) -> Picture:
    """Why nothing is filled in, and what would do it."""
    to = '<button type="button" data-tab="generate" data-section="generate.steps">{}</button>'
    go = to.format(escape(t("generate.fill.go"))) if able.kind in {"decoder", "answers", "whole"} else ""
    why = "".join(f"<p>{escape(t(f'generate.fill.{key}', model=able.model))}</p>" for key in (able.kind, "instead"))
    return Picture([Panel(html=f'<div class="tv-fill-cannot">{why}{go}</div>', wide=True)])


def with_pair(shown: Picture, able: "Ability", found: "Follows | None", t: Translator) -> Picture:
    """The picture with the second task of BERT's pre-training below it."""
    if found is None:
        key = "pair.type" if able.follows else "pair.no_head"
        html = f'<p class="tv-soft">{escape(t(f"generate.fill.{key}", model=able.model, box=t("page.second")))}</p>'
        return replace(shown, panels=[*shown.panels, Panel(title=t("generate.fill.pair"), html=html, wide=True)])
    orders = [(f"{found.first} → {found.second}", found.as_typed), (f"{found.second} → {found.first}", found.swapped)]
    rows = "".join(
        f'<li><bdi dir="auto">{escape(name)}</bdi><span class="tv-fill-bar"><i style="--part:{yes:.4f}"></i></span>'
        f"<span>{escape(percent(yes))}</span></li>"
        for name, (yes, _) in orders
    )
    html = f'<div class="tv-fill-pair"><ol>{rows}</ol></div>'
    panel = Panel(title=t("generate.fill.pair"), html=html, note=t("generate.fill.pair.note"), wide=True)
    off = max(abs(yes + no - 1) for _, (yes, no) in orders)
    badge = Badge(off <= SAME, t("generate.fill.badge.pair", off=significant(off)))
    return replace(shown, panels=[*shown.panels, panel], badges=[*shown.badges, badge])


def controls(t: Translator) -> dict[str, Any]:
    choices = [(t(f"generate.fill.mode.{mode}"), mode) for mode in MODES]
    return {
        "mode": gr.Radio(choices, value="hand", label=t("generate.fill.mode")),
        "seed": gr.Slider(0, SEEDS, value=0, step=1, label=t("generate.fill.seed")),
    }


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.introspection.filling import draw_fates
    from tfviz.introspection.spans import corrupt, random_spans, restore
    from tfviz.sources.heads import NextSentence

    return draw_fates, random_spans, corrupt, restore, NextSentence


SECTION = Section(
    key="generate.fill",
    draw=draw,
    formulas=(FORMULA,),
    controls=controls,
    origin=True,
    asks=True,
    tries=(
        Try("capital", {"mode": "hand"}, sentence="The capital of France is [MASK]."),
        Try("twice", {"mode": "hand"}, sentence="The [MASK] saw the [MASK] near the door."),
        Try("chinese", {"mode": "hand"}, sentence="法国的首都是[MASK][MASK]。"),
        Try("drawn", {"mode": "drawn", "seed": 0}),
        Try("another", {"mode": "drawn", "seed": 7}),
    ),
    code=code,
)
