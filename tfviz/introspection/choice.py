"""How one token was chosen: the distribution over the whole vocabulary at every stage, and what was drawn from it.

    H = -sum p ln p       entropy of the model's own distribution, in nats: how undecided it is
    s = -ln p(token)      surprise of the token that was taken; its mean over a text drawn from the model is H

Shannon 1948, https://doi.org/10.1002/j.1538-7305.1948.tb01338.x. All in FP32 on the CPU, whatever the model runs in and
on, and each step draws with a generator of its own: a text that goes on from its middle goes on as it would have.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import inf

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfviz.inference.sampling import Sampling, draw, staged

LISTED = 20  # most probable tokens that are kept of a distribution


@dataclass(frozen=True, eq=False)
class Choice:
    """One step's distribution and draw. Stages: "model", then those of tfviz.inference.sampling.STAGES."""

    id: int  # taken
    drawn: int  # what sampling gave: another one only where `id` was given from outside
    prob: float
    drawn_prob: float
    entropy: float
    surprise: float
    listed: tuple[int, ...]  # the most probable by the model, and `id` at the end if it is none of them
    probs: Mapping[str, tuple[float, ...]]  # of the listed ones, at each stage
    rest: Mapping[str, float]  # of all others together
    cut: tuple[str | None, ...]  # the stage that left out each listed one; None: still there, however improbable
    kept: Mapping[str, int]  # tokens with a probability above 0 by the rules (not cut) at each stage


def choose_token(
    logits: Float[Tensor, " vocab"],
    sampling: Sampling,
    seen: Int[Tensor, " length"],
    seed: int,
    index: int,
    given: int | None = None,
) -> Choice:
    """Draws token `index` of a text with that seed, or takes the `given` one."""
    z = logits[None].float().cpu()
    norm = float(z.logsumexp(dim=-1))  # ln sum e^z
    probs, left = _stages(z, sampling, seen[None].cpu())
    last = probs["min_p"]
    drawn = int(last.argmax()) if sampling.temperature == 0 else int(draw(last[None], generator_of(seed, index)))
    taken = drawn if given is None else given
    listed = probs["model"].topk(min(LISTED, len(last))).indices.tolist()
    listed += [] if taken in listed else [taken]
    shown = {name: tuple(p[listed].tolist()) for name, p in probs.items()}
    return Choice(
        id=taken,
        drawn=drawn,
        prob=float(probs["model"][taken]),
        drawn_prob=float(last[taken]),
        entropy=max(0.0, -float(torch.xlogy(probs["model"], probs["model"]).sum())),  # -sum p ln p
        surprise=max(0.0, norm - float(z[0, taken])),  # -ln p = ln sum e^z - z
        listed=tuple(listed),
        probs=shown,
        rest={name: _others(p, listed) for name, p in probs.items()},
        cut=tuple(next((name for name, there in left.items() if not there[one]), None) for one in listed),
        kept={name: int(there.sum()) for name, there in left.items()},
    )


def _stages(
    logits: Float[Tensor, "1 vocab"], sampling: Sampling, seen: Int[Tensor, "1 length"]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Probabilities [vocab] and which tokens are left [vocab] at each stage; one that does nothing costs nothing."""
    probs: dict[str, Tensor] = {}
    left: dict[str, Tensor] = {}
    before, p, there = None, logits[0], logits[0]
    for name, z in staged(logits, sampling, seen):
        if z is not before:
            p, there = z[0].softmax(dim=-1), z[0] > -inf
        probs[name], left[name], before = p, there, z
    return probs, left


def _others(probs: Float[Tensor, " vocab"], listed: list[int]) -> float:
    """What all tokens but the listed ones have: added up, for 1 minus the listed ones is nothing but rounding."""
    others = probs.clone()
    others[listed] = 0
    return float(others.sum(dtype=torch.float64))


def generator_of(seed: int, index: int) -> torch.Generator:
    """The random numbers of token `index`: the same whether a text was made in one go or taken up again there."""
    digest = blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
