"""How gradients and sublayers look in a model that nobody has trained yet, by depth and by where the norms stand.

Xiong et al. 2020 (https://arxiv.org/abs/2002.04745), for Xavier weights:

    post-norm   ||gradient of the last layer||  is about  d sqrt(ln d)          however deep the model is
    pre-norm                                    is about  d sqrt(ln d / L)      smaller in deeper models

Each model is built, sees one batch of random tokens with random answers, and is asked for its gradients once.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import nn

from tfviz.config import TransformerConfig
from tfviz.model.probes import probes
from tfviz.model.transformer import Transformer

Array = np.ndarray
VOCABULARY, ROWS, LENGTH, HEADS = 256, 8, 24, 4
OUTPUTS = ("w_o", "w_2")  # the matrices through which sublayers reach the stream
SCALES = ("xavier", "scaled", "zero")  # of those: as drawn; divided by sqrt(2 L), as GPT-2; zero


@dataclass(frozen=True)
class Depth:
    """One model at its start; arrays by layer."""

    placement: str  # pre | post
    n_layers: int
    gradients: Float[Array, " layer"]  # Frobenius norm over all parameters of the layer
    attention: Float[Array, " layer"]  # ||attention(x)|| / ||x||, mean over positions; x: the stream it is added to
    feed_forward: Float[Array, " layer"]
    loss: float


def measure_depth(placement: str, n_layers: int, d_model: int, seed: int, scale: str = "xavier") -> Depth:
    """Builds the model with `seed`, runs it forwards and backwards once. The caller's random numbers stay."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        model = Transformer(config_of(placement, n_layers, d_model))
        _rescale(model, scale)
        ids, answers = torch.randint(3, VOCABULARY, (2, ROWS, LENGTH))
        with probes(model, "resid_pre", "attention_out", "resid_mid", "feed_forward_out") as seen:
            logits = model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1), answers.flatten())
        loss.backward()
    assert model.decoder is not None
    layers: list[Any] = list(model.decoder.layers)
    names = [f"decoder.layers.{i}" for i in range(n_layers)]
    return Depth(
        placement=placement,
        n_layers=n_layers,
        gradients=np.array([_gradient(layer) for layer in layers]),
        attention=np.array([_ratio(seen[f"{name}.attention_out"], seen[f"{name}.resid_pre"]) for name in names]),
        feed_forward=np.array([_ratio(seen[f"{name}.feed_forward_out"], seen[f"{name}.resid_mid"]) for name in names]),
        loss=float(loss.detach()),
    )


def config_of(placement: str, n_layers: int, d_model: int) -> TransformerConfig:
    """The paper's layer in a decoder of its own."""
    return TransformerConfig(
        vocab_size=VOCABULARY,
        d_model=d_model,
        d_ff=4 * d_model,
        n_heads=HEADS,
        n_encoder_layers=0,
        n_decoder_layers=n_layers,
        dropout=0.0,
        placement=placement,
        tie_embeddings=False,
    )


def _rescale(model: Transformer, scale: str) -> None:
    """What people change about Xavier so that sublayers start small."""
    assert model.decoder is not None
    factor = {"xavier": 1.0, "scaled": (2 * len(model.decoder.layers)) ** -0.5, "zero": 0.0}[scale]
    with torch.no_grad():
        for name, parameter in model.decoder.layers.named_parameters():
            if name.split(".")[-2] in OUTPUTS:
                parameter.mul_(factor)


def _gradient(module: nn.Module) -> float:
    """sqrt of the sum of all squared gradients."""
    squares = [parameter.grad.square().sum() for parameter in module.parameters() if parameter.grad is not None]
    return float(torch.stack(squares).sum().sqrt())


def _ratio(added: torch.Tensor, stream: torch.Tensor) -> float:
    return float((added.norm(dim=-1) / stream.norm(dim=-1)).mean().detach())
