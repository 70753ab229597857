"""How a Transformer of ours goes on: token by token as a stream of steps, or as the best of several beams.

    generate      one token a step, drawn from what `sampling` leaves of the distribution
    beam_search   the n most probable continuations kept at every step

With the cache a step computes its new token only; without, the whole pass again: the same logits at another price. The
kernel and watchers of tfviz.model.attention_call are those in force when a step is asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tfviz.checks import from_to, is_whole, require, whole
from tfviz.config import TransformerConfig
from tfviz.errors import TfvizError, UnsupportedHere
from tfviz.inference.flat import FlatDecoder
from tfviz.inference.sampling import GREEDY, Sampling, draw, largest, next_probabilities
from tfviz.model import KVCache, Transformer
from tfviz.model.overflow import all_finite

Ids = Int[Tensor, "batch length"]
FLAT_ROOM = 8192  # positions that are looked up in a table; later steps go through the modules


@dataclass(frozen=True, eq=False)
class Step:
    """One new token of every row. `stopped` says why the stream ends with it (`generation.stopped.<it>`), else None."""

    index: int
    ids: Int[Tensor, " batch"]  # padding (without one: the end token) in rows that had ended before
    logits: Float[Tensor, "batch vocab"]  # as the model gave them; without meaning in rows that had ended before
    probs: Float[Tensor, "batch vocab"]  # what `ids` were drawn from, after temperature and cuts
    finished: Bool[Tensor, " batch"]  # rows that have said their end token, now or before
    cache_bytes: int  # keys and values held after this step; 0 without a cache
    stopped: str | None = None  # end | max_new_tokens | max_positions


@dataclass(frozen=True)
class Hypothesis:
    """One continuation that beam search kept."""

    ids: tuple[int, ...]  # new tokens only: no start token, no prompt; the end token is the last one if `finished`
    log_prob: float  # sum over `ids`
    score: float  # log_prob / len(ids) ** length_penalty: what hypotheses are ranked by
    finished: bool  # False: cut off by max_new_tokens or the model's last position


class _Decoding:
    """A model between two steps: what its decoder reads besides its tokens, and how many tokens it has read."""

    def __init__(self, model: Transformer, prompt_ids: Ids, steps: int, use_cache: bool) -> None:
        config = model.config
        self.model, self.memory, self.memory_mask = model, None, None
        self.cache: KVCache | None = model.new_cache() if use_cache else None
        self.ids: Ids = prompt_ids
        if config.n_encoder_layers:
            self.memory, self.memory_mask = model.encode(prompt_ids)
            self.ids = prompt_ids.new_full((len(prompt_ids), 1), config.start_id)
        room = min(self.ids.shape[1] + steps - 1, FLAT_ROOM)
        self.flat = FlatDecoder(model, room, prompt_ids.device) if use_cache else None

    def logits(self) -> Float[Tensor, "batch vocab"]:
        """Of the token after `ids`."""
        if self.cache is None:
            return self.model.decode(self.ids, self.memory, self.memory_mask)[:, -1]
        new = self.ids[:, self.cache.length :]
        if self.flat is not None and self.flat.suits(self.cache, new):
            return self.flat.step(new, self.cache)
        if self.cache.length:  # the memory's keys and values, and its padding, are in the cache
            return self.model.decode(new, cache=self.cache)[:, -1]
        return self.model.decode(self.ids, self.memory, self.memory_mask, cache=self.cache)[:, -1]

    def append(self, ids: Int[Tensor, " batch"]) -> None:
        self.ids = torch.cat([self.ids, ids[:, None]], dim=1)

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Goes on with these rows, in this order; a row may be kept twice."""
        assert self.cache is not None, "only a cache can be reordered"
        self.ids = self.ids[rows]
        self.cache.reorder(rows)

    @property
    def cache_bytes(self) -> int:
        return 0 if self.cache is None else self.cache.nbytes


