"""Position schemes: sinusoids against the formula, ALiBi and learned tables, what each place leaves alone."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.closeness import difference
from tests.model.tiny import DECODER, ENCODER, ENCODER_DECODER, KERNELS, build, ids, using
from tfviz.config import RopeScaling, TransformerConfig
from tfviz.errors import TfvizError
from tfviz.model.positions import POSITIONS
from tfviz.model.positions.alibi import slopes
from tfviz.model.positions.rope import angles, ntk
from tfviz.model.positions.sinusoidal import frequencies, sinusoidal_encoding

POSITION = st.integers(0, 2000)


@given(POSITION, st.integers(1, 70))
@settings(deadline=None)
def test_sinusoids_are_the_written_formula(pos: int, d_model: int) -> None:
    """In float64, so what differs is FP32's angle: half a unit in the last place of pos."""
    encoding = sinusoidal_encoding(torch.tensor([[pos]]), d_model)[0, 0]
    assert encoding.shape == (d_model,)
    for dim in range(d_model):
        angle = pos / 10000 ** (2 * (dim // 2) / d_model)
        assert encoding[dim].item() == pytest.approx([math.sin, math.cos][dim % 2](angle), abs=1e-5 + 4e-7 * pos)


def test_position_zero_is_sines_of_zero_and_cosines_of_one() -> None:
    assert sinusoidal_encoding(torch.tensor([[0]]), 5).tolist() == [[[0, 1, 0, 1, 0]]]


@given(POSITION, POSITION, st.integers(0, 200), st.integers(1, 32))
@settings(deadline=None)
def test_a_shift_rotates_each_sinusoid_pair_by_an_angle_of_the_shift_alone(a: int, b: int, k: int, pairs: int) -> None:
    d_model = 2 * pairs
    turn = k * frequencies(d_model).double()
    for pos in (a, b):
        sine, cosine = sinusoidal_encoding(torch.tensor([[pos]]), d_model).double()[0, 0].view(-1, 2).T
        shifted = torch.stack([sine * turn.cos() + cosine * turn.sin(), cosine * turn.cos() - sine * turn.sin()], -1)
        there = sinusoidal_encoding(torch.tensor([[pos + k]]), d_model).double()[0, 0]
        assert difference(shifted.flatten(), there) < 1e-5 + 1e-6 * (pos + k)


def test_eight_heads_have_slopes_from_a_half_to_a_256th() -> None:
    assert slopes(8).tolist() == [2.0**-i for i in range(1, 9)]


def test_twelve_heads_have_those_of_eight_and_every_second_of_sixteen() -> None:
    assert slopes(12).tolist() == pytest.approx([2.0**-i for i in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])


@pytest.mark.parametrize("n_heads, expected", [(1, [2**-8]), (2, [2**-4, 2**-8]), (3, [2**-4, 2**-8, 2**-2])])
def test_slopes_of_few_heads(n_heads: int, expected: list[float]) -> None:
    assert slopes(n_heads).tolist() == expected


@given(st.integers(1, 64))
def test_every_head_has_a_slope_of_its_own_between_zero_and_one(n_heads: int) -> None:
    found = slopes(n_heads)
    assert len(set(found.tolist())) == n_heads
    assert (found > 0).all() and (found < 1).all()


@pytest.mark.parametrize("n_heads", [8, 12, 1])
def test_the_alibi_bias_is_minus_slope_times_distance(n_heads: int) -> None:
    scheme = POSITIONS["alibi"](replace(ENCODER_DECODER, n_heads=n_heads, head_dim=4))
    queries, keys = torch.tensor([[3, 4], [0, 2]]), torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]])
    bias = scheme.bias(queries, keys)
    assert bias is not None and bias.shape == (2, n_heads, 2, 5)
    for row in range(2):
        for head, slope in enumerate(slopes(n_heads).tolist()):
            for i, query in enumerate(queries[row].tolist()):
                for j, key in enumerate(keys[row].tolist()):
                    assert bias[row, head, i, j].item() == pytest.approx(-slope * abs(query - key))
                    assert query != key or bias[row, head, i, j] == 0


@pytest.mark.parametrize("factor", [1.0, 4.0])
@pytest.mark.parametrize("d", [2, 8, 64])
def test_ntk_keeps_the_fastest_pair_and_stretches_the_slowest_by_the_factor(d: int, factor: float) -> None:
    plain = frequencies(d)
    theta, growth = ntk(plain, 10000.0, RopeScaling("ntk", factor))
    base = 10000 * factor ** (d / (d - 2)) if d > 2 else 10000
    assert theta.tolist() == pytest.approx([base ** (-2 * i / d) for i in range(d // 2)], rel=1e-5)
    assert growth == 1 and theta[0] == 1
    assert d == 2 or theta[-1].item() == pytest.approx(plain[-1].item() / factor, rel=1e-5)


def test_an_unknown_scaling_is_answered_with_the_known_ones() -> None:
    with pytest.raises(TfvizError, match="“stretch”.*linear, ntk, yarn"):
        angles(8, scaling=RopeScaling("stretch", 2.0))


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("positions", POSITIONS)
def test_only_a_scheme_tells_an_encoder_the_order_of_its_tokens(positions: str, kernel: str) -> None:
    model = build(ENCODER, positions=positions)
    tokens, order = ids(1, 7), torch.tensor([3, 1, 0, 6, 5, 2, 4])
    with using(kernel):
        shuffled, plain = model(tokens[:, order]), model(tokens)[:, order]
    blind = difference(shuffled, plain) < 1e-5
    assert blind == (positions == "none")


@pytest.mark.parametrize("config", [ENCODER_DECODER, ENCODER, DECODER], ids=lambda config: config.family)
def test_a_sequence_beyond_a_learned_table_is_refused_with_both_numbers(config: TransformerConfig) -> None:
    model = build(config, positions="learned", max_seq_len=6)
    fits, too_long = ids(1, 6), ids(1, 7)
    model(fits, *([fits] if model.config.family == "encoder-decoder" else []))
    with pytest.raises(TfvizError, match="7 tokens.*6 positions") as refused:
        model(too_long, *([fits] if model.config.family == "encoder-decoder" else []))
    assert all(number in refused.value.in_language("zh") for number in "67")


@torch.no_grad()
def test_a_step_beyond_a_learned_table_is_refused_and_the_cache_is_as_it_was() -> None:
    model = build(DECODER, positions="learned", max_seq_len=6)
    cache = model.new_cache()
    model.decode(ids(1, 5), cache=cache)
    with pytest.raises(TfvizError, match="7 tokens.*6 positions"):
        model.decode(ids(1, 2), cache=cache)
    assert cache.length == 5
    assert (
        difference(
            model.decode(ids(1, 6)[:, 5:], cache=cache), model(torch.cat([ids(1, 5), ids(1, 6)[:, 5:]], 1))[:, 5:]
        )
        < 1e-5
    )


@pytest.mark.parametrize("positions", sorted(POSITIONS.keys() - {"learned"}))
def test_other_schemes_have_no_last_position(positions: str) -> None:
    assert build(DECODER, positions=positions, max_seq_len=4)(ids(1, 9)).isfinite().all()
