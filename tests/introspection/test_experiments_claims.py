"""What the claims are measured by: counts meet their formulas, drawn numbers their expectation, timings are timings."""

import pytest
import torch

from tests.conftest import Loaded
from tfviz.config import Settings
from tfviz.introspection.experiments import claims
from tfviz.introspection.experiments.kernels import KernelSetting, inputs_of
from tfviz.sources.resident import Resident


def test_counts_are_those_of_the_modules() -> None:
    assert claims.heads() == {"many": 4 * 512**2, "one": 4 * 512**2, "formula": 4 * 512**2}
    found = claims.feed_forward()
    assert (found["weights"], found["biases"], found["all"]) == (2 * 512 * 2048, 512 + 2048, 2_099_712)
    base = claims.base()
    assert base["heads"] * base["head_dim"] == base["d_model"] and base["dropout"] == 0.1


def test_positions_are_as_large_as_sines_and_cosines() -> None:
    assert claims.embedding()["positions"] == pytest.approx(0.5**0.5)  # sin^2 + cos^2 = 1 for each pair
    assert claims.embedding()["paper"] == pytest.approx(1.0, abs=0.01)
    assert claims.unique()["distance"] > 0.01 and claims.shift()["error"] < 1e-3


def test_rows_of_the_naive_form() -> None:
    found = claims.weights(32)
    assert found["sum_off"] < 1e-6 and found["future"] == 0 and found["wrong_rows"] == 0


def test_bert_chooses_its_share_and_hides_four_fifths() -> None:
    found = claims.masking()
    assert found["chosen"] == 0.15
    assert found["masked"] + found["random"] + found["kept"] == pytest.approx(0.15)
    assert found["masked"] == pytest.approx(0.12, abs=0.01)


def test_sublayers_of_an_untrained_model_are_not_small() -> None:
    found = claims.start(n_layers=2, d_model=32, seeds=1)
    assert found.keys() == {"attention", "feed_forward"} and min(found.values()) > 0.1


def test_the_products_alone_are_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "SECONDS", 0.0)
    took = claims.products(64, "cpu")
    assert took.keys() == {"products", "whole"} and all(one.runs == 3 for one in took.values())
    q, k, v = inputs_of(KernelSetting(8), "cpu")
    square, out = torch.rand(1, 8, 8, 8), torch.empty(1, 8, 8, 8)
    assert torch.equal(claims._multiply(q, k, v, square, out), square @ v)
    assert torch.allclose(out, q @ k.transpose(-2, -1), atol=1e-6)


def test_a_step_of_attention_is_timed_with_and_without_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "SECONDS", 0.05)
    took = claims.attention_step(256, "cpu")
    assert 0 < took["cached"].median < took["uncached"].median


def test_a_trained_matrix_is_rounded_in_three_ways(settings: Settings) -> None:
    found = {(one.bits, one.method): one for one in claims.rounding(Resident(settings).get("dates"))}
    assert len(found) == 6
    assert found[4, "absmax"].saved == pytest.approx(1 - (4 + 32 / 128) / 32)  # scale and minimum, of 128 weights
    assert all(found[8, one].error < found[4, one].error for one in ("absmax", "gptq", "awq"))


def test_what_is_read_by_the_last_matrix_is_what_it_multiplies(settings: Settings, loaded: Loaded) -> None:
    matrix, x = claims._read_by_last(Resident(settings).get("dates"))
    assert matrix.shape[1] == x.shape[1] and len(x) > 2 * len(claims.DATES) and (x >= 0).all()  # after ReLU
