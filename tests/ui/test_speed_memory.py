"""Speed, memory: what is said of a plan, and badges that turn red when a number is tampered with."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import Loaded
from tests.inference.test_memory_plan import MODEL
from tests.ui.test_cache_steps import failing, scene, traced
from tests.ui.test_cache_steps import workbench as workbench
from tfviz.errors import TfvizError
from tfviz.inference.memory_shapes import Load
from tfviz.introspection.memory_check import Check, Checks
from tfviz.introspection.workbench import Workbench
from tfviz.messages import LANGUAGES
from tfviz.sources.parameters import model_from
from tfviz.ui.components.picture import Picture, payload
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.speed import memory
from tfviz.ui.tabs.speed.memory_picture import picture

EN = Translator("en")
GIB = 1024**3
WHERE = {"model": "<tiny>", "precision": "FP32"}
FOUND = (
    Check("weights", 0, 1000, 1000, exact=True),
    Check("cache", 512, 200, 200, exact=True),
    Check("naive", 512, 90, 100),
    Check("flash", 512, 10, 30),
)
CONTROLS: dict[str, Any] = {
    "model": memory.LOADED, "config": "", "mode": "inference", "precision": "bf16", "cache": "fp16", "context": 0,
    "batch": 1, "memory": 24, "kernel": "flash", "optimizer": "adam", "recompute": False,
}  # fmt: skip


LOAD = Load(10)


def drawn(load: Load = LOAD, found: tuple[Check, ...] = FOUND, memory: float = GIB, t: Translator = EN) -> Picture:
    return picture(MODEL, load, memory, Checks(found, 1.0), WHERE, t)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("training", [False, True])
def test_a_plan_is_drawn_and_its_checks_hold(training: bool, language: str) -> None:
    shown = drawn(Load(10, training=training), t=Translator(language))
    assert not failing(shown.badges) and len(shown.panels) == 5
    assert len(json.dumps(payload(shown), allow_nan=False)) < 100_000
    assert "<tiny>" not in "".join(panel.html for panel in shown.panels)


def test_badges_turn_red_when_a_number_is_beyond_three_percent() -> None:
    off = (replace(FOUND[0], predicted=1031), replace(FOUND[1], measured=100), *FOUND[2:])
    red = failing(drawn(found=off).badges)
    assert len(red) == 2 and "+3.10 %" in red[0] and "+100.00 %" in red[1]
    assert not failing(drawn(found=(replace(FOUND[0], predicted=1029), *FOUND[1:])).badges)


def test_errors_are_shown_as_they_are() -> None:
    html, note = drawn().panels[2].html, drawn().panels[2].note
    assert "\u221210.00 %" in html and "\u221266.67 %" in html and "copies a whole 16-bit weight" in note
    assert "The button measures" in drawn(found=FOUND[:1]).panels[2].note


def test_what_does_not_fit_and_what_is_not_trained_is_said() -> None:
    notes = " ".join(drawn(memory=100).notes)
    assert "weights alone take" in notes
    assert "planned in mixed precision" in " ".join(drawn(Load(10, training=True, precision="int4")).notes)


def test_experts_in_one_block_are_said_to_stay_floats() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = model_from(json.dumps({"model_type": "mixtral", **sizes, "num_key_value_heads": 2, "vocab_size": 100}))
    shown = picture(model, Load(10, precision="int4"), GIB, Checks(FOUND, 1.0), WHERE, EN)
    assert any("stay floats here" in note for note in shown.notes)


@pytest.mark.parametrize("one", memory.TRIES, ids=lambda one: one.key)
def test_every_example_is_drawn(one: Any) -> None:
    values = {**CONTROLS, **one.values}
    model = model_from(values["config"])
    load = memory.load_of(model, values)
    shown = picture(model, load, values["memory"] * GIB, Checks(FOUND, 1.0), WHERE, EN)
    assert not failing(shown.badges)
    if one.key == "train":  # 16 bytes for each of 8.03 G parameters is more than 80 GiB
        assert "more than 80.0 GiB is needed" in shown.panels[0].html
    if one.key == "laptop":
        assert "of 8.00 GiB are left" in shown.panels[0].html


def test_the_model_on_the_page_is_measured_and_kept(workbench: Workbench, loaded: Loaded) -> None:
    trace_id, trace = traced(workbench, loaded)
    view = scene(workbench, trace_id, trace)
    (before,) = memory.draw(view, **CONTROLS)
    assert not failing(before.badges) and before.panels[2].html.count("<tr") == 2
    pictures = list(memory.draw(view, measure=True, **CONTROLS))
    assert pictures[-1].part is None and not failing(pictures[-1].badges)
    found = workbench.results.records("memory")
    assert {one.quantity for one in found} >= {"weights_bytes", "cache_bytes", "training_bytes"}
    (again,) = memory.draw(view, **CONTROLS)
    assert again.panels[2].html == pictures[-1].panels[2].html


def test_a_catalog_entry_a_paste_and_an_unreachable_id(workbench: Workbench, loaded: Loaded) -> None:
    trace_id, trace = traced(workbench, loaded)
    view = scene(workbench, trace_id, trace)
    (entry,) = memory.draw(view, **{**CONTROLS, "model": "gpt2"})
    assert "124.4 M" in entry.panels[0].html and not failing(entry.badges)
    with pytest.raises(TfvizError):
        list(memory.draw(view, **{**CONTROLS, "model": memory.PASTED}))
    with pytest.raises(TfvizError, match="cannot be reached"):
        list(memory.draw(view, **{**CONTROLS, "model": "nobody/has-this"}))
    (pasted,) = memory.draw(view, **{**CONTROLS, "model": memory.PASTED, "config": memory.CONFIGS["llama3"]})
    assert "8.030 G" in pasted.panels[0].html
