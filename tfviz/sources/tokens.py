"""Text to token ids, and token ids to labels a person can read.

One label per token, always. Whitespace and control characters become visible glyphs; a character that the tokenizer cut
into bytes is shown whole on each of its pieces, numbered; special tokens are told apart by who put them there.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, groupby
from typing import Any

import regex

from tfviz.sources.altered import Altered, altered

GLYPHS = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥", "\u00a0": "⍽", "\u3000": "□"}
SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
FRAGMENT = re.compile(r"(⟨[0-9A-F]{2}⟩)+")  # how bytes that make no whole character are shown
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Token:
    """One position of the model's input."""

    id: int
    text: str  # what a label shows: visible, never empty
    raw: str  # the same with its leading space visible, for tooltips
    special: bool = False  # put there by the tokenizer: [CLS], </s>
    typed: bool = False  # a special token that the person typed
    joined: bool = False  # no space between it and the token before
    piece: tuple[int, int] | None = None  # (2, 3): second of three pieces of one character
    segment: int = 0  # 0: first sentence, 1: second

    @property
    def label(self) -> str:
        """`text`, with the piece number as a subscript: 国₂."""
        return self.text if self.piece is None else self.text + str(self.piece[0]).translate(SUBSCRIPTS)


@dataclass(frozen=True)
class Encoded:
    """A text as one model reads it."""

    tokens: tuple[Token, ...]
    segments: tuple[int, ...] | None  # token_type_ids, for models that take them
    total: int  # tokens before the cut
    cut_from: str  # how the part that was left out begins; empty if nothing was
    altered: Altered = Altered()  # characters that the tokenizer dropped or changed

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]


def encode(tokenizer: Any, first: str, second: str | None, limit: int) -> Encoded:
    """Tokenizes one text, or a pair with the tokenizer's own separators, cut to `limit` tokens.

    Special tokens typed inside a text stay where they are: where sentence two starts is known from the tokenizer's own
    sequence numbers, not from counting separators.
    """
    whole = tokenizer(first, second or None, verbose=False)
    total, cut_from, batch = len(whole["input_ids"]), "", whole
    if total > limit:
        batch = tokenizer(first, second or None, truncation=True, max_length=limit)
        cut_from = _cut_from(tokenizer, whole["input_ids"], batch["input_ids"])
    ids: list[int] = list(batch["input_ids"])
    sequences = batch.sequence_ids(0) if getattr(tokenizer, "is_fast", False) else _guess_sequences(tokenizer, ids)
    tokens = describe(tokenizer, ids, sequences)
    segments = tuple(batch["token_type_ids"]) if "token_type_ids" in batch else None
    if not getattr(tokenizer, "is_fast", False):
        return Encoded(tuple(tokens), segments, total, cut_from)
    texts, offsets = (first, second or ""), batch.encodings[0].offsets
    tokens = _read_places(tokenizer, tokens, sequences, offsets, texts)
    ends = (_end(sequences, offsets, number) if total > limit else None for number in (0, 1))
    first, second = (text[:end] for text, end in zip(texts, ends, strict=True))
    return Encoded(tuple(tokens), segments, total, cut_from, altered(tokenizer, first) + altered(tokenizer, second))


def describe(tokenizer: Any, ids: Sequence[int], sequences: Sequence[int | None] | None = None) -> list[Token]:
    """One `Token` per id. `sequences` says which sentence a token belongs to, None for those the tokenizer added."""
    sequences = sequences if sequences is not None else _guess_sequences(tokenizer, ids)
    strings = tokenizer.convert_ids_to_tokens(list(ids))
    raws = [f"⟨{i}⟩" if piece is None else str(piece) for i, piece in zip(ids, strings, strict=True)]
    specials = _special_ids(tokenizer)
    read = _byte_reader(tokenizer)
    tokens: list[Token] = []
    segment = 0
    for (sequence, special), run in groupby(range(len(ids)), key=lambda i: (sequences[i], ids[i] in specials)):
        segment = segment if sequence is None else sequence
        places = list(run)
        if sequence is None or special:
            tokens += [
                Token(
                    ids[i], visible(raws[i]), visible(raws[i]), sequence is None, sequence is not None, segment=segment
                )
                for i in places
            ]
        elif read is None:
            tokens += [
                Token(ids[i], visible(raws[i]), visible(raws[i]), joined=raws[i].startswith("##"), segment=segment)
                for i in places
            ]
        else:
            pieces = [read(raws[i]) for i in places]
            tokens += [
                replace(token, id=ids[i], segment=segment) for i, token in zip(places, _join(pieces), strict=True)
            ]
    return tokens


def visible(text: str) -> str:
    """Every character gets ink: whitespace as a glyph, controls and lone joiners as U+XXXX."""
    return "".join(GLYPHS.get(c) or (c if _has_ink(c) else f"U+{ord(c):04X}") for c in text) or "∅"


def is_right_to_left(text: str) -> bool:
    """Whether the first strong character is Hebrew, Arabic or the like."""
    for character in text:
        direction = unicodedata.bidirectional(character)
        if direction in {"L", "R", "AL"}:
            return direction != "L"
    return False


def _joins(character: str) -> bool:
    """Joiners, variation selectors and flag tags: invisible, but part of the picture that they stand in."""
    return character in "\u200d\ufe0e\ufe0f" or "\U000e0020" <= character <= "\U000e007f"


