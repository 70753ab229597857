"""What uncased BERT never reads is named, character by character; what keeps every byte loses nothing."""

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests import checkpoints
from tests.conftest import Loaded
from tfviz.messages import LANGUAGES
from tfviz.sources.altered import Altered
from tfviz.sources.tokens import Encoded, encode
from tfviz.ui.components.altered import MOST, altered_line
from tfviz.ui.i18n import Translator

MARKS = ("\u0947", "\u094d", "\u0947", "\u0902", "\u0902", "\u094d")  # e, virama, e, anusvara, anusvara, virama
HINDI = "अपने पोस्ट ऑफिस में 420 पदों पर भर्ती"
PIECES = dict(  # of bert-base-uncased, with their ids
    zip(
        "[PAD] [UNK] [CLS] [SEP] ᄋ ##ᅡ ##ᆫ अ ##प ##न प ##ो ##स ##ट म 420 ##द ##र भ ##त ##ी ハ ##ン ##タ mo ##cht ##e "
        "e ##w — in via ##ggio roma ab".split(),
        [0, 100, 101, 102, 1463, 30006, 30021, 1311, 29864, 29863, 1328, 29879, 29874, 29856, 1331, 17442, 29861, 29869]
        + [
            1330,
            29859,
            29878,
            1718,
            30263,
            30235,
            9587,
            10143,
            2063,
            1041,
            2860,
            1517,
            1999,
            3081,
            20650,
            12836,
            11113,
        ],
        strict=True,
    )
)
CASES: list[tuple[str, str, Altered]] = [
    ("안", "ᄋ ##ᅡ ##ᆫ", Altered()),
    (
        HINDI,
        "अ ##प ##न प ##ो ##स ##ट [UNK] म 420 प ##द ##ो प ##र भ ##र ##त ##ी",
        Altered(MARKS),
    ),
    ("パンダ ハンダ", "ハ ##ン ##タ ハ ##ン ##タ", Altered(changed=(("パ", "ハ"), ("ダ", "タ"), ("ダ", "タ")))),
    ("mochte möchte", "mo ##cht ##e mo ##cht ##e", Altered(changed=(("ö", "o"),))),
    (
        "ewww \U000fe4fa — in viaggio Roma",
        "e ##w ##w ##w — in via ##ggio roma",
        Altered(("\U000fe4fa",), lowered=True),
    ),
    ("a\u200db", "ab", Altered(("\u200d",))),
]


def uncased() -> Any:
    tokenizer = Tokenizer(models.WordPiece(PIECES, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 101), ("[SEP]", 102)]
    )
    names = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def read(tokenizer: Any, text: str, second: str | None = None, limit: int = 10_000) -> Encoded:
    return encode(tokenizer, text, second, limit)


@pytest.mark.parametrize("text, pieces, lost", CASES, ids=range(1, 7))
def test_an_uncased_tokenizer_says_what_it_never_read(text: str, pieces: str, lost: Altered) -> None:
    encoded = read(uncased(), text)
    tokens = [token for token in encoded.tokens if not token.special]
    assert [token.id for token in tokens] == [PIECES[piece] for piece in pieces.split()]
    assert [token.label for token in tokens] == pieces.split() and len(set(map(id, tokens))) == len(tokens)
    assert [token.joined for token in tokens] == [piece.startswith("##") for piece in pieces.split()]
    assert encoded.altered == lost
    assert [token.raw for token in tokens if token.text == "[UNK]"] == ["ऑफिस"] * pieces.count("[UNK]")


@pytest.mark.parametrize("text", [case[0] for case in CASES])
def test_what_keeps_every_byte_loses_nothing(text: str) -> None:
    tokenizer = checkpoints.byte_level_tokenizer()
    encoded = read(tokenizer, text)
    assert not encoded.altered and tokenizer.decode(encoded.ids) == text


def test_both_sentences_count_and_only_as_far_as_they_were_read() -> None:
    assert read(uncased(), "ab", "mö").altered == Altered(changed=(("ö", "o"),))
    assert read(uncased(), "ab ab mö", limit=4).altered == Altered()
    assert read(uncased(), "ab [SEP] ab").altered == Altered()  # a special token keeps its capitals


def test_what_makes_no_token_was_dropped() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, []))  # without an unknown token
    assert read(PreTrainedTokenizerFast(tokenizer_object=tokenizer), "axb").altered == Altered(("x",))


def test_a_typed_target_counts_as_well(loaded: Loaded) -> None:
    assert not loaded("t5").prompt("the cat", "le chat").source.altered


@pytest.mark.parametrize("language", LANGUAGES)
def test_one_line_says_which(language: str) -> None:
    t = Translator(language)
    line = altered_line(Altered(MARKS, (("パ", "ハ"),), True), "MiniLM", t)
    assert "◌\u0947 ×2" in line and "◌\u0902 ×2" in line and "パ" in line and "ハ" in line and "MiniLM" in line
    assert t("attention.altered.lowered") in line and "\n" not in line
    assert "U+FE4FA" in altered_line(Altered(("\U000fe4fa",)), "MiniLM", t)
    assert "U+200D" in altered_line(Altered(("\u200d",)), "MiniLM", t)
    many = altered_line(Altered(tuple(map(chr, range(0x300, 0x300 + MOST + 5)))), "MiniLM", t)
    assert many.count("◌") == MOST and "…" in many
    assert altered_line(Altered(), "MiniLM", t) == ""
