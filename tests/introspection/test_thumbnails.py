"""Thumbnails against the double loop over the whole matrix, at sizes below, at and above one cell a weight."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tfviz.introspection import thumbnails as module
from tfviz.introspection.thumbnails import SIDE, encode_weights, thumbnails
from tfviz.model.attention import ScoreRule, attention_scores, attention_weights
from tfviz.model.attention_call import AttentionRecord


def record(n_query: int, n_key: int, kind: str, heads: int = 4, kv_heads: int = 2) -> AttentionRecord:
    torch.manual_seed(n_query + n_key)
    query, key = torch.randn(1, heads, n_query, 8), torch.randn(1, kv_heads, n_key, 8)
    mask: Tensor | None = None
    if kind == "padding":
        mask = torch.zeros(1, 1, n_query, n_key, dtype=torch.bool)
        mask[..., n_key // 2 :] = True
    if kind == "empty row":
        mask = torch.zeros(1, 1, n_query, n_key, dtype=torch.bool)
        mask[..., -1, :] = True
    if kind == "mask of each head":
        mask = torch.rand(1, heads, n_query, n_key) < 0.9
    bias = torch.randn(1, heads, n_query, n_key) if kind == "bias" else None
    rule = ScoreRule(causal=kind == "causal", bias=bias, softcap=2.0 if kind == "softcap" else None)
    return AttentionRecord(nn.Identity(), query, key, key, mask, rule)


def slowly(seen: AttentionRecord) -> np.ndarray:
    """Every cell of a thumbnail from the whole matrix, block by block."""
    weights = attention_weights(seen.query, seen.key, seen.mask, seen.rule)[0]
    blocked = attention_scores(seen.query, seen.key, seen.mask, seen.rule)[0].isneginf()
    heads, n_query, n_key = weights.shape
    rows, columns = math.ceil(n_query / SIDE), math.ceil(n_key / SIDE)
    picture = np.zeros((heads, math.ceil(n_query / rows), math.ceil(n_key / columns)))
    for head, i, j in np.ndindex(picture.shape):
        block = (head, slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns))
        largest = float(weights[block].max())
        picture[head, i, j] = 0 if blocked[block].all() else 1 + round(254 * math.sqrt(largest))
    return picture


KINDS = ["plain", "causal", "padding", "empty row", "mask of each head", "bias", "softcap"]
SIZES = [(1, 1), (5, 5), (3, 9), (24, 24), (25, 25), (50, 61), (100, 100), (2, 200)]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_is_the_largest_weight_of_its_block(kind: str, size: tuple[int, int]) -> None:
    seen = record(*size, kind)
    picture = thumbnails(seen)
    assert picture.dtype == np.uint8 and max(picture.shape[-2:]) <= SIDE
    expected = slowly(seen)
    assert picture.shape == expected.shape
    assert np.abs(picture - expected).max() <= 1  # where rounding falls on the edge
    np.testing.assert_array_equal(picture == 0, expected == 0)


@pytest.mark.parametrize("kind", KINDS)
def test_strips_of_rows_give_the_same_picture(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = record(100, 100, kind)
    whole = thumbnails(seen)
    monkeypatch.setattr(
        module, "CHUNK_BYTES", 4 * 4 * 100 * 12
    )  # twelve rows at a time: whole blocks of five, ten rows
    np.testing.assert_array_equal(thumbnails(seen), whole)


def test_zero_means_blocked_and_nothing_else() -> None:
    weights, blocked = torch.tensor([0.0, 1e-9, 0.25, 1.0, 0.0]), torch.tensor([False, False, False, False, True])
    assert encode_weights(weights, blocked).tolist() == [1, 1, 128, 255, 0]


def test_codes_never_fall_as_weights_rise() -> None:
    weights = torch.linspace(0, 1, 5000) ** 2
    codes = encode_weights(weights, torch.zeros(5000, dtype=torch.bool)).int()
    assert (codes.diff() >= 0).all() and codes.unique().tolist() == list(range(1, 256))


def test_half_precision_inputs_are_widened() -> None:
    seen = record(30, 30, "causal")
    half = AttentionRecord(
        seen.module, seen.query.bfloat16(), seen.key.bfloat16(), seen.value.bfloat16(), None, seen.rule
    )
    assert np.abs(thumbnails(half).astype(int) - thumbnails(seen)).max() <= 8
