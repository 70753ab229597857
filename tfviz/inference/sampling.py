"""From logits to the next token: what each setting makes of the model's distribution, stage by stage.

    repetition   z_i / r if z_i > 0, z_i * r if z_i < 0, of tokens seen before   https://arxiv.org/abs/1909.05858
    temperature  softmax(z / T)   T < 1 sharper, T > 1 flatter, T = 0 all mass on the most probable token (greedy)
    top-k        only the k most probable tokens                                 https://arxiv.org/abs/1805.04833
    top-p        only the most probable tokens that together reach p             https://arxiv.org/abs/1904.09751
    min-p        only tokens with at least min_p of the best one's probability   https://arxiv.org/abs/2407.01082

Logits in, logits out, -inf where a token is cut; equal logits rank by id, so that nothing hangs on how a sort runs. The
order is that of transformers 5.24 (generation/utils.py, `_get_logits_processor`): penalties, then temperature and cuts.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tfviz.checks import above, at_least, is_number, is_whole, require

Logits = Float[Tensor, "batch vocab"]
Probs = Float[Tensor, "batch vocab"]
Seen = Int[Tensor, "batch length"]
RANKED = 512  # tokens that top-p ranks at first
MILD = (1e-6, 1e6)  # repetition penalties that keep every logit of a model within FP32


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen, refused with name, value and what is allowed; None (or a neutral value) does nothing."""

    temperature: float = 1.0  # 0: greedy
    top_k: int | None = None
    top_p: float | None = None  # 1: all
    min_p: float | None = None  # 0: all
    repetition_penalty: float = 1.0  # 1: none; above it, tokens seen before become less probable

    def __post_init__(self) -> None:
        at_least("temperature", self.temperature, 0)
        k, p, least = self.top_k, self.top_p, self.min_p
        require(k is None or is_whole(k, 1), "top_k", k, "allowed.whole_or_none", low=1)
        require(p is None or (is_number(p) and 0 < p <= 1), "top_p", p, "allowed.share_or_none")
        require(least is None or (is_number(least) and 0 <= least <= 1), "min_p", least, "allowed.part_or_none")
        above("repetition_penalty", self.repetition_penalty, 0)


GREEDY = Sampling(temperature=0)


def apply_repetition(logits: Logits, sampling: Sampling, seen: Seen | None = None) -> Logits:
    """z / r where z > 0, z * r where z < 0, for the tokens in `seen`, each once however often it came."""
    r = sampling.repetition_penalty
    if r == 1 or seen is None:
        return logits
    n = logits.shape[-1]
    said = torch.zeros(len(logits), n + 1, dtype=torch.bool, device=logits.device)
    said.scatter_(-1, seen.long().clamp(max=n), True)  # an embedding may have more rows than the head: column n
    if MILD[0] <= r <= MILD[1]:
        return torch.where(said[:, :n], torch.where(logits < 0, logits * r, logits / r), logits)
    z, r = logits.cpu().double(), min(max(r, 1e-250), 1e250)  # FP64 holds them, with the largest at 0 FP32 does too
    z = torch.where(said[:, :n].cpu() & z.isfinite(), torch.where(z < 0, z * r, z / r), z)
    return _as_held(z - z.amax(dim=-1, keepdim=True), logits)


def apply_temperature(logits: Logits, sampling: Sampling, seen: Seen | None = None) -> Logits:
    """z / T, with the largest at 0 so that no temperature overflows."""
    if sampling.temperature == 0:
        best = logits.argmax(dim=-1, keepdim=True)
        return torch.full_like(logits, -math.inf).scatter_(-1, best, 0.0)
    if sampling.temperature == 1:
        return logits
    range_ = torch.finfo(logits.dtype)
    temperature = min(max(sampling.temperature, range_.tiny), range_.max)
    return _as_held((logits - logits.amax(dim=-1, keepdim=True)) / temperature, logits)


def _as_held(z: Tensor, before: Logits) -> Logits:
    """z in the format of `before`, and no lower than it reaches: -inf only where a token was cut before."""
    return z.clamp(min=torch.finfo(before.dtype).min).to(before).masked_fill(before == -math.inf, -math.inf)


def apply_top_k(logits: Logits, sampling: Sampling, seen: Seen | None = None) -> Logits:
    if sampling.top_k is None or sampling.top_k >= logits.shape[-1]:
        return logits
    return logits.masked_fill(~largest(logits, sampling.top_k), -math.inf)


