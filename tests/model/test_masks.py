"""Masks: True means blocked, the triangle is aligned bottom right, padding is blocked for everybody."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tfviz.model import make_causal_mask, make_pad_mask

SIZES = st.integers(1, 12)


def allowed(mask: torch.Tensor) -> list[str]:
    return ["".join("01"[not blocked] for blocked in row) for row in mask.tolist()]


def test_two_queries_over_five_keys_see_four_and_five() -> None:
    assert allowed(make_causal_mask(2, 5)) == ["11110", "11111"]


def test_one_query_sees_every_key() -> None:
    assert allowed(make_causal_mask(1, 4)) == ["1111"]


@given(SIZES, st.integers(0, 12))
def test_a_query_sees_its_own_position_and_what_was_before(n_query: int, cached: int) -> None:
    mask = make_causal_mask(n_query, cached + n_query)
    for i in range(n_query):
        for j in range(cached + n_query):
            assert mask[i, j] == (j > i + cached), (i, j)


@given(SIZES)
def test_as_many_keys_as_queries_is_the_default(n: int) -> None:
    assert torch.equal(make_causal_mask(n), make_causal_mask(n, n))
    assert make_causal_mask(n).dtype == torch.bool


def test_fewer_keys_than_queries_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="n_query=5, n_key=2"):
        make_causal_mask(5, 2)


def test_padding_is_blocked_wherever_it_stands_for_every_head_and_query() -> None:
    mask = make_pad_mask(torch.tensor([[0, 7, 0, 3], [5, 5, 5, 5]]), pad_id=0)
    assert mask.shape == (2, 1, 1, 4)
    assert mask[:, 0, 0].tolist() == [[True, False, True, False], [False] * 4]
