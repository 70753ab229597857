"""What a tokenizer drops or changes before it looks for tokens: uncased BERT strips accents, vowel signs and capitals.

Each character goes through the tokenizer by itself. What makes no token is dropped; what its normaliser turns into
another character is changed. Spaces, special tokens and two spellings of one character (NFC) are not counted.
"""

from dataclasses import dataclass
from typing import Any
from unicodedata import normalize

WORD_MARK = "\u2581"  # what SentencePiece writes for a space


@dataclass(frozen=True)
class Altered:
    """The characters that did not reach the model as they were typed, in the order of the text."""

    dropped: tuple[str, ...] = ()
    changed: tuple[tuple[str, str], ...] = ()  # (typed, read), capitals left out
    lowered: bool = False  # capital letters were read as small ones

    def __add__(self, other: "Altered") -> "Altered":
        return Altered(self.dropped + other.dropped, self.changed + other.changed, self.lowered or other.lowered)

    def __bool__(self) -> bool:
        return bool(self.dropped or self.changed or self.lowered)


def altered(tokenizer: Any, text: str) -> Altered:
    """What happens to the characters of `text`. Slow tokenizers do not tell."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return Altered()
    for special in tokenizer.all_special_tokens:
        text = text.replace(special, " ")
    typed = [one for one in text if _ink(one)]
    read = {one: _read(backend, one) for one in set(typed)}
    lowered = {one for one in read if read[one] == _ink(one.lower()) != _ink(one)}
    return Altered(
        dropped=tuple(one for one in typed if not read[one]),
        changed=tuple((one, read[one]) for one in typed if read[one] not in {"", _ink(one)} and one not in lowered),
        lowered=bool(lowered),
    )


def _read(backend: Any, typed: str) -> str:
    """One character as the tokenizer reads it; empty where it makes no token of it."""
    if not backend.encode(typed, add_special_tokens=False).ids:
        return ""
    return _ink(typed if backend.normalizer is None else backend.normalizer.normalize_str(typed))


def _ink(text: str) -> str:
    """One spelling of each character, no spaces."""
    return "".join(normalize("NFC", text).replace(WORD_MARK, "").split())