def _has_ink(character: str) -> bool:
    return _joins(character) or (unicodedata.category(character)[0] not in "CZ" and character != "\ufffd")


def _label(text: str) -> str:
    """A token's text as its label: one leading space is the tokenizer's word mark, any other whitespace is shown."""
    body = text[1:] if text[:1] == " " and text[1:] and not text[1].isspace() else text
    shown = visible(body)
    return "".join(f"U+{ord(c):04X}" for c in body) if all(_joins(c) for c in body) else shown


def _join(pieces: list[bytes]) -> list[Token]:
    """Labels for consecutive byte pieces of one text: each shows the whole characters that its bytes touch."""
    ends = list(accumulate(len(piece) for piece in pieces))
    clusters = _clusters(b"".join(pieces))  # (start, end, text) of each character a person sees
    touched = []  # for each piece the clusters its bytes touch
    first = 0
    for end, data in zip(ends, pieces, strict=True):
        start = end - len(data)
        while first < len(clusters) and clusters[first][1] <= start:
            first += 1
        last = first
        while last < len(clusters) and clusters[last][0] < end:
            last += 1
        touched.append(range(first, last))
    sharers: dict[int, list[int]] = {}
    for place, span in enumerate(touched):
        for cluster in span:
            sharers.setdefault(cluster, []).append(place)
    tokens, before = [], ""
    for place, span in enumerate(touched):
        text = "".join(clusters[c][2] for c in span)
        cut = next((c for c in span if len(sharers[c]) > 1), None)
        piece = None if cut is None else (sharers[cut].index(place) + 1, len(sharers[cut]))
        joined = place > 0 and not text[:1].isspace() and not before.isspace()
        before = text[-1:]
        tokens.append(Token(0, _label(text), visible(text), joined=joined, piece=piece))
    return tokens


def _clusters(data: bytes) -> list[tuple[int, int, str]]:
    """Byte spans of the grapheme clusters of UTF-8 `data`; bytes that are no character become their hex digits."""
    spans: list[tuple[int, int, str]] = []
    start = 0
    for part in regex.findall(r"\X", data.decode("utf-8", errors="surrogateescape")):
        end = start + len(part.encode("utf-8", errors="surrogateescape"))
        broken = any("\udc80" <= c <= "\udcff" for c in part)
        spans.append((start, end, "".join(f"⟨{b:02X}⟩" for b in data[start:end]) if broken else part))
        start = end
    return spans


def _read_places(
    tokenizer: Any,
    tokens: list[Token],
    sequences: Sequence[int | None],
    offsets: Sequence[tuple[int, int]],
    texts: tuple[str, str],
) -> list[Token]:
    """What only the place in the text tells: WordPiece's spaces, and whether "unknown" is a word or was typed so."""
    word_piece, placed, before = _byte_reader(tokenizer) is None, [], -1
    for token, sequence, (start, end) in zip(tokens, sequences, offsets, strict=True):
        if sequence is not None and token.id == tokenizer.unk_token_id:
            read = texts[sequence][start:end]
            typed = token.typed or read.strip() == tokenizer.unk_token
            token = replace(token, typed=typed, raw=visible(read), text=visible(tokenizer.unk_token))
        if sequence is not None and word_piece:
            token = replace(token, joined=token.joined or start == before)
        placed.append(token)
        before = -1 if sequence is None else end
    return placed


def _end(sequences: Sequence[int | None], offsets: Sequence[tuple[int, int]], number: int) -> int:
    """Where the part of a sentence that was read ends."""
    return max((end for sequence, (_, end) in zip(sequences, offsets, strict=True) if sequence == number), default=0)


def _byte_reader(tokenizer: Any) -> Any:
    """How this tokenizer's strings stand for bytes: byte-level BPE, SentencePiece, or (None) plain WordPiece."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = "" if backend is None else repr(backend.decoder)
    if "ByteLevel" in decoder:
        return _byte_level
    if "WordPiece" in decoder:
        return None
    return _sentence_piece


def _byte_level(raw: str) -> bytes:
    table = _byte_of_character()
    return bytes(table[c] for c in raw) if all(c in table for c in raw) else raw.encode("utf-8")


def _sentence_piece(raw: str) -> bytes:
    byte = BYTE_TOKEN.fullmatch(raw)
    return bytes([int(byte[1], 16)]) if byte else raw.replace("▁", " ").encode("utf-8")


@cache
def _byte_of_character() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _guess_sequences(tokenizer: Any, ids: Sequence[int]) -> list[int | None]:
    """Without sequence numbers (generated ids, slow tokenizers): special ids were added, all else is sentence one."""
    specials = _special_ids(tokenizer)
    return [None if i in specials else 0 for i in ids]


def _special_ids(tokenizer: Any) -> set[int]:
    """ "Unknown" stands for a word that was typed, so it is no special token, unless it has a second duty (GPT-2)."""
    duties = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.sep_token_id}
    return set(tokenizer.all_special_ids) - ({tokenizer.unk_token_id} - duties)


def _cut_from(tokenizer: Any, whole: Sequence[int], kept: Sequence[int]) -> str:
    """The first few words of what was left out."""
    place = next((i for i, (a, b) in enumerate(zip(whole, kept, strict=False)) if a != b), len(kept))
    words = tokenizer.decode(list(whole[place : place + 8]), skip_special_tokens=True).strip("\ufffd \n\t")
    return visible(words.replace("\n", " ")).replace("␣", " ")[:40]