def generate(
    model: Transformer,
    prompt_ids: Ids,
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    use_cache: bool = True,
    seed: int | None = None,
    stop_at_end: bool = True,
) -> Iterator[Step]:
    """Yields each step as soon as it is computed; the same `seed` draws the same tokens (None: others every time).

    An encoder-decoder reads `prompt_ids` as its source and starts with config.start_id; a decoder goes on from them
    (rows of a batch padded on the left). The last step says why it was the last. `TfvizError`, before any step, for
    what cannot be generated: another shape, an unknown id, padding on the right, a prompt beyond the last position,
    an encoder, a model in training mode, a length below 1.
    """
    steps = _allowed_steps(model, prompt_ids, max_new_tokens)
    last = "max_positions" if steps < max_new_tokens else "max_new_tokens"
    require(seed is None or (is_whole(seed, 0) and seed < 2**63), "seed", seed, "allowed.seed")
    generator = torch.Generator(prompt_ids.device)
    generator.manual_seed(generator.seed() if seed is None else seed)
    return _steps(model, prompt_ids, steps, last, sampling, use_cache, generator, stop_at_end)


def _steps(
    model: Transformer,
    prompt_ids: Ids,
    steps: int,
    last: str,
    sampling: Sampling,
    use_cache: bool,
    generator: torch.Generator,
    stop_at_end: bool,
) -> Iterator[Step]:
    config = model.config
    filler = config.end_id if config.pad_id is None else config.pad_id
    with torch.inference_mode():  # around the work only: what the caller does between two steps is the caller's
        decoding = _Decoding(model, prompt_ids, steps, use_cache)
        finished = torch.zeros(len(prompt_ids), dtype=torch.bool, device=prompt_ids.device)
    for index in range(steps):
        with torch.inference_mode():
            logits = _numbers(decoding.logits())
            probs = next_probabilities(logits, sampling, decoding.ids)
            ids = probs.argmax(dim=-1) if sampling.temperature == 0 else draw(probs, generator)
            if stop_at_end:
                ids = ids.masked_fill(finished, filler)
                finished = finished | (ids == config.end_id)
            decoding.append(ids)
            stopped = "end" if bool(finished.all()) else last if index == steps - 1 else None
        yield Step(index, ids, logits, probs, finished, decoding.cache_bytes, stopped)
        if stopped is not None:
            return


def _numbers(logits: Float[Tensor, "batch vocab"]) -> Float[Tensor, "batch vocab"]:
    """The same logits. `UnsupportedHere` if any of them is NaN or infinite."""
    if not all_finite(logits):
        raise UnsupportedHere("error.logits")
    return logits


@torch.inference_mode()
def beam_search(
    model: Transformer,
    prompt_ids: Ids,
    *,
    n_beams: int,
    max_new_tokens: int,
    length_penalty: float = 0.0,
) -> list[Hypothesis]:
    """Up to `n_beams` continuations of one prompt or source [1, length], best score first.

    Each step keeps the `n_beams` most probable open ones; one that ends is kept aside if it was among the `n_beams`
    best. It is over once `n_beams` have ended and no open one can still score better than the worst of them. One beam
    with length_penalty 0 is greedy; as many beams as there are continuations is exhaustive search. `TfvizError` as for
    `generate`, for more than one row and for n_beams below 1.
    """
    steps = _allowed_steps(model, prompt_ids, max_new_tokens)
    whole("n_beams", n_beams, 1)
    from_to("length_penalty", length_penalty, -10, 10)
    require(len(prompt_ids) == 1, "prompt_ids.shape[0]", len(prompt_ids), "allowed.one_prompt")

    def score(log_prob: float, length: int) -> float:
        return log_prob / length**length_penalty

    def hypothesis(ids: list[int], log_prob: float, finished: bool) -> Hypothesis:
        return Hypothesis(tuple(ids), log_prob, score(log_prob, len(ids)), finished)

    end_id, decoding = model.config.end_id, _Decoding(model, prompt_ids, steps, use_cache=True)
    ended: list[Hypothesis] = []
    beams: list[tuple[list[int], float]] = [([], 0.0)]  # open ones, most probable first: (new tokens, log-probability)
    for length in range(1, steps + 1):
        log_probs = _numbers(decoding.logits()).float().log_softmax(dim=-1)
        totals = log_probs + log_probs.new_tensor([[log_prob] for _, log_prob in beams])  # [beam, vocab]
        grown: list[tuple[int, int, float]] = []  # (row it grew from, token, log-probability) of those that stay open
        for rank, (row, token, log_prob) in enumerate(_ranked(totals, n_beams + len(beams))):
            if token != end_id:
                grown.append((row, token, log_prob))
            elif rank < n_beams:
                ended.append(hypothesis([*beams[row][0], token], log_prob, True))
        grown = grown[:n_beams]
        beams = [([*beams[row][0], token], log_prob) for row, token, log_prob in grown]
        ended = sorted(ended, key=lambda kept: -kept.score)[:n_beams]
        if not beams or length == steps:
            break
        best = max(score(beams[0][1], length), score(beams[0][1], steps))  # it can only lose log-probability
        if len(ended) == n_beams and best <= ended[-1].score:
            return ended
        rows, tokens, _ = zip(*grown, strict=True)
        decoding.keep(prompt_ids.new_tensor(rows))
        decoding.append(prompt_ids.new_tensor(tokens))
    cut_off = [hypothesis(ids, log_prob, False) for ids, log_prob in beams]
    return sorted(ended + cut_off, key=lambda kept: -kept.score)[:n_beams]


