"""The mask's figure: what is blocked is drawn as blocked, tokens stand at positions, user text is escaped."""

import numpy as np
import pytest

from tfviz.figures.masks import mask_map

BLOCKED = np.array([[False, True, True], [False, False, True]])


def test_cells_and_their_words() -> None:
    figure = mask_map(BLOCKED, ["a", "a"], ["<b>", "x", "x"], words=("Schlüssel", "Anfrage", "zu", "offen"))
    (heat,) = figure.data
    assert np.array_equal(heat.z, [[0, 1, 1], [0, 0, 1]]) and heat.z.dtype == np.uint8
    assert tuple(heat.hovertext[0]) == ("a (0) → &lt;b&gt; (0): offen", "a (0) → x (1): zu", "a (0) → x (2): zu")
    assert figure.layout.xaxis.ticktext == ("&lt;b&gt;", "x", "x") and figure.layout.xaxis.tickvals == (0, 1, 2)
    assert figure.layout.xaxis.title.text == "Schlüssel" and figure.layout.yaxis.autorange == "reversed"


def test_self_attention_needs_its_tokens_once() -> None:
    assert mask_map(BLOCKED[:, :2], ["p", "q"]).layout.xaxis.ticktext == ("p", "q")


def test_tokens_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\), but there are 2 query and 2 key tokens"):
        mask_map(BLOCKED, ["p", "q"])
