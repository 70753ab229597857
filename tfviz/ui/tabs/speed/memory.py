"""Speed, memory: what any model takes to run or to train, by formula, and how far the formula is off here."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gradio as gr

from tfviz.ui.components.config_box import LOADED, PASTED, chosen, config_box
from tfviz.ui.components.picture import Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.cache.planner import TRIES as CACHE_TRIES
from tfviz.ui.tabs.speed.memory_picture import picture

if TYPE_CHECKING:  # torch comes with them
    from tfviz.config import Settings
    from tfviz.inference.memory_shapes import Load, Model
    from tfviz.introspection.memory_check import Check, Checks
    from tfviz.sources.base import LoadedModel, Prompt

FORMULAS = (
    r"\text{run} = \text{weights} + \text{KV cache} + \text{activations} \qquad"
    r" \text{train} = P\,(\underbrace{2}_{w} + \underbrace{2}_{\nabla} + \underbrace{4 + 4 + 4}_{w_{32},\, m,\, v})"
    r" + \text{activations}",
    r"\text{layer kept} \approx b\,n\,e\,\big(\underbrace{2..3 \cdot 2 d}_{\text{norms}} +"
    r" \underbrace{2 h d_k + 2 h_{\text{kv}} d_k}_{q,k,v,o} + \underbrace{4 d_{\text{ff}}}_{\text{gated FFN}} +"
    r" \underbrace{h\,n}_{\text{naive only}}\big)",
)
GIB = 1024**3
CONTEXT, MOST_TOKENS, MOST_BATCH, MOST_GIB = 8192, 100_000_000, 100_000, 100_000
PRECISIONS = ("fp32", "bf16", "int8", "int8_weights", "int4")
CACHES = ("fp32", "fp16", "fp8", "int8", "int4")


def draw(scene: Scene, measure: bool = False, **controls: Any) -> Iterator[Picture]:
    from tfviz.introspection import memory_check

    assert scene.trace is not None
    t, key = scene.t, ("speed.memory", scene.trace.model, scene.trace.precision)
    model = _model(scene, *chosen(controls))
    load = load_of(model, controls)
    memory = max(float(controls["memory"] or 0), 0.001) * GIB
    where = {"model": scene.trace.model_label, "precision": scene.trace.precision.upper()}
    found: Checks | None = scene.kept(key)
    if measure:
        for found in scene.stream(memory_check.checks):
            scene.keep(key, found, records(found.found, where))
            yield picture(model, load, memory, found, where, t, part=min(found.part, 0.99))
        if scene.stop():
            return
    if found is None:
        first = scene.examine(memory_check.first_check)
        found = memory_check.Checks((first,), 0.0)
    yield replace(picture(model, load, memory, found, where, t), last=True)


def _model(scene: Scene, name: str, pasted: str) -> "Model":
    from tfviz.sources.catalog import find_entry
    from tfviz.sources.config_file import config_text
    from tfviz.sources.parameters import model_from, model_of_entry

    if name == LOADED:
        found: Model = scene.examine(_of_loaded)
        return found
    if name == PASTED:
        return model_from(pasted)
    entry = find_entry(name)
    if entry is not None:
        return model_of_entry(entry)
    settings: Settings = scene.bench.settings
    return model_from(config_text(name, settings), name.rstrip("/").rpartition("/")[2][:60])


def _of_loaded(loaded: "LoadedModel", prompt: "Prompt") -> "Model":
    from tfviz.sources.parameters import model_of

    return model_of(loaded)


def load_of(model: "Model", controls: Mapping[str, Any]) -> "Load":
    """What the controls ask of this model; context 0 is as many as it has positions, at most CONTEXT."""
    from tfviz.inference.memory_shapes import Load

    asked = int(min(max(controls["context"] or 0, 0), MOST_TOKENS))
    context = asked or min(CONTEXT, model.cache.limit or CONTEXT)
    load = Load(
        context=context,
        batch=int(min(max(controls["batch"] or 1, 1), MOST_BATCH)),
        source=context if model.cache.family == "encoder-decoder" else 0,
        precision=str(controls["precision"]),
        cache=str(controls["cache"]),
        kernel=str(controls["kernel"]),
        training=controls["mode"] == "training",
        recompute=bool(controls["recompute"]),
        optimizer=str(controls["optimizer"]),
    )
    return replace(load, all_logits=model.cache.family == "encoder")


def records(found: "Sequence[Check]", where: Mapping[str, str]) -> list[Any]:
    from tfviz.inference.records import Record, now

    at = now()
    return [
        Record("memory", {**where, "n": one.tokens, "from": source}, f"{one.name}_bytes", value, "B", at=at)
        for one in found
        for source, value in (("formula", one.predicted), ("measured", one.measured))
    ]


def controls(t: Translator) -> dict[str, Any]:
    info = t("speed.memory.model.info")
    box = config_box(t, "memory", '{"model_type": "llama", ...}', info=info, allow_custom_value=True)

    def several(name: str, choices: Sequence[str], value: str) -> gr.Radio:
        pairs = [(t(f"speed.memory.{name}.{one}"), one) for one in choices]
        return gr.Radio(pairs, value=value, label=t(f"speed.memory.{name}"))

    caches = [(t(f"cache.planner.{one}"), one) for one in CACHES]
    auto = t("cache.planner.auto", most=f"{CONTEXT:,}")
    return {
        **box,
        "mode": several("mode", ("inference", "training"), "inference"),
        "precision": gr.Dropdown(
            [(t(f"speed.memory.precision.{one}"), one) for one in PRECISIONS],
            value="bf16",
            label=t("speed.memory.precision"),
        ),
        "cache": gr.Dropdown(caches, value="fp16", label=t("cache.planner.precision")),
        "context": gr.Number(
            0, minimum=0, maximum=MOST_TOKENS, precision=0, label=t("cache.planner.context"), info=auto
        ),
        "batch": gr.Number(1, minimum=1, maximum=MOST_BATCH, precision=0, label=t("cache.planner.batch")),
        "memory": gr.Number(24, minimum=0.001, maximum=MOST_GIB, label=t("speed.memory.device")),
        "kernel": several("kernel", ("flash", "naive"), "flash"),
        "optimizer": several("optimizer", ("adam", "sgd"), "adam"),
        "recompute": gr.Checkbox(False, label=t("speed.memory.recompute")),
    }


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.inference.memory_activations import kept_bytes, layer_kept_bytes, live_bytes, training_bytes
    from tfviz.inference.memory_plan import plan
    from tfviz.inference.memory_shapes import Matrix
    from tfviz.introspection.memory_check import learning, loss

    return plan, Matrix, live_bytes, layer_kept_bytes, kept_bytes, training_bytes, learning, loss


CONFIGS = {one.key: one.values["config"] for one in CACHE_TRIES}


def _try(key: str, config: str, **values: Any) -> Try:
    base = {"mode": "inference", "precision": "bf16", "context": 8192, "batch": 1, "recompute": False}
    return Try(key, {"config": CONFIGS[config], "model": PASTED, **base, **values})


TRIES = (
    _try("train", "llama3", mode="training", memory=80),
    _try("laptop", "llama3", precision="int4", memory=8),
    _try("serve", "llama3", batch=32, memory=80),
    _try("recompute", "llama2", mode="training", context=4096, batch=4, recompute=True, memory=141),
    _try("deepseek", "deepseek", memory=8 * 141, context=32768),
)

SECTION = Section(
    key="speed.memory",
    draw=draw,
    formulas=FORMULAS,
    controls=controls,
    origin=True,
    button="speed.memory.button",
    tries=TRIES,
    code=code,
)
