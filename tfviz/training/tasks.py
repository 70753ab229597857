"""What a small Transformer learns in seconds or minutes. One shape for all: text in, text out, a token a character.

A task makes its examples from a seed and keeps some of them back: `held_out` gives only those, `batch` never does.
Ids: 0 padding, 1 start, 2 end, 3 unknown, then the characters. A source has no special tokens; a target is
start, characters, end: the decoder reads it without its last token and is to predict it without its first.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase, ascii_uppercase
from zlib import crc32

import torch
from jaxtyping import Int
from torch import Tensor

from tfviz.checks import at_least, from_to

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
PAD, START, END, UNKNOWN = range(len(SPECIAL))


@dataclass(frozen=True)
class Example:
    """One question and its answer; `group` names what scores are given for separately, such as a language."""

    source: str
    target: str
    group: str = ""


@dataclass(frozen=True)
class Batch:
    """Padded ids, int64: `source` as it is read, `target` with its start and end tokens."""

    source: Int[Tensor, "batch source"]
    target: Int[Tensor, "batch target"]

    def chunks(self, n: int) -> list["Batch"]:
        """At most `n` parts of consecutive rows, as `torch.chunk` cuts."""
        return [Batch(*parts) for parts in zip(self.source.chunk(n), self.target.chunk(n), strict=True)]

    def to(self, device: torch.device) -> "Batch":
        return Batch(self.source.to(device), self.target.to(device))


class Task(ABC):
    """A vocabulary and a source of examples. `vocabulary[i]` is what id i stands for."""

    name: str
    vocabulary: tuple[str, ...]

    @abstractmethod
    def examples(self, n: int, rng: random.Random) -> list[Example]:
        """`n` examples to learn from, none of them held out."""

    @abstractmethod
    def held_out(self, n: int, seed: int = 0) -> list[Example]:
        """`n` examples that training never sees; the same for the same seed."""

    def batch(self, n: int, generator: torch.Generator) -> Batch:
        """`n` training examples as padded ids; all chance comes from `generator`."""
        at_least("n", n, 1)
        seed = int(torch.randint(2**62, (), generator=generator))
        return self.collate(self.examples(n, random.Random(seed)))

    def collate(self, examples: Sequence[Example]) -> Batch:
        """Rows padded on the right to the longest of them."""
        source = pad(self.encode(example.source) for example in examples)
        target = pad([START, *self.encode(example.target), END] for example in examples)
        return Batch(source, target)

    def encode(self, text: str) -> list[int]:
        """A character that is not in the vocabulary becomes the unknown token."""
        return [self._ids.get(character, UNKNOWN) for character in text]

    def decode(self, ids: Iterable[int]) -> str:
        """The characters up to the end token; start and padding are left out, the unknown token is written out."""
        text = ""
        for token in ids:
            if token == END:
                break
            text += "" if token in (PAD, START) else self.vocabulary[token]
        return text

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {character: i for i, character in enumerate(self.vocabulary) if i >= len(SPECIAL)}


def pad(rows: Iterable[Sequence[int]]) -> Int[Tensor, "batch length"]:
    rows = list(rows)
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows])


class SymbolTask(Task):
    """A word of random letters, and the same word changed: `change("cab")` is what the model is to write.

    Words have `shortest` to `longest` of the first `n_symbols` letters of a-z, A-Z. One word in eight is held out.
    """

    def __init__(
        self, name: str, change: Callable[[str], str], *, n_symbols: int = 20, shortest: int = 1, longest: int = 10
    ) -> None:
        letters = ascii_lowercase + ascii_uppercase
        from_to("n_symbols", n_symbols, 2, len(letters))
        at_least("shortest", shortest, 1)
        at_least("longest", longest, max(shortest, 4))  # fewer words than that may leave none to hold out
        self.name, self.change, self.shortest, self.longest = name, change, shortest, longest
        self.symbols = letters[:n_symbols]
        self.vocabulary = (*SPECIAL, *self.symbols)

    def examples(self, n: int, rng: random.Random) -> list[Example]:
        return self._draw(n, rng, held_out=False)

    def held_out(self, n: int, seed: int = 0) -> list[Example]:
        return self._draw(n, random.Random(seed), held_out=True)

    def is_held_out(self, word: str) -> bool:
        """By the word alone: every seed and every run holds the same words back."""
        return crc32(word.encode()) % 8 == 0

    def _draw(self, n: int, rng: random.Random, held_out: bool) -> list[Example]:
        drawn: list[Example] = []
        while len(drawn) < n:
            word = "".join(rng.choices(self.symbols, k=rng.randint(self.shortest, self.longest)))
            if self.is_held_out(word) == held_out:
                drawn.append(Example(word, self.change(word)))
        return drawn


def copy() -> Task:
    return SymbolTask("copy", lambda word: word)


def reverse() -> Task:
    return SymbolTask("reverse", lambda word: word[::-1])


def sort() -> Task:
    return SymbolTask("sort", lambda word: "".join(sorted(word)))


def dates() -> Task:
    from tfviz.training.dates import DateTask  # needs Babel, which the app does without

    return DateTask()


TASKS: dict[str, Callable[[], Task]] = {"copy": copy, "reverse": reverse, "sort": sort, "dates": dates}
