"""Labels of tokens: one a token, always with ink, whole characters, and true to what was typed."""

import json
import unicodedata
from functools import cache
from typing import Any

import pytest
import regex
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tests import checkpoints
from tests.conftest import Loaded
from tfviz.errors import BadText
from tfviz.sources.tokens import Encoded, Token, describe, encode, is_right_to_left, visible

FAR = 100_000


def bert_like() -> Any:
    made = checkpoints.word_piece_tokenizer()
    made.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return made


def llama_like() -> Any:
    """Its byte tokens are ordinary entries of the vocabulary, as in Llama 2: decoding does not leave them out."""
    made = checkpoints.sentence_piece_like_tokenizer()
    spec = json.loads(made.backend_tokenizer.to_str())
    spec["added_tokens"] = [token for token in spec["added_tokens"] if not token["content"].startswith("<0x")]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(spec)), pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


TOKENIZERS = {
    "bytes": cache(checkpoints.byte_level_tokenizer),  # as GPT-2, Llama 3, SmolLM2
    "words": cache(bert_like),
    "sentence": cache(llama_like),
}
BYTES = ["bytes", "sentence"]  # those that cut characters into bytes
REPEATED = "the cat saw the other cat near the door"


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return TOKENIZERS[request.param]()


def read(name: str, first: str, second: str | None = None, limit: int = FAR) -> Encoded:
    return encode(TOKENIZERS[name](), first, second, limit)


def typed_part(encoded: Encoded) -> list[Token]:
    return [token for token in encoded.tokens if not token.special]


def assert_readable(token: Token) -> None:
    for text in (token.text, token.raw, token.label):
        assert text and "\ufffd" not in text
        for character in text:
            inside = character in "\u200d\ufe0e\ufe0f" or 0xE0020 <= ord(character) <= 0xE007F
            assert inside or unicodedata.category(character)[0] not in "CZ", (ascii(text), character)
        assert any(unicodedata.category(character)[0] not in "CZM" for character in text), ascii(text)


# ---- cases 1 to 5


def test_empty_text_is_no_token_or_the_two_special_tokens() -> None:
    assert read("bytes", "").tokens == ()
    assert [(t.text, t.special) for t in read("words", "").tokens] == [("[CLS]", True), ("[SEP]", True)]
    assert [(t.text, t.special) for t in read("sentence", "").tokens] == [("</s>", True)]


def test_a_model_without_tokens_of_its_own_asks_for_text(loaded: Loaded) -> None:
    with pytest.raises(BadText, match="Type something: llama"):
        loaded("llama").prompt("")
    assert loaded("bert").prompt("").n_tokens == 2


@pytest.mark.parametrize("text", [" ", "   ", "\n", "\t", " \n\t \r\n  ", "\u00a0", "\u3000\u3000", "\u2003"])
def test_whitespace_becomes_glyphs(tokenizer: Any, text: str) -> None:
    encoded = encode(tokenizer, text, None, FAR)
    for token in encoded.tokens:
        assert_readable(token)


def test_each_kind_of_whitespace_has_its_own_glyph() -> None:
    assert len({visible(space) for space in " \n\t\r\u00a0\u3000\u2003"}) == 7
    assert [token.text for token in read("bytes", "\n\t").tokens] == ["⏎", "⇥"]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_one_token_is_one_label(name: str) -> None:
    assert [token.label for token in typed_part(read(name, "the"))] == ["the"]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_repeated_words_stay_tokens_of_their_own(name: str) -> None:
    labels = [token.label for token in typed_part(read(name, REPEATED))]
    assert labels == REPEATED.split()


def test_the_leading_space_is_in_the_tooltip_only() -> None:
    assert [(token.text, token.raw) for token in read("bytes", "the cat").tokens] == [("the", "the"), ("cat", "␣cat")]


def test_1100_tokens_on_a_limit_of_1024_are_counted_and_cut() -> None:
    words = ["the" if i % 2 else "cat" for i in range(1098)]
    encoded = read("bytes", " ".join(["the", *words, "door"]), limit=1024)
    assert (encoded.total, len(encoded.tokens)) == (1100, 1024)
    assert encoded.cut_from.startswith(" ".join(words[1023:1026]))
    assert [token.text for token in encoded.tokens] == ["the", *words[:1023]]