def _ranked(totals: Float[Tensor, "beam vocab"], n: int) -> list[tuple[int, int, float]]:
    """The n largest as (row, column, value), largest first; of equal ones the first."""
    flat = totals.flatten()
    places = largest(flat[None], n)[0].nonzero()[:, 0]
    values, order = flat[places].sort(descending=True, stable=True)
    places = places[order]
    rows, columns = places // totals.shape[1], places % totals.shape[1]
    return list(zip(rows.tolist(), columns.tolist(), values.tolist(), strict=True))


@torch.inference_mode()
def log_prob_of(model: Transformer, prompt_ids: Ids, target_ids: Ids) -> Float[Tensor, "batch target"]:
    """The log-probability of each token of `target_ids` (no start token in it), given the prompt and those before.

    One pass with all of them known (teacher forcing). Rows sum to the log-probability of the whole target.
    """
    _check_prompt(model, prompt_ids)
    config = model.config
    _check_ids("target_ids", target_ids, config.target_vocabulary)
    if config.n_encoder_layers:
        start = target_ids.new_full((len(target_ids), 1), config.start_id)
        logits = model(prompt_ids, torch.cat([start, target_ids[:, :-1]], dim=1))
    else:
        logits = model(torch.cat([prompt_ids, target_ids[:, :-1]], dim=1))[:, prompt_ids.shape[1] - 1 :]
    return logits.float().log_softmax(dim=-1).gather(-1, target_ids.long()[..., None])[..., 0]


def _allowed_steps(model: Transformer, prompt_ids: Ids, max_new_tokens: int) -> int:
    """How many tokens there are places for, at most `max_new_tokens`; everything that can be wrong is refused here."""
    whole("max_new_tokens", max_new_tokens, 1)
    _check_prompt(model, prompt_ids)
    assert model.decoder is not None
    positions = model.decoder.embedding.positions
    first = 1 if model.config.n_encoder_layers else prompt_ids.shape[1]
    positions.check(first)
    # The last token that is said need not be read, so it needs no place.
    return max_new_tokens if positions.longest is None else min(max_new_tokens, positions.longest - first + 1)


def _check_prompt(model: Transformer, prompt_ids: Ids) -> None:
    config: TransformerConfig = model.config
    if model.decoder is None:
        raise TfvizError("error.no_decoder")
    if model.training and config.dropout:
        raise TfvizError("error.generation.training")
    _check_ids("prompt_ids", prompt_ids, config.target_vocabulary if model.encoder is None else config.vocab_size)
    if model.encoder is not None:
        model.encoder.embedding.positions.check(prompt_ids.shape[1])
    elif config.pad_id is not None:
        for row, last in enumerate(prompt_ids[:, -1].tolist()):
            if last == config.pad_id:
                raise TfvizError("error.generation.right_padding", row=row, pad=config.pad_id)


def _check_ids(name: str, ids: Tensor, vocabulary: int) -> None:
    if ids.dim() != 2 or not ids.numel() or ids.dtype not in (torch.int64, torch.int32):
        shape, kind = list(ids.shape), str(ids.dtype).removeprefix("torch.")
        raise TfvizError("error.generation.shape", name=name, shape=shape, kind=kind, allowed="[batch, length]")
    for value in (int(ids.min()), int(ids.max())):
        if not 0 <= value < vocabulary:
            raise TfvizError("error.generation.id", name=name, value=value, last=vocabulary - 1)
