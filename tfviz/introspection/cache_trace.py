"""Every step of a greedy generation with the KV cache, beside the same step without: what is computed, read and held.

    prefill   the whole prompt at once: q, k and v of every position; keys and values stay
    decode    q, k and v of the newest token only; keys and values of all others are read from the cache

Three generations go on side by side: one that records what its attentions read, one with the cache at full speed, one
without. All three are given the first one's tokens, so their logits can be compared at every step.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tfviz.inference.measure import latency
from tfviz.inference.work import DecoderShape, Work, step_work
from tfviz.introspection.cache_cost import decoder_shape
from tfviz.introspection.step_rows import step_rows
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.decoding import Decoding, RowSeen, StepSeen
from tfviz.sources.tokens import Token

MOST = 64  # new tokens
Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Opening:
    """What a generation starts from."""

    tokens: tuple[Token, ...]  # that the decoder reads before the first step
    memory: tuple[Token, ...]  # of the encoder; empty without one
    own: str  # the kind of the decoder's self-attention: self | decoder
    shape: DecoderShape
    room: int | None  # new tokens that the model has positions for


@dataclass(frozen=True, eq=False)
class CacheStep:
    """One step: `new` positions went through the model, the next token came out."""

    index: int
    new: int  # positions computed with the cache; without it all `total` are
    total: int  # positions that the decoder has read after this step
    said: tuple[Token, ...]  # every token so far, the most probable next one last
    ended: bool  # it is the token that ends a text
    seconds: float  # with the cache, nothing recorded
    seconds_without: float
    held: tuple[tuple[int, int], ...]  # of each self-attention layer: first position held, how many are
    own_bytes: int  # measured from the cache's tensors
    cross_bytes: int
    predicted_own: int  # by the formula, from the shapes of the new keys and values
    predicted_cross: int
    work: Work
    work_without: Work
    difference: float  # largest, of the logits with and without the cache
    largest: float  # logit, whatever its sign: what the difference is to be compared with
    same: bool  # all three name the same token
    seen: StepSeen  # what the attentions computed and read, FP32 on the CPU

    @property
    def token(self) -> Token:
        return self.said[-1]


@dataclass(frozen=True, eq=False)
class CacheRun:
    """An opening and the steps after it."""

    opening: Opening
    steps: tuple[CacheStep, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(step.token.id for step in self.steps)

    @property
    def nbytes(self) -> int:
        rows = (row for step in self.steps for row in step.seen.values())
        return sum(one.nbytes for row in rows for one in (row.query, row.key, row.value))

    def first(self, n: int) -> "CacheRun":
        return replace(self, steps=self.steps[:n])


class Ways(NamedTuple):
    """The same generation three times."""

    recorded: Decoding
    plain: Decoding  # with the cache, nothing recorded
    whole: Decoding  # without a cache


def cache_steps(
    loaded: LoadedModel, prompt: Prompt, kernel: str, steps: int, known: Sequence[int] = ()
) -> Iterator[Opening | CacheStep]:
    """A job for `Scene.stream`: the opening, then steps number len(known), ... `known`: tokens of the steps before.

    Ends after `steps`, after the token that ends a text, or at the model's last position.
    """
    call, inputs = AttentionCall(kernel), opening_inputs(loaded, prompt)
    with attention_call(call):
        ways = Ways(
            recorded=loaded.decoding(inputs, record=True),
            plain=loaded.decoding(inputs),
            whole=loaded.decoding(inputs, use_cache=False),
        )
        opening = _opening(loaded, prompt, ways.recorded)
    yield opening
    ends, said = loaded.end_ids, list(known)
    with attention_call(call):
        _catch_up(ways, known)
    last = steps if opening.room is None else min(steps, opening.room)
    for _ in range(len(known), last):
        with attention_call(call):
            step = _step(loaded, opening, said, ways, ends)
        yield step
        if step.ended:
            return
        said.append(step.token.id)
        for one in ways:
            one.append(torch.tensor([step.token.id], device=one.ids.device))


def _opening(loaded: LoadedModel, prompt: Prompt, decoding: Decoding) -> Opening:
    pair, shape = loaded.family == "encoder-decoder", decoder_shape(loaded, prompt)
    if not pair:
        return Opening(tuple(prompt.source.tokens), (), "self", shape, decoding.room)
    tokens = tuple(loaded.describe(decoding.ids[0].tolist()))
    return Opening(tokens, tuple(prompt.source.tokens), "decoder", shape, decoding.room)


def opening_inputs(loaded: LoadedModel, prompt: Prompt) -> dict[str, Tensor]:
    """The prompt's; an answer that the model wrote itself is left out: it is to be written again."""
    own = prompt.target_written
    return {name: one for name, one in prompt.inputs.items() if not (own and name == "decoder_input_ids")}


def _catch_up(ways: Ways, known: Sequence[int]) -> None:
    """All steps but the last known one in a single pass; its token is then the next to be read."""
    for one in ways:
        for i, token in enumerate(known):
            if i == len(known) - 1:
                one.logits()
            one.append(torch.tensor([token], device=one.ids.device))


