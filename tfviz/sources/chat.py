"""A text as an instruct model expects it: one user message in the chat template that came with its tokenizer.

The template is a program in Jinja, which transformers runs in its sandbox; here it gets a time limit as well. What it
makes of the message is what the model reads, a system message of the template's own included: `ChatPrompt.fed`.
"""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from tfviz.errors import BadText
from tfviz.sources.altered import altered
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.tokens import Encoded, describe

MAX_SECONDS = 2.0  # a template takes milliseconds
MAX_CHARACTERS = 200_000


@dataclass(frozen=True)
class ChatPrompt(Prompt):
    """A prompt that a chat template made."""

    fed: str = ""  # all that the model reads, as text
    typed: tuple[str, ...] = ()  # special tokens that the person typed: read as ordinary characters...
    obeyed: bool = False  # ...unless the installed transformers cannot do that: then they are control tokens


def has_chat_template(loaded: LoadedModel) -> bool:
    """Whether a chat with this model can be had: a decoder whose tokenizer brought a template."""
    return loaded.family == "decoder" and bool(getattr(loaded.tokenizer, "chat_template", None))


def chat_prompt(loaded: LoadedModel, text: str, limit: int | None = None) -> ChatPrompt:
    """`text` as the only message of the user, and the opening of the model's answer.

    `BadText` where there is no template, where it refuses or fails, and when its tokens do not fit.
    """
    if not has_chat_template(loaded):
        raise BadText("error.chat.none", model=loaded.label)
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    fed = str(_apply(loaded, text, tokenize=False))
    if len(fed) > MAX_CHARACTERS:
        raise BadText("error.chat.too_much", model=loaded.label, n=len(fed), limit=MAX_CHARACTERS)
    ids = list(_apply(loaded, text, tokenize=True, return_dict=True, sanitize_control_tokens=True)["input_ids"])
    typed = _control_tokens(loaded.tokenizer, text)
    with loaded.tokenizer_lock:
        plain = loaded.tokenizer(fed, add_special_tokens=False, verbose=False)["input_ids"]
        tokens = describe(loaded.tokenizer, ids)
        lost = altered(loaded.tokenizer, text)
    most = min(loaded.token_limit, limit or loaded.token_limit)
    if not ids:
        raise BadText("error.no_tokens", model=loaded.label)
    if len(ids) > most:
        raise BadText("error.chat.long", model=loaded.label, n=len(ids), limit=most)
    if max(ids) >= loaded.n_embeddings:
        raise BadText("error.vocabulary", model=loaded.label, n=loaded.n_embeddings, id=max(ids))
    row = torch.tensor([ids], device=loaded.device)
    source = Encoded(tuple(tokens), None, len(ids), "", lost)
    inputs = {"input_ids": row, "attention_mask": torch.ones_like(row)}
    return ChatPrompt(inputs, source, fed=fed, typed=typed, obeyed=bool(typed) and ids == plain)


def _apply(loaded: LoadedModel, text: str, **options: Any) -> Any:
    """The template's text or ids. Whatever goes wrong inside it, a loop without an end included, is a `BadText`."""
    chat = [{"role": "user", "content": text}]
    try:
        with loaded.tokenizer_lock, _at_most(MAX_SECONDS):
            return loaded.tokenizer.apply_chat_template(chat, add_generation_prompt=True, **options)
    except Exception as error:  # Jinja's errors, transformers' own, and any that a template can provoke
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = (lines[0] if lines else type(error).__name__)[:160]
        raise BadText("error.chat.fails", model=loaded.label, reason=reason) from error


def _control_tokens(tokenizer: Any, text: str) -> tuple[str, ...]:
    """The special tokens that stand in `text`, in order."""
    names = sorted({*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}, key=len, reverse=True)
    return tuple(re.findall("|".join(map(re.escape, names)), text)) if names else ()


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raises `TimeoutError` in this thread at the next line of Python after so many seconds: a template is Python."""
    end, before = time.monotonic() + seconds, sys.gettrace()

    def watch(frame: FrameType, event: str, argument: Any) -> Any:
        if time.monotonic() > end:
            raise TimeoutError(f"it had not finished after {seconds:g} s")
        return watch

    sys.settrace(watch)
    try:
        yield
    finally:
        sys.settrace(before)
