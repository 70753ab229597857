"""A choice of a model by its config: the one on the page, one of the catalog, or a config.json in a box below."""

from collections.abc import Mapping
from typing import Any

import gradio as gr

from tfviz.errors import TfvizError
from tfviz.ui.i18n import Translator

LOADED, PASTED = "loaded", "pasted"  # beside ids of the catalog
MOST_LETTERS = 200_000


def config_box(t: Translator, own: str, example: str, **more: Any) -> dict[str, Any]:
    """The controls "model" (`more`: of gr.Dropdown) and "config". `own` begins their element ids."""
    from tfviz.sources.catalog import CATALOG

    named = [(entry.label, id) for id, entry in CATALOG.items()]
    model = gr.Dropdown(
        [(t("cache.planner.loaded"), LOADED), *named, (t("cache.planner.pasted"), PASTED)],
        value=LOADED,
        label=t("cache.planner.model"),
        elem_id=f"{own}-model",
        **more,
    )
    config = gr.Textbox(
        "",
        label=t("cache.planner.config"),
        placeholder=example,
        lines=4,
        max_lines=8,
        max_length=10 * MOST_LETTERS,  # the browser cuts there without a word; what is shorter is refused with one
        elem_id=f"{own}-config",
    )
    config.change(  # `input` would hear key presses only, not pasting
        None,
        [config, model],
        model,
        js=f"(text, model) => text.trim() ? '{PASTED}' : model === '{PASTED}' ? '{LOADED}' : model",
        show_progress="hidden",
        api_visibility="private",
    )
    return {"model": model, "config": config}


def chosen(controls: Mapping[str, Any]) -> tuple[str, str]:
    """(LOADED, PASTED or another name; the config's text). `TfvizError` for an empty box: the last picture stays."""
    model, text = str(controls["model"] or LOADED).strip(), str(controls["config"] or "")
    if model == PASTED and not text.strip():
        raise TfvizError("cache.planner.paste")
    return model, text
