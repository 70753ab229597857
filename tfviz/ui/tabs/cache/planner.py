"""KV cache, the planner: bytes of the cache of any model before it is loaded, and the largest context that fits."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gradio as gr

from tfviz.ui.components.config_box import PASTED, chosen, config_box
from tfviz.ui.components.picture import Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.cache.planner_picture import (
    CONTEXT,
    MOST_BATCH,
    MOST_GIB,
    MOST_TOKENS,
    PRECISIONS,
    SOURCE,
    Wish,
    picture,
)

if TYPE_CHECKING:  # torch comes with its package
    from tfviz.inference.cache_size import CacheShape
    from tfviz.sources.base import LoadedModel, Prompt

FORMULAS = (
    r"\text{bytes} = \text{batch} \cdot \sum_{\text{layers}} \text{held}(n) \cdot n_{\text{kv}} \cdot"
    r" (d_k + d_v) \cdot \text{bytes of a number}, \qquad"
    r" \text{held}(n) = \begin{cases} n & \text{full} \\ \min(n,\, w - 1) & \text{window } w \end{cases}",
)
GIB = 1024**3
WEIGHT_BITS = {"none": 0.0, "fp32": 32.0, "fp16": 16.0, "int8": 8.0, "int4": 4.5}  # with the scales of groups of 32


def draw(scene: Scene, **controls: Any) -> Picture:
    from tfviz.sources.cache_config import shape_of_entry
    from tfviz.sources.catalog import CATALOG

    assert scene.trace is not None
    wish, measured = _wish(controls), None
    model, pasted = chosen(controls)
    if model == PASTED:
        shape = _of_text(pasted)
    elif model in CATALOG:
        shape = shape_of_entry(CATALOG[model])
    else:
        shape = scene.examine(_loaded_shape)
        measured = position_numbers(scene.trace.stacks)
    return picture(shape, wish, scene.t, measured)


def _of_text(text: str) -> "CacheShape":
    from tfviz.sources.cache_config import read_config

    return read_config(text)


def _loaded_shape(loaded: "LoadedModel", prompt: "Prompt") -> "CacheShape":
    from tfviz.sources.cache_config import shape_of

    return shape_of(loaded)


def position_numbers(stacks: Mapping[str, Any]) -> list[int] | None:
    """Numbers that each layer's real keys and values have per token, in order; None for an encoder."""
    kind = next((kind for kind in ("self", "decoder") if kind in stacks and stacks[kind].causal), None)
    if kind is None:
        return None
    layers = stacks[kind].layers
    return [(layers[i].key[:, 0].size + layers[i].value[:, 0].size) for i in sorted(layers)]


def _wish(controls: Mapping[str, Any]) -> Wish:
    return Wish(
        context=int(min(max(controls["context"] or 0, 0), MOST_TOKENS)),
        batch=int(min(max(controls["batch"] or 1, 1), MOST_BATCH)),
        precision=str(controls["precision"]),
        memory=float(controls["memory"] or 0) * GIB,
        weight_bits=WEIGHT_BITS[str(controls["weights"])],
        parameters=float(controls["parameters"] or 0) * 1e9 or None,
        source=int(min(max(controls["source"] or 0, 0), MOST_TOKENS)),
    )


def controls(t: Translator) -> dict[str, Any]:
    box = config_box(t, "planner", '{"num_hidden_layers": 32, ...}')
    named = [(t(f"cache.planner.{one}"), one) for one in PRECISIONS]
    weights = [(t(f"cache.planner.weights.{one}"), one) for one in WEIGHT_BITS]
    parameters = gr.Number(0, minimum=0, maximum=100_000, label=t("cache.planner.parameters"))
    box["config"].change(
        None,
        [box["config"], parameters],
        parameters,
        js=_parameters_of_example(),
        show_progress="hidden",
        api_visibility="private",
    )
    return {
        **box,
        "context": _count_of(t("cache.planner.context"), t("cache.planner.auto", most=f"{CONTEXT:,}")),
        "batch": gr.Number(1, minimum=1, maximum=MOST_BATCH, precision=0, label=t("cache.planner.batch")),
        "precision": gr.Radio(named, value="fp16", label=t("cache.planner.precision")),
        "memory": gr.Number(24, minimum=0.001, maximum=MOST_GIB, label=t("cache.planner.memory")),
        "weights": gr.Dropdown(weights, value="fp16", label=t("cache.planner.weights")),
        "parameters": parameters,
        "source": _count_of(t("cache.planner.source"), t("cache.planner.auto", most=f"{SOURCE:,}")),
    }


def _count_of(label: str, info: str) -> gr.Number:
    """A number of tokens; 0 is as many as the model takes, up to what the line below says."""
    return gr.Number(0, minimum=0, maximum=MOST_TOKENS, precision=0, label=label, info=info)


def _parameters_of_example() -> str:
    """JavaScript: the parameters that go with an example's config; and they are not another's."""
    known = json.dumps({one.values["config"]: one.values["parameters"] for one in TRIES})
    return f"""(text, n) => {{
        const known = {known}, stale = Object.values(known).includes(n);
        return known[text] ?? (stale ? 0 : n);
    }}"""


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.inference.cache_size import CacheLayer, cache_bytes, largest_context

    return CacheLayer, cache_bytes, largest_context


def _try(key: str, parameters: float, config: str, memory: int = 24, weights: str = "fp16") -> Try:
    more = {"parameters": parameters, "context": 32_768, "memory": memory, "weights": weights}
    return Try(key, {"model": PASTED, "config": config, **more})


# the few entries of these models' public config.json that matter here and in speed.memory, and their billions of
# parameters
TRIES = (
    _try(
        "llama2",
        6.738,
        '{"model_type": "llama", "_name_or_path": "Llama-2-7B", "num_hidden_layers": 32, "hidden_size": 4096,\n'
        ' "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096}',
    ),
    _try(
        "llama3",
        8.030,
        '{"model_type": "llama", "_name_or_path": "Llama-3-8B", "num_hidden_layers": 32, "hidden_size": 4096,\n'
        ' "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,\n'
        ' "intermediate_size": 14336, "vocab_size": 128256}',
    ),
    _try(
        "mistral",
        7.242,
        '{"model_type": "mistral", "_name_or_path": "Mistral-7B-v0.1", "num_hidden_layers": 32,\n'
        ' "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": 4096,\n'
        ' "max_position_embeddings": 32768}',
    ),
    _try(
        "gemma",
        9.242,
        '{"model_type": "gemma2", "_name_or_path": "Gemma-2-9B", "num_hidden_layers": 42, "hidden_size": 3584,\n'
        ' "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "sliding_window": 4096,\n'
        ' "intermediate_size": 14336, "vocab_size": 256000, "max_position_embeddings": 8192}',
    ),
    _try(
        "deepseek",
        671,
        '{"model_type": "deepseek_v3", "_name_or_path": "DeepSeek-V3", "num_hidden_layers": 61,\n'
        ' "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512,\n'
        ' "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,\n'
        ' "max_position_embeddings": 163840}',
        memory=8 * 141,  # eight H200
        weights="int8",
    ),
)

SECTION = Section(
    key="cache.planner",
    draw=draw,
    formulas=FORMULAS,
    controls=controls,
    origin=True,
    tries=TRIES,
    code=code,
)