def test_600_tokens_on_a_limit_of_512_keep_their_special_tokens() -> None:
    encoded = read("words", " ".join(["cat"] * 505 + ["door"] * 93), limit=512)
    assert (encoded.total, len(encoded.tokens)) == (600, 512)
    assert (encoded.tokens[0].text, encoded.tokens[-1].text) == ("[CLS]", "[SEP]")
    assert [token.text for token in encoded.tokens[1:-1]] == ["cat"] * 505 + ["door"] * 5
    assert encoded.cut_from.startswith("door")


def test_a_text_that_fits_is_not_cut_and_the_tokenizer_forgets_the_last_limit() -> None:
    read("bytes", REPEATED, limit=3)
    encoded = read("bytes", REPEATED, limit=9)
    assert (encoded.total, len(encoded.tokens), encoded.cut_from) == (9, 9, "")


# ---- cases 6 and 7: characters in pieces


@pytest.mark.parametrize("name", BYTES)
def test_a_chinese_character_in_pieces_is_shown_whole_and_numbered(name: str) -> None:
    tokens = typed_part(read(name, "猫"))
    bytes_alone = [token for token in tokens if token.text == "猫"]
    assert [token.piece for token in bytes_alone] == [(1, 3), (2, 3), (3, 3)]
    assert [token.label for token in bytes_alone] == ["猫₁", "猫₂", "猫₃"]


@pytest.mark.parametrize("name", BYTES)
def test_a_chinese_sentence_has_no_replacement_character_and_decodes_to_itself(name: str) -> None:
    text = "法国的首都是巴黎，猫追老鼠。"
    encoded = read(name, text)
    assert TOKENIZERS[name]().decode(encoded.ids, skip_special_tokens=True).strip() == text
    for token in encoded.tokens:
        assert_readable(token)
    characters = [token.text for token in typed_part(encoded) if token.piece is None or token.piece[0] == 1]
    assert "".join(characters).strip("␣") == text


def test_an_unknown_word_keeps_what_was_typed_in_its_tooltip() -> None:
    unknown = [token for token in read("words", "cat 猫追 door").tokens if token.text == "[UNK]"]
    assert [token.raw for token in unknown] == ["猫追"]
    assert not any(token.special or token.typed for token in unknown)


EMOJI = {
    "family": "👨‍👩‍👧‍👦",
    "flags": "🇫🇷🇩🇪",
    "flag of England": "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "skin tone": "👍🏽",
    "heart": "❤️",
    "keycap": "1️⃣",
    "accent": "e\u0301",
    "devanagari": "क्षि",
    "all": "a👩🏽‍🚀 b🇯🇵🇧🇷c❤️‍🔥",
}


@pytest.mark.parametrize("text", EMOJI.values(), ids=EMOJI)
@pytest.mark.parametrize("name", BYTES)
def test_emoji_labels_are_whole_clusters_numbered_without_gaps(name: str, text: str) -> None:
    encoded = read(name, text)
    assert TOKENIZERS[name]().decode(encoded.ids, skip_special_tokens=True).strip() == text
    clusters = [cluster for cluster in regex.findall(r"\X", text) if cluster != " "]
    tokens = [token for token in typed_part(encoded) if token.text not in "␣"]
    for token in tokens:
        assert_readable(token)
        assert "".join(c for c in regex.findall(r"\X", token.text) if c in clusters) == token.text.strip("␣")
    whole = [token.text.strip("␣") for token in tokens if token.piece is None or token.piece[0] == 1]
    assert "".join(whole) == "".join(clusters)
    started = 0
    for token in tokens:
        if token.piece is not None:
            assert token.piece[0] == (1 if started == 0 else started + 1)
            started = 0 if token.piece[0] == token.piece[1] else token.piece[0]
    assert started == 0


@given(st.text(max_size=40))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_text_has_one_readable_label_a_token_and_decodes_to_itself(text: str) -> None:
    for name in TOKENIZERS:
        encoded = read(name, text)
        assert len(encoded.tokens) == len(encoded.ids) == encoded.total
        for token in encoded.tokens:
            assert token.text and token.raw and "\ufffd" not in token.label
            assert not any(character.isspace() or unicodedata.category(character) == "Cc" for character in token.label)
    assert TOKENIZERS["bytes"]().decode(read("bytes", text).ids, clean_up_tokenization_spaces=False) == text


def test_broken_bytes_are_shown_as_hex() -> None:
    tokenizer = TOKENIZERS["bytes"]()
    first_byte = read("bytes", "猫").ids[0]
    assert [token.text for token in describe(tokenizer, [first_byte])] == ["⟨E7⟩"]


