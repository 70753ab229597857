"""Every small call runs the operator that it is named after, and an unknown name stands for the typical of its kind."""

import pytest
import torch

from tfviz.inference.operator_clock import OperatorWatch
from tfviz.inference.small_calls import _TABLES, TYPICAL, calls

X = torch.randn(1, 1, 16)
NAMES = [(kind, name) for kind, table in _TABLES.items() for name in table(X)]


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_a_small_call_runs_its_operator(kind: str, name: str) -> None:
    (call,) = calls(kind, name, X.clone())
    seen: list[str] = []
    with torch.inference_mode(), OperatorWatch(lambda func, args, output: seen.append(func.__name__.split(".")[0])):
        call()
    assert [one.strip("_").removesuffix("_copy") for one in seen] == [name]


def test_an_unknown_operator_stands_for_the_typical_of_its_kind() -> None:
    assert len(calls("pass", "", X)) == len(calls("pass", "frobnicate", X)) == len(TYPICAL["pass"])
