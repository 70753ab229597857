"""What each step of a generation read: one head's attention weights, a row for every token that went through the model.

    row i = softmax(rule(q_i . K_{held}))   K grows by the step's own keys; a window forgets the first ones

Made from what a recorded decoding left behind (tfviz.sources.decoding.RowSeen): the step's queries, the keys of all
steps so far, and the rule by which the model turned them into scores.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tfviz.model.attention import attention_scores
from tfviz.sources.decoding import RowSeen, StepSeen

Rows = Float[np.ndarray, "query key"]


def step_rows(seen: Sequence[StepSeen], kind: str, layer: int, head: int, first: int = 0) -> list[Rows]:
    """Weights of every step from `first` on: (its queries, all keys so far), NaN where they may not look."""
    rows = [step[kind, layer] for step in seen]
    group = head * rows[0].key.shape[0] // rows[0].query.shape[0]  # grouped-query heads share a key
    memory = kind == "cross"  # one memory, whole at the first step
    keys = rows[0].key[group] if memory else torch.cat([row.key[group] for row in rows])
    ends = [len(keys)] * len(rows) if memory else list(accumulate(row.key.shape[1] for row in rows))
    return [_weights(row, keys[:end], head) for row, end in zip(rows[first:], ends[first:], strict=True)]


def _weights(row: RowSeen, keys: Float[Tensor, "key dim"], head: int) -> Rows:
    query, held = row.query[head].float(), keys[len(keys) - row.held :].float()
    rule = row.rule
    if rule.bias is not None:
        rule = replace(rule, bias=_of_head(rule.bias.flatten(0, -3), head)[None, None].float())
    mask = None if row.mask is None else _of_head(row.mask, head)[None, None]
    scores = attention_scores(query[None, None], held[None, None], mask, rule)[0, 0]
    weights = scores.softmax(dim=-1).masked_fill(scores == -torch.inf, torch.nan)
    out = np.full((len(query), len(keys)), np.nan, dtype=np.float32)
    out[:, len(keys) - row.held :] = weights.cpu().numpy()
    return out


def _of_head(array: Tensor, head: int) -> Tensor:
    return array[head if len(array) > 1 else 0]
