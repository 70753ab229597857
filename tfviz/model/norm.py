"""Normalisation over the features of each position.

    LayerNorm(x) = gain * (x - mean) / sqrt(variance + eps) + bias        https://arxiv.org/abs/1607.06450
    RMSNorm(x)   = gain * x / sqrt(mean(x^2) + eps)                       https://arxiv.org/abs/1910.07467

The variance is over d_model without Bessel's correction, and eps stands under the root (often written sigma + eps,
which is another number). Each is here twice: as its formula, and as a module over torch's fused operator, which is the
same number in one pass over memory.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Features = Float[Tensor, "... d_model"]
Gain = Float[Tensor, " d_model"]


def layer_norm(x: Features, gain: Gain, bias: Gain, eps: float = 1e-5) -> Features:
    """The formula of LayerNorm, written out."""
    mean = x.mean(dim=-1, keepdim=True)
    variance = (x - mean).square().mean(dim=-1, keepdim=True)
    return gain * (x - mean) / torch.sqrt(variance + eps) + bias


def rms_norm(x: Features, gain: Gain, eps: float = 1e-5) -> Features:
    """The formula of RMSNorm, written out."""
    return gain * x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + eps)


class LayerNorm(nn.Module):
    """`layer_norm` with its learned gain (`weight`) and bias."""

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.shape, self.eps = (d_model,), eps

    def forward(self, x: Features) -> Features:
        return F.layer_norm(x, self.shape, self.weight, self.bias, self.eps)

    def looked_up(self) -> Callable[[Tensor], Tensor]:
        """The same as a plain function that holds its weights: in a decode step, looking them up is what costs."""
        shape, weight, bias, eps = self.shape, self.weight, self.bias, self.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


class RMSNorm(nn.Module):
    """`rms_norm` with its learned gain (`weight`)."""

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.shape, self.eps = (d_model,), eps

    def forward(self, x: Features) -> Features:
        return F.rms_norm(x, self.shape, self.weight, self.eps)

    def looked_up(self) -> Callable[[Tensor], Tensor]:
        shape, weight, eps = self.shape, self.weight, self.eps
        return lambda x: torch.rms_norm(x, shape, weight, eps)


NORMS: dict[str, type[LayerNorm] | type[RMSNorm]] = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}
