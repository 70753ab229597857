"""Quantised matrices: rounding keeps its promises, GPTQ is rounding plus feedback, AWQ rounding of a scaled matrix."""

from dataclasses import replace

import pytest
import torch

from tfviz.errors import TfvizError
from tfviz.inference.quantisation import (
    Quantised,
    Scheme,
    awq,
    choose_damping,
    distinct_levels,
    gptq,
    hessian,
    output_error,
    quantise,
    relative,
)
from tfviz.inference.quantisation.awq import channel_scales
from tfviz.inference.quantisation.gptq import inverse_root
from tfviz.inference.quantisation.schemes import BITS, bits_already

WAYS = [Scheme(4, share, 32, symmetric) for share in ("tensor", "channel", "group") for symmetric in (True, False)]
NAMES = [f"{one.share}-{'symmetric' if one.symmetric else 'asymmetric'}" for one in WAYS]
every_way = pytest.mark.parametrize("way", WAYS, ids=NAMES)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


WEIGHT = numbers(24, 80) * 0.05  # the last group of 32 is half a one


def correlated(rows: int = 400) -> torch.Tensor:
    """Activations whose channels go together, a few of them large."""
    mixed = numbers(rows, 12, seed=1) @ numbers(12, 80, seed=2) + 0.1 * numbers(rows, 80, seed=3)
    mixed[:, 7] *= 20
    return mixed


def step_error(weight: torch.Tensor, quantised: Quantised) -> float:
    """The largest |W - What| in steps of its part: 1/2 for rounding to the nearest."""
    step = quantised.step()
    gap = (weight - quantised.dequantised()).abs()
    beside = bool((gap > 0)[(step == 0).expand_as(gap)].any())
    return float("inf") if beside else float((gap / torch.where(step > 0, step, torch.inf)).max())


@every_way
@pytest.mark.parametrize("bits", BITS)
def test_rounding_is_off_by_half_a_step_at_most_on_few_levels(way: Scheme, bits: int) -> None:
    scheme = replace(way, bits=bits)
    made = quantise(WEIGHT, scheme)
    assert step_error(WEIGHT, made) <= 0.5 + 2**bits * 2e-5 + 1e-4
    most, gap = distinct_levels(made.dequantised(), made)
    assert most <= 2**bits and gap < 1e-3
    assert made.levels.min() >= scheme.lowest and made.levels.max() <= scheme.highest


@every_way
def test_rounding_again_changes_nothing(way: Scheme) -> None:
    once = quantise(WEIGHT, way).dequantised()
    assert torch.allclose(quantise(once, way).dequantised(), once, atol=1e-4)


@every_way
def test_fewer_bits_never_do_better(way: Scheme) -> None:
    errors = [relative(quantise(WEIGHT, replace(way, bits=b)).dequantised() - WEIGHT, WEIGHT) for b in BITS]
    assert errors == sorted(errors) and errors[0] < 0.01


def test_finer_parts_do_better_and_a_group_as_wide_as_the_row_is_a_channel() -> None:
    def error(scheme: Scheme) -> float:
        return relative(quantise(WEIGHT, scheme).dequantised() - WEIGHT, WEIGHT)

    assert error(Scheme(4, "group", 16)) < error(Scheme(4, "channel")) < error(Scheme(4, "tensor"))
    wide, channel = quantise(WEIGHT, Scheme(4, "group", 80)), quantise(WEIGHT, Scheme(4, "channel"))
    assert torch.equal(wide.dequantised(), channel.dequantised())


def test_a_minimum_helps_where_the_weights_are_not_around_zero() -> None:
    shifted = WEIGHT + 0.3
    made = [quantise(shifted, Scheme(4, "channel", symmetric=one)).dequantised() for one in (True, False)]
    assert relative(made[1] - shifted, shifted) < 0.5 * relative(made[0] - shifted, shifted)


