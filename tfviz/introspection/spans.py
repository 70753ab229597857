"""Spans that T5 is not shown, and what its decoder writes for them. (Raffel et al., 2020, sections 3.1.4 and 3.3.4)

read      The cat <extra_id_0> on the <extra_id_1> .
to write  <extra_id_0> sat <extra_id_1> mat <extra_id_2> </s>
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from tfviz.introspection.filling import BY_HAND, labels_of, one_place, sentinels
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.tokens import Token

DENSITY, MEAN = 0.15, 3.0
MOST_WRITTEN = 64
Span = tuple[int, int]  # positions [start, end)


@dataclass(frozen=True, eq=False)
class Spans:
    """A sentence with gaps, what belongs into them and what the model wrote."""

    tokens: tuple[Token, ...]  # of the sentence, as it was typed
    given: tuple[int, ...]  # its ids
    places: tuple[int, ...]  # positions that may be hidden
    gaps: tuple[Span, ...]  # in order; one of a typed sentinel covers that sentinel
    typed: frozenset[int]  # gaps, by number, that were typed: nobody knows what belongs there
    sentinels: tuple[int, ...]  # ids, one a gap and one that ends the target
    source: tuple[int, ...]  # what the encoder reads
    target: tuple[int, ...]  # what the decoder should write; empty if a gap was typed
    target_probs: tuple[float, ...]  # P(each id of the target | those before it)
    totals: tuple[float, ...]  # sums over the vocabulary, one for each
    loss: float | None  # nats, mean over the target
    written: tuple[int, ...]  # by the model, greedily
    labels: Mapping[int, str]  # of every id above
    vocabulary: int
    most_written: int = MOST_WRITTEN
    renamed: bool = False  # the text said [MASK] where this tokenizer has sentinels

    @property
    def answers(self) -> dict[int, tuple[int, ...]]:
        """Gap -> what the model wrote for it; a gap that it left out is not there."""
        return pieces(self.written, self.sentinels)

    @property
    def nbytes(self) -> int:
        return 8 * (len(self.given) + len(self.source) + 3 * len(self.target) + len(self.written))


def random_spans(length: int, seed: int) -> tuple[Span, ...]:
    """T5's draw: `DENSITY` of the positions in spans of `MEAN` on average, turned by a random amount at last."""
    if length < 2:
        return ()
    rng = np.random.default_rng(seed)
    n_noise = min(max(round(length * DENSITY), 1), length - 1)
    n_spans = min(max(round(n_noise / MEAN), 1), n_noise, length - n_noise)
    widths = np.stack([_parts(length - n_noise, n_spans, rng), _parts(n_noise, n_spans, rng)], axis=1).ravel()
    noise = np.repeat(np.arange(2 * n_spans) % 2 == 1, widths)  # kept, hidden, kept, hidden, ...
    return runs(np.flatnonzero(np.roll(noise, rng.integers(length))).tolist())


