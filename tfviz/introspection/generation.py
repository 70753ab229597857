"""A text that goes on token by token: the steps that follow from a plan (tfviz.introspection.run).

Any decoder or encoder-decoder, by the decoding that its source makes (tfviz.sources.decoding). A step comes out as soon
as it is computed. The same plan gives the same text: every token is drawn with random numbers of its own place
(`choice.generator_of`), so that a text that was interrupted, or taken up from its middle by `Plan.path`, goes on alike.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from tfviz.errors import BadText, TfvizError
from tfviz.introspection.choice import Choice, choose_token
from tfviz.introspection.rows import parts, settle
from tfviz.introspection.run import STAGE_NAMES, Candidate, Plan, TokenStep
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.chat import chat_prompt
from tfviz.sources.decoding import Decoding, StepSeen
from tfviz.sources.tokens import FRAGMENT, Token, describe

LABELLED = 16  # tokens at the end of a text that are labelled anew at each step
LONGEST_CHARACTER = 4  # bytes of UTF-8


def run_steps(loaded: LoadedModel, prompt: Prompt, plan: Plan, record: bool = True) -> Iterator[TokenStep]:
    """The steps of `plan`, each as soon as it is computed; nothing more is computed when nobody asks for the next.

    An encoder-decoder reads the prompt's text and begins at its start token. `record` keeps what each attention read
    (with a cache). `TfvizError` at the first step for what cannot be: a model that writes no text, a prompt without
    room for one token, an id of the path that the model does not have, a chat template where there is none.
    """
    yield from _Writer(loaded, prompt, plan, record).steps()


class _Writer:
    """One text in the making."""

    def __init__(self, loaded: LoadedModel, prompt: Prompt, plan: Plan, record: bool) -> None:
        self.loaded, self.plan, self.call = loaded, plan, AttentionCall(plan.kernel)
        self.record = record and plan.use_cache
        self.prompt = _in_chat(loaded, prompt) if plan.chat else prompt
        self.inputs = {name: one for name, one in self.prompt.inputs.items() if name != "decoder_input_ids"}
        self.ends = loaded.end_ids
        self.new: list[int] = []
        self.said: tuple[Token, ...] = ()
        self.labels: dict[int, str] = {}  # of each candidate by itself

    def steps(self) -> Iterator[TokenStep]:
        start = time.perf_counter()
        with torch.inference_mode(), attention_call(self.call):
            decoding = self.loaded.decoding(self.inputs, use_cache=self.plan.use_cache, record=self.record)
            n_steps = self._length(decoding)
            path = self.plan.path[:n_steps]
            logits = self._read_path(decoding, path)
            held = [seen for seen in self._seen(decoding, max(1, len(path)))]
        forward = time.perf_counter() - start
        for index in range(n_steps):
            if index >= max(1, len(path)):
                start = time.perf_counter()
                with torch.inference_mode(), attention_call(self.call):
                    decoding.append(torch.tensor([self.new[-1]], device=decoding.ids.device))
                    logits = {index: decoding.logits()[0].float().cpu()}
                    held = self._seen(decoding, 1)
                forward = time.perf_counter() - start
            step = self._step(index, decoding, logits[index], n_steps, held.pop(0), index < len(path))
            yield replace(step, forward_seconds=forward, seconds=time.perf_counter() - start)
            if step.stopped is not None:
                return
            start, forward = time.perf_counter(), 0.0

    def _length(self, decoding: Decoding) -> int:
        """How many tokens there is room for, at most as many as were asked for."""
        room = decoding.room
        if room == 0:
            raise BadText("error.generation.no_room", model=self.loaded.label, limit=decoding.last_position)
        most = _vocabulary(self.loaded)
        for one in self.plan.path:
            if one >= most:
                raise TfvizError("error.generation.id", name="path", value=one, last=most - 1)
        return self.plan.max_new_tokens if room is None else min(self.plan.max_new_tokens, room)

    def _read_path(self, decoding: Decoding, path: Sequence[int]) -> dict[int, Float[Tensor, " vocab"]]:
        """Logits of the first new token, or of all of the path's, every one known beforehand (teacher forcing)."""
        for one in path[:-1]:
            decoding.append(torch.tensor([one], device=decoding.ids.device))
        last = decoding.logits()[0].float().cpu()
        if len(path) < 2:
            return {0: last}
        name = "decoder_input_ids" if self.loaded.family == "encoder-decoder" else "input_ids"
        inputs = self.inputs | {name: decoding.ids}
        if name == "input_ids":
            inputs["attention_mask"] = torch.ones_like(decoding.ids)
        rows = self.loaded.run(inputs, self.call)[0, decoding.prompt_length - 1 :].float().cpu()
        return dict(enumerate(rows[:-1])) | {len(path) - 1: last}

    def _seen(self, decoding: Decoding, n: int) -> list[StepSeen | None]:
        """What the last pass left behind, as if its last n - 1 tokens had been read one by one."""
        if not self.record:
            return [None] * n
        return list(parts(settle(decoding.seen[-1], first=not self.new), n))

    def _step(
        self, index: int, decoding: Decoding, logits: Tensor, n_steps: int, seen: StepSeen | None, forced: bool
    ) -> TokenStep:
        plan, length = self.plan, decoding.prompt_length + index
        given = plan.path[index] if forced else None
        choice = choose_token(logits, plan.sampling, decoding.ids[0, :length], plan.seed, index, given)
        top = self._candidates(choice)
        self.new.append(choice.id)
        stopped, limit = self._stopped(choice.id, index, n_steps, decoding.last_position)
        self.said = said = self._labels()
        return TokenStep(
            index=index,
            token=said[-1],
            id=choice.id,
            drawn=choice.drawn,
            forced=forced,
            prob=choice.prob,
            drawn_prob=choice.drawn_prob,
            entropy=choice.entropy,
            surprise=choice.surprise,
            top=top,
            kept=choice.kept,
            rest=choice.rest,
            text=self.loaded.decode(self.new[: len(self.new) - (0 if stopped else len(_unfinished(said)))]),
            said=said,
            read=self._prompt_tokens(decoding) if index == 0 else (said[-2],),
            seconds=0.0,
            forward_seconds=0.0,
            cache_bytes=_bytes_held(decoding, length),
            stopped=stopped,
            limit=limit,
            seen=seen,
        )

    def _labels(self) -> tuple[Token, ...]:
        """The new tokens as one text; only the last ones can change, while a character is in pieces."""
        n = len(self.new)
        fresh = n if n <= LABELLED else LABELLED // 2  # the others are there for what a label takes from its left
        tail = self.loaded.describe(self.new[-LABELLED:])[-fresh:]
        return (*self.said[: n - fresh], *tail)

    def _stopped(self, token: int, index: int, n_steps: int, positions: int | None) -> tuple[str | None, int | None]:
        if token in self.ends:
            return "end", None
        if index + 1 < n_steps:
            return None, None
        if n_steps < self.plan.max_new_tokens:
            return "max_positions", positions
        return "max_new_tokens", n_steps

    def _prompt_tokens(self, decoding: Decoding) -> tuple[Token, ...]:
        if self.loaded.family != "encoder-decoder":
            return self.prompt.source.tokens
        return tuple(self.loaded.describe(decoding.ids[0, : decoding.prompt_length].tolist()))

    def _candidates(self, choice: Choice) -> tuple[Candidate, ...]:
        unknown = [one for one in choice.listed if one not in self.labels]
        with self.loaded.tokenizer_lock:  # a sequence of its own for each: they are no text together
            for token in describe(self.loaded.tokenizer, unknown, range(len(unknown))):
                self.labels[token.id] = token.label
        rows = zip(*(choice.probs[name] for name in STAGE_NAMES), strict=True)
        ends = self._ended_characters(choice)
        return tuple(
            Candidate(one, self.labels[one], dict(zip(STAGE_NAMES, row, strict=True)), cut, *ends.get(one, ("", "")))
            for one, row, cut in zip(choice.listed, rows, choice.cut, strict=True)
        )

    def _ended_characters(self, choice: Choice) -> dict[int, tuple[str, str]]:
        """Candidates that would end a character which the last tokens began: its bytes and itself."""
        begun = _unfinished(self.said)
        pieces = [one for one in choice.listed if begun and FRAGMENT.fullmatch(self.labels[one])]
        ids = [one for last in pieces for one in (*(token.id for token in begun), last)]
        with self.loaded.tokenizer_lock:
            tokens = describe(self.loaded.tokenizer, ids, [i // (len(begun) + 1) for i in range(len(ids))])
        ended: dict[int, tuple[str, str]] = {}
        for token in tokens[len(begun) :: len(begun) + 1]:
            if token.piece is not None and not FRAGMENT.search(token.text):
                before = [_bytes_of(one.text) for one in begun[1 - token.piece[1] :]]
                ended[token.id] = " ".join([*before, _bytes_of(self.labels[token.id])]), token.text
        return ended


def _unfinished(said: Sequence[Token]) -> tuple[Token, ...]:
    """The tokens at the end of a text that may be the beginning of one character."""
    begun: list[Token] = []
    for token in reversed(said[1 - LONGEST_CHARACTER :]):
        if token.special or not token.text.endswith("⟩") or not FRAGMENT.search(token.text):
            break
        begun.insert(0, token)
        if not FRAGMENT.fullmatch(token.text):  # letters before its first byte
            break
    return tuple(begun)


def _bytes_of(label: str) -> str:
    """⟨E8⟩⟨83⟩ as E8 83."""
    found = FRAGMENT.search(label)
    return "" if found is None else found[0].strip("⟨⟩").replace("⟩⟨", " ")


def _bytes_held(decoding: Decoding, n_read: int) -> int:
    """Of keys and values when `n_read` positions were read: after the pass over a path more of them are held."""
    total = 0
    for layer in decoding.held():
        n_held = layer.key.shape[-2]
        total += layer.nbytes if layer.kind == "cross" else layer.nbytes * min(n_held, n_read) // max(1, n_held)
    return total


def _vocabulary(loaded: LoadedModel) -> int:
    """How many tokens the decoder can read."""
    return int(getattr(getattr(loaded.model, "config", None), "target_vocabulary", loaded.n_embeddings))


def _in_chat(loaded: LoadedModel, prompt: Prompt) -> Prompt:
    """The text of `prompt` as a user's message: all but the special tokens that the tokenizer put around it."""
    ids = [token.id for token in prompt.source.tokens if not token.special]
    with loaded.tokenizer_lock:
        typed = loaded.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return chat_prompt(loaded, typed)
