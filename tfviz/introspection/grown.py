"""A prompt and what was generated after it as one trace, put together from the rows that each step really read.

    step t   computed q_t, k_t, v_t and read k, v of the last `held` positions up to its own
    trace    q = all q_t, k = all k_t, v = all v_t; blocked is what was not read: what came later, what a window dropped

So nothing is computed again, and a picture of these rows shows what the decode did. The last new token was chosen but
never read: it has no row. An encoder's attentions are those of one more pass over the source.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tfviz.introspection.capture import capture
from tfviz.introspection.run import Run, TokenStep
from tfviz.introspection.thumbnails import thumbnails
from tfviz.introspection.trace import Answer, Array, AttentionStack, Cost, LayerAttention, Trace
from tfviz.model.attention import ScoreRule
from tfviz.model.attention_call import AttentionRecord
from tfviz.model.masks import make_causal_mask
from tfviz.model.overflow import score_dtype
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.decoding import RowSeen, StepSeen
from tfviz.sources.tokens import Encoded

ALTERNATIVES = 5  # of each step of an answer


def grown(loaded: LoadedModel, prompt: Prompt, run: Run) -> tuple[Trace, Prompt]:
    """The trace of everything that the run has read, and the prompt that stands for it.

    `prompt` is the one that the run started from. Without recorded rows (no cache) it is one captured pass.
    """
    assert run.steps, "a run without steps has read nothing"
    whole = grown_prompt(loaded, prompt, run)
    decodes = loaded.family == "encoder-decoder"
    said = loaded.decode(run.ids[:-1])
    text = (loaded.decode(whole.source.ids), said or None if decodes else None)
    own = "decoder" if decodes else "self"
    tokens = whole.target if decodes else whole.source.tokens
    if not run.seen or decodes:
        trace = capture(loaded, whole, text, kernel=run.plan.kernel, overview=True)
        stacks = dict(trace.stacks)
    else:
        stacks = {}
    if run.seen:
        stacks[own] = _stack(own, run.seen, tokens, tokens, run.plan.kernel)
    if run.seen and decodes:
        stacks["cross"] = _stack("cross", run.seen, tokens, whole.source.tokens, run.plan.kernel)
    return (
        Trace(
            text=text,
            model=loaded.id,
            model_label=loaded.label,
            revision=loaded.revision,
            family=loaded.family,
            kernel=run.plan.kernel,
            precision=loaded.precision,
            stacks=stacks,
            source_tokens=whole.source.tokens,
            target_tokens=whole.target,
            target_written=decodes,
            n_tokens_typed=whole.source.total,
            cut_from=whole.source.cut_from,
            altered=whole.source.altered,
            other_layers=loaded.other_layers,
            cost=Cost(sum(step.forward_seconds for step in run.steps), None, str(loaded.device), loaded.weight_bytes),
            answer=_answer(run.steps) if decodes and not loaded.random else None,
            n_prompt=len(run.prompt),
        ),
        whole,
    )


def grown_prompt(loaded: LoadedModel, prompt: Prompt, run: Run) -> Prompt:
    """All ids that the decoder has read, as a prompt of their own."""
    before = [token.id for token in run.prompt]
    new = run.ids[:-1]
    tokens = run.prompt + tuple(loaded.describe([*before, *new])[len(before) :])
    ids = torch.tensor([[*before, *new]], device=loaded.device)
    if loaded.family == "encoder-decoder":
        return replace(
            prompt,
            inputs=prompt.inputs | {"decoder_input_ids": ids},
            target=tokens,
            target_written=True,
            target_total=len(tokens),
        )
    cut = prompt.source.total - prompt.n_tokens if not run.plan.chat else 0
    source = Encoded(
        tokens, None, len(tokens) + cut, prompt.source.cut_from if cut else "", altered=prompt.source.altered
    )
    return Prompt({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, source)


def _stack(
    kind: str, seen: Sequence[StepSeen], queries: Sequence[Any], keys: Sequence[Any], kernel: str
) -> AttentionStack:
    """Every layer of one kind, and its heads as thumbnails."""
    numbers = sorted(layer for at, layer in seen[0] if at == kind)
    shared: dict[tuple[object, ...], Tensor | None] = {}
    records = [_joined(kind, [step[kind, layer] for step in seen], shared) for layer in numbers]
    arrays: dict[int, Array] = {}
    dtypes = [score_dtype(kernel, seen[0][kind, layer].query.dtype) for layer in numbers]
    return AttentionStack(
        kind=kind,
        n_layers=len(numbers),
        layers={at: _layer(record, arrays, kept) for at, record, kept in zip(numbers, records, dtypes, strict=True)},
        query_tokens=tuple(queries),
        key_tokens=tuple(keys),
        overview=np.stack([thumbnails(record) for record in records]),
    )


def _joined(kind: str, rows: Sequence[RowSeen], shared: dict[tuple[object, ...], Tensor | None]) -> AttentionRecord:
    """One layer's rows as the attention of one pass; tables that layers share are made once."""
    memory = kind == "cross"
    query = torch.cat([row.query for row in rows], dim=1).float()
    key, value = (
        getattr(rows[0], part) if memory else torch.cat([getattr(row, part) for row in rows], dim=1)
        for part in ("key", "value")
    )
    ends = [key.shape[1]] * len(rows) if memory else list(accumulate(row.query.shape[1] for row in rows))

    def once(name: str, make: Callable[[], Tensor | None], tables: Sequence[Tensor | None]) -> Tensor | None:
        places = tuple((id(table), row.held, row.rule.causal) for table, row in zip(tables, rows, strict=True))
        if (name, places) not in shared:
            shared[name, places] = make()
        return shared[name, places]

    bias = once("bias", lambda: _bias(rows, ends), [row.rule.bias for row in rows])
    blocked = once("blocked", lambda: _blocked(rows, ends), [row.mask for row in rows])
    assert blocked is not None
    causal = not memory and bool(blocked[:, make_causal_mask(*blocked.shape[-2:])].all())
    beyond = blocked & ~make_causal_mask(*blocked.shape[-2:]) if causal else blocked
    mask = blocked[None] if bool(beyond.any()) else None
    mask = once("mask", lambda: mask, [row.mask for row in rows])
    rule = replace(rows[0].rule, causal=causal, bias=bias)
    return AttentionRecord(nn.Identity(), query[None], key[None].float(), value[None].float(), mask, rule)


