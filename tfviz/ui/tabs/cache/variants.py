"""KV cache, its variants: fewer heads, a window, static memory, fewer bits, and cross attention's that is written once.

Each is measured on the real keys and values of the sentence; one is computed and drawn at a time.
"""

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from tfviz.ui.components.picture import Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.cache.variant_bits import draw_bits
from tfviz.ui.tabs.cache.variant_cross import draw_cross
from tfviz.ui.tabs.cache.variant_growth import draw_growth
from tfviz.ui.tabs.cache.variant_heads import draw_heads
from tfviz.ui.tabs.cache.variant_window import window_picture

FORMULAS = (
    r"\text{bytes a token} = n_{\text{layers}} \cdot n_{\text{kv}} \cdot (d_k + d_v) \cdot \text{bytes of a number}",
    r"x' = s \cdot \text{round}\left(\frac{x - m}{s}\right) + m, \qquad s = \frac{\max - \min}{2^{\text{bits}} - 1}",
)
VARIANTS = ("heads", "window", "growth", "bits", "cross")
RESTING = {"layer": 24, "head": 6}  # of SmolLM2: nearly all of its weight lies on the first token
NEEDS = {"window": ("window",), "sinks": ("window",), "room": ("growth",), "bits": ("bits",)}  # control -> variants


def draw(scene: Scene, variant: str, window: int, sinks: int, room: int, bits: str) -> Picture:
    assert scene.trace is not None
    stack = scene.trace.stacks[scene.place["kind"]]
    t = scene.t
    if variant == "cross":
        return draw_cross(scene)
    if stack.kind == "encoder" or not (stack.causal or stack.kind == "cross"):
        return Picture([], notes=[t("cache.variants.encoder")])
    if stack.kind == "cross" and variant in ("window", "growth"):
        return Picture([], notes=[t("cache.variants.not_cross")])
    layer, head = stack.layers[scene.place["layer"]], scene.place["head"]
    if variant == "window":
        labels = [token.label for token in stack.key_tokens]
        return window_picture(layer, head, scene.place["query"], int(window), int(sinks), labels, t)
    if variant == "growth":
        return draw_growth(scene, stack, int(room))
    if variant == "bits":
        return draw_bits(scene, stack, layer, 4 if bits == "4" else 8)
    return draw_heads(scene, stack, layer)


def controls(t: Translator) -> dict[str, Any]:
    named = [(t(f"cache.variants.pick.{one}"), one) for one in VARIANTS]
    variant = gr.Radio(named, value="heads", label=t("cache.variants.pick"), elem_id="variants-pick")
    bits = [("INT8", "8"), ("INT4", "4")]
    made = {
        "window": gr.Slider(1, 256, value=6, step=1, label=t("cache.variants.window"), visible=False),
        "sinks": gr.Slider(0, 16, value=1, step=1, label=t("cache.variants.sinks"), visible=False),
        "room": gr.Slider(64, 8192, value=1024, step=64, label=t("cache.variants.room"), visible=False),
        "bits": gr.Radio(bits, value="4", label=t("cache.variants.width"), visible=False),
    }

    def show(chosen: str) -> list[Any]:
        return [gr.update(visible=chosen in NEEDS[name]) for name in made]

    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    variant.change(show, variant, list(made.values()), **quiet)
    return {"variant": variant, **made}


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.inference.quantised_cache import Quantised, quantise
    from tfviz.introspection.cache_variants import held_keys, pooled, quantised

    return pooled, held_keys, quantise, Quantised, quantised


SECTION = Section(
    key="cache.variants",
    draw=draw,
    formulas=FORMULAS,
    controls=controls,
    selects=("kind", "layer", "head", "query"),
    origin=True,
    tries=(
        Try("sink", {"variant": "window", "window": 6, "sinks": 0}, place=RESTING),
        Try("kept", {"variant": "window", "window": 6, "sinks": 1}, place=RESTING),
        Try("kivi", {"variant": "bits", "bits": "4"}),
        Try("static", {"variant": "growth", "room": 8192}),
    ),
    code=code,
)
