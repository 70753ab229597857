"""A model that is loaded and ready: weights on a device, its tokenizer, and what a caller needs to know of both.

Nothing in it changes after it is made. What differs between two calls travels with the call.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tfviz.errors import BadText
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.sources.tokens import Encoded, Token, describe, encode

MAX_TARGET = 64  # tokens that an encoder-decoder writes itself when no target sentence was typed


@dataclass(frozen=True)
class Prompt:
    """One text (or pair) as one model takes it: the tensors of the forward call and the tokens they stand for."""

    inputs: dict[str, Tensor]
    source: Encoded  # the text; the encoder's side of an encoder-decoder
    target: tuple[Token, ...] = ()  # the decoder's side
    target_written: bool = False  # the model wrote the target itself

    @property
    def n_tokens(self) -> int:
        return len(self.source.tokens)


@dataclass(frozen=True)
class LoadedModel:
    """`model` is a transformers module in inference mode whose attention goes through the bridge."""

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
        embedding: Any = self.model.get_input_embeddings()  # type: ignore[operator]
        if max(source.ids) >= embedding.num_embeddings:
            raise BadText("error.vocabulary", model=self.label, n=embedding.num_embeddings, id=max(source.ids))
        ids = torch.tensor([source.ids], device=self.device)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if source.segments is not None and self.family == "encoder":
            inputs["token_type_ids"] = torch.tensor([source.segments], device=self.device)
        if self.family != "encoder-decoder":
            return Prompt(inputs, source)
        target_ids = self._target_ids(second, limit) if second else self._write_target(inputs, limit)
        inputs["decoder_input_ids"] = torch.tensor([target_ids], device=self.device)
        return Prompt(inputs, source, tuple(self._describe_target(target_ids)), target_written=not second)

    def forward(self, prompt: Prompt, call: AttentionCall, *, all_logits: bool = True) -> Tensor:
        """One forward pass: logits (batch, position, vocabulary), or the last hidden states where there is no head.

        With `all_logits=False` the head runs for the last position only, where the architecture allows it.
        """
        options: dict[str, Any] = {} if self.family == "encoder" else {"use_cache": False}
        if not all_logits and self.family == "decoder":
            options["logits_to_keep"] = 1
        with torch.inference_mode(), attention_call(call):
            output = self.model(**prompt.inputs, **options)
        return output.logits if self.has_logits else output[0]

    def encoder_modules(self) -> set[nn.Module]:
        """All modules of the encoder of an encoder-decoder; empty for the others."""
        if self.family != "encoder-decoder":
            return set()
        encoder: nn.Module = self.model.get_encoder()  # type: ignore[operator]
        return set(encoder.modules())

    def decode(self, ids: Sequence[int]) -> str:
        """The text that these ids stand for, special tokens left out."""
        with self.tokenizer_lock:
            return self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _target_ids(self, text: str, limit: int) -> list[int]:
        """The decoder reads its start token and then the target, shifted right by one."""
        with self.tokenizer_lock:
            ids = list(self.tokenizer(text_target=text, truncation=True, max_length=limit)["input_ids"])
        start = self._start_id()
        if ids and ids[-1] == self.tokenizer.eos_token_id:
            ids = ids[:-1]  # nothing is predicted after it
        return ([start, *ids] if ids[:1] != [start] else ids)[:limit]

    def _write_target(self, inputs: dict[str, Tensor], limit: int) -> list[int]:
        """The model's own greedy answer, without its end token."""
        with torch.inference_mode(), attention_call(AttentionCall("naive")):  # every model can run naive
            ids: list[int] = self.model.generate(  # type: ignore[operator]
                **inputs, max_new_tokens=max(1, min(MAX_TARGET, limit - 1)), do_sample=False, num_beams=1
            )[0].tolist()
        return ids[:-1] if len(ids) > 1 and ids[-1] == self.tokenizer.eos_token_id else ids

    def _describe_target(self, ids: list[int]) -> list[Token]:
        with self.tokenizer_lock:
            return describe(self.tokenizer, ids)

    def _start_id(self) -> int:
        config: Any = self.model.config
        generation: Any = getattr(self.model, "generation_config", None)
        start = getattr(config, "decoder_start_token_id", None)
        return start if start is not None else generation.decoder_start_token_id


def _whole_characters(text: str) -> str:
    """A text box may cut an emoji in two: half of a surrogate pair is no character, and tokenizers refuse it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
