"""Gradient accumulation: parts weighted by their tokens give the big batch's gradient, means of means do not."""

import numpy as np
import pytest

from tfviz.errors import TfvizError
from tfviz.training.experiments.accumulation import ROWS, accumulate


def far(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


@pytest.mark.parametrize("n", [2, 8, ROWS])
def test_weighted_by_tokens_it_is_the_big_batch(n: int) -> None:
    seen = accumulate(n)
    assert len(seen.tokens) == n and far(seen.by_tokens, seen.whole) < 1e-6
    assert far(seen.by_means, seen.whole) > 1e-3


@pytest.mark.parametrize("n", [2, ROWS])
def test_equal_lengths_make_both_ways_right(n: int) -> None:
    seen = accumulate(n, even=True)
    assert len(set(seen.tokens.tolist())) == 1
    assert far(seen.by_tokens, seen.whole) < 1e-6 and far(seen.by_means, seen.whole) < 1e-6


def test_one_part_is_the_batch_and_parts_hold_all_tokens() -> None:
    one = accumulate(1)
    np.testing.assert_array_equal(one.by_tokens, one.whole)
    np.testing.assert_array_equal(one.by_means, one.whole)
    assert accumulate(8).tokens.sum() == one.tokens.sum()


def test_parts_keep_less_for_their_backward() -> None:
    kept = [accumulate(n).kept_bytes for n in (1, 4, ROWS)]
    assert kept[0] > 3 * kept[1] > 6 * kept[2] > 0


@pytest.mark.parametrize("n", [0, ROWS + 1])
def test_more_parts_than_rows_are_refused(n: int) -> None:
    with pytest.raises(TfvizError, match="n"):
        accumulate(n)
