"""Gradient clipping as it happens: a small Transformer learns to copy words, and each step's gradient is cut to length.

    g <- g * min(1, max_norm / |g|),  |g| = sqrt(sum over all parameters of g^2)

Source: Pascanu et al. 2013, https://arxiv.org/abs/1211.5063; torch.nn.utils.clip_grad_norm_
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tfviz.checks import above
from tfviz.training.experiments.subjects import batch_of, loss_of, small
from tfviz.training.tasks import copy

STEPS, BATCH, RATE = 60, 32, 3e-3


@dataclass(frozen=True)
class ClippedStep:
    """One step: the norm of each parameter's gradient before and after, and the cosine between the two gradients."""

    before: Float[np.ndarray, " parameter"]
    after: Float[np.ndarray, " parameter"]
    cosine: float
    loss: float

    @property
    def norms(self) -> tuple[float, float]:
        """Of the whole gradient, before and after."""
        return float(np.linalg.norm(self.before)), float(np.linalg.norm(self.after))


class ClippedRun:
    """A model on its way; the same `max_norm` and `seed` give the same steps."""

    def __init__(self, max_norm: float, seed: int = 0) -> None:
        above("max_norm", max_norm, 0)
        self.task, self.max_norm, self.seed, self.step = copy(), max_norm, seed, 0
        self.model = small(len(self.task.vocabulary), seed)
        self.names = [name for name, _ in self.model.named_parameters()]
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9)

    def advance(self) -> ClippedStep:
        """Batch, loss, backward, clip, Adam."""
        self.step += 1
        loss = loss_of(self.model, batch_of(self.task, BATCH, self.seed * 1_000_003 + self.step))
        loss.backward()
        before = self._gradients()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        after = self._gradients()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return ClippedStep(_norms(before), _norms(after), _cosine(before, after), loss.item())

    def _gradients(self) -> list[Tensor]:
        return [p.grad.double() for p in self.model.parameters() if p.grad is not None]


def advance(run: ClippedRun, n: int) -> tuple[ClippedRun, list[ClippedStep]]:
    """The run `n` steps on, and what they were like."""
    return run, [run.advance() for _ in range(n)]


def _norms(gradients: list[Tensor]) -> Float[np.ndarray, " parameter"]:
    return torch.stack([gradient.norm() for gradient in gradients]).numpy()


def _cosine(one: list[Tensor], other: list[Tensor]) -> float:
    a, b = (torch.cat([gradient.flatten() for gradient in gradients]) for gradients in (one, other))
    return float(a @ b / (a.norm() * b.norm()))
