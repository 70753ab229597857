"""Feed-forward networks against their written formulas; each position alone."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.closeness import difference
from tests.model.tiny import ENCODER, shake
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.model.feed_forward import FEED_FORWARDS


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


BENDS = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "swiglu": lambda x: x / (1 + (-x).exp()),
}


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", FEED_FORWARDS)
def test_a_feed_forward_is_its_formula(name: str, bias: bool) -> None:
    torch.manual_seed(0)
    network = FEED_FORWARDS[name](replace(ENCODER, feed_forward_bias=bias))
    shake(network)
    x = 2 * torch.randn(2, 5, 16)

    def linear(layer: torch.nn.Linear, y: Tensor) -> Tensor:
        return y @ layer.weight.T + (layer.bias if bias else 0)

    hidden = BENDS[name](linear(network.w_1, x))
    hidden = hidden * linear(network.w_3, x) if name == "swiglu" else hidden
    assert difference(network(x), linear(network.w_2, hidden)) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("name", FEED_FORWARDS)
def test_each_position_is_computed_alone(name: str) -> None:
    network, x = FEED_FORWARDS[name](ENCODER).eval(), torch.randn(2, 5, 16)
    order = torch.tensor([4, 2, 0, 1, 3])
    assert difference(network(x[:, order]), network(x)[:, order]) < 1e-5
    assert difference(network(x[:, 2:3]), network(x)[:, 2:3]) < 1e-5


def test_the_two_gelus_are_close_and_not_the_same() -> None:
    x = torch.linspace(-4, 4, 101)
    assert 1e-5 < difference(gelu(x), gelu_tanh(x)) < 1e-3


@torch.no_grad()
@pytest.mark.parametrize("name", FEED_FORWARDS)
def test_the_hidden_features_are_reported_before_dropout(name: str) -> None:
    network, x, seen = FEED_FORWARDS[name](replace(ENCODER, dropout=0.5)).train(), torch.randn(2, 3, 16), []
    with attention_call(AttentionCall(tap=lambda module, what, value: seen.append((module, what, value)))):
        network(x)
    [(module, what, value)] = seen
    assert module is network and what == "feed_forward_hidden"
    assert torch.equal(value, network.hidden(x))
