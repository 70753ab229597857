"""Inside quantisation: what is drawn is what was computed, and a badge turns red when an array is tampered with."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import Loaded
from tests.introspection.test_quantisation import tiny
from tests.ui.test_cache_steps import failing, scene, traced
from tests.ui.test_cache_steps import workbench as workbench
from tfviz.inference.quantisation import Scheme, output_error, quantise
from tfviz.inference.quantisation.schemes import BITS
from tfviz.introspection.quantisation import Matrix, compensated, look_of, scaled, solve
from tfviz.introspection.workbench import Workbench
from tfviz.messages import LANGUAGES
from tfviz.ui.components.picture import Picture, pack, payload
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.speed import quantisation
from tfviz.ui.tabs.speed.quantisation_panels import METHODS, Shown, percent_of
from tfviz.ui.tabs.speed.quantisation_picture import badges, picture

EN = Translator("en")
CHOSEN: dict[str, Any] = {
    "part": "down", "method": "rtn", "bits": 4, "share": "group", "group": "32", "symmetric": False, "act_order": False
}  # fmt: skip


def shown(method: str = "rtn", scheme: Scheme | None = None, matrix: Matrix | None = None, **changes: Any) -> Shown:
    scheme, matrix = scheme or Scheme(4, "group", 32), matrix or tiny()
    made: dict[str, Any] = {"rtn": quantise(matrix.weight, scheme), "awq": scaled(matrix, scheme)}
    made["gptq"] = compensated(matrix, [scheme])[0]
    looks = {name: look_of(matrix, one) for name, one in made.items()}
    outcomes = {(name, replace(scheme, bits=4)): solve(matrix, name, scheme).outcomes for name in METHODS}
    return Shown(matrix, "down", method, scheme, looks, outcomes, "<tiny>", **changes)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scheme", [Scheme(2, "tensor", symmetric=True), Scheme(3, "channel"), Scheme(8, "group", 32)])
def test_every_method_and_scheme_is_drawn(method: str, scheme: Scheme, language: str) -> None:
    drawn = picture(shown(method, scheme), Translator(language))
    assert len(drawn.panels) == 7 and len(drawn.badges) == 5
    assert [badge.ok for badge in drawn.badges[:2]] == [True, True]
    assert len(pack(payload(drawn))) < 200_000


def test_the_window_shows_the_matrix_and_what_became_of_it() -> None:
    found = shown("gptq")
    data = picture(found, EN).panels[0].data
    after = np.frombuffer(base64.b64decode(data["after"]), np.float32).reshape(data["rows"], data["columns"])
    made = compensated(found.matrix, [found.scheme])[0].dequantised()
    assert np.array_equal(after, made.numpy()) and data["marked"] == [5]
    before = np.frombuffer(base64.b64decode(data["before"]), np.float32).reshape(after.shape)
    assert np.array_equal(before, found.matrix.weight.numpy())


def test_the_numbers_of_the_tables_are_exact() -> None:
    found = shown()
    numbers, every = (picture(found, EN).panels[i].html for i in (1, -1))
    array, matrix = quantise(found.matrix.weight, found.scheme).dequantised(), found.matrix
    for rows in (matrix.calibration, matrix.held_out, matrix.sentence):
        assert percent_of(output_error(rows, matrix.weight, array)) in numbers
    assert "5.00" in numbers and "640 B" in numbers  # 16 x 64 weights at 5 bits
    assert every.count("<tr>") == 1 + 8 and "7 schemes are not computed yet" in picture(found, EN).panels[-1].note


def test_curves_are_the_outcomes_in_percent() -> None:
    found = shown()
    curve = picture(found, EN).panels[2].figure
    assert curve is not None and [*curve.data[1].x] == [*BITS]
    gptq_errors = [100 * one.held_out for one in found.outcomes["gptq", found.scheme]]
    assert [*curve.data[1].y] == pytest.approx(gptq_errors, rel=1e-5) and curve.layout.shapes[0].x0 == 4


def test_a_tampered_array_turns_its_badges_red() -> None:
    found = shown()
    assert not failing(badges(found, EN))
    made = quantise(found.matrix.weight, found.scheme)
    off = made.dequantised()
    off[3, 3] += 0.7 * made.scale[3, 0]
    tampered = replace(found, looks={**found.looks, "rtn": look_of(found.matrix, made, off)})
    red = failing(badges(tampered, EN))
    assert "lie beside its levels" in red[0] and "rounding is off" in red[1] and len(red) == 2


def test_methods_that_do_worse_than_rounding_are_red_or_said() -> None:
    found = shown()
    key = "gptq", found.scheme
    worse = tuple(replace(one, calibration=9.0, held_out=9.0) for one in found.outcomes[key])
    made = replace(found, outcomes={**found.outcomes, key: worse})
    texts = badges(made, EN)
    assert "GPTQ's output error 900 %" in failing(texts)[0] and "no better" in texts[3].text


def test_notes_say_what_is_shown_instead_and_where_it_comes_from() -> None:
    matrix = replace(tiny(), parts=("q", "k", "v"), n_out=99, rounded=True, already=4)
    other, cut, rounded, few, file = picture(shown(matrix=matrix, precision="int8"), EN).notes
    assert "no separate FFN down" in other and "first 16 of 99" in cut and "INT8" in rounded
    assert "60 calibration tokens for 64 inputs" in few and "<tiny>'s weights come from a 4-bit file" in file
    fused = picture(replace(shown(matrix=matrix), part="k"), EN).notes[0]
    assert "W_Q, W_K, W_V lie in one matrix" in fused


def test_before_gptq_and_awq_are_there_rounding_is_drawn() -> None:
    found = shown("gptq")
    early = replace(
        found, looks={"rtn": found.looks["rtn"]}, outcomes={("rtn", found.scheme): found.outcomes["rtn", found.scheme]}
    )
    drawn = picture(early, EN, part=0.05)
    assert drawn.part == 0.05 and len(drawn.badges) == 2 and "–" in drawn.panels[1].html


def last(pictures: Any) -> Picture:
    return grown(pictures)[-1]


def grown(drawn: Any) -> list[Picture]:
    return [drawn] if isinstance(drawn, Picture) else [one for one in drawn if isinstance(one, Picture)]


def test_it_is_computed_once_and_compared_on_request(workbench: Workbench, loaded: Loaded) -> None:
    trace_id, trace = traced(workbench, loaded)
    view = scene(workbench, trace_id, trace)
    first = grown(quantisation.draw(view, **CHOSEN))
    assert len(first) == 2 and first[0].part is not None and first[1].part is None
    at_once = quantisation.draw(view, **CHOSEN | {"bits": 2, "method": "gptq"})
    assert isinstance(at_once, Picture) and any("2^2 = 4 allowed" in one.text for one in at_once.badges)
    whole = last(quantisation.draw(view, **CHOSEN, measure=True))
    assert "not computed yet" not in whole.panels[-1].note and "–" not in whole.panels[-1].html
    records = workbench.results.records("quantisation")
    assert {one.setting["bits"] for one in records} == {8, 4, 3, 2}
    json.dumps([dict(one.setting) for one in records])
    again = last(quantisation.draw(view, **CHOSEN))
    assert again.panels[-1].html == whole.panels[-1].html


def test_the_texts_are_read_one_by_one_and_once(workbench: Workbench, loaded: Loaded) -> None:
    trace_id, trace = traced(workbench, loaded)
    view = scene(workbench, trace_id, trace)
    said = [one for one in quantisation.draw(view, **CHOSEN) if isinstance(one, str)]
    assert said in ([], [f"The model reads the texts: {i + 1} of 10" for i in range(10)])  # another test's may be kept
    other = replace(view, place=dict(view.place) | {"layer": 1 - view.place["layer"]})
    assert not [one for one in quantisation.draw(other, **CHOSEN) if isinstance(one, str)]


def test_a_newer_wish_ends_it(workbench: Workbench, loaded: Loaded) -> None:
    trace_id, trace = traced(workbench, loaded)
    asked: list[int] = []
    view = replace(scene(workbench, trace_id, trace), stop=lambda: bool(asked.append(1)) or len(asked) > 5)
    pictures = grown(quantisation.draw(view, **CHOSEN, measure=True))
    assert all(one.part is not None for one in pictures)


def test_the_code_shown_is_code() -> None:
    found: Any = quantisation.SECTION.code()
    assert all(isinstance(one, Callable) and one.__doc__ for one in found)  # type: ignore[arg-type]


def test_arrays_hold_no_gradients() -> None:
    assert not any(one.requires_grad for one in (tiny().weight, tiny().calibration)) and torch.is_grad_enabled()
