"""What the page says about models of ours before their pictures: how dates are read, and where parameters lie."""

import re
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import Loaded
from tfviz.inference.measure import Difference, Latency
from tfviz.introspection.workbench import Measurement
from tfviz.messages import LANGUAGES
from tfviz.training.date_styles import RULE
from tfviz.ui.components.speed_strip import BASELINE, Strip, render
from tfviz.ui.i18n import Translator
from tfviz.ui.page import RUN, Page, _about, _lacks, _model_choices, _softcapped

EN = Translator("en")


def trace(model: str, second: str | None = None) -> Any:
    return SimpleNamespace(model=model, text=("a", second))


@pytest.mark.parametrize("language", LANGUAGES)
def test_random_weights_are_said_to_be_random_and_their_parameters_add_up(language: str) -> None:
    note = _about(trace("paper-base"), Translator(language))
    total, *parts = (int(n.replace(",", "")) for n in re.findall(r"\b\d{1,3}(?:,\d{3})+\b", note))
    assert total == sum(parts) == 63_045_632 and len(parts) == 8
    shares = [float(share) for share in re.findall(r"<i>([\d.]+) %</i>", note)]
    assert sum(shares) == pytest.approx(100, abs=0.1)
    assert Translator(language)("page.random") in note


def test_where_the_target_of_random_weights_comes_from_is_said_unless_one_is_typed() -> None:
    said = EN("page.random.target")
    assert said in _about(trace("paper-base", ""), EN) and said not in _about(trace("paper-base", "b"), EN)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_rule_of_the_dates_is_the_one_they_were_made_by(language: str) -> None:
    note = _about(trace("dates"), Translator(language))
    for number in re.findall(r"[\d/]*\d{4}", RULE):  # 12/25/2026, 1969, 2068
        assert number in note and number in RULE
    assert "03/04/2026" in note


@pytest.mark.parametrize("language", LANGUAGES)
def test_switches_are_greyed_by_device_and_by_model(loaded: Loaded, language: str) -> None:
    import torch

    from tfviz.introspection.capture import capture

    t = Translator(language)
    assert _lacks(torch.device("cpu"), False, t) == {"tv-kernel": {}, "tv-precision": {}}
    lacks = _lacks(torch.device("mps"), True, t)
    assert lacks["tv-kernel"] == {"flash": t("error.flash_softcap")}
    assert [_softcapped(capture(loaded(name), loaded(name).prompt("a b"), ("a b", None), kernel="naive"))
            for name in ("gemma2", "llama")] == [True, False]  # fmt: skip
    assert lacks["tv-precision"]["int4"] == t("precision.no_packed_product") and "fp32" not in lacks["tv-precision"]


def test_other_models_need_no_note() -> None:
    assert _about(trace("smollm2-135m"), EN) == _about(trace("some/folder"), EN) == ""


def test_an_encoder_decoder_is_offered_with_the_depth_of_both_its_stacks() -> None:
    labels = {key: label for label, key in _model_choices(EN)}
    assert labels["dates"].endswith(" · 2+2×4") and labels["smollm2-135m"] == "SmolLM2 135M Instruct · 30×9"


def test_the_run_after_a_trace_shows_the_figure_even_if_another_run_has_timed_it() -> None:
    """Two traces of one text may overlap; the picture of one may reach the page after the figure of the other."""
    page: Any = object.__new__(Page)
    request: Any = SimpleNamespace(session_hash="one")
    page.t, page.newest = EN, OrderedDict(one="trace")
    figure = Measurement("flash", "fp32", Latency(0.002, 0.001, 0.003, 5), 1, 2, Difference(0.0, None, None))
    timed = Strip("trace", ("dates",), model="Dates").with_row(BASELINE, figure)
    *_, (speed, strip, line) = page.measure_current(timed, request)
    assert speed == render(timed, EN) and strip == timed and line.endswith("2.00 ms")
    page.newest["one"] = "later"
    assert len(list(page.measure_current(timed, request))) == 1


def test_a_text_whose_run_is_under_way_is_not_run_twice() -> None:
    page: Any = object.__new__(Page)
    request: Any = SimpleNamespace(session_hash="one")
    page.t, page.outputs = EN, [None]
    page.ctx = SimpleNamespace(workbench=SimpleNamespace(find=lambda trace_id: None))
    page.newest, page.asked = OrderedDict(one=f"{RUN}1"), {"one": ("a b", "", "dates", "flash", "fp32")}
    assert len(list(page.trace("a b", "", "dates", "flash", "fp32", {}, Strip(), request))) == 1
    assert page.newest["one"] == f"{RUN}1"
