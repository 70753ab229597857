"""Dropout as it happens in the dates model: the same input, several draws, and their mean against evaluation mode.

    y = x * kept / (1 - p),  kept = 1 with probability 1 - p, else 0;  evaluation: y = x

What is linear in the kept values has its evaluation output as its mean, and the mean of m draws comes closer to it as
1 / sqrt(m). Behind a non-linearity that does not hold: the whole model's mean stays away from its evaluation.
Source: Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tfviz.checks import from_below
from tfviz.model.encoder import Encoder
from tfviz.model.probes import probes
from tfviz.model.transformer import Transformer
from tfviz.training.experiments.subjects import dates_model, dates_task, seeded
from tfviz.training.tasks import Example

QUESTION = Example("5 March 2025", "2025-03-05")
GROUP, GROUPS = 32, 8  # draws are made in groups, so that a picture can grow; powers of 2


@dataclass(frozen=True)
class Draws:
    """What one group drew, and evaluation mode beside it."""

    attention: Float[np.ndarray, "draw value"]  # the first layer's output, dropout on its weights alone
    attention_evaluation: Float[np.ndarray, " value"]
    whole: Float[np.ndarray, "draw target vocab"]  # the whole model's probabilities, dropout everywhere
    whole_evaluation: Float[np.ndarray, "target vocab"]
    kept: int  # of `offered` values in the encoder that were not 0 before
    offered: int
    twice: float  # largest difference between two evaluation runs


@dataclass(frozen=True)
class Dropped:
    """Everything that was drawn for one p. Probabilities are those of the right characters of the answer."""

    evaluation: Float[np.ndarray, " token"]
    draws: Float[np.ndarray, "draw token"]
    sizes: Int[np.ndarray, " size"]  # how many draws a mean is made of
    one_layer: Float[np.ndarray, " size"]  # |mean - evaluation| / |evaluation| of the first attention's output
    whole: Float[np.ndarray, " size"]  # the same of the probabilities of all characters
    kept: int
    offered: int
    twice: float


def drop(p: float, n: int = GROUPS) -> Dropped:
    """What the first `n` groups drew, n a power of 2."""
    groups = [draw_group(p, i) for i in range(n)]
    one, right = groups[0], dates_task().collate([QUESTION]).target[0, 1:].numpy()
    attention, whole = (np.concatenate([getattr(group, name) for group in groups]) for name in ("attention", "whole"))
    at = np.arange(len(right))
    return Dropped(
        evaluation=one.whole_evaluation[at, right],
        draws=whole[:, at, right],
        sizes=2 ** np.arange(len(whole).bit_length()),
        one_layer=distances(attention, one.attention_evaluation),
        whole=distances(whole.reshape(len(whole), -1), one.whole_evaluation.reshape(-1)),
        kept=sum(group.kept for group in groups),
        offered=sum(group.offered for group in groups),
        twice=max(group.twice for group in groups),
    )


@lru_cache(maxsize=64)
@torch.no_grad()
def draw_group(p: float, seed: int) -> Draws:
    """One batch of GROUP equal rows: each row is a draw of its own."""
    from_below("p", p, 0, 1)
    model = dates_model(dropout=p).eval()
    batch = dates_task().collate([QUESTION])
    source, read = batch.source, batch.target[:, :-1]
    with probes(model, "resid_pre") as seen:
        evaluation = model(source, read).softmax(-1)
    twice = float((model(source, read).softmax(-1) - evaluation).abs().max())
    x = seen["encoder.layers.0.resid_pre"]
    attention = encoder_of(model).get_submodule("layers.0.attention")
    still = attention(x)
    with seeded(seed):
        attended = attention.train()(x.expand(GROUP, -1, -1))
        whole, kept, offered = watched(model.train(), source.expand(GROUP, -1), read.expand(GROUP, -1))
    return Draws(
        attended.flatten(1).numpy(), still.flatten().numpy(), whole.numpy(), evaluation[0].numpy(), kept, offered, twice
    )


def watched(
    model: Transformer, source: Int[Tensor, "draw source"], target: Int[Tensor, "draw target"]
) -> tuple[Float[Tensor, "draw target vocab"], int, int]:
    """(probabilities, how many values dropout kept in the encoder, of how many that were not 0)"""
    kept = offered = 0

    def count(module: nn.Module, given: tuple[Tensor], made: Tensor) -> None:
        nonlocal kept, offered
        there = given[0] != 0
        offered += int(there.sum())
        kept += int((there & (made != 0)).sum())

    for module in encoder_of(model).modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(count)  # the model is used up here
    return model(source, target).softmax(-1), kept, offered


def encoder_of(model: Transformer) -> Encoder:
    assert model.encoder is not None
    return model.encoder


def distances(
    draws: Float[np.ndarray, "draw value"], evaluation: Float[np.ndarray, " value"]
) -> Float[np.ndarray, " size"]:
    """How far the mean of m draws is from evaluation, m = 1, 2, 4 ...: relative, root mean square over groups of m."""
    found, away = [], draws.astype(np.float64) - evaluation  # of means of m draws
    while len(away) > 1:
        found.append(np.sqrt(np.square(away).sum(1).mean()))
        away = (away[0::2] + away[1::2]) / 2
    found.append(np.linalg.norm(away))
    return np.array(found) / np.linalg.norm(evaluation)
