"""Figures: the numbers drawn are the numbers given, equal tokens stay apart, and text stays text."""

import json

import numpy as np
import pytest

from tfviz.figures import attention_heatmap, head_overview

WEIGHTS = np.array([[1.0, 0.0], [0.25, 0.75]], dtype=np.float32)


def test_the_heatmap_carries_the_weights_it_was_given():
    heat = attention_heatmap(WEIGHTS, ["a", "b"]).data[0]
    assert np.array_equal(heat.customdata, WEIGHTS)
    assert np.allclose(np.square(heat.z), WEIGHTS)


def test_equal_tokens_keep_a_row_and_a_column_each():
    figure = attention_heatmap(WEIGHTS, ["the", "the"])
    assert list(figure.layout.xaxis.tickvals) == [0, 1]
    assert list(figure.layout.yaxis.ticktext) == ["the", "the"]


def test_tokens_that_do_not_fit_the_array_are_refused_with_both_sizes():
    with pytest.raises(ValueError, match=r"\(2, 2\).* 3 query and 2 key"):
        attention_heatmap(WEIGHTS, ["a", "b", "c"], ["a", "b"])


def test_markup_in_tokens_and_titles_is_drawn_as_text():
    drawn = json.loads(attention_heatmap(WEIGHTS, ["<b>x</b>", "&"], title="<i>t</i>").to_json())
    assert drawn["layout"]["xaxis"]["ticktext"] == ["&lt;b&gt;x&lt;/b&gt;", "&amp;"]
    assert drawn["layout"]["title"]["text"] == "&lt;i&gt;t&lt;/i&gt;"


def test_the_overview_has_one_tile_a_head_and_a_gap_between_them():
    weights = np.tile(WEIGHTS, (3, 4, 1, 1))
    tiles = np.asarray(head_overview(weights).data[0].z)
    assert tiles.shape == (3 * 3, 4 * 3)
    assert np.allclose(tiles[:2, :2] ** 2, WEIGHTS)
    assert np.isnan(tiles[2]).all() and np.isnan(tiles[:, 2]).all()
