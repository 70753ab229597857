"""How far a precision is from FP32: on texts that both read, in every head's rows of attention, and in the weights.

Perplexity exp(mean -log p(next token)), mean KL(FP32 || it) and top-1 agreement of its distributions over the
vocabulary; the cosine of its last hidden states where there is no head; and for each head the total variation between
its rows of attention and FP32's,

    TV(p, q) = 1/2 sum_k |p_k - q_k|,     the share of a row's weight that has moved to other keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import exp
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tfviz.inference.measure import difference
from tfviz.introspection.layer_calls import is_linear
from tfviz.model.attention import attention_weights
from tfviz.model.attention_call import AttentionCall, AttentionRecord
from tfviz.sources.base import LoadedModel

MAP_BYTES = 96 * 2**20  # of FP32's attention rows
WEIGHED = 8  # linear layers whose rounded weights are compared with FP32's

Inputs = dict[str, Tensor]


def own_ids(inputs: Inputs) -> Tensor:
    """The ids whose outputs are compared: the decoder's where there are two sides."""
    return inputs.get("decoder_input_ids", inputs["input_ids"])


@dataclass(frozen=True, eq=False)
class Reference:
    """What FP32 made of one text, on the CPU."""

    output: Tensor  # [position, vocabulary or feature]
    maps: Mapping[str, list[Tensor]]  # kind -> weights [head, query, key] of each layer


class Maps:
    """Watches a pass and keeps every attention's rows, computed in FP32 from its q and k, by kind and layer."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.encoder = loaded.encoder_modules()
        self.kinds: dict[str, list[Tensor]] = {}

    def __call__(self, record: AttentionRecord) -> None:
        query, key = record.query[:1].float(), record.key[:1].float()
        weights = attention_weights(query, key, record.mask, record.rule)[0].cpu()
        self.kinds.setdefault(self._kind(record), []).append(weights)

    def _kind(self, record: AttentionRecord) -> str:
        if not self.encoder:
            return "self"
        if record.module in self.encoder:
            return "encoder"  # below: a decoder layer looks at itself first, then at the encoder
        return "decoder" if len(self.kinds.get("decoder", [])) == len(self.kinds.get("cross", [])) else "cross"


def _seen(loaded: LoadedModel, inputs: Inputs, watched: bool) -> Reference:
    maps = Maps(loaded)
    call = AttentionCall("flash", maps if watched else None)
    output = loaded.run(inputs, call)[0].float().cpu()
    return Reference(output, maps.kinds)


def reference(loaded: LoadedModel, inputs: Inputs, watched: bool) -> Reference:
    """FP32's outputs on a text; the rows of attention too if `watched` and they are not too many."""
    found = _seen(loaded, inputs, watched)
    size = sum(4 * one.numel() for layers in found.maps.values() for one in layers)
    return found if size <= MAP_BYTES else replace(found, maps={})


@dataclass(frozen=True, eq=False)
class Judged:
    """Sums over the positions of the texts read so far; None: this model has none."""

    read: int = 0
    predicted: int = 0
    surprise: float | None = None  # nats
    kl: float | None = None
    agreeing: float | None = None
    cosine: float | None = None
    maps: Mapping[str, np.ndarray] = field(default_factory=dict)  # TV summed over texts
    watched: int = 0

    def joined(self, other: "Judged") -> "Judged":
        if not self.read:
            return other
        names = ("read", "predicted", "surprise", "kl", "agreeing", "cosine", "watched")
        sums: dict[str, Any] = {name: _sum(getattr(self, name), getattr(other, name)) for name in names}
        maps = {kind: self.maps[kind] + other.maps.get(kind, 0) for kind in self.maps}
        return Judged(maps=maps, **sums)

    def fields(self) -> dict[str, Any]:
        """What of it stands in a PrecisionPoint."""
        shares = {"kl": self.kl, "top1": self.agreeing, "cosine": self.cosine}
        means = {name: None if one is None else one / self.read for name, one in shares.items()}
        perplexity = None if self.surprise is None else _exp(self.surprise / self.predicted)
        maps = {kind: (one / self.watched).astype(np.float32) for kind, one in self.maps.items()}
        return {**means, "perplexity": perplexity, "maps": maps, "read": self.read}


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _exp(nats: float) -> float:
    return exp(nats) if nats < 700 else float("inf")


def judge(loaded: LoadedModel, inputs: Inputs, exact: Reference) -> Judged:
    """One text through this precision, beside what FP32 made of it."""
    found = _seen(loaded, inputs, bool(exact.maps))
    n = len(found.output)
    maps = {kind: heads_apart(layers, found.maps[kind]) for kind, layers in exact.maps.items()}
    if not loaded.has_logits:
        cosine = torch.cosine_similarity(exact.output, found.output, dim=-1).sum()
        return Judged(n, cosine=float(cosine), maps=maps, watched=int(bool(maps)))
    apart = difference(exact.output, found.output, is_logits=True)
    assert apart.kl is not None and apart.top1 is not None
    own, surprise = own_ids(inputs)[0], None
    if loaded.family != "encoder" and n > 1:
        log_probs = -torch.nn.functional.cross_entropy(found.output[:-1], own[1:].cpu(), reduction="sum")
        surprise = -float(log_probs)  # sum of -log p(next token)
    return Judged(n, n - 1, surprise, n * apart.kl, n * apart.top1, maps=maps, watched=int(bool(maps)))


def heads_apart(exact: Sequence[Tensor], found: Sequence[Tensor]) -> np.ndarray:
    """Mean over rows of TV(p, q) = 1/2 sum |p - q|: [layer, head]; layers with fewer heads end in nan."""
    each = [0.5 * (p - q).abs().sum(-1).mean(-1) for p, q in zip(exact, found, strict=True)]  # [head]
    made = np.full((len(each), max(map(len, each))), np.nan, dtype=np.float32)
    for row, values in zip(made, each, strict=True):
        row[: len(values)] = values.numpy()
    return made


def weight_error(base: LoadedModel, loaded: LoadedModel) -> float:
    """|W - W as this precision holds it| / |W| over the first `WEIGHED` linear layers but the head."""
    off = size = 0.0
    pairs = zip(base.model.modules(), loaded.model.modules(), strict=True)
    get_head: Any = getattr(base.model, "get_output_embeddings", None)
    head = get_head() if get_head is not None else None
    one: Any
    other: Any
    linear = ((one, other) for one, other in pairs if is_linear(one) and one is not head)
    for one, other in islice(linear, WEIGHED):
        exact: Any = one.weight.detach()
        restored: Any = getattr(other, "dequantised", None)
        held: Any = other.weight.detach().float() if restored is None else restored()
        exact = exact if held.shape == exact.shape else exact.t()  # transformers' Conv1D
        off += float((held - exact).square().sum())
        size += float(exact.square().sum())
    return (off / size) ** 0.5 if size else 0.0
