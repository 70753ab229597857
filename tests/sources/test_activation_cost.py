"""What an activation function keeps and holds, against counts made by hand from its formula."""

import pytest
from transformers.activations import ACT2FN

from tfviz.sources.activation_cost import activation_tensors


@pytest.mark.parametrize(
    ("name", "kept", "alive"),
    [
        ("relu", 0, 2),  # its output tells where it was cut
        ("silu", 1, 2),
        ("gelu", 1, 2),
        ("quick_gelu", 2, 3),  # x and sigmoid(1.702 x); both beside 1.702 x
        ("gelu_new", 4, 4),  # x, tanh(.), 0.5 x, 1 + tanh(.); while x^3 is scaled: x, 0.5 x, x^3 and 0.044715 x^3
        ("a name of somebody's own", 1, 2),
    ],
)
def test_tensors_kept_and_alive(name: str, kept: int, alive: int) -> None:
    assert activation_tensors(name) == (kept, alive)


@pytest.mark.parametrize("name", sorted(ACT2FN))
def test_every_function_of_transformers_can_be_counted(name: str) -> None:
    kept, alive = activation_tensors(name)
    assert 0 <= kept < 10 and 1 <= alive < 10
