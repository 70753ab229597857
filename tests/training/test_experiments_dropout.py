"""Dropout: kept values are scaled so that the mean stays; only what is linear comes to its evaluation."""

import numpy as np
import pytest

from tfviz.errors import TfvizError
from tfviz.training.experiments.dropout import GROUP, distances, draw_group, drop


def test_evaluation_is_the_same_twice_and_draws_are_not() -> None:
    seen = drop(0.3, 1)
    assert seen.twice == 0
    assert len({row.tobytes() for row in seen.draws}) == GROUP == len(seen.draws)
    assert (seen.evaluation > 0.99).all()  # the trained model knows this date


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_the_kept_share_is_one_minus_p(p: float) -> None:
    seen = drop(p, 2)
    spread = (p * (1 - p) / seen.offered) ** 0.5
    assert abs(seen.kept / seen.offered - (1 - p)) < 5 * spread < 0.01


def test_no_dropout_is_evaluation() -> None:
    seen = drop(0.0, 1)
    assert seen.kept == seen.offered
    assert seen.whole == pytest.approx(0, rel=1e-5, abs=1e-5) and seen.one_layer == pytest.approx(0, rel=1e-5, abs=1e-5)


def test_one_layers_mean_comes_closer_and_the_whole_models_does_not() -> None:
    seen = drop(0.1)
    assert seen.sizes.tolist() == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert seen.one_layer * np.sqrt(seen.sizes) == pytest.approx(seen.one_layer[0], rel=0.35)
    assert seen.whole[-1] > 0.9 * seen.whole[-3] > 3 * seen.one_layer[-1]


def test_more_groups_keep_the_draws_of_fewer() -> None:
    np.testing.assert_array_equal(drop(0.2, 2).draws[:GROUP], drop(0.2, 1).draws)
    np.testing.assert_array_equal(draw_group.__wrapped__(0.2, 0).whole, draw_group(0.2, 0).whole)  # the seed decides


def test_distances_are_those_of_means_of_groups() -> None:
    draws = np.array([[3.0], [1.0], [1.0], [3.0]])
    assert distances(draws, np.array([1.0])) == pytest.approx([np.sqrt((4 + 0 + 0 + 4) / 4), 1, 1])
    assert distances(draws, np.array([2.0])) == pytest.approx([0.5, 0, 0])  # relative


def test_everything_dropped_is_refused() -> None:
    with pytest.raises(TfvizError, match="p"):
        drop(1.0, 1)
