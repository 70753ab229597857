"""A picture of formulas at work: figures, tables and own drawings in a grid, and the badges of what was checked.

Python says what to show (`Picture`, `payload`); assets/js/picture.js draws it when somebody looks at it, and says when
it wants another one. Figures are drawn by the Plotly that comes with the plotly package, which shell.py serves.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr

from tfviz.messages import sentences

if TYPE_CHECKING:
    import plotly.graph_objects as go

TEMPLATE = '<div class="tv-picture"></div>'  # no value in it: a re-render would wipe the drawings


@dataclass(frozen=True)
class Badge:
    """What was checked on the arrays shown: it holds, it does not, or (None) it is only said."""

    ok: bool | None
    text: str
    title: str = ""


@dataclass(frozen=True)
class Panel:
    """One cell of the grid: a figure, markup whose user text is escaped, or data for a renderer in the browser."""

    figure: "go.Figure | None" = None
    title: str = ""
    note: str = ""  # how to read it
    html: str = ""
    wide: bool = False  # takes the whole row
    select: Mapping[str, str] = field(default_factory=dict)  # {"x": "key"}: a click on a point selects that key
    view: str = ""  # window.tfviz.views[view](box, data, api)
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Picture:
    """All of one section's picture."""

    panels: Sequence[Panel]
    badges: Sequence[Badge] = ()
    notes: Sequence[str] = ()  # above the panels: what was cut, what a control may not say
    part: float | None = None  # 0..1 of a measurement that goes on
    lacks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # id of a control -> option -> why not here
    last: bool = False  # no other follows it: the page need not hear once more of what it has


def payload(picture: Picture) -> dict[str, Any]:
    """The picture as the component's value takes it."""
    return {
        "panels": [_panel(panel) for panel in picture.panels],
        "badges": [{"ok": badge.ok, "text": badge.text, "title": badge.title} for badge in picture.badges],
        "notes": list(picture.notes),
        "part": picture.part,
        "lacks": {name: dict(options) for name, options in picture.lacks.items()},
    }


def pack(reply: Mapping[str, Any]) -> str:
    """The component's value as one string: Gradio copies every part of every value on the page at each event."""
    text = json.dumps(reply, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half of a surrogate pair cannot be sent


def _panel(panel: Panel) -> dict[str, Any]:
    words = {"title": panel.title, "note": panel.note, "html": panel.html, "wide": panel.wide}
    drawn = {"figure": panel.figure.to_json() if panel.figure is not None else "", "select": dict(panel.select)}
    return {**words, **drawn, "view": panel.view, "data": dict(panel.data)}


def picture_view(language: str, elem_id: str, **props: Any) -> gr.HTML:
    """The component. It raises `wanted` with {key, trace, place, measure, code}, and takes a value with that `key`."""
    labels = {key: sentence for key, sentence in sentences(language).items() if key.startswith("picture.")}
    return gr.HTML(
        value=None,
        html_template=TEMPLATE,
        js_on_load="window.tfviz.picture(element, props, wish => trigger('wanted', wish), watch)",  # picture.js
        apply_default_css=False,
        elem_id=elem_id,
        labels=labels,
        **props,
    )


def table(caption: str, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """An HTML table of (row header, cells); everything is escaped. `caption` is read aloud, not shown."""
    head = "".join(f'<th scope="col">{escape(word)}</th>' for word in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
        for name, cells in rows
    )
    said = f'<caption class="tv-hidden">{escape(caption)}</caption>'
    whole = f'<table class="tv-table">{said}<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="tv-scroll" tabindex="0" role="group" aria-label="{escape(caption)}">{whole}</div>'
