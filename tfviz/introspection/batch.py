"""What a model does with a padded batch: the q, k and mask of every attention, and whether each row gives what it gives
alone.

    max | output of the row in the batch - output of the row alone |   over its real tokens: 1.2e-4 of the largest
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tfviz.inference import rounding
from tfviz.introspection.capture import Watcher
from tfviz.model.attention import ScoreRule, attention_scores, attention_weights
from tfviz.model.attention_call import AttentionCall, AttentionRecord
from tfviz.model.masks import make_causal_mask
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.batch import Batch, make_batch, read_rows

Array = np.ndarray
MINUS_INFINITY = -1e4  # some models add a large negative number to the scores instead of a mask


@dataclass(frozen=True)
class BatchAttention:
    """The inputs of one attention over the whole batch, FP32 on the CPU."""

    query: Float[Array, "row head query dim"]
    key: Float[Array, "row kv_head key dim"]
    mask: Bool[Array, "#row #head #query #key"] | None  # as the model built it; True = blocked
    bias: Float[Array, "#row #head query key"] | None
    scale: float | None
    causal: bool  # the triangle came as a flag, not in the mask
    softcap: float | None

    def blocked(self, row: int) -> Bool[Array, "query key"]:
        """Every cell of a row that the model itself blocks, in its first head."""
        n_query, n_key = self.query.shape[2], self.key.shape[2]
        blocked = make_causal_mask(n_query, n_key).numpy() if self.causal else np.zeros((n_query, n_key), dtype=bool)
        if self.mask is not None:
            blocked = blocked | _of_row(self.mask, row)[0]
        return blocked if self.bias is None else blocked | (_of_row(self.bias, row)[0] <= MINUS_INFINITY)


@dataclass(frozen=True)
class MaskedHead:
    """One head of one row, from its scores to its weights."""

    before: Float[Array, "query key"]  # scores without any mask
    after: Float[Array, "query key"]  # -inf where blocked
    softmax: Float[Array, "query key"]  # NaN in rows where nothing is allowed
    weights: Float[Array, "query key"]  # zeros there: what this code does


@dataclass(frozen=True)
class BatchRun:
    """A batch, its attentions, and how far each row is from the same text alone."""

    batch: Batch
    attentions: Mapping[str, tuple[BatchAttention, ...]]  # by kind, layer by layer
    windows: Mapping[str, tuple[int | None, ...]]  # what the config says of each layer
    differences: tuple[float | None, ...]  # row by row; None: nothing in it, nothing to compare
    largest: float  # output in the batch: what a difference is small against
    finite: bool  # no NaN anywhere in the output
    label: str
    precision: str
    packed: bool = False  # the model itself ran the texts in one row and kept them apart (packing.py)

    @property
    def tolerance(self) -> float:
        return rounding.layers() * self.largest

    @property
    def nbytes(self) -> int:
        return sum(one.query.nbytes + one.key.nbytes for stack in self.attentions.values() for one in stack)


@dataclass
class _Rows(Watcher):
    """Keeps all rows, where `capture` keeps the first."""

    found: dict[str, list[BatchAttention]] = field(default_factory=dict)

    def __call__(self, record: AttentionRecord) -> None:
        kind, rule = self._kind(record), record.rule
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.found.setdefault(kind, []).append(
            BatchAttention(
                query=_array(record.query),
                key=_array(record.key),
                mask=self._shared(record.mask),
                bias=self._shared(rule.bias),
                scale=rule.scale,
                causal=rule.causal,
                softcap=rule.softcap,
            )
        )

    @staticmethod
    def _array(tensor: Tensor) -> Array:
        return _array(tensor)


def run_batch(
    loaded: LoadedModel,
    prompt: Prompt,
    text: tuple[str, str | None] = ("", None),
    lines: Sequence[str] = (),
    side: str = "right",
    kernel: str = "flash",
) -> BatchRun:
    """Runs the page's sentence and `lines` as one batch, then each row alone. `BadText` for what makes no batch."""
    batch = make_batch(loaded, read_rows(loaded, prompt, text, lines), side)
    output, attentions = watched(loaded, batch.inputs, kernel)
    padding, call = (batch.target or batch.source).padding, AttentionCall(kernel)
    differences = tuple(
        None if alone is None else apart(output[row][~padding[row]], loaded.forward(alone, call)[0])
        for row, alone in enumerate(batch.prompts)
    )
    windows = {
        kind: tuple(loaded.window(kind, layer) for layer in range(len(stack))) for kind, stack in attentions.items()
    }
    return BatchRun(batch, attentions, windows, differences, *seen(output), loaded.label, loaded.precision)


def watched(
    loaded: LoadedModel, inputs: dict[str, Tensor], kernel: str
) -> tuple[Tensor, dict[str, tuple[BatchAttention, ...]]]:
    """(output, every attention by its kind) of one forward pass."""
    watcher = _Rows(loaded.encoder_modules(), "self", None, False)
    output = loaded.run(inputs, AttentionCall(kernel, watcher))
    return output, {kind: tuple(found) for kind, found in watcher.found.items()}


def seen(output: Tensor) -> tuple[float, bool]:
    """(the largest number, whether all are finite)"""
    return float(output.abs().max()), bool(torch.isfinite(output).all())


def apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def masked_head(attention: BatchAttention, row: int, head: int, blocked: Bool[Array, "query key"]) -> MaskedHead:
    """softmax(q k^T / sqrt(d_k), -inf where `blocked`) of the batch's own q and k, with a mask of ours."""
    query, key = torch.from_numpy(attention.query[row : row + 1]), torch.from_numpy(attention.key[row : row + 1])
    own, shared = slice(head, head + 1), head * key.shape[1] // query.shape[1]
    bias = None
    if attention.bias is not None:
        heads = _of_row(attention.bias, row)
        added = torch.from_numpy(heads[min(head, len(heads) - 1)])
        bias = added.masked_fill(added <= MINUS_INFINITY, 0.0)[None, None]
    rule = ScoreRule(attention.scale, False, attention.softcap, bias)
    query, key, mask = query[:, own], key[:, shared : shared + 1], torch.from_numpy(blocked)[None, None]
    after = attention_scores(query, key, mask, rule)
    arrays = (
        attention_scores(query, key, None, rule),  # q . k / sqrt(d_k)
        after,
        after.softmax(dim=-1),
        attention_weights(query, key, mask, rule),
    )
    return MaskedHead(*(array[0, 0].numpy() for array in arrays))


def _of_row(array: Array, row: int) -> Array:
    """[head, query, key] of a row; one that is shared by all rows comes once."""
    return array[min(row, len(array) - 1)]


def _array(tensor: Tensor) -> Array:
    return (tensor if tensor.dtype == torch.bool else tensor.float()).cpu().numpy()
