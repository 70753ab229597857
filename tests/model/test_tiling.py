"""Attention tile by tile gives what the matrix gives, whatever the blocks, the mask and the scores."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.model.test_attention import CASES, SEEDS
from tfviz.model.attention import PLAIN, ScoreRule, attention_scores, scaled_dot_product_attention
from tfviz.model.tiling import Tile, blocks, tiled_attention, tiles

SIZES = st.integers(1, 9)


def apart(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, rule: ScoreRule, rows: int, columns: int
) -> float:
    naive, _ = scaled_dot_product_attention(query, key, value, mask, rule=rule)
    tiled, _ = tiled_attention(query, key, value, mask, rule, query_block=rows, key_block=columns)
    assert tiled.shape == naive.shape and tiled.dtype == naive.dtype
    return float((naive - tiled).abs().max())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("softcap", [None, 2.0])
@settings(max_examples=12, deadline=None)
@given(seed=SEEDS, rows=SIZES, columns=SIZES)
def test_tiled_equals_naive_in_all_in_which_models_differ(
    name: str, softcap: float | None, seed: int, rows: int, columns: int
) -> None:
    query, key, value, mask, rule = CASES[name].make(seed)
    assert apart(query, key, value, mask, replace(rule, softcap=softcap), rows, columns) < 3e-6


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, n=st.integers(1, 20), m=st.integers(1, 20), dim=st.integers(1, 9), rows=SIZES, columns=SIZES)
def test_rows_with_nothing_allowed_are_zeros_and_never_nan(
    seed: int, n: int, m: int, dim: int, rows: int, columns: int
) -> None:
    torch.manual_seed(seed)
    query, key, value = (torch.randn(1, 2, size, dim) for size in (n, m, m))
    mask = torch.rand(1, 2, n, m) < 0.7
    mask[:, :, 0] = True
    assert apart(query, key, value, mask, PLAIN, rows, columns) < 3e-6
    tiled, sums = tiled_attention(query, key, value, mask, query_block=rows, key_block=columns)
    assert (tiled[:, :, 0] == 0).all() and (sums[:, :, 0] == -math.inf).all() and not tiled.isnan().any()


@pytest.mark.parametrize("size", [30.0, 1e3, 1e15])
def test_huge_scores_do_not_overflow(size: float) -> None:
    torch.manual_seed(0)
    query, key, value = size * torch.randn(1, 1, 12, 8), size * torch.randn(1, 1, 12, 8), torch.randn(1, 1, 12, 4)
    assert apart(query, key, value, None, ScoreRule(causal=True), 4, 3) < 1e-5
    assert tiled_attention(query, key, value, query_block=4, key_block=3)[0].isfinite().all()


def test_equal_keys_give_the_mean_of_the_values() -> None:
    query, key, value = torch.randn(1, 1, 5, 4), torch.ones(1, 1, 7, 4), torch.randn(1, 1, 7, 3)
    tiled, sums = tiled_attention(query, key, value, query_block=2, key_block=3)
    torch.testing.assert_close(tiled, value.mean(dim=2, keepdim=True).expand(1, 1, 5, 3))
    torch.testing.assert_close(sums, query.sum(-1) / 2 + math.log(7))


def test_a_mask_for_all_queries_at_once_is_taken() -> None:
    padding = torch.tensor([False, False, False, True, True])[None, None, None]
    query, key, value = (torch.randn(1, 3, 5, 4) for _ in range(3))
    assert apart(query, key, value, padding, ScoreRule(causal=True), 2, 2) < 1e-6


def of(n: int, rows: int, columns: int, **rule: bool) -> tuple[list[Tile], Tensor, Tensor]:
    torch.manual_seed(1)
    query, key, value = (torch.randn(1, 1, n, 4) for _ in range(3))
    how = ScoreRule(**rule)  # type: ignore[arg-type]
    met = list(tiles(query, key, value, rule=how, query_block=rows, key_block=columns))
    return met, attention_scores(query, key, rule=how), value


def test_causal_tiles_in_the_future_are_skipped_and_change_nothing() -> None:
    met, scores, _ = of(10, 4, 3, causal=True)
    for tile in met:
        assert (tile.scores is None) == bool((scores[..., tile.rows, tile.columns] == -math.inf).all())
        if tile.scores is not None:
            torch.testing.assert_close(tile.scores, scores[..., tile.rows, tile.columns])
    skipped = [(tile.rows.start, tile.columns.start) for tile in met if tile.scores is None]
    assert skipped == [(0, 6), (0, 9), (4, 9)]
    before, after = met[1].after, met[2].after
    assert torch.equal(before.output, after.output) and (after.correction == 1).all()


def test_after_each_tile_the_row_knows_its_maximum_and_sum() -> None:
    met, scores, value = of(7, 2, 3)
    for tile in met:
        seen = scores[..., tile.rows, : tile.columns.stop]
        maximum = seen.amax(-1)
        parts = (seen - maximum[..., None]).exp()
        torch.testing.assert_close(tile.after.maximum, maximum)
        torch.testing.assert_close(tile.after.total, parts.sum(-1))
        torch.testing.assert_close(tile.after.output, parts @ value[:, :, : tile.columns.stop])
        assert (tile.after.correction <= 1).all()


def test_nothing_is_larger_than_a_block() -> None:
    met, _, _ = of(16, 4, 2, causal=True)
    assert max(tile.scores.numel() for tile in met if tile.scores is not None) == 8


def test_log_sum_exp_builds_the_weights_again() -> None:
    torch.manual_seed(2)
    query, key, value = (torch.randn(1, 2, 9, 4) for _ in range(3))
    _, sums = tiled_attention(query, key, value, query_block=4, key_block=4)
    _, weights = scaled_dot_product_attention(query, key, value)
    assert weights is not None
    torch.testing.assert_close((attention_scores(query, key) - sums[..., None]).exp(), weights)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_are_kept_in_fp32_whatever_q_is(dtype: torch.dtype) -> None:
    query, key, value = (torch.randn(1, 1, 6, 4, dtype=dtype) for _ in range(3))
    assert next(tiles(query, key, value, query_block=2, key_block=2)).after.output.dtype == torch.float32
    assert tiled_attention(query, key, value)[0].dtype == dtype


def test_blocks_cover_everything_once_and_are_at_least_one() -> None:
    assert [(one.start, one.stop) for one in blocks(7, 3)] == [(0, 3), (3, 6), (6, 7)]
    with pytest.raises(ValueError, match="at least 1 position; got 0"):
        blocks(7, 0)
