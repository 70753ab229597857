"""AWQ: input channels whose activations are large get finer steps, by scaling them up before rounding and down after.

    What = Q(W diag(s)) diag(s)^-1,     s_j = mean|x_j|^α,  α in 0 .. 1 by the least ||X W^T - X What^T||

Before rounding nothing changes, (W diag(s)) (x / s) = W x. After it a channel's error is that of its group's step
divided by s_j; the step grows only where the scaled channel holds the group's largest weight. α = 0 is plain rounding.

Lin et al. 2023, arXiv 2306.00978; the search over α as in its code, s divided by sqrt(max s · min s).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from tfviz.inference.quantisation.gptq import refuse_inputs
from tfviz.inference.quantisation.schemes import SCALE_BITS, Quantised, Scheme, in_range, quantise

ALPHAS = tuple(i / 10 for i in range(11))
SEARCHED = 256  # rows of activations, and of W, that α is looked for on
SMALLEST = 1e-4  # of mean |x|: a channel that is always zero is not scaled to nothing


@dataclass(frozen=True, eq=False)
class Scaled:
    """A quantised W diag(s), with s and the α that it was made by."""

    quantised: Quantised
    scales: Float[Tensor, " in"]
    alpha: float

    @property
    def nbytes(self) -> int:
        return self.quantised.nbytes + self.scales.numel() * 4

    def dequantised(self) -> Float[Tensor, "out in"]:
        """Q(W diag(s)) diag(s)^-1"""
        return self.quantised.dequantised() / self.scales

    def bits_a_weight(self) -> float:
        """One FP16 number an input channel more, where s cannot be folded into the layer before."""
        n_out, n_in = self.quantised.levels.shape
        return self.quantised.scheme.bits_a_weight(n_out, n_in) + SCALE_BITS / n_out


def channel_scales(x: Float[Tensor, "row in"], alpha: float) -> Float[Tensor, " in"]:
    """s_j = mean|x_j|^α, brought around 1."""
    refuse_inputs(x)
    s = x.abs().mean(0).clamp_min(SMALLEST) ** alpha
    return s / (s.max() * s.min()).sqrt()


def awq(
    weight: Float[Tensor, "out in"], x: Float[Tensor, "row in"], scheme: Scheme, alphas: Sequence[float] = ALPHAS
) -> Scaled:
    """The best of these α on some of the rows, if it does no worse than the first on all of them.

    One that scales a weight beyond FP16 is left out; the first, plain rounding, has to fit.
    """
    alphas = [*alphas[:1], *(one for one in alphas[1:] if in_range(weight * channel_scales(x, one)))]
    x_some, some = x[:: max(1, len(x) // SEARCHED)], weight[:: max(1, len(weight) // SEARCHED)]

    def made(alpha: float, weight: Float[Tensor, "out in"]) -> Scaled:
        s = channel_scales(x, alpha)
        return Scaled(quantise(weight * s, scheme), s, alpha)

    def error(one: Scaled, x: Float[Tensor, "row in"], weight: Float[Tensor, "out in"]) -> float:
        return float((x @ (one.dequantised() - weight).T).norm())

    best = min(alphas, key=lambda alpha: error(made(alpha, some), x_some, some))
    first, found = made(alphas[0], weight), made(best, weight)
    return found if best == alphas[0] or error(found, x, weight) <= error(first, x, weight) else first
