"""Gradient accumulation: a batch in parts gives the gradient of the whole batch, if each part has its right weight.

    g = sum over parts of (gradient of the part's summed loss) / (tokens of the whole batch)

The mean of the parts' means is something else as soon as parts differ in their number of tokens: a token of a short
part then counts more than one of a long part. Memory: only one part's activations wait for their backward at a time.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfviz.checks import from_to
from tfviz.model.transformer import Transformer
from tfviz.training.experiments.subjects import batch_of, loss_of, small
from tfviz.training.tasks import PAD, Batch, SymbolTask

ROWS, LONGEST = 32, 10


@dataclass(frozen=True)
class Accumulated:
    """Gradients of all parameters in a row, three ways, and the parts that two of them were computed in."""

    whole: Float[np.ndarray, " value"]  # the batch at once
    by_tokens: Float[np.ndarray, " value"]  # each part's sum, divided by all tokens
    by_means: Float[np.ndarray, " value"]  # the mean of the parts' means
    tokens: Int[np.ndarray, " part"]  # real target tokens
    kept_bytes: int  # the most that one part's forward keeps for its backward


@lru_cache(maxsize=64)
def accumulate(n: int, even: bool = False, seed: int = 0) -> Accumulated:
    """ROWS words in `n` parts; `even`: all words of one length, so that all parts have as many tokens."""
    from_to("n", n, 1, ROWS)
    task = SymbolTask("copy", lambda word: word, shortest=LONGEST if even else 1, longest=LONGEST)
    model, batch = small(len(task.vocabulary), seed), batch_of(task, ROWS, seed)
    parts = batch.chunks(n)
    tokens = [count(part) for part in parts]
    means = [1 / len(parts)] * len(parts)
    by_tokens, kept = gradient(model, parts, [k / sum(tokens) for k in tokens])
    whole, by_means = gradient(model, [batch], [1.0])[0], gradient(model, parts, means)[0]
    return Accumulated(whole, by_tokens, by_means, np.array(tokens), kept)


def gradient(model: Transformer, parts: list[Batch], shares: list[float]) -> tuple[Float[np.ndarray, " value"], int]:
    """(sum of the parts' mean losses' gradients, each times its share; bytes that the largest part keeps)"""
    model.zero_grad(set_to_none=True)
    most = 0
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    for part, share in zip(parts, shares, strict=True):
        kept: dict[int, int] = {}

        def keep(tensor: Tensor, kept: dict[int, int] = kept) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = loss_of(model, part) * share
        most = max(most, sum(kept.values()))
        loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).numpy(), most


def count(part: Batch) -> int:
    """Target tokens that are to be predicted."""
    return int((part.target[:, 1:] != PAD).sum())
