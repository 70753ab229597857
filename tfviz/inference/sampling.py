"""From logits to the next token: what temperature, top-k and top-p make of the model's distribution, stage by stage.

    temperature  softmax(z / T)   T < 1 sharper, T > 1 flatter, T = 0 all mass on the most probable token (greedy)
    top-k        only the k most probable tokens                            https://arxiv.org/abs/1805.04833
    top-p        only the most probable tokens that together reach p        https://arxiv.org/abs/1904.09751

Logits in, logits out, -inf where a token is cut; equal logits rank by id, so that nothing hangs on how a sort runs.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tfviz.checks import at_least, is_number, is_whole, require

Logits = Float[Tensor, "batch vocab"]
Probs = Float[Tensor, "batch vocab"]


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen, refused with name, value and what is allowed; None (or top_p = 1) cuts nothing."""

    temperature: float = 1.0  # 0: greedy
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        at_least("temperature", self.temperature, 0)
        k, p = self.top_k, self.top_p
        require(k is None or is_whole(k, 1), "top_k", k, "allowed.whole_or_none", low=1)
        require(p is None or (is_number(p) and 0 < p <= 1), "top_p", p, "allowed.share_or_none")


GREEDY = Sampling(temperature=0)


def apply_temperature(logits: Logits, sampling: Sampling) -> Logits:
    """z / T, with the largest at 0 so that no temperature overflows."""
    if sampling.temperature == 0:
        best = logits.argmax(dim=-1, keepdim=True)
        return torch.full_like(logits, -math.inf).scatter_(-1, best, 0.0)
    smallest = torch.finfo(logits.dtype).tiny
    return (logits - logits.amax(dim=-1, keepdim=True)) / max(sampling.temperature, smallest)


def apply_top_k(logits: Logits, sampling: Sampling) -> Logits:
    if sampling.top_k is None:
        return logits
    return logits.masked_fill(~largest(logits, sampling.top_k), -math.inf)


def apply_top_p(logits: Logits, sampling: Sampling) -> Logits:
    """Keeps a token unless those more probable than it have reached p together already."""
    if sampling.top_p is None or sampling.top_p == 1:
        return logits
    ranked = logits.sort(dim=-1, descending=True, stable=True)
    mass = ranked.values.softmax(dim=-1).cumsum(dim=-1)
    mass_before = F.pad(mass[:, :-1], (1, 0))
    cut = torch.empty_like(mass, dtype=torch.bool).scatter_(-1, ranked.indices, mass_before >= sampling.top_p)
    return logits.masked_fill(cut, -math.inf)


STAGES: dict[str, Callable[[Logits, Sampling], Logits]] = {  # in the order in which they act
    "temperature": apply_temperature,
    "top_k": apply_top_k,
    "top_p": apply_top_p,
}


def staged(logits: Logits, sampling: Sampling) -> Iterator[tuple[str, Logits]]:
    """The logits as the model gave them ("model"), then behind each of STAGES by its name; FP32."""
    logits = logits.float()
    yield "model", logits
    for name, stage in STAGES.items():
        logits = stage(logits, sampling)
        yield name, logits


def stage_probabilities(logits: Logits, sampling: Sampling) -> dict[str, Probs]:
    """The distribution at each of `staged`: every one sums to 1 over the whole vocabulary."""
    return {name: seen.softmax(dim=-1) for name, seen in staged(logits, sampling)}


def next_probabilities(logits: Logits, sampling: Sampling) -> Probs:
    """The distribution that the next token is drawn from: the last of `staged`."""
    if sampling.temperature == 0:  # no later stage changes what has one token left
        return torch.zeros_like(logits, dtype=torch.float32).scatter_(-1, logits.argmax(dim=-1, keepdim=True), 1.0)
    *_, (_, seen) = staged(logits, sampling)
    return seen.softmax(dim=-1)


def draw(probs: Probs, generator: torch.Generator | None = None) -> Int[Tensor, " batch"]:
    """One token a row, by its probability; `generator` (of the same device) makes it repeatable."""
    return torch.multinomial(probs, 1, generator=generator)[:, 0]


def largest(values: Float[Tensor, "batch n"], k: int) -> Bool[Tensor, "batch n"]:
    """Marks the k largest of each row, all if there are fewer; of equal ones the first."""
    if k >= values.shape[-1]:
        return torch.ones_like(values, dtype=torch.bool)
    threshold = values.topk(k, dim=-1).values[:, -1:]
    above, equal = values > threshold, values == threshold
    room = k - above.sum(dim=-1, keepdim=True)
    return above | (equal & (equal.cumsum(dim=-1) <= room))
