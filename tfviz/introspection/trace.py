"""What one forward pass left behind: NumPy arrays and tokens, no model. Every picture of a sentence is drawn from one.

Kept for each attention are its q, k and v after positions were applied (linear in the text's length), not the n x n
weights of every layer and head (quadratic: 1.1 GB for SmolLM2 at 1,024 tokens). Weights are the naive kernel's formula
on those arrays, computed for the head that is looked at, in milliseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8

from tfviz.model.attention import ScoreRule, attention_weights, scaled_dot_product_attention
from tfviz.model.masks import make_causal_mask
from tfviz.sources.altered import Altered
from tfviz.sources.tokens import Token

Array = np.ndarray


@dataclass(frozen=True)
class LayerAttention:
    """The inputs of one layer's attention, FP32 on the CPU, and what its kernel held scores in."""

    query: Float[Array, "head query dim"]
    key: Float[Array, "kv_head key dim"]
    value: Float[Array, "kv_head key value_dim"]
    mask: Bool[Array, "#head query key"] | None  # True = blocked, besides the causal triangle
    bias: Float[Array, "#head query key"] | None
    scale: float | None
    causal: bool
    softcap: float | None
    score_dtype: torch.dtype = torch.float32

    @property
    def blocked(self) -> Bool[Array, "#head query key"]:
        """Every cell that may not be looked at, mask and causal triangle together."""
        triangle = _triangle(self.query.shape[1], self.key.shape[1], self.causal)
        return triangle if self.mask is None else self.mask | triangle

    def weights(self, head: int | None = None) -> Float[Array, "head query key"]:
        """softmax of the scores as the model's kernel rounds them: all heads, or one (the first axis has length 1)."""
        if head is None:  # one head at a time: the scores of all of them at once would double the memory
            weights = np.empty((len(self.query), self.query.shape[1], self.key.shape[1]), dtype=np.float32)
            for one in range(len(weights)):
                weights[one] = self.weights(one)[0]
            return weights
        query, key, _, mask, rule = self._tensors(head)
        made = attention_weights(query.to(self.score_dtype), key.to(self.score_dtype), mask, rule)
        return made[0].float().numpy()

    def kernel_difference(self, head: int, weights: Float[Array, "query key"]) -> float:
        """max |naive - flash| of this head's output: `weights` times the values, and flash run on q, k and v."""
        query, key, value, mask, rule = self._tensors(head)
        flash, _ = scaled_dot_product_attention(query, key, value, mask, kernel="flash", rule=rule)
        return float((torch.from_numpy(weights) @ value - flash).abs().max())

    def _tensors(self, head: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, ScoreRule]:
        """One head's (1, 1, pos, dim) tensors over the same memory; its key and value are its group's."""

        def pick(array: Array) -> torch.Tensor:
            place = head * len(array) // len(self.query)
            return torch.from_numpy(array[place : place + 1])[None]

        rule = ScoreRule(self.scale, self.causal, self.softcap, None if self.bias is None else pick(self.bias))
        mask = None if self.mask is None else pick(self.mask)
        return pick(self.query), pick(self.key), pick(self.value), mask, rule


@lru_cache(maxsize=8)
def _triangle(n_query: int, n_key: int, causal: bool) -> Bool[Array, "1 query key"]:
    """The causal triangle, or nothing blocked; read-only, since all layers share it."""
    blocked = make_causal_mask(n_query, n_key) if causal else torch.zeros(n_query, n_key, dtype=torch.bool)
    triangle: Array = blocked.numpy()[None]
    triangle.setflags(write=False)
    return triangle


@dataclass(frozen=True)
class AttentionStack:
    """All attentions of one kind, layer by layer."""

    kind: str  # self | encoder | decoder | cross
    n_layers: int
    layers: Mapping[int, LayerAttention]  # those that were captured; all of them unless fewer were asked for
    query_tokens: tuple[Token, ...]
    key_tokens: tuple[Token, ...]
    overview: UInt8[Array, "layer head row column"] | None  # thumbnails, see `thumbnails.py`

    @property
    def n_heads(self) -> int:
        return len(self._any.query)

    @property
    def n_kv_heads(self) -> int:
        return len(self._any.key)

    @cached_property
    def causal(self) -> bool:
        """Whether no query sees a later key, in every layer that was kept."""
        if self.kind == "cross":
            return False
        future = _triangle(len(self.query_tokens), len(self.key_tokens), True)[0]
        return all(layer.causal or layer.blocked[:, future].all() for layer in self.distinct)

    @property
    def distinct(self) -> list[LayerAttention]:
        """One layer for each different mask (hybrid models have sliding and full layers)."""
        return list({id(layer.mask): layer for layer in self.layers.values()}.values())

    @property
    def _any(self) -> LayerAttention:
        return next(iter(self.layers.values()))

    @property
    def nbytes(self) -> int:
        layers = self.layers.values()
        kept = sum(layer.query.nbytes + layer.key.nbytes + layer.value.nbytes for layer in layers)
        shared = {id(x): x.nbytes for layer in layers for x in (layer.mask, layer.bias) if x is not None}
        return kept + sum(shared.values()) + (0 if self.overview is None else self.overview.nbytes)


