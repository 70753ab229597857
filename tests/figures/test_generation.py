"""Lens pictures from a handful of numbers: what is plotted is what was given, and rank 1 is on top."""

import numpy as np

from tfviz.figures.generation import lens_distances, lens_ranks

PROBS, RANKS = np.float32([0.001, 0.2, 0.9]), np.int32([4000, 3, 1])


def test_probability_and_rank_stand_over_the_layers_the_embedding_first() -> None:
    figure = lens_ranks(PROBS, RANKS, 1, words=("layer", "probability", "rank", "<emb>"))
    probability, rank = figure.data
    np.testing.assert_array_equal(probability.x, [-1, 0, 1])
    np.testing.assert_array_equal(probability.y, PROBS)
    np.testing.assert_array_equal(rank.y, RANKS)
    assert rank.yaxis == "y2" and figure.layout.xaxis.ticktext[0] == "&lt;emb&gt;"
    assert figure.layout.shapes[0].x0 == figure.layout.shapes[0].x1 == 1


def test_rank_one_is_on_top_and_every_rank_fits() -> None:
    axis = lens_ranks(PROBS, RANKS).layout.yaxis2
    bottom, top = axis.range
    assert axis.type == "log" and bottom > np.log10(4000) and top < 0
    assert list(axis.ticktext) == ["1", "10", "100", "1,000"]


def test_a_token_that_is_always_first_has_a_scale_too() -> None:
    figure = lens_ranks(np.float32([1, 1]), np.int32([1, 1]))
    assert figure.layout.yaxis2.range[0] > 1 and not figure.layout.shapes


def test_distances_are_those_given_and_start_at_zero() -> None:
    kl, entropy = np.float32([9, 4, 0]), np.float32([1, 2, 3])
    figure = lens_distances(kl, entropy, 0)
    np.testing.assert_array_equal(figure.data[0].y, kl)
    np.testing.assert_array_equal(figure.data[1].y, entropy)
    assert figure.layout.yaxis.rangemode == "tozero"


def test_an_embedding_far_away_does_not_flatten_the_layers() -> None:
    near = lens_distances(np.float32([3, 2, 0]), np.float32([1, 1, 1]))
    far = lens_distances(np.float32([97.6, 12, 0]), np.float32([1, 1, 1]))
    assert near.layout.yaxis.range is None and not near.layout.annotations
    assert 12 < far.layout.yaxis.range[1] < 20 and far.layout.annotations[0].text == "↑ 97.6"
    np.testing.assert_array_equal(far.data[0].y, np.float32([97.6, 12, 0]))
