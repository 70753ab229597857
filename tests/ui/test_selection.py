"""A place that a browser names is inside its trace, whatever it says."""

from types import SimpleNamespace
from typing import Any

import pytest

from tfviz.ui.selection import clamp

STACK = SimpleNamespace(n_layers=3, n_heads=2, query_tokens="abcd", key_tokens="abcd")
NAMES = ("layer", "head", "query", "key")


@pytest.mark.parametrize(("said", "index"), [(1, 1), (-5, 0), (10**30, 1), (True, 0), (1e9, 0), ("1", 0), (None, 0)])
def test_a_place_is_an_index_inside_the_trace(said: Any, index: int) -> None:
    trace: Any = SimpleNamespace(stacks={"self": STACK})
    place = clamp({"kind": "self", "layer": 0, "query": 0, "key": 0, "head": said}, trace)
    assert place["head"] == index
    assert all(type(place[name]) is int for name in NAMES)  # not True, which numpy takes for another axis
