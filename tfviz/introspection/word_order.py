"""Does attention know the order of the words? A model's first layer reads the text, and its tokens shuffled.

    A(P x) = P A(x) P^T        for every permutation P, if nothing tells positions apart: permutation-equivariant

Shuffle the tokens, compute the matrix, put rows and columns back: without positions it is the same matrix. With them it
is another one. Both are computed by the model itself; for the first, every token is given the position of the first.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import get_ident

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tfviz.model.attention import ScoreRule, attention_weights
from tfviz.model.attention_call import AttentionCall, AttentionRecord, attention_call
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.positions import position_tables
from tfviz.sources.scratch import ScratchModel

LONGEST = 48  # tokens: what one can look at
SEED = 0


@dataclass(frozen=True)
class Attended:
    """What the first layer's attention was made of; no mask, so that only positions can tell the order."""

    query: Float[np.ndarray, "head pos dim"]
    key: Float[np.ndarray, "kv_head pos dim"]
    bias: Float[np.ndarray, "head pos pos"] | None
    scale: float | None
    softcap: float | None

    def weights(self, head: int, causal: bool = False) -> Float[np.ndarray, "query key"]:
        """softmax of one head's scores."""
        place = head * len(self.key) // len(self.query)
        q, k = (torch.from_numpy(x[i : i + 1])[None] for x, i in ((self.query, head), (self.key, place)))
        bias = None if self.bias is None else torch.from_numpy(self.bias[min(head, len(self.bias) - 1)])[None, None]
        weights: np.ndarray = attention_weights(q, k, None, ScoreRule(self.scale, causal, self.softcap, bias))[
            0, 0
        ].numpy()
        return weights


@dataclass(frozen=True)
class Shuffled:
    """The four readings: text and shuffled text, without and with positions."""

    order: Int[np.ndarray, " pos"]  # shuffled[i] is the token of place order[i]
    plain: Mapping[str, Attended]  # "without" | "with"
    shuffled: Mapping[str, Attended]

    @property
    def nbytes(self) -> int:
        read = [*self.plain.values(), *self.shuffled.values()]
        return sum(one.query.nbytes + one.key.nbytes + (0 if one.bias is None else one.bias.nbytes) for one in read)


class _Enough(Exception):
    """The first attention was seen; the layers above need not run."""


def shuffle(loaded: LoadedModel, prompt: Prompt) -> Shuffled:
    """Reads the text and its shuffled tokens, both with and without positions. What the tokenizer added stays."""
    tokens = prompt.source.tokens[:LONGEST]
    typed = [i for i, token in enumerate(tokens) if not token.special]
    order = np.arange(len(tokens))
    order[typed] = shuffled_places(typed)
    texts = {"plain": np.arange(len(tokens)), "shuffled": order}
    read = {}
    for name, places in texts.items():
        text = _reordered(prompt, places)
        read[name] = {"without": _without_positions(loaded, text), "with": _attended(loaded, text)}
    return Shuffled(order, read["plain"], read["shuffled"])


def _reordered(prompt: Prompt, places: Int[np.ndarray, " pos"]) -> Prompt:
    """The source with its tokens in this order; what else belongs to a token (its segment) goes with it."""
    at = torch.from_numpy(places)
    inputs = {name: x if name.startswith("decoder_") else x[:, at.to(x.device)] for name, x in prompt.inputs.items()}
    return replace(prompt, inputs=inputs)


def shuffled_places(places: list[int]) -> list[int]:
    """The places in another order, in which none stays where it was: Sattolo's algorithm."""
    generator, shuffled = np.random.default_rng(SEED), list(places)
    for i in range(len(shuffled) - 1, 0, -1):
        j = int(generator.integers(i))  # below i, so that i never stays
        shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
    return shuffled


def put_back(weights: Float[np.ndarray, "query key"], order: Int[np.ndarray, " pos"]) -> Float[np.ndarray, "query key"]:
    """The rows and columns of a shuffled text's matrix in the order of the text: P^T A P."""
    back = np.argsort(order)
    return weights[back][:, back]


# ---- one reading


def _attended(loaded: LoadedModel, prompt: Prompt, **more: Tensor) -> Attended:
    """The first self-attention of a forward pass, which ends there."""
    seen: list[AttentionRecord] = []

    def watch(record: AttentionRecord) -> None:
        seen.append(record)
        raise _Enough

    try:
        text = replace(prompt, inputs=prompt.inputs | more)
        loaded.forward(text, AttentionCall("naive", watch), all_logits=False)
    except _Enough:
        pass
    return _kept(seen[0])


def _without_positions(loaded: LoadedModel, prompt: Prompt) -> Attended:
    """The same with every token at the position of the first, and no bias by distance."""
    ids = prompt.inputs["input_ids"]
    if isinstance(loaded, ScratchModel):
        seen = _ours_without(loaded, ids)
    elif "position_ids" in inspect.signature(loaded.model.forward).parameters:
        seen = _attended(loaded, prompt, position_ids=torch.zeros_like(ids))
    else:
        with _first_row_for_all(loaded):
            seen = _attended(loaded, prompt)
    return replace(seen, bias=None)


def _ours_without(loaded: ScratchModel, ids: Tensor) -> Attended:
    """A model of ours takes positions as an argument of its parts."""
    stack = loaded.transformer.encoder or loaded.transformer.decoder
    assert stack is not None
    seen: list[AttentionRecord] = []
    nowhere = torch.zeros_like(ids)
    with torch.inference_mode(), attention_call(AttentionCall("naive", seen.append)):
        stack.layers[0](stack.embedding(ids, nowhere), rotation=stack.embedding.positions.rotation(nowhere))
    return _kept(seen[0])


@contextmanager
def _first_row_for_all(loaded: LoadedModel) -> Iterator[None]:
    """Models that count by themselves: their table gives every token its first row, to this thread only."""
    mine = get_ident()

    def first_row(module: nn.Module, _: object, output: Tensor) -> Tensor | None:
        return output[..., :1, :].expand_as(output) if get_ident() == mine else None

    handles = [module.register_forward_hook(first_row) for _, module, _ in position_tables(loaded)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _kept(record: AttentionRecord) -> Attended:
    rule = record.rule
    bias = None if rule.bias is None else _array(rule.bias)
    return Attended(_array(record.query), _array(record.key), bias, rule.scale, rule.softcap)


def _array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor[0].float().cpu().numpy().copy()
    return array