def _parts(total: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """`total` cut into `n` parts of at least 1, every cut equally likely."""
    cuts = np.sort(rng.choice(np.arange(1, total), n - 1, replace=False))
    return np.diff([0, *cuts, total])


def runs(positions: Sequence[int]) -> tuple[Span, ...]:
    """Neighbouring positions as spans: [2, 3, 6] -> (2, 4), (6, 7)."""
    spans: list[Span] = []
    for one in sorted(set(positions)):
        if spans and spans[-1][1] == one:
            spans[-1] = (spans[-1][0], one + 1)
        else:
            spans.append((one, one + 1))
    return tuple(spans)


def corrupt(ids: Sequence[int], gaps: Sequence[Span], marks: Sequence[int], end: int) -> tuple[list[int], list[int]]:
    """(what is read, what is to be written): each gap's ids move from the one to the other, its sentinel to both."""
    source: list[int] = []
    target: list[int] = []
    before = 0
    for (start, stop), mark in zip(gaps, marks, strict=False):
        source += [*ids[before:start], mark]
        target += [mark, *ids[start:stop]]
        before = stop
    return [*source, *ids[before:]], [*target, marks[len(gaps)], end]


def pieces(written: Sequence[int], marks: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Gap -> the ids between its sentinel and the next one, whatever order they were written in."""
    found: dict[int, list[int]] = {}
    at: int | None = None
    for one in written:
        if one in marks:
            at = marks.index(one)
            found.setdefault(at, [])
        elif at is not None:
            found[at].append(one)
    return {gap: tuple(ids) for gap, ids in found.items()}


def restore(source: Sequence[int], answers: Mapping[int, Sequence[int]], marks: Sequence[int]) -> list[int]:
    """What was read, with what was written put into its gaps; a gap without an answer keeps its sentinel."""
    return [one for mark in source for one in (answers.get(marks.index(mark), (mark,)) if mark in marks else (mark,))]


def fill_spans(
    loaded: LoadedModel,
    prompt: Prompt,
    text: tuple[str, str | None],
    hidden: tuple[int, ...] | None = None,
    seed: int | None = None,
) -> Spans:
    """Hides runs of `hidden`, or what `seed` draws, and typed sentinels; the model then fills every gap, greedily."""
    tokens, renamed = _read(loaded, prompt, text)
    known = sentinels(loaded.tokenizer)
    ids, end = [one.id for one in tokens], loaded.tokenizer.eos_token_id
    typed = [i for i, one in enumerate(ids) if one in known]
    places = tuple(i for i, one in enumerate(tokens) if not (one.special or one.typed) and one.id not in known)
    if seed is not None:
        drawn = [places[i] for start, stop in random_spans(len(places), seed) for i in range(start, stop)]
    else:
        drawn = list((() if typed else one_place(places)) if hidden is None else sorted(set(hidden) & set(places)))
    gaps = tuple(sorted([*runs(drawn), *((i, i + 1) for i in typed)]))[: len(known) - 1]
    of_person = frozenset(n for n, (start, _) in enumerate(gaps) if start in typed)
    source, target = corrupt(ids, gaps, known, end)
    marks = known[: len(gaps) + 1]
    written = _write(loaded, source, marks[-1]) if gaps else []
    scored = gaps and not of_person
    probs, totals, loss = _score(loaded, source, target) if scored else ((), (), None)
    return Spans(
        tokens=tokens,
        given=tuple(ids),
        places=places,
        gaps=gaps,
        typed=of_person,
        sentinels=marks,
        source=tuple(source),
        target=tuple(target) if scored else (),
        target_probs=probs,
        totals=totals,
        loss=loss,
        written=tuple(written),
        labels=labels_of(loaded, [*ids, *source, *target, *written]),
        vocabulary=loaded.n_embeddings,
        renamed=renamed,
    )


def _read(loaded: LoadedModel, prompt: Prompt, text: tuple[str, str | None]) -> tuple[tuple[Token, ...], bool]:
    """The sentence's tokens; a [MASK] in it is read as the next sentinel."""
    first, n = text[0], 0
    if BY_HAND not in first:
        return prompt.source.tokens, False
    while BY_HAND in first:
        while f"<extra_id_{n}>" in first:
            n += 1
        first = first.replace(BY_HAND, f"<extra_id_{n}>", 1)
    cut = prompt.source.total > prompt.n_tokens
    return loaded.prompt(first, " ", prompt.n_tokens if cut else None).source.tokens, True


def _inputs(loaded: LoadedModel, source: Sequence[int]) -> dict[str, torch.Tensor]:
    ids = torch.tensor([list(source)], device=loaded.device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _write(loaded: LoadedModel, source: Sequence[int], last: int) -> list[int]:
    """The most probable token, again and again, until the end token, the sentinel after the last gap or the limit."""
    call, ends = AttentionCall("naive"), loaded.end_ids | {last}
    decoding, written = loaded.decoding(_inputs(loaded, source)), list[int]()
    with torch.inference_mode(), attention_call(call):
        while len(written) < MOST_WRITTEN:
            best = decoding.logits().argmax(dim=-1)
            written.append(int(best[0]))
            if written[-1] in ends or decoding.room is not None and decoding.room <= 1:
                break
            decoding.append(best)
    return written


def _score(
    loaded: LoadedModel, source: Sequence[int], target: Sequence[int]
) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    """(P of each id of the target, sum of all probabilities there, mean loss), the decoder reading the true target."""
    read = torch.tensor([[loaded.start_id, *target[:-1]]], device=loaded.device)
    logits = loaded.run(_inputs(loaded, source) | {"decoder_input_ids": read}, AttentionCall("naive"))[0].double()
    wanted = torch.tensor(list(target), device=loaded.device)
    probs = logits.softmax(dim=-1)
    loss = float(F.cross_entropy(logits, wanted))  # -(1/n) sum ln P(target_i | target_<i, source)
    return tuple(probs.gather(1, wanted[:, None])[:, 0].tolist()), tuple(probs.sum(dim=-1).tolist()), loss
