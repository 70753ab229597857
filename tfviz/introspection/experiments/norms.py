"""Norms side by side on the same activations: over a token's features or over a batch's tokens; and where eps goes.

    LayerNorm, RMSNorm   statistics of one position over its features         (tfviz.model.norm)
    BatchNorm            statistics of one feature over all positions of a batch, https://arxiv.org/abs/1502.03167

Here with gain 1 and bias 0, so that only the statistics differ. BatchNorm is torch's own `nn.BatchNorm1d`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from tfviz.model.norm import layer_norm, rms_norm

Array = np.ndarray
Rows = Float[Array, "pos d_model"]
EPS = 1e-5


@dataclass(frozen=True)
class SideBySide:
    """One norm's output for a whole sentence."""

    name: str  # before | layer | rms | batch
    rows: Rows

    def token(self, i: int) -> tuple[float, float]:
        """(mean, variance) over the features of position i."""
        row = self.rows[i].astype(np.float64)
        return float(row.mean()), float(row.var())

    def features(self) -> tuple[float, float]:
        """Over the positions: (largest |mean| of a feature, mean variance of a feature)."""
        rows = self.rows.astype(np.float64)
        return float(np.abs(rows.mean(axis=0)).max()), float(rows.var(axis=0).mean())


@dataclass(frozen=True)
class Disturbance:
    """How far a norm's output of one token moves when something else changes: root mean square of the difference."""

    name: str  # padded | neighbour | evaluation
    n: int  # positions of padding
    batch: float
    layer: float


def side_by_side(rows: Rows) -> list[SideBySide]:
    """The three norms on the same rows. A single position leaves BatchNorm nothing to average: it is left out."""
    x = torch.from_numpy(rows)
    made = {"before": x, "layer": plain_layer_norm(x), "rms": rms_norm(x, torch.ones(x.shape[-1]), EPS)}
    made |= {"batch": batch_norm(x)} if len(x) > 1 else {}
    return [SideBySide(name, one.numpy()) for name, one in made.items()]


def alone(rows: Rows, token: int) -> float:
    """How far LayerNorm of this position moves when it is a batch of its own: root mean square of the difference."""
    x = torch.from_numpy(rows)
    apart = plain_layer_norm(x[token : token + 1])[0] - plain_layer_norm(x)[token]
    return float(apart.square().mean().sqrt())


def plain_layer_norm(x: Tensor) -> Tensor:
    return layer_norm(x, torch.ones(x.shape[-1]), torch.zeros(x.shape[-1]), EPS)


def batch_norm(x: Tensor, *, evaluation: bool = False) -> Tensor:
    """torch's BatchNorm1d over the rows: their own statistics, or the running ones after it has seen them once."""
    module = nn.BatchNorm1d(x.shape[-1], eps=EPS)
    with torch.no_grad():
        trained = module.train()(x)
        return module.eval()(x) if evaluation else trained


def refusal(d_model: int) -> str:
    """What torch says to a batch of one position while training."""
    try:
        nn.BatchNorm1d(d_model).train()(torch.zeros(1, d_model))
    except ValueError as error:
        return str(error)
    return ""


def disturbances(rows: Rows, token: int, paddings: Sequence[int]) -> list[Disturbance]:
    """Padding (zeros, as a padded batch holds them) added to the sentence; a neighbour turned round; evaluation."""
    x = torch.from_numpy(rows)
    if len(x) < 2:
        return []
    found = [_moved("padded", n, torch.cat([x, torch.zeros(n, x.shape[1])]), x, token) for n in paddings]
    other = x.clone()
    other[token - 1 if token else 1] *= -1
    found.append(_moved("neighbour", 1, other, x, token))
    running = _distance(batch_norm(x, evaluation=True)[token], batch_norm(x)[token])
    return [*found, Disturbance("evaluation", 0, running, 0.0)]


def _moved(name: str, n: int, changed: Tensor, x: Tensor, token: int) -> Disturbance:
    batch = _distance(batch_norm(changed)[token], batch_norm(x)[token])
    return Disturbance(name, n, batch, _distance(plain_layer_norm(changed)[token], plain_layer_norm(x)[token]))


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).square().mean().sqrt())


# ---- where eps stands


def sigma_plus_eps(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
    """LayerNorm as the article writes it: gain * (x - mean) / (sigma + eps) + bias."""
    mean = x.mean(dim=-1, keepdim=True)
    sigma = (x - mean).square().mean(dim=-1, keepdim=True).sqrt()
    return gain * (x - mean) / (sigma + eps) + bias


@dataclass(frozen=True)
class EpsEffect:
    """One vector through both formulas."""

    sigma: float
    under_root: float  # standard deviation of the output; 1 where eps does not matter
    beside_sigma: float
    difference: float  # largest, over the features


def eps_effect(vector: Float[Array, " d_model"], eps: float) -> EpsEffect:
    """FP64, so that a vector may be constant to many digits."""
    x = torch.from_numpy(vector.astype(np.float64))
    ones, zeros = torch.ones_like(x), torch.zeros_like(x)
    under, beside = layer_norm(x, ones, zeros, eps), sigma_plus_eps(x, ones, zeros, eps)
    sigma, rooted, added = (float(one.std(correction=0)) for one in (x, under, beside))
    return EpsEffect(sigma, rooted, added, float((under - beside).abs().max()))


def nearly_constant(vector: Float[Array, " d_model"], sigma: float) -> Float[Array, " d_model"]:
    """The same pattern around 1 with standard deviation `sigma`."""
    x = vector.astype(np.float64)
    return 1 + sigma * (x - x.mean()) / max(x.std(), 1e-300)


def reproduce(kind: str, before: Rows, weight: Array | None, bias: Array | None, eps: float) -> Rows | None:
    """Our formula on the model's own input and weights; None for a kind that is neither "layer" nor "rms"."""
    x = torch.from_numpy(before)
    gain = torch.ones(x.shape[-1]) if weight is None else torch.from_numpy(weight)
    if kind == "rms":
        return rms_norm(x, gain, eps).numpy()
    shift = torch.zeros(x.shape[-1]) if bias is None else torch.from_numpy(bias)
    return layer_norm(x, gain, shift, eps).numpy() if kind == "layer" else None
