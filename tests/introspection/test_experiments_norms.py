"""Norms on the same activations: what each makes 0 and 1, what moves them, and where eps stands."""

import numpy as np
import pytest
import torch

from tfviz.introspection.experiments.norms import (
    batch_norm,
    disturbances,
    eps_effect,
    nearly_constant,
    refusal,
    reproduce,
    side_by_side,
)

ROWS = np.random.default_rng(0).normal(2, 3, (6, 16)).astype(np.float32)


def test_each_norm_settles_its_own_statistics() -> None:
    made = {one.name: one for one in side_by_side(ROWS)}
    assert list(made) == ["before", "layer", "rms", "batch"]
    assert made["layer"].token(2) == pytest.approx((0, 1), rel=1e-5, abs=1e-5)
    assert made["batch"].features() == pytest.approx((0, 1), rel=1e-5, abs=1e-5)
    assert np.square(made["rms"].rows[2]).mean() == pytest.approx(1, rel=1e-5, abs=1e-5)
    mean, variance = made["batch"].token(2)
    assert abs(mean) > 0.01 or abs(variance - 1) > 0.01


def test_a_single_position_has_no_batch_norm() -> None:
    assert [one.name for one in side_by_side(ROWS[:1])] == ["before", "layer", "rms"]
    assert disturbances(ROWS[:1], 0, (4,)) == []
    assert "more than 1 value per channel" in refusal(16)


def test_only_batch_norm_moves_when_something_else_changes() -> None:
    found = disturbances(ROWS, 0, (4, 64))
    assert [(one.name, one.n) for one in found] == [("padded", 4), ("padded", 64), ("neighbour", 1), ("evaluation", 0)]
    assert all(one.layer == 0 and one.batch > 0.01 for one in found)
    assert found[1].batch > found[0].batch


def test_batch_norm_in_evaluation_uses_what_it_has_seen() -> None:
    x = torch.from_numpy(ROWS)
    running_mean, running_variance = 0.1 * x.mean(0), 0.9 + 0.1 * x.var(0)
    expected = (x - running_mean) / torch.sqrt(running_variance + 1e-5)
    assert torch.allclose(batch_norm(x, evaluation=True), expected, atol=1e-5)


def test_eps_under_the_root_is_another_number_than_beside_sigma() -> None:
    one = eps_effect(nearly_constant(ROWS[0], 1e-3), 1e-5)
    assert one.sigma == pytest.approx(1e-3)
    assert one.under_root == pytest.approx(1e-3 / np.sqrt(1e-6 + 1e-5))  # 0.30
    assert one.beside_sigma == pytest.approx(1e-3 / (1e-3 + 1e-5))  # 0.99
    assert one.difference > 0.6


def test_for_a_wide_spread_the_formulas_agree() -> None:
    assert eps_effect(ROWS[0], 1e-5).difference < 1e-4


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_our_formula_is_torchs(kind: str) -> None:
    gain = np.linspace(0.5, 2, 16).astype(np.float32)
    bias = np.linspace(-1, 1, 16).astype(np.float32) if kind == "layer" else None
    x, weight = torch.from_numpy(ROWS), torch.from_numpy(gain)
    own = torch.nn.functional.rms_norm(x, (16,), weight, 1e-6)
    if bias is not None:
        own = torch.nn.functional.layer_norm(x, (16,), weight, torch.from_numpy(bias), 1e-6)
    made = reproduce(kind, ROWS, gain, bias, 1e-6)
    assert made is not None and np.abs(made - own.numpy()).max() < 1e-5


def test_a_norm_of_another_kind_is_not_guessed() -> None:
    assert reproduce("GroupNorm", ROWS, None, None, 1e-5) is None
