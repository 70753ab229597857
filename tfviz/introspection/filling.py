"""Words that an encoder is not shown, and what it says stands there. (Devlin et al., 2019, section 3.1, task 1)

15 % of the tokens are chosen; of these 80 % become [MASK], 10 % a random token, 10 % stay as they are
loss = -(1/n) sum over the n chosen places of ln P(what stood there | what is read)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from tfviz.model.attention_call import AttentionCall
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.finite import finite_output
from tfviz.sources.tokens import Token

CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1
TOP = 10
BY_HAND = "[MASK]"  # how a person may write it, whatever the tokenizer calls it


@dataclass(frozen=True)
class Ability:
    """What of this the loaded model can do.

    kind: `masks` (an encoder with its masked-word head), `spans` (T5's sentinels), or why neither: `decoder`,
    `no_head`, `no_mask` (an encoder whose tokenizer has no mask), `whole` (BART writes the sentence anew), `answers`.
    """

    kind: str
    model: str
    follows: bool  # it has BERT's head for pairs


def ability(loaded: LoadedModel, prompt: Prompt) -> Ability:
    """By what the checkpoint and its tokenizer have, not by name."""
    mask, kind = loaded.tokenizer.mask_token_id is not None, loaded.family
    if loaded.family == "encoder":
        kind = "no_head" if not loaded.has_logits else "masks" if mask else "no_mask"
    elif loaded.family == "encoder-decoder":
        gaps = loaded.has_logits and len(sentinels(loaded.tokenizer)) > 1
        kind = "spans" if gaps else "whole" if mask else "answers"
    return Ability(kind, loaded.label, getattr(loaded, "next_sentence", None) is not None)


def sentinels(tokenizer: Any) -> tuple[int, ...]:
    """Ids of <extra_id_0>, <extra_id_1> and so on, as far as this tokenizer has them."""
    found: list[int] = []
    while (one := tokenizer.convert_tokens_to_ids(f"<extra_id_{len(found)}>")) not in {None, tokenizer.unk_token_id}:
        found.append(one)
    return tuple(found)


@dataclass(frozen=True)
class Fate:
    """What becomes of one position: `mask`, `random`, `kept`, or `typed` (a mask that stood in the text)."""

    position: int
    kind: str
    id: int  # what the model reads there


@dataclass(frozen=True, eq=False)
class Guess:
    """What the model says stands at one position; probabilities are over the whole vocabulary."""

    position: int
    kind: str
    read: str  # label of what stood there when the model read it
    truth: str | None  # label of what the sentence has there; None: a typed mask, nobody knows
    top: tuple[tuple[str, float], ...]  # most probable first
    entropy: float  # nats
    total: float  # sum of all probabilities
    rank: int | None  # of the truth: 1 = most probable
    log_prob: float | None  # of the truth, natural logarithm


@dataclass(frozen=True, eq=False)
class Filled:
    """One pass over a sentence of which some positions are hidden."""

    tokens: tuple[Token, ...]  # of the sentence
    given: Int[np.ndarray, " position"]  # ids of the sentence
    read: Int[np.ndarray, " position"]  # ids that the model read
    mask_id: int
    places: tuple[int, ...]  # positions that may be hidden: no [CLS], no [SEP]
    guesses: tuple[Guess, ...]
    loss: float | None  # nats, over the positions whose truth is known
    vocabulary: int
    mask: str  # how this tokenizer writes its mask
    renamed: bool = False  # the text said [MASK], and the tokenizer calls it something else

    @property
    def nbytes(self) -> int:
        return self.given.nbytes + self.read.nbytes


def places(tokenizer: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    """Positions that may be hidden: those of the text itself, without its masks."""
    return tuple(
        i for i, one in enumerate(tokens) if not (one.special or one.typed) and one.id != tokenizer.mask_token_id
    )


def one_place(places: Sequence[int]) -> tuple[int, ...]:
    """What is hidden before anybody chose: the place in the middle."""
    return (places[len(places) // 2],) if places else ()


def draw_fates(
    places: Sequence[int], given: Sequence[int], mask_id: int, words: Sequence[int], seed: int
) -> tuple[Fate, ...]:
    """BERT's procedure: `CHOSEN` of the places (one at least), in random order each with its fate."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(places)[: max(1, round(CHOSEN * len(places)))]
    fates = []
    for place, luck in zip(chosen.tolist(), rng.random(len(chosen)), strict=True):
        if luck < MASKED:
            fates.append(Fate(place, "mask", mask_id))
        elif luck < MASKED + RANDOM:
            fates.append(Fate(place, "random", int(rng.choice(words))))
        else:
            fates.append(Fate(place, "kept", given[place]))
    return tuple(sorted(fates, key=lambda fate: fate.position))


def fill_chosen(
    loaded: LoadedModel, prompt: Prompt, text: tuple[str, str | None], masked: tuple[int, ...] | None
) -> Filled:
    """Hides the positions `masked`, and those of masks that were typed. None: one in the middle, if none was typed."""
    prompt, renamed = read_masks(loaded, prompt, text)
    tokens, mask_id = prompt.source.tokens, loaded.tokenizer.mask_token_id
    allowed = places(loaded.tokenizer, tokens)
    typed = [Fate(i, "typed", mask_id) for i, one in enumerate(tokens) if one.id == mask_id and not one.special]
    chosen = (() if typed else one_place(allowed)) if masked is None else masked
    fates = [Fate(i, "mask", mask_id) for i in sorted(set(chosen) & set(allowed))]
    return _fill(loaded, prompt, sorted([*typed, *fates], key=lambda fate: fate.position), renamed)


def fill_drawn(loaded: LoadedModel, prompt: Prompt, text: tuple[str, str | None], seed: int) -> Filled:
    """Hides what BERT's pre-training would have hidden with this seed; typed masks stay."""
    prompt, renamed = read_masks(loaded, prompt, text)
    special = set(loaded.tokenizer.all_special_ids)
    words = [i for i in range(min(len(loaded.tokenizer), loaded.n_embeddings)) if i not in special]
    allowed, ids = places(loaded.tokenizer, prompt.source.tokens), prompt.source.ids
    fates = draw_fates(allowed, ids, loaded.tokenizer.mask_token_id, words, seed) if allowed else ()
    return _fill(loaded, prompt, fates, renamed)


def read_masks(loaded: LoadedModel, prompt: Prompt, text: tuple[str, str | None]) -> tuple[Prompt, bool]:
    """The prompt with a typed [MASK] read as this tokenizer's own mask, and whether that changed anything."""
    mask = loaded.tokenizer.mask_token
    if BY_HAND == mask or not any(BY_HAND in part for part in text if part):
        return prompt, False
    first, second = (part and part.replace(BY_HAND, mask) for part in text)
    cut = prompt.source.total > prompt.n_tokens
    return loaded.prompt(first or "", second, prompt.n_tokens if cut else None), True


def _fill(loaded: LoadedModel, prompt: Prompt, fates: Sequence[Fate], renamed: bool) -> Filled:
    read = prompt.inputs["input_ids"].clone()
    for fate in fates:
        read[0, fate.position] = fate.id
    logits = loaded.run(prompt.inputs | {"input_ids": read}, AttentionCall("naive"))[0]
    at = [fate.position for fate in fates]
    known = [fate.position for fate in fates if fate.kind != "typed"]
    given = prompt.inputs["input_ids"][0]
    loss = float(F.cross_entropy(logits[known].double(), given[known])) if known else None
    return Filled(
        tokens=prompt.source.tokens,
        given=given.cpu().numpy(),
        read=read[0].cpu().numpy(),
        mask_id=loaded.tokenizer.mask_token_id,
        places=places(loaded.tokenizer, prompt.source.tokens),
        guesses=tuple(_guesses(loaded, prompt.source.tokens, logits[at], fates)),
        loss=loss,
        vocabulary=logits.shape[-1],
        mask=loaded.tokenizer.mask_token,
        renamed=renamed,
    )


def _guesses(
    loaded: LoadedModel, tokens: Sequence[Token], logits: Float[Tensor, "place vocab"], fates: Sequence[Fate]
) -> list[Guess]:
    if not fates:
        return []
    log_probs = logits.double().log_softmax(dim=-1)  # ln P = x - ln sum exp x
    probs = log_probs.exp()
    entropy = -(probs * log_probs.clamp(min=-1e300)).sum(dim=-1)  # H = - sum P ln P
    top = probs.topk(min(TOP, probs.shape[-1]), dim=-1)
    labels = labels_of(loaded, [*top.indices.flatten().tolist(), *(fate.id for fate in fates)])
    guesses = []
    for row, (fate, ids, chances) in enumerate(zip(fates, top.indices.tolist(), top.values.tolist(), strict=True)):
        truth = tokens[fate.position]
        guess = Guess(
            position=fate.position,
            kind=fate.kind,
            read=labels[fate.id],
            truth=None,
            top=tuple((labels[one], chance) for one, chance in zip(ids, chances, strict=True)),
            entropy=float(entropy[row]),
            total=float(probs[row].sum()),
            rank=None,
            log_prob=None,
        )
        if fate.kind != "typed":
            said = log_probs[row, truth.id]
            rank = 1 + int((log_probs[row] > said).sum())
            guess = replace(guess, truth=truth.label, rank=rank, log_prob=float(said))
        guesses.append(guess)
    return guesses


def labels_of(loaded: LoadedModel, ids: Sequence[int]) -> dict[int, str]:
    """A label for each id by itself: these tokens stand for one another, not one after the other."""
    return {one: loaded.describe([one])[0].label for one in dict.fromkeys(ids)}


@dataclass(frozen=True)
class Follows:
    """P(the second sentence follows the first) by BERT's head, as typed and the other way round."""

    first: str
    second: str
    as_typed: tuple[float, float]  # it follows, it does not
    swapped: tuple[float, float]


def pair(loaded: LoadedModel, prompt: Prompt) -> Follows | None:
    """None for a model without that head, or a prompt of one sentence."""
    head, tokens = getattr(loaded, "next_sentence", None), prompt.source.tokens
    first, second = ([one.id for one in tokens if not one.special and one.segment == n] for n in (0, 1))
    if head is None or not first or not second:
        return None
    both = [follows(loaded, head, one, other) for one, other in ((first, second), (second, first))]
    with loaded.tokenizer_lock:  # typed masks stay visible
        names = [loaded.tokenizer.decode(ids, clean_up_tokenization_spaces=True) for ids in (first, second)]
    return Follows(names[0], names[1], *both)


def follows(loaded: LoadedModel, head: Any, first: Sequence[int], second: Sequence[int]) -> tuple[float, float]:
    """[CLS] first [SEP] second [SEP] through the encoder, and its first state through the head."""
    start, end = loaded.tokenizer.cls_token_id, loaded.tokenizer.sep_token_id
    ids = torch.tensor([[start, *first, end, *second, end]], device=loaded.device)
    segments = torch.zeros_like(ids)
    segments[0, len(first) + 2 :] = 1
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": segments}
    encoder: Any = loaded.model.base_model
    with torch.inference_mode():
        both = finite_output(loaded, AttentionCall("naive"), lambda: head(encoder(**inputs)[0][:, 0]))
    yes, no = both[0].tolist()
    return yes, no