def _step(loaded: LoadedModel, opening: Opening, said: Sequence[int], ways: Ways, ends: Collection[int]) -> CacheStep:
    index, logits = len(said), ways.recorded.logits()[0].float()
    timed: dict[str, tuple[float, Tensor]] = {}
    for name in ("plain", "whole")[:: -1 if index % 2 else 1]:  # whoever goes first finds colder memory
        timed[name] = _timed(getattr(ways, name))
    others, chosen = [found[0].float() for _, found in timed.values()], int(logits.argmax())
    seen: StepSeen = {place: _on_cpu(row) for place, row in ways.recorded.seen[-1].items()}
    own = [seen[opening.own, layer] for layer in range(len(opening.shape.own))]
    new, total, n_memory = own[0].query.shape[1], ways.recorded.ids.shape[1], len(opening.memory)
    return CacheStep(
        index=index,
        new=new,
        total=total,
        said=tuple(loaded.describe([*said, chosen])),
        ended=chosen in ends,
        seconds=timed["plain"][0],
        seconds_without=timed["whole"][0],
        **_cache(opening, ways.recorded, total),
        work=step_work(opening.shape, new, [row.held for row in own], n_memory, first=index == 0),
        work_without=step_work(opening.shape, total, [total] * len(own), n_memory),
        difference=max(float((logits - other).abs().max()) for other in others),
        largest=float(logits.abs().max()),
        same=all(int(other.argmax()) == chosen for other in others),
        seen=seen,
    )


def _cache(opening: Opening, decoding: Decoding, total: int) -> dict[str, Any]:
    """What the cache holds, in bytes of its own tensors and by the formula."""
    own = [layer for layer in decoding.held() if layer.kind != "cross"]
    cross = [layer for layer in decoding.held() if layer.kind == "cross"]
    by_layer = zip(opening.shape.own, own, strict=True)
    return {
        "held": tuple((layer.first, layer.key.shape[2]) for layer in own),
        "own_bytes": sum(layer.nbytes for layer in own),
        "cross_bytes": sum(layer.nbytes for layer in cross),
        "predicted_own": sum(one.cached(opening.shape.element) * (total - layer.first) for one, layer in by_layer),
        "predicted_cross": opening.shape.cached("cross") * len(opening.memory),
    }


def _timed(decoding: Decoding) -> tuple[float, Tensor]:
    found: list[Tensor] = []
    seconds = latency(lambda: found.append(decoding.logits()), repeats=1, warmup=0).median
    return seconds, found[0]


def _on_cpu(row: RowSeen) -> RowSeen:
    query, key, value = (one.float().cpu() for one in (row.query, row.key, row.value))
    rule = row.rule if row.rule.bias is None else replace(row.rule, bias=row.rule.bias.float().cpu())
    return replace(row, query=query, key=key, value=value, mask=None if row.mask is None else row.mask.cpu(), rule=rule)


@dataclass(frozen=True)
class Counted:
    """Multiply-adds of one decode step."""

    counted: int  # of the matrix products that ran, by torch
    formula: int


def counted_step(loaded: LoadedModel, prompt: Prompt) -> Counted | None:
    """The step after the prefill, naive kernel, its products counted as they run; None without a place for it."""
    with attention_call(AttentionCall("naive")):
        decoding = loaded.decoding(opening_inputs(loaded, prompt), record=True, fast=False)
        if decoding.room is not None and decoding.room < 2:
            return None
        decoding.append(decoding.logits().argmax(dim=-1))
        with FlopCounterMode(display=False) as counter:
            decoding.logits()
    shape, rows = decoder_shape(loaded, prompt), decoding.seen[-1]
    own = "decoder" if shape.cross else "self"
    held = [rows[own, layer].held for layer in range(len(shape.own))]
    formula = step_work(shape, 1, held, prompt.n_tokens if shape.cross else 0, first=False)
    return Counted(counter.get_total_flops() // 2, formula.total)  # a multiplication and an addition: two to torch


# ---- one head of a run


@dataclass(frozen=True, eq=False)
class HeadTrace:
    """What one query head computed and read, step by step."""

    kind: str
    layer: int
    head: int
    group: int  # the key/value head that it reads
    weights: tuple[Float[Array, " key"], ...]  # of each step's newest token over all positions; NaN: out of reach
    query: tuple[Float[Array, " dim"], ...]  # of each step's newest token
    key: Float[Array, "pos dim"]  # of all positions up to the last step
    value: Float[Array, "pos value_dim"]


def head_trace(run: CacheRun, kind: str, layer: int, head: int) -> HeadTrace:
    """From what the steps kept; `kind` is the opening's own, or cross."""
    seen = [step.seen for step in run.steps]
    rows = [step[kind, layer] for step in seen]
    group = head * rows[0].key.shape[0] // rows[0].query.shape[0]
    kept = rows[:1] if kind == "cross" else rows
    return HeadTrace(
        kind,
        layer,
        head,
        group,
        tuple(row[-1] for row in step_rows(seen, kind, layer, head)),
        tuple(row.query[head, -1].numpy() for row in rows),
        torch.cat([row.key[group] for row in kept]).numpy(),
        torch.cat([row.value[group] for row in kept]).numpy(),
    )


def parts_of(work: Work) -> dict[str, int]:
    """A step's multiply-adds by part, in the order in which they are drawn."""
    return {part.name: getattr(work, part.name) for part in fields(work)}