def _blocked(rows: Sequence[RowSeen], ends: Sequence[int]) -> Tensor:
    """[#head, query, key], True where a query did not read a key."""
    n_heads = max([1, *(row.mask.shape[0] for row in rows if row.mask is not None)])
    parts = []
    for row, end in zip(rows, ends, strict=True):
        new = row.query.shape[1]
        part = torch.ones(n_heads, new, ends[-1], dtype=torch.bool)
        read = torch.zeros(n_heads, new, row.held, dtype=torch.bool) if row.mask is None else row.mask
        if row.rule.causal:
            read = read | make_causal_mask(new, row.held)
        part[..., end - row.held : end] = read
        parts.append(part)
    return torch.cat(parts, dim=1)


def _bias(rows: Sequence[RowSeen], ends: Sequence[int]) -> Tensor | None:
    """[1, #head, query, key], 0 where nothing was read; None where no row has one."""
    tables = [row.rule.bias for row in rows if row.rule.bias is not None]
    if not tables:
        return None
    n_heads, parts = max(table.shape[1] for table in tables), []
    for row, end in zip(rows, ends, strict=True):
        part = torch.zeros(n_heads, row.query.shape[1], ends[-1])
        if row.rule.bias is not None:
            part[..., end - row.held : end] = row.rule.bias[0].float()
        parts.append(part)
    return torch.cat(parts, dim=1)[None]


def _layer(record: AttentionRecord, arrays: dict[int, Array], kept: torch.dtype) -> LayerAttention:
    def shared(tensor: Tensor | None) -> Array | None:
        if tensor is None:
            return None
        return arrays.setdefault(id(tensor), tensor[0].numpy())

    rule: ScoreRule = record.rule
    return LayerAttention(
        query=record.query[0].numpy(),
        key=record.key[0].numpy(),
        value=record.value[0].numpy(),
        mask=shared(record.mask),
        bias=shared(rule.bias),
        scale=rule.scale,
        causal=rule.causal,
        softcap=rule.softcap,
        score_dtype=kept,
    )


def _answer(steps: Sequence[TokenStep]) -> Answer:
    """What an encoder-decoder said, as the page shows it."""
    return Answer(
        text=steps[-1].text,
        tokens=steps[-1].said,
        probs=np.array([step.prob for step in steps], dtype=np.float32),
        alternatives=tuple(tuple((one.label, one.probs["model"]) for one in step.top[:ALTERNATIVES]) for step in steps),
        written=True,
    )