@dataclass(frozen=True)
class Cost:
    """What the call that made a trace took."""

    seconds: float  # wall time of the forward pass with its capture
    peak_bytes: int | None  # most memory allocated at once beyond what was there before; None if not measured
    device: str
    weight_bytes: int


@dataclass(frozen=True)
class Candidate:
    """One whole answer that beam search kept."""

    text: str
    log_prob: float  # natural logarithm, summed over its tokens, the end token included if it has one
    finished: bool  # it ends with the end token
    greedy: bool  # it is what always taking the most probable token gives


@dataclass(frozen=True)
class Answer:
    """What the decoder of an encoder-decoder predicts at each of its positions, by the logits of the traced pass.

    `tokens[i]` follows the decoder's position i: the target shifted by one, and at last the end token.
    """

    text: str  # the whole of it, special tokens left out
    tokens: tuple[Token, ...]
    probs: Float[Array, " step"]  # P(tokens[i] | source, target up to i)
    alternatives: tuple[tuple[tuple[str, float], ...], ...]  # per step the most probable tokens: (label, probability)
    written: bool  # by the model itself, greedily; False: a person typed it
    candidates: tuple[Candidate, ...] = ()  # best first; empty where no beam search was made

    @property
    def confidence(self) -> float:
        """P(the whole answer | source): the product of `probs`."""
        return float(np.prod(self.probs, dtype=np.float64))


class AttentionArrays(Mapping[str, Array]):
    """`trace.attention`: kind -> float32 [layer, head, query, key], computed when first asked for."""

    def __init__(self, stacks: Mapping[str, AttentionStack]) -> None:
        self._stacks, self._arrays = stacks, dict[str, Array]()

    def __getitem__(self, kind: str) -> Array:
        if kind not in self._arrays:
            layers = self._stacks[kind].layers
            self._arrays[kind] = np.stack([layers[i].weights() for i in sorted(layers)])
        return self._arrays[kind]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._stacks)

    def __len__(self) -> int:
        return len(self._stacks)


@dataclass(frozen=True)
class Trace:
    """One text through one model under one set of switches."""

    text: tuple[str, str | None]
    model: str
    model_label: str
    revision: str
    family: str
    kernel: str
    precision: str
    stacks: Mapping[str, AttentionStack]
    source_tokens: tuple[Token, ...]
    target_tokens: tuple[Token, ...]  # of an encoder-decoder; else empty
    target_written: bool  # the model wrote the target sentence itself
    n_tokens_typed: int  # before the cut to the model's limit
    cut_from: str  # how the part that was cut begins; empty if none was
    cost: Cost
    altered: Altered = Altered()  # characters of the text, or of a typed target, that the tokenizer dropped or changed
    other_layers: int = 0  # of the model, without attention: they are not in `stacks`
    n_target_typed: int = 0  # positions of the target before the cut to the model's limit
    answer: Answer | None = None  # of an encoder-decoder
    n_prompt: int | None = None  # decoder positions before the first generated one, where a run grew; None: one pass

    @property
    def tokens(self) -> list[str]:
        """Labels of the text's tokens; pieces of one character carry their number as a subscript."""
        return [token.label for token in self.source_tokens]

    @property
    def token_ids(self) -> list[int]:
        return [token.id for token in self.source_tokens]

    @cached_property
    def attention(self) -> AttentionArrays:
        """ "self", or "encoder", "decoder" and "cross" -> float32 array [layer, head, query, key]; rows sum to 1.

        If only some layers were asked for, the first axis holds those, in ascending order.
        """
        return AttentionArrays(self.stacks)

    @property
    def nbytes(self) -> int:
        return sum(stack.nbytes for stack in self.stacks.values())
