"""Norms as functions and as modules are one number; what they leave of a vector. (Against torch's: reference/.)"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.closeness import difference
from tests.model.tiny import shake
from tfviz.model.norm import NORMS, LayerNorm, RMSNorm, layer_norm, rms_norm

SEEDS = st.integers(0, 2**31)


@torch.no_grad()
@given(SEEDS, st.integers(1, 40), st.floats(1e-3, 1e3), st.sampled_from([1e-12, 1e-5, 1e-2]))
@settings(deadline=None)
def test_the_module_is_the_formula(seed: int, d_model: int, size: float, eps: float) -> None:
    x = size * torch.randn(2, 3, d_model, generator=torch.Generator().manual_seed(seed))
    fused_layer, fused_rms = LayerNorm(d_model, eps), RMSNorm(d_model, eps)
    shake(fused_layer, seed), shake(fused_rms, seed)
    # of one feature nothing is left but rounding, and eps alone decides how much it is blown up
    if d_model > 1:
        assert difference(fused_layer(x), layer_norm(x, fused_layer.weight, fused_layer.bias, eps)) < 1e-4
    assert difference(fused_rms(x), rms_norm(x, fused_rms.weight, eps)) < 1e-5


@given(SEEDS, st.floats(0.1, 100), st.floats(-50, 50))
@settings(deadline=None)
def test_layer_norm_forgets_offset_and_size_and_rms_norm_size_only(seed: int, size: float, offset: float) -> None:
    x = torch.randn(1, 2, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ones, zeros = torch.ones(16, dtype=torch.float64), torch.zeros(16, dtype=torch.float64)
    assert difference(layer_norm(size * x + offset, ones, zeros, 1e-12), layer_norm(x, ones, zeros, 1e-12)) < 1e-5
    assert difference(rms_norm(size * x, ones, 1e-12), rms_norm(x, ones, 1e-12)) < 1e-5
    assert abs(offset) < 0.5 or difference(rms_norm(x + offset, ones), rms_norm(x, ones)) > 1e-3


@pytest.mark.parametrize("name", NORMS)
def test_a_vector_of_zeros_stays_finite_in_value_and_gradient(name: str) -> None:
    norm, x = NORMS[name](8, 1e-5), torch.zeros(1, 2, 8, requires_grad=True)
    norm(x).sum().backward()
    assert norm(x).isfinite().all() and x.grad is not None and x.grad.isfinite().all()


def test_a_fresh_norm_has_gain_one_and_bias_zero() -> None:
    assert (LayerNorm(4).weight == 1).all() and (LayerNorm(4).bias == 0).all() and (RMSNorm(4).weight == 1).all()