def test_ids_without_a_string_have_a_label_too() -> None:
    (token,) = describe(TOKENIZERS["bytes"](), [5000])
    assert token.text == "⟨5000⟩"


# ---- case 8: special tokens


def test_a_typed_special_token_is_told_apart_from_an_added_one() -> None:
    tokens = read("words", "cat [MASK] [SEP] <s>").tokens
    flags = [(token.text, token.special, token.typed) for token in tokens if token.special or token.typed]
    assert flags == [
        ("[CLS]", True, False), ("[MASK]", False, True), ("[SEP]", False, True), ("[SEP]", True, False),
    ]  # fmt: skip
    (end,) = [token for token in read("bytes", "cat <|endoftext|> door").tokens if token.typed]
    assert end.text == "<|endoftext|>" and not end.special
    assert [token.text for token in read("sentence", "cat </s>").tokens if token.typed] == ["</s>"]


def test_text_that_only_looks_like_a_special_token_is_text() -> None:
    assert not any(token.typed for name in BYTES for token in read(name, "[MASK] [SEP] <s>").tokens)


def test_an_unknown_word_is_not_a_typed_special_token() -> None:
    assert not any(token.typed for token in read("words", "猫 Ω door").tokens)


def test_a_typed_separator_does_not_shift_where_sentence_two_starts() -> None:
    encoded = read("words", "the [SEP] cat", "saw the [SEP] door")
    texts = [token.text for token in encoded.tokens]
    assert texts == ["[CLS]", "the", "[SEP]", "cat", "[SEP]", "saw", "the", "[SEP]", "door", "[SEP]"]
    assert [token.segment for token in encoded.tokens] == [0] * 5 + [1] * 5
    assert encoded.segments == (0,) * 5 + (1,) * 5
    assert [place for place, token in enumerate(encoded.tokens) if token.typed] == [2, 7]


def test_an_empty_second_sentence_is_no_sentence() -> None:
    assert read("words", "cat", "") == read("words", "cat")


# ---- where words join


def test_pieces_of_one_word_are_joined_and_words_are_not() -> None:
    tokens = typed_part(read("words", "didn't the doordoor"))
    joined = {token.text: token.joined for token in tokens}
    assert not tokens[0].joined and not joined["the"] and not joined["door"]
    assert joined["'"] and joined["t"]
    assert all(token.joined for token in tokens if token.text.startswith("##"))
    assert [token.joined for token in read("bytes", "the cats").tokens][:2] == [False, False]
    assert read("bytes", "the cats").tokens[-1].joined


# ---- characters that would hide or turn the text


@pytest.mark.parametrize("hidden", ["\x00", "\x07", "\x1b", "\u200b", "\u200e", "\u202e", "\u2066", "\u2069", "\ufeff"])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_control_and_direction_characters_are_spelled_out(name: str, hidden: str) -> None:
    for token in read(name, f"cat {hidden}door{hidden}").tokens:
        assert hidden not in token.label and hidden not in token.raw
        assert_readable(token)
    assert visible(hidden) == f"U+{ord(hidden):04X}"


def test_a_joiner_alone_is_spelled_out() -> None:
    assert [token.text for token in read("bytes", "\u200d").tokens][0] == "U+200D"


def test_markup_stays_text() -> None:
    text = "</script><script>alert(1)</script> <b>&\"'"
    assert "".join(token.raw.replace("␣", " ") for token in read("bytes", text).tokens) == text


@pytest.mark.parametrize("text", ["שלום", "مرحبا", "123 שלום", "«سلام»", "…ا"])
def test_right_to_left_words_are_known(text: str) -> None:
    assert is_right_to_left(text)


@pytest.mark.parametrize("text", ["hello", "123", "", "U+202E", "hello שלום", "猫", "«»"])
def test_other_words_are_not_right_to_left(text: str) -> None:
    assert not is_right_to_left(text)


def test_a_typed_unknown_token_is_named_but_an_unknown_word_is_not() -> None:
    typed, unknown = typed_part(read("words", "[UNK] 龘"))
    assert typed.typed and not unknown.typed and unknown.raw == "龘"


def test_the_part_that_was_cut_begins_with_a_whole_character() -> None:
    for limit in range(4, 12):
        assert "\ufffd" not in read("bytes", "天气很好" * 20, limit=limit).cut_from
