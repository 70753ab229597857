"""How good a model is: the share of examples that it writes out exactly, always taking the likeliest token."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfviz.checks import at_least
from tfviz.model.transformer import Transformer
from tfviz.training.tasks import END, START, Example, Task


@dataclass(frozen=True)
class Score:
    """Exact matches, in all and by the examples' groups, and what was written instead."""

    right: int
    n: int
    by_group: dict[str, tuple[int, int]]  # group -> (right, n)
    wrong: tuple[tuple[Example, str], ...]

    @property
    def exact(self) -> float:
        """Share of exact matches, 0 to 1."""
        return self.right / self.n

    def to_dict(self) -> dict[str, object]:
        """JSON-able."""
        groups = {group: right / n for group, (right, n) in self.by_group.items()}
        return {"exact": self.exact, "by_group": groups, "n": self.n}


@torch.inference_mode()
def greedy(
    model: Transformer, source: Int[Tensor, "batch source"], max_new_tokens: int = 12
) -> tuple[Int[Tensor, "batch new"], Float[Tensor, " batch"]]:
    """The likeliest token at each step, until every row has ended: (ids, log probability of each row's ids).

    The end token counts; what follows it in a row is the end token again and does not.
    """
    at_least("max_new_tokens", max_new_tokens, 1)
    memory, memory_mask = model.encode(source)
    cache = model.new_cache()
    token = torch.full((len(source), 1), START, device=source.device)
    ended = torch.zeros(len(source), dtype=torch.bool, device=source.device)
    log_prob = torch.zeros(len(source), device=source.device)
    written: list[Tensor] = []
    while len(written) < max_new_tokens and not ended.all():
        log_p = model.decode(token, memory, memory_mask, cache=cache)[:, -1].float().log_softmax(-1)
        best, token = log_p.max(dim=-1, keepdim=True)
        token = token.masked_fill(ended[:, None], END)
        log_prob += best[:, 0].masked_fill(ended, 0.0)
        ended |= token[:, 0] == END
        written.append(token)
    return torch.cat(written, dim=1), log_prob


def exact_match(
    model: Transformer, task: Task, examples: Sequence[Example], batch_size: int = 250, max_new_tokens: int = 12
) -> Score:
    """Greedy decoding of every example, in batches of like lengths; the model is in eval mode meanwhile."""
    at_least("examples", len(examples), 1)
    at_least("batch_size", batch_size, 1)
    device, was_training = next(model.parameters()).device, model.training
    in_order = sorted(examples, key=lambda example: len(example.source))
    n, right, wrong = Counter[str](), Counter[str](), []
    model.eval()
    try:
        for start in range(0, len(examples), batch_size):
            part = in_order[start : start + batch_size]
            ids, _ = greedy(model, task.collate(part).source.to(device), max_new_tokens)
            for example, row in zip(part, ids.tolist(), strict=True):
                text = task.decode(row)
                n[example.group] += 1
                right[example.group] += text == example.target
                wrong += [] if text == example.target else [(example, text)]
    finally:
        model.train(was_training)
    by_group = {group: (right[group], n[group]) for group in sorted(n)}
    return Score(right.total(), n.total(), by_group, tuple(wrong))
