"""Speed, roofline: what each part of the model should take by this machine's measured limits, and what it takes."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gradio as gr

from tfviz.ui.components.picture import Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.speed.roofline_picture import Where, before, picture

KEY = "speed.roofline"
TOKENS = (16, 512, 128)  # fewest, most, at first
FORMULAS = (
    r"t = c + \max\!\left(\frac{\text{FLOP}}{F(m)},\ \frac{\text{bytes}}{B}\right) \qquad"
    r" \text{intensity} = \frac{\text{FLOP}}{\text{bytes}} \approx \frac{2\,m\,k\,n}{b\,k\,n} = \frac{2m}{b}",
)


def draw(scene: Scene, n: float = TOKENS[2], measure: bool = False) -> Iterator[Picture]:
    from tfviz.introspection import roofline_parts, roofline_run

    assert scene.trace is not None
    tokens, where = int(n), _where(scene, int(n))
    key = _key(scene, tokens)
    found, known = scene.kept(key), scene.kept(_of_machine(scene))
    if found is not None and not measure:
        yield replace(picture(found.counted, found, found.roofs, where, scene.t), last=True)
        return
    if not measure:
        yield before(known, where, scene.t)
    counted = scene.examine(partial(roofline_parts.count, n=tokens))
    if measure:
        for found in scene.stream(partial(roofline_run.run, counted=counted)):
            if found.timed is not None:
                scene.keep(key, found, roofline_run.records(found))
            if known is None or found.timed is not None:  # at once: who presses Stop asks for it before this ends
                scene.keep(_of_machine(scene), found.roofs)
            if found.part < 1:
                yield picture(counted, found, found.roofs, where, scene.t, found.part)
        if scene.stop():
            return
    yield replace(picture(counted, found, known if found is None else found.roofs, where, scene.t), last=True)


def _key(scene: Scene, n: int) -> Hashable:
    """All that a measurement depends on: the model as it is, the size, the device and its threads."""
    trace = scene.trace
    assert trace is not None
    return KEY, trace.model, trace.revision, trace.precision, n, _of_machine(scene)


def _of_machine(scene: Scene) -> Hashable:
    from tfviz.inference.device import describe

    told = describe(scene.bench.resident.device)
    return "speed.roofs", told.name, told.threads


def _where(scene: Scene, n: int) -> Where:
    from tfviz.inference.device import describe

    assert scene.trace is not None
    told = describe(scene.bench.resident.device)
    return Where(scene.trace.model_label, scene.trace.precision.upper(), told.name, told.threads or 1, n)


def controls(t: Translator) -> dict[str, Any]:
    fewest, most, first = TOKENS
    return {"n": gr.Slider(fewest, most, value=first, step=16, label=t("speed.roofline.n"))}


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.inference.operator_clock import OperatorClock
    from tfviz.inference.roofline import predict_operation, product_throughput, streaming
    from tfviz.inference.roofline_probes import measure_one
    from tfviz.introspection.roofline_operations import product_of

    return predict_operation, product_throughput, streaming, product_of, measure_one, OperatorClock


SECTION = Section(
    key=KEY,
    draw=draw,
    formulas=FORMULAS,
    controls=controls,
    button="speed.roofline.button",
    tries=(Try("few", {"n": 16}), Try("many", {"n": 512})),
    code=code,
)
