"""Untrained models by depth: what Xiong et al. (2020) prove about their gradients, and how large sublayers start."""

import numpy as np
import pytest
import torch

from tfviz.introspection.experiments.depth import config_of, measure_depth

DEPTHS = (2, 8, 32)


def slope(placement: str) -> float:
    ends = [measure_depth(placement, n, 64, 0).gradients[-1] for n in DEPTHS]
    return float(np.polyfit(np.log(DEPTHS), np.log(ends), 1)[0])


def test_the_last_gradient_of_post_norm_does_not_depend_on_depth() -> None:
    assert abs(slope("post")) < 0.2


def test_the_last_gradient_of_pre_norm_falls_with_the_root_of_the_depth() -> None:
    assert slope("pre") == pytest.approx(-0.5, abs=0.2)


def test_each_layer_has_its_numbers() -> None:
    found = measure_depth("pre", 3, 32, 1)
    for array in (found.gradients, found.attention, found.feed_forward):
        assert array.shape == (3,) and (array > 0).all()
    assert found.loss == pytest.approx(np.log(256), rel=0.2)  # a model that knows nothing


def test_the_same_seed_gives_the_same_model_and_leaves_the_callers_numbers_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, again, other = (measure_depth("post", 2, 32, seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (one.gradients == again.gradients).all() and (one.gradients != other.gradients).any()


def test_it_measures_inside_inference_mode_too() -> None:
    with torch.inference_mode(False), torch.no_grad():
        assert (measure_depth("pre", 2, 32, 0).gradients > 0).all()


def test_sublayers_start_small_only_if_their_last_matrix_does() -> None:
    ratios = {scale: measure_depth("pre", 12, 32, 0, scale) for scale in ("xavier", "scaled", "zero")}
    first = {scale: float(found.feed_forward[0]) for scale, found in ratios.items()}
    assert first["xavier"] > 0.2 > first["scaled"] > 0 == first["zero"]
    assert first["scaled"] == pytest.approx(first["xavier"] / 24**0.5, rel=0.35)


def test_the_models_are_the_papers_layers() -> None:
    config = config_of("post", 6, 64)
    assert (config.norm, config.feed_forward, config.d_ff, config.dropout) == ("layer_norm", "relu", 256, 0.0)
