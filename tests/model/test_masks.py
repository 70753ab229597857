"""Masks: True means blocked, the triangle is aligned bottom right, padding is blocked for everybody."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tfviz.model import make_causal_mask, make_pad_mask
from tfviz.model.masks import (
    combine_masks,
    count_positions,
    find_padding,
    make_document_mask,
    make_prefix_mask,
    make_window_mask,
)

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


@given(SIZES, st.integers(0, 12), st.integers(1, 14))
def test_a_window_blocks_what_is_that_far_away_or_further(n_query: int, cached: int, window: int) -> None:
    mask = make_window_mask(n_query, cached + n_query, window=window)
    for i in range(n_query):
        for j in range(cached + n_query):
            assert mask[i, j] == (abs(j - (i + cached)) >= window), (i, j)


@given(SIZES, st.integers(0, 12), st.integers(1, 14))
def test_with_the_triangle_a_window_leaves_each_query_its_last_keys(n_query: int, cached: int, window: int) -> None:
    n_key = cached + n_query
    both = combine_masks(make_causal_mask(n_query, n_key), make_window_mask(n_query, n_key, window=window))
    assert both is not None
    assert (~both).sum(1).tolist() == [min(window, cached + i + 1) for i in range(n_query)]


@pytest.mark.parametrize("sizes, window", [((3, 3), 0), ((3, 3), -1), ((4, 3), 2)])
def test_an_impossible_window_is_refused_with_its_numbers(sizes: tuple[int, int], window: int) -> None:
    with pytest.raises(ValueError, match=f"window={window}, n_query={sizes[0]}, n_key={sizes[1]}"):
        make_window_mask(*sizes, window=window)


MASKS = st.lists(st.none() | st.lists(st.booleans(), min_size=4, max_size=4), max_size=4)


@given(MASKS)
def test_combined_is_blocked_where_any_of_them_blocks_and_none_blocks_nothing(rows: list[list[bool] | None]) -> None:
    masks = [None if row is None else torch.tensor(row) for row in rows]
    before = [None if mask is None else mask.clone() for mask in masks]
    combined = combine_masks(*masks)
    given = [row for row in rows if row is not None]
    assert (combined is None) == (not given)
    assert combined is None or combined.tolist() == [any(cells) for cells in zip(*given, strict=True)]
    assert all(a is b or torch.equal(a, b) for a, b in zip(masks, before, strict=True)), "an argument was changed"


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=3))
def test_positions_count_the_real_tokens_before_each(rows: list[list[bool]]) -> None:
    positions = count_positions(torch.tensor(rows), 6, torch.device("cpu"))
    for row, found in zip(rows, positions.tolist(), strict=True):
        real = [place for place, padded in enumerate(row) if not padded]
        assert [found[place] for place in real] == list(range(len(real)))
        assert min(found) >= 0


def test_a_batch_without_padding_has_no_mask_and_one_row_of_positions() -> None:
    ids = torch.tensor([[4, 5], [6, 7]])
    assert find_padding(ids, 0) is None and find_padding(ids, None) is None
    assert find_padding(torch.tensor([[0, 5]]), 0).tolist() == [[True, False]]
    assert count_positions(None, 3, torch.device("cpu")).tolist() == [[0, 1, 2]]


PLACES = st.lists(st.integers(0, 5), min_size=1, max_size=8)


@given(PLACES, st.integers(0, 6))
def test_a_prefix_is_open_to_all_and_beyond_it_nobody_sees_the_future(places: list[int], prefix: int) -> None:
    mask = make_prefix_mask(torch.tensor([places]), prefix=prefix)
    assert mask.shape == (1, 1, len(places), len(places))
    for i in range(len(places)):
        for j in range(len(places)):
            assert mask[0, 0, i, j] == (j > i and places[j] >= prefix), (i, j)


def test_without_a_prefix_it_is_the_causal_mask_and_less_is_refused() -> None:
    assert torch.equal(make_prefix_mask(torch.arange(4)[None], prefix=0)[0, 0], make_causal_mask(4))
    with pytest.raises(ValueError, match="prefix=-1"):
        make_prefix_mask(torch.arange(4)[None], prefix=-1)


@given(PLACES, PLACES)
def test_documents_see_themselves_only(queries: list[int], keys: list[int]) -> None:
    mask = make_document_mask(torch.tensor([queries]), torch.tensor([keys]))[0, 0]
    assert mask.tolist() == [[query != key for key in keys] for query in queries]
    assert torch.equal(make_document_mask(torch.tensor([keys])), make_document_mask(*[torch.tensor([keys])] * 2))
