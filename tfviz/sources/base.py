"""A model that is loaded and ready: weights on a device, its tokenizer, and what a caller needs to know of both.

Nothing in it changes after it is made. What differs between two calls travels with the call. Where a model comes from
decides the subclass: transformers (huggingface.py) or tfviz.model (scratch.py).
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from tfviz.errors import BadText, WrongModel
from tfviz.model.attention_call import AttentionCall
from tfviz.sources.altered import altered
from tfviz.sources.decoding import Decoding
from tfviz.sources.finite import finite_output
from tfviz.sources.tokens import FRAGMENT, Encoded, Token, describe, encode

MAX_TARGET = 64  # tokens that an encoder-decoder writes itself when no target sentence was typed


@dataclass(frozen=True)
class Prompt:
    """One text (or pair) as one model takes it: the tensors of the forward call and the tokens they stand for."""

    inputs: dict[str, Tensor]
    source: Encoded  # the text; the encoder's side of an encoder-decoder
    target: tuple[Token, ...] = ()  # the decoder's side
    target_written: bool = False  # the model wrote the target itself
    target_total: int = 0  # positions that the typed target would take, before the cut

    @property
    def n_tokens(self) -> int:
        return len(self.source.tokens)


@dataclass(frozen=True)
class Hypothesis:
    """One whole answer of a beam search."""

    ids: tuple[int, ...]  # without the start token, with the end token if it got that far
    log_prob: float  # natural logarithm, summed over `ids`
    finished: bool


@dataclass(frozen=True)
class LoadedModel(ABC):
    """`model` is a module in inference mode whose attention follows the call (tfviz.model.attention_call)."""

    id: str
    label: str
    revision: str
    family: str  # decoder | encoder | encoder-decoder
    precision: str
    device: torch.device
    model: nn.Module
    tokenizer: Any
    token_limit: int  # longest input, in tokens, that the model has positions for
    has_logits: bool  # whether an output head came with the weights
    n_parameters: int
    weight_bytes: int  # counted from the tensors
    random: bool = False  # nobody trained it: there for shapes, speed and memory
    tokenizer_lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def prompt(self, first: str, second: str | None = None, limit: int | None = None) -> Prompt:
        """Tokenizes `first` (and `second`: the pair of an encoder, the target of an encoder-decoder).

        `BadText` when there is no token to look at, or a pair is given to a model that reads one text.
        """
        limit = min(self.token_limit, limit or self.token_limit)
        first, second = _whole_characters(first), second and _whole_characters(second)
        if second and self.family == "decoder":
            raise BadText("error.no_pair", model=self.label)
        with self.tokenizer_lock:  # a fast tokenizer keeps its truncation settings between calls
            pair = second if self.family == "encoder" else None
            source = encode(self.tokenizer, first, pair, limit)
        if not source.tokens:
            raise BadText("error.no_tokens", model=self.label)
        if max(source.ids) >= self.n_embeddings:
            raise BadText("error.vocabulary", model=self.label, n=self.n_embeddings, id=max(source.ids))
        ids = torch.tensor([source.ids], device=self.device)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if source.segments is not None and self.family == "encoder":
            inputs["token_type_ids"] = torch.tensor([source.segments], device=self.device)
        if self.family != "encoder-decoder":
            return Prompt(inputs, source)
        written = not second and not self.random
        whole = self._write_target(inputs, limit) if written else self._target_ids(second or first)
        target_ids = whole[:limit]
        if second:
            with self.tokenizer_lock:
                source = replace(source, altered=source.altered + altered(self.tokenizer, second))
        inputs["decoder_input_ids"] = torch.tensor([target_ids], device=self.device)
        return Prompt(inputs, source, tuple(self.describe(target_ids)), written, len(whole))

    def forward(self, prompt: Prompt, call: AttentionCall, *, all_logits: bool = True) -> Tensor:
        """One forward pass: logits (batch, position, vocabulary), or the last hidden states where there is no head.

        With `all_logits=False` the head runs for the last position only, where the architecture allows it.
        """
        return self.run(prompt.inputs, call, all_logits=all_logits)

    def run(self, inputs: dict[str, Tensor], call: AttentionCall, *, all_logits: bool = True) -> Tensor:
        """The same for the tensors of a prompt, or of several in one batch (tfviz.sources.batch).

        `UnsupportedHere`, here and in `forward`, where the model computes what is no number.
        """
        with torch.inference_mode():
            return finite_output(self, call, lambda: self._run(inputs, all_logits))

    def beams(self, prompt: Prompt, n_beams: int, kernel: str = "flash") -> list[Hypothesis]:
        """Whole answers that beam search finds for this source, best first; empty where a model does not offer it."""
        return []

    def decoding(
        self, inputs: dict[str, Tensor], *, use_cache: bool = True, record: bool = False, fast: bool = True
    ) -> Decoding:
        """A generation that starts from `inputs`: those of a prompt, or of several padded on the left (sources.batch).

        An encoder-decoder reads `input_ids` with its encoder and starts at `decoder_input_ids`, or its start token
        where there are none. `record` keeps what each step's attentions read (batch row 0; with a cache only); `fast`
        takes a written-out step where the model has one. `WrongModel` for a model that has no decoder or no head.
        """
        raise WrongModel("error.no_generation", model=self.label)

    def encoder_modules(self) -> set[nn.Module]:
        """All modules of the encoder of an encoder-decoder; empty for the others."""
        return set(self._encoder().modules()) if self.family == "encoder-decoder" else set()

    def describe(self, ids: Sequence[int]) -> list[Token]:
        """A label for each of the decoder's ids."""
        with self.tokenizer_lock:
            return describe(self.tokenizer, ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text that these ids stand for, special tokens left out; bytes that make no character as ⟨E7⟩."""
        with self.tokenizer_lock:
            text = self._decoded(ids)
            if "\ufffd" not in text:
                return text
            tokens = describe(self.tokenizer, ids)
            runs = groupby(tokens, key=lambda token: bool(FRAGMENT.fullmatch(token.text)))
            return "".join(
                "".join(token.text for token in run) if broken else self._decoded([token.id for token in run])
                for broken, run in runs
            )

    def _decoded(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    @property
    def other_layers(self) -> int:
        """How many of its layers have no attention: a state space, a linear attention or a convolution instead."""
        return 0

    @property
    @abstractmethod
    def n_embeddings(self) -> int:
        """Rows of the token embedding of the source."""

    @property
    @abstractmethod
    def start_id(self) -> int:
        """What the decoder of an encoder-decoder reads first."""

    @property
    @abstractmethod
    def end_ids(self) -> frozenset[int]:
        """The tokens that end a text: all that the checkpoint names anywhere."""

    @property
    @abstractmethod
    def pad_id(self) -> int:
        """What fills up the short rows of a batch; any id will do for a model that has none, since nobody reads it."""

    @abstractmethod
    def place(self, positions: Tensor) -> dict[str, Tensor]:
        """The inputs that tell the model where the tokens of a batch stand; none if it counts, or needs no telling."""

    @abstractmethod
    def window(self, kind: str, layer: int) -> int | None:
        """How many positions an attention reaches by the model's config, its own included; None: as far as it likes."""

    @abstractmethod
    def _run(self, inputs: dict[str, Tensor], all_logits: bool) -> Tensor:
        """The forward pass, inside inference mode and its call."""

    @abstractmethod
    def _encoder(self) -> nn.Module:
        """The encoder of an encoder-decoder."""

    @abstractmethod
    def _write_target(self, inputs: dict[str, Tensor], limit: int) -> list[int]:
        """The model's own greedy answer: the start token and what follows, without the end token."""

    def _target_ids(self, text: str) -> list[int]:
        """The decoder reads its start token and then the target, shifted right by one."""
        with self.tokenizer_lock:
            ids = list(self.tokenizer(text_target=text, verbose=False)["input_ids"])
        if ids and ids[-1] == self.tokenizer.eos_token_id:
            ids = ids[:-1]  # nothing is predicted after it
        return [self.start_id, *ids] if ids[:1] != [self.start_id] else ids


def _whole_characters(text: str) -> str:
    """A text box may cut an emoji in two: half of a surrogate pair is no character, and tokenizers refuse it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