def test_bits_a_weight_count_scales_and_minima() -> None:
    assert Scheme(4, "group", 32).bits_a_weight(576, 576) == 5
    assert Scheme(4, "group", 64, symmetric=True).bits_a_weight(8, 80) == 4 + 16 * 2 / 80
    assert Scheme(8, "channel", symmetric=True).bits_a_weight(10, 100) == 8.16
    assert Scheme(8, "tensor").bits_a_weight(10, 100) == 8 + 32 / 1000


@every_way
def test_zeros_and_constant_rows_stay_as_they_are(way: Scheme) -> None:
    assert not quantise(torch.zeros(4, 64), way).dequantised().any()
    if not way.symmetric and way.share != "tensor":
        constant = torch.tensor([[0.5], [-2.0]]).expand(2, 64).contiguous()
        assert torch.equal(quantise(constant, way).dequantised(), constant)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 1e6])
def test_what_is_no_number_or_too_large_is_refused(odd: float) -> None:
    weight = WEIGHT.clone()
    weight[3, 3] = odd
    for make in (lambda: quantise(weight, WAYS[0]), lambda: gptq(weight, torch.eye(80), [WAYS[0]])):
        with pytest.raises(TfvizError, match="cannot be quantised"):
            make()
    with pytest.raises(TfvizError, match="finite"):
        hessian(torch.tensor([[float("nan"), 1.0]]))
    with pytest.raises(TfvizError, match="bits"):
        Scheme(9)


def test_a_grid_of_q4_1_is_found_again_exactly() -> None:
    scale, low = (0.01 * numbers(6, 2).abs()).half().float(), (0.1 * numbers(6, 2, seed=4)).half().float()
    codes = torch.randint(0, 16, (6, 2, 32), generator=torch.Generator().manual_seed(5))
    codes[..., 0], codes[..., 1] = 0, 15
    weight = (codes * scale[..., None] + low[..., None]).reshape(6, 64)
    assert bits_already(weight) == 4 and bits_already(numbers(6, 64)) is None
    assert torch.allclose(quantise(weight, Scheme(4, "group", 32)).dequantised(), weight, atol=1e-7)


# ---- GPTQ


@every_way
@pytest.mark.parametrize("act_order", [False, True])
def test_gptq_with_an_identity_hessian_is_rounding(way: Scheme, act_order: bool) -> None:
    (made,) = gptq(WEIGHT, torch.eye(80), [way], act_order=act_order)
    assert torch.equal(made.levels, quantise(WEIGHT, way).levels)


@every_way
@pytest.mark.parametrize("act_order", [False, True])
def test_gptq_does_better_on_correlated_activations_seen_or_not(way: Scheme, act_order: bool) -> None:
    seen, unseen = correlated(800).split(400)
    (made,) = gptq(WEIGHT, hessian(seen), [way], act_order=act_order)
    plain = quantise(WEIGHT, way).dequantised()
    for x in (seen, unseen):
        assert output_error(x, WEIGHT, made.dequantised()) < 0.8 * output_error(x, WEIGHT, plain)
    most, gap = distinct_levels(made.dequantised(), made)
    assert most <= 16 and gap < 1e-3


def test_several_widths_at_once_are_each_alone() -> None:
    h = hessian(correlated())
    together = gptq(WEIGHT, h, [replace(WAYS[5], bits=b) for b in BITS])
    for one in together:
        (alone,) = gptq(WEIGHT, h, [one.scheme])
        assert torch.equal(one.levels, alone.levels) and torch.equal(one.scale, alone.scale)


def test_gptq_is_the_paper_s_loop_over_columns() -> None:
    """Against the algorithm written out, one row and one column at a time, with fixed scales."""
    scheme, h = Scheme(3, "channel"), hessian(correlated())
    upper, plain = inverse_root(h), quantise(WEIGHT, scheme)
    rest, made = WEIGHT.clone(), torch.zeros_like(WEIGHT)
    for j in range(80):
        q = ((rest[:, j] - plain.low[:, 0]) / plain.scale[:, 0]).round().clamp(0, 7)
        made[:, j] = q * plain.scale[:, 0] + plain.low[:, 0]
        error = (rest[:, j] - made[:, j]) / upper[j, j]
        rest[:, j:] -= error[:, None] * upper[j, j:]
    (ours,) = gptq(WEIGHT, h, [scheme])
    assert (ours.dequantised() - made).abs().max() < 1e-5


