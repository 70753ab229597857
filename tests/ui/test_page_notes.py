"""What the page says about models of ours before their pictures: how dates are read, and where parameters lie."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import Loaded
from tfviz.messages import LANGUAGES
from tfviz.training.date_styles import RULE
from tfviz.ui.i18n import Translator
from tfviz.ui.page import _about, _lacks, _model_choices, _softcapped

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
