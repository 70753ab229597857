"""Speed, kernels: naive against fused attention on this machine, time and memory as n grows, beside what is claimed."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gradio as gr

from tfviz.ui.components.picture import Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, significant
from tfviz.ui.tabs.speed.kernels_picture import picture, refusal

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.experiments.kernel_sweep import Sweep
    from tfviz.introspection.experiments.kernels import KernelSetting

KEY = "speed.kernels"
LARGEST = (512, 1024, 2048, 4096, 8192, 16384, 32768)
FLEX = "speed-kernels-flex"  # its checkbox
PAINTING = 0.25  # seconds that the page gets to draw a point, so that its drawing is not timed with the next one
FORMULAS = (
    r"\text{naive: } \text{softmax}\!\left(\tfrac{QK^\top}{\sqrt{d_k}}\right)V, \quad"
    r" \underbrace{2\,B\,H\,n^2 \cdot \text{bytes}}_{\text{scores and weights}}",
    r"\text{flash: the same, } \underbrace{B\,H\,n\,d \cdot \text{bytes}}_{\text{output}} + O(n)",
)


def draw(
    scene: Scene,
    largest: int = 4096,
    batch: float = 1,
    heads: float = 8,
    head_dim: int = 64,
    causal: bool = True,
    dtype: str = "fp32",
    backward: bool = False,
    flex: bool = False,
    measure: bool = False,
) -> Iterator[Picture]:
    from tfviz.introspection.experiments import kernel_sweep
    from tfviz.introspection.experiments.kernels import KernelSetting

    base = KernelSetting(int(largest), int(batch), int(heads), int(head_dim), causal, dtype, backward)
    kernels = ("naive", "flash", "flex") if flex else ("naive", "flash")
    device = scene.bench.resident.device
    said, lacks = _machine(device), _lacks(scene, base)
    if measure:
        for found in kernel_sweep.sweep(base, kernels, str(device), scene.compute, scene.stop):
            scene.keep(kept_key(base, kernels, str(device)), found, kernel_sweep.records(found))
            yield replace(picture(found, base, said, scene.t, part=found.part), lacks=lacks)
            time.sleep(PAINTING)
        if scene.stop():
            return
    found = scene.kept(kept_key(base, kernels, str(device)))
    shown = picture(found or _ahead(scene, base, kernels, str(device)), base, said, scene.t)
    compiling = [] if found or not flex or lacks[FLEX] else [_compiling(base, str(device), scene.t)]
    yield replace(shown, notes=[*shown.notes, *compiling], lacks=lacks, last=True)


def kept_key(base: "KernelSetting", kernels: Sequence[str], device: str) -> tuple[object, ...]:
    """What a sweep depends on besides its largest size."""
    return KEY, replace(base, n=0), tuple(kernels), device


def _ahead(scene: Scene, base: "KernelSetting", kernels: tuple[str, ...], device: str) -> "Sweep":
    """Nothing measured, but the guard's answers."""
    from tfviz.introspection.experiments import kernel_sweep as sweeps

    limit = sweeps.unhurried(scene.compute, sweeps.memory_limit, device, device=device)
    hindered = sweeps.hindrance_of(base, kernels, device)
    usable = [one for one in kernels if all(refused.kernel != one for refused in hindered)]
    return sweeps.Sweep(base, kernels, (), hindered + sweeps.too_large(base, usable, limit), limit=limit)


def _lacks(scene: Scene, base: "KernelSetting") -> dict[str, dict[str, str]]:
    """Why flex_attention cannot be chosen here, known without compiling it."""
    from tfviz.introspection.experiments.kernel_sweep import hindrance_of

    refused = hindrance_of(base, ("flex",), str(scene.bench.resident.device))
    return {FLEX: {"": refusal(refused[0], scene.t)} if refused else {}}


def _compiling(base: "KernelSetting", device: str, t: Translator) -> str:
    """How long compiling flex_attention will take, before it is done."""
    from tfviz.introspection.experiments.flex import compile_ahead

    seconds = compile_ahead(base, device)
    if not seconds:
        return t(f"{KEY}.compile.{'unknown' if seconds is None else 'done'}")
    return t(f"{KEY}.compile.known", seconds=significant(seconds, 2))


def _machine(device: Any) -> Mapping[str, Any]:
    from tfviz.inference.device import describe

    told = describe(device)
    return {"device": told.name, "threads": told.threads or 1}


def controls(t: Translator) -> dict[str, Any]:
    sizes = [(f"{n:,}", n) for n in LARGEST]
    return {
        "largest": gr.Dropdown(sizes, value=4096, label=t("speed.kernels.largest"), filterable=False),
        "batch": gr.Slider(1, 8, value=1, step=1, label=t("speed.kernels.batch")),
        "heads": gr.Slider(1, 32, value=8, step=1, label=t("speed.kernels.heads")),
        "head_dim": gr.Radio([32, 64, 128], value=64, label=t("speed.kernels.head_dim")),
        "dtype": gr.Radio(
            [("FP32", "fp32"), ("FP16", "fp16"), ("BF16", "bf16")], value="fp32", label=t("speed.kernels.dtype")
        ),
        "causal": gr.Checkbox(value=True, label=t("speed.kernels.causal")),
        "backward": gr.Checkbox(value=False, label=t("speed.kernels.backward")),
        "flex": gr.Checkbox(value=False, label=t("speed.kernels.with_flex"), elem_id=FLEX),
    }


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.introspection.experiments.kernels import backend, look, naive_bytes, time_some
    from tfviz.model.attention import flash, naive

    return naive, flash, time_some, look, naive_bytes, backend


SECTION = Section(
    key=KEY,
    draw=draw,
    formulas=FORMULAS,
    controls=controls,
    needs_trace=False,
    button="speed.kernels.button",
    tries=(
        Try("far", {"largest": 16384}),
        Try("full", {"causal": False}),
        Try("backward", {"backward": True}),
        Try("bf16", {"dtype": "bf16"}),
        Try("smollm", {"heads": 9, "head_dim": 64, "causal": True}),
    ),
    code=code,
)