def test_dead_channels_are_rounded_and_pass_nothing_on() -> None:
    x = correlated()
    x[:, 40:] = 0
    (made,) = gptq(WEIGHT, hessian(x), [WAYS[2]])
    assert torch.equal(made.levels[:, 40:], quantise(WEIGHT, WAYS[2]).levels[:, 40:])
    (nothing,) = gptq(WEIGHT, hessian(torch.zeros(5, 80)), [WAYS[2]])
    assert torch.equal(nothing.levels, quantise(WEIGHT, WAYS[2]).levels)


def test_fewer_rows_than_channels_still_have_a_factor() -> None:
    upper = inverse_root(hessian(correlated(5)))
    assert bool(torch.isfinite(upper).all()) and torch.equal(upper, upper.triu())


def test_few_rows_are_damped_more_and_that_does_better_unseen() -> None:
    many, few = correlated(4000), correlated(60)
    assert choose_damping(WEIGHT, few[:1]) == 0.01 <= choose_damping(WEIGHT, many) <= choose_damping(WEIGHT, few)
    chosen, usual = (gptq(WEIGHT, hessian(few), [WAYS[2]], damping=d)[0] for d in (choose_damping(WEIGHT, few), 0.01))
    assert output_error(many, WEIGHT, chosen.dequantised()) <= output_error(many, WEIGHT, usual.dequantised())


# ---- AWQ


def test_awq_without_scaling_is_rounding_and_its_product_is_exact_before_rounding() -> None:
    x = correlated()
    made = awq(WEIGHT, x, WAYS[2], alphas=(0.0,))
    assert torch.equal(made.dequantised(), quantise(WEIGHT, WAYS[2]).dequantised())
    s = channel_scales(x, 0.7)
    assert torch.allclose((x.double() / s) @ (WEIGHT.double() * s).T, x.double() @ WEIGHT.double().T)
    assert s.argmax() == 7


@every_way
def test_awq_is_at_least_as_good_as_rounding_on_what_it_has_seen(way: Scheme) -> None:
    x = correlated()
    made, plain = awq(WEIGHT, x, way), quantise(WEIGHT, way)
    assert output_error(x, WEIGHT, made.dequantised()) <= output_error(x, WEIGHT, plain.dequantised())
    most, _ = distinct_levels(made.dequantised() * made.scales, made.quantised)
    assert most <= 16 and made.bits_a_weight() == way.bits_a_weight(24, 80) + 16 / 24


def test_a_value_beside_its_levels_is_noticed() -> None:
    made = quantise(WEIGHT, WAYS[2])
    array = made.dequantised()
    array[1, 1] += 0.3 * float(made.scale[1, 0])
    assert distinct_levels(array, made)[1] == pytest.approx(0.3, abs=1e-3)


def test_awq_leaves_out_a_scale_that_takes_a_weight_beyond_fp16() -> None:
    """α = 1 gives s_0 = 2000 / sqrt(2000 * 1e-4) = 4,472, and 20 * 4,472 is more than FP16 holds."""
    torch.manual_seed(0)
    x, weight = torch.randn(64, 8), 0.1 * torch.randn(4, 8)
    x[:, 0], x[:, 7], weight[0, 0], weight[2] = 2000.0, 0.0, 20.0, 0.0
    scheme = Scheme(4, "group", 8)
    assert float(channel_scales(x, 1.0)[0]) == pytest.approx(4472, rel=1e-3)
    made, plain = awq(weight, x, scheme), quantise(weight, scheme)
    errors = [output_error(x, weight, one.dequantised()) for one in (made, plain)]
    assert 0 < made.alpha < 1 and errors[0] < 0.3 * errors[1]
    assert not made.dequantised()[2].any(), "a row of zeros stays one"
    with pytest.raises(TfvizError):
        awq(weight * 1e6, x, scheme)


def test_activations_whose_squares_are_infinite_are_refused() -> None:
    with pytest.raises(TfvizError):
        hessian(torch.full((4, 8), 1e30))