def apply_top_p(logits: Logits, sampling: Sampling, seen: Seen | None = None) -> Logits:
    """Keeps a token unless those more probable than it have reached p together already."""
    p = sampling.top_p
    if p is None or p == 1:
        return logits
    probs = logits.softmax(dim=-1)
    for n in (RANKED, 16 * RANKED, logits.shape[-1]):  # the few that are needed; all where it is flat
        ranked, order = logits.topk(min(n, logits.shape[-1]))
        mass = probs.gather(-1, order).cumsum(dim=-1)
        if bool((mass[:, -1] >= p).all()):
            break
    mass_before = F.pad(mass[:, :-1], (1, 0))
    n_kept = (mass_before < p).sum(dim=-1, keepdim=True).clamp(min=1)  # p below FP32's range: the best one
    return logits.masked_fill(~_first(logits, ranked.gather(-1, n_kept - 1), n_kept), -math.inf)


def apply_min_p(logits: Logits, sampling: Sampling, seen: Seen | None = None) -> Logits:
    """Keeps a token if p >= min_p * max p."""
    if not sampling.min_p:
        return logits
    probs = logits.softmax(dim=-1)
    return logits.masked_fill(probs < sampling.min_p * probs.amax(dim=-1, keepdim=True), -math.inf)


STAGES: dict[str, Callable[[Logits, Sampling, Seen | None], Logits]] = {  # in the order in which they act
    "repetition": apply_repetition,
    "temperature": apply_temperature,
    "top_k": apply_top_k,
    "top_p": apply_top_p,
    "min_p": apply_min_p,
}


def staged(logits: Logits, sampling: Sampling, seen: Seen | None = None) -> Iterator[tuple[str, Logits]]:
    """The logits as the model gave them ("model"), then behind each of STAGES by its name; FP32.

    `seen` are the ids that the repetition penalty counts: all that the decoder has read. A stage that has nothing to do
    hands on the very tensor that it was given.
    """
    logits = logits.float()
    yield "model", logits
    for name, stage in STAGES.items():
        logits = stage(logits, sampling, seen)
        yield name, logits


def stage_probabilities(logits: Logits, sampling: Sampling, seen: Seen | None = None) -> dict[str, Probs]:
    """The distribution at each of `staged`: every one sums to 1 over the whole vocabulary."""
    probs: dict[str, Probs] = {}
    before, last = None, logits
    for name, z in staged(logits, sampling, seen):
        probs[name] = last = last if z is before else z.softmax(dim=-1)
        before = z
    return probs


def next_probabilities(logits: Logits, sampling: Sampling, seen: Seen | None = None) -> Probs:
    """The distribution that the next token is drawn from: the last of `staged`."""
    if sampling.temperature == 0:  # no later stage changes what has one token left
        z = apply_repetition(logits.float(), sampling, seen)
        return torch.zeros_like(z).scatter_(-1, z.argmax(dim=-1, keepdim=True), 1.0)
    *_, (_, z) = staged(logits, sampling, seen)
    return z.softmax(dim=-1)


def draw(probs: Probs, generator: torch.Generator | None = None) -> Int[Tensor, " batch"]:
    """One token a row, by its probability; `generator` (of the same device) makes it repeatable.

    The token at which the sum of the probabilities passes a number u that is uniform in [0, 1): one random number where
    torch.multinomial draws as many as there are tokens.
    """
    exact = torch.float32 if probs.device.type == "mps" else torch.float64  # Apple's GPUs have no FP64
    mass = probs.to(exact).cumsum(dim=-1)
    u = torch.rand(len(probs), 1, generator=generator, dtype=exact, device=probs.device) * mass[:, -1:]
    return torch.searchsorted(mass, u, right=True)[:, 0]  # mass before <= u < mass with it: never where p = 0


def largest(values: Float[Tensor, "batch n"], k: int) -> Bool[Tensor, "batch n"]:
    """Marks the k largest of each row, all if there are fewer; of equal ones the first."""
    if k >= values.shape[-1]:
        return torch.ones_like(values, dtype=torch.bool)
    return _first(values, values.topk(k, dim=-1).values[:, -1:], k)


def _first(
    values: Float[Tensor, "batch n"], threshold: Float[Tensor, "batch 1"], k: int | Int[Tensor, "batch 1"]
) -> Bool[Tensor, "batch n"]:
    """The k largest, where the k-th is known to be `threshold`; of those equal to it the first."""
    larger, equal = values > threshold, values == threshold
    room = k - larger.sum(dim=-1, keepdim=True)
    return larger | (equal & (equal.cumsum(dim=-1) <= room))
