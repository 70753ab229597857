"""The Attention view: tokens, all heads and one head's map, drawn on canvases inside one `gr.HTML`.

The value holds what is small (kinds of attention, tokens, thumbnails); matrices come one head at a time from the server
functions `head`, `row` and `overview`, each called with one object; `grown` gives another value for the same sentence.
assets/js/attention_view.js describes the exchange.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gradio as gr

from tfviz.messages import ASSETS, sentences

TEMPLATE = '<div class="tv-attention" data-empty></div>'  # no value in it: a re-render would wipe the canvases


def view_labels(language: str) -> dict[str, str]:
    """Every sentence the view shows, in one language: what `attention_view` takes as `labels`."""
    return {key: sentence for key, sentence in sentences(language).items() if key.startswith("view.")}


def attention_view(
    server_functions: Sequence[Callable[[dict], dict]],
    labels: Mapping[str, str],
    value: Any = None,
    elem_id: str = "attention-view",
) -> gr.HTML:
    """The component: functions `head`, `row`, `overview`, perhaps `grown`; it raises the events `select` and `gone`."""
    return gr.HTML(
        value=value,
        html_template=TEMPLATE,
        css_template=(ASSETS / "css" / "attention_view.css").read_text(encoding="utf-8"),
        js_on_load=(ASSETS / "js" / "attention_view.js").read_text(encoding="utf-8"),
        apply_default_css=False,
        server_functions=list(server_functions),
        elem_id=elem_id,
        labels=dict(labels),
    )
