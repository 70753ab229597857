"""Runs a text through a model once and keeps what its attentions were made of."""

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from tfviz.errors import TfvizError, UnsupportedHere
from tfviz.introspection.answer import answer_of
from tfviz.introspection.thumbnails import thumbnails
from tfviz.introspection.trace import AttentionStack, Cost, LayerAttention, Trace
from tfviz.model.attention_call import AttentionCall, AttentionRecord
from tfviz.model.overflow import score_dtype
from tfviz.sources.base import LoadedModel, Prompt

logger = logging.getLogger(__name__)


@dataclass
class Watcher:
    """Sorts attentions into kinds as they happen, by where they are and in which order they come."""

    encoder: set[nn.Module]
    decoder_kind: str  # "self", or "decoder" where there is an encoder as well
    layers: Collection[int] | None  # which to keep; None: all
    overview: bool
    kept: dict[str, dict[int, LayerAttention]] = field(default_factory=dict)
    thumbs: dict[str, list[np.ndarray]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)  # query heads of the first layer
    masks: dict[int, np.ndarray] = field(default_factory=dict)  # id of a mask or bias -> its one CPU copy
    alive: list[Tensor] = field(default_factory=list)  # keeps those ids from being used again
    last: Tensor | None = None  # the query of the attention before
    label: str = ""  # of the model, for a refusal

    def __call__(self, record: AttentionRecord) -> None:
        if record.query is self.last:  # DiffLlama: the same maps for two halves of the values, then their difference
            raise UnsupportedHere("error.attention_twice", model=self.label)
        self.last = record.query
        kind = self._kind(record)
        layer = self.counts.get(kind, 0)
        self.counts[kind] = layer + 1
        if self.heads.setdefault(kind, record.query.shape[1]) != record.query.shape[1]:
            raise UnsupportedHere("error.heads_differ", model=self.label)
        if self.overview:
            self.thumbs.setdefault(kind, []).append(thumbnails(record))
        if self.layers is None or layer in self.layers:
            self.kept.setdefault(kind, {})[layer] = self._keep(record)

    def _kind(self, record: AttentionRecord) -> str:
        if record.module in self.encoder:
            return "encoder"
        if not self.encoder:
            return self.decoder_kind
        # A decoder layer looks at itself first, then at the encoder: its attentions alternate.
        return "decoder" if self.counts.get("decoder", 0) == self.counts.get("cross", 0) else "cross"

    def _keep(self, record: AttentionRecord) -> LayerAttention:
        rule = record.rule
        return LayerAttention(
            query=self._array(record.query),
            key=self._array(record.key),
            value=self._array(record.value),
            mask=self._shared(record.mask),
            bias=self._shared(rule.bias),
            scale=rule.scale,
            causal=rule.causal,
            softcap=rule.softcap,
            score_dtype=score_dtype(record.kernel, record.query.dtype),
        )

    def _shared(self, tensor: Tensor | None) -> np.ndarray | None:
        """Masks and biases are often one tensor for all layers: copied once."""
        if tensor is None:
            return None
        if id(tensor) not in self.masks:
            self.alive.append(tensor)
            self.masks[id(tensor)] = self._array(tensor)
        return self.masks[id(tensor)]

    @staticmethod
    def _array(tensor: Tensor) -> np.ndarray:
        """The first batch row as a CPU array, FP32 or bool; shares memory where it can."""
        row = tensor[0]
        return (row if row.dtype == torch.bool else row.float()).cpu().numpy()


def capture(
    loaded: LoadedModel,
    prompt: Prompt,
    text: tuple[str, str | None],
    *,
    kernel: str = "flash",
    layers: Collection[int] | None = None,
    overview: bool = False,
) -> Trace:
    """One watched forward pass of `prompt`: q, k and v of `layers` (None: all), thumbnails of every head if wanted.

    `UnsupportedHere` if the architecture computes its attention out of our sight, or what is no number.
    """
    watcher = Watcher(loaded.encoder_modules(), "self", layers, overview, label=loaded.label)
    start = time.perf_counter()
    try:
        output = loaded.forward(prompt, AttentionCall(kernel, watcher), all_logits=False)
    except AttributeError as error:
        if watcher.counts:
            raise
        raise UnsupportedHere("error.no_attention", model=loaded.label) from error  # it stumbles over our mask
    except (ValueError, TypeError, RuntimeError) as error:
        if isinstance(error, TfvizError | torch.OutOfMemoryError) or watcher.counts:
            raise
        logger.warning("%s cannot run", loaded.label, exc_info=True)  # it may want what no text has: X-MOD a language
        raise UnsupportedHere("error.model_fails", model=loaded.label, reason=str(error).strip()[:160]) from error
    seconds = time.perf_counter() - start
    wanted = {"encoder", "decoder", "cross"} if watcher.encoder else {"self"}
    if not wanted <= watcher.counts.keys():  # all of it or, of an encoder-decoder, one side out of our sight
        raise UnsupportedHere("error.no_attention", model=loaded.label)
    n_layers = max(watcher.counts.values())
    if layers is not None and not set(layers) <= set(range(n_layers)) or not watcher.kept:
        raise ValueError(f"layers={sorted(layers or ())}: {loaded.label} has layers 0 to {n_layers - 1}")
    source, target = prompt.source.tokens, prompt.target
    sides = {
        "self": (source, source),
        "encoder": (source, source),
        "decoder": (target, target),
        "cross": (target, source),
    }
    for kind, kept in watcher.kept.items():
        shape = tuple(len(tokens) for tokens in sides[kind])
        if any((one.query.shape[1], one.key.shape[1]) != shape for one in kept.values()):
            raise UnsupportedHere("error.no_attention", model=loaded.label)  # T5Gemma 2 has both sides' keys in one
    stacks = {
        kind: AttentionStack(
            kind=kind,
            n_layers=watcher.counts[kind],
            layers=kept,
            query_tokens=sides[kind][0],
            key_tokens=sides[kind][1],
            overview=np.stack(watcher.thumbs[kind]) if overview else None,
        )
        for kind, kept in watcher.kept.items()
    }
    return Trace(
        text=text,
        model=loaded.id,
        model_label=loaded.label,
        revision=loaded.revision,
        family=loaded.family,
        kernel=kernel,
        precision=loaded.precision,
        stacks=stacks,
        source_tokens=source,
        target_tokens=target,
        target_written=prompt.target_written,
        n_tokens_typed=prompt.source.total,
        cut_from=prompt.source.cut_from,
        cost=Cost(seconds, None, str(loaded.device), loaded.weight_bytes),
        altered=prompt.source.altered,
        other_layers=loaded.other_layers,
        n_target_typed=prompt.target_total,
        answer=answer_of(loaded, prompt, output),
    )
