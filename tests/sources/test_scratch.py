"""Our own Transformers as models of the page: their tokenizers, their files, and that the switches apply to them."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from tfviz.config import PRESETS, Settings
from tfviz.errors import BadText, ModelUnavailable
from tfviz.inference.precision import PRECISIONS
from tfviz.messages import LANGUAGES
from tfviz.model.attention_call import AttentionCall
from tfviz.sources import scratch
from tfviz.sources.base import LoadedModel
from tfviz.sources.catalog import CATALOG
from tfviz.sources.locate import where
from tfviz.sources.resident import Resident
from tfviz.sources.tokens import encode

CPU = torch.device("cpu")
OURS = [entry.id for entry in CATALOG.values() if entry.ours]
TEXTS = ["Tuesday, 5 March 2024", "2024年3月5日", "5 mars\u00a02024", "de\nfr\tes", "👩‍👩‍👧 ok"]
Ours = Callable[[str], LoadedModel]


@pytest.fixture(scope="module")
def ours() -> Ours:
    return cache(lambda name: scratch.load(CATALOG[name], CPU))


# ---- tokenizers

LETTERS = ["<pad>", "<s>", "</s>", "<unk>", *" ,0123456789MTaceduhrsyö年月日"]


def test_a_character_is_a_token_and_its_id_is_its_place_in_the_vocabulary() -> None:
    tokenizer = scratch.character_tokenizer(LETTERS)
    tokens = encode(tokenizer, "5 März", None, 64).tokens
    assert [token.id for token in tokens] == [LETTERS.index(c) if c in LETTERS else 3 for c in "5 März"]
    assert [token.label for token in tokens] == ["5", "␣", "M", "<unk>", "r", "<unk>"]
    assert tokens[3].raw == "ä"  # what was typed is still told
    assert not any(token.special or token.typed for token in tokens)


def test_typed_special_tokens_are_only_characters() -> None:
    tokenizer = scratch.character_tokenizer(LETTERS)
    for typed in ("<pad>", "</s>", "<s>5<unk>"):
        assert not {0, 1, 2} & set(tokenizer(typed)["input_ids"])
        assert len(tokenizer(typed)["input_ids"]) == len(typed)


def test_ids_of_characters_decode_to_the_text_without_its_special_tokens() -> None:
    tokenizer = scratch.character_tokenizer(LETTERS)
    ids = tokenizer("5 年 3 月")["input_ids"]
    assert tokenizer.decode([1, *ids, 2], skip_special_tokens=True) == "5 年 3 月"


@pytest.mark.parametrize("text", [*TEXTS, "<pad> </s>", "The animal didn't cross the street"])
def test_byte_pairs_decode_to_exactly_the_text(text: str, ours: Ours) -> None:
    model = ours("paper-base")
    ids = model.tokenizer(text)["input_ids"]
    assert model.decode(ids) == text
    assert not {0, 1, 2} & set(ids)


def test_the_byte_pairs_fill_the_vocabulary_of_the_paper(ours: Ours) -> None:
    tokenizer = ours("paper-base").tokenizer
    assert len(tokenizer) == PRESETS["paper-base"].vocab_size == 37_000
    assert sorted(tokenizer.get_vocab().values()) == list(range(37_000))
    words = tokenizer.tokenize("The animal didn't cross the street because it was too tired")
    assert len(words) == 12  # its 11 words, didn't in two


# ---- models


@pytest.mark.parametrize("name", OURS)
def test_the_catalog_tells_the_truth_about_our_models(name: str, ours: Ours, settings: Settings) -> None:
    entry, model = CATALOG[name], ours(name)
    assert (entry.family, entry.parameters) == (model.family, model.n_parameters)
    config = model.model.config
    assert (entry.n_layers, entry.n_heads) == (config.n_decoder_layers, config.n_heads)
    assert where(entry, settings) == "disk"


@pytest.fixture(scope="module")
def resident() -> Resident:
    """Our models, built once for all precisions."""
    return Resident(Settings.from_environment({}), CPU)


@pytest.mark.parametrize("precision", list(PRECISIONS))
@pytest.mark.parametrize("name", OURS)
def test_kernel_and_precision_switches_apply_to_our_models(name: str, precision: str, resident: Resident) -> None:
    exact, model = resident.get(name), resident.get(name, precision)
    prompt = exact.prompt("5 March 2024", "2024-03-05")
    reference = exact.forward(prompt, AttentionCall("naive"))
    outputs = [model.forward(prompt, AttentionCall(kernel)).float() for kernel in ("naive", "flash")]
    bound = (1e-5 if precision == "fp32" else 0.1) * reference.std()
    rounding = bound  # random weights use all of a group's range: 4 bits cost .196, measured, trained ones .039
    if precision == "int4" and model.random:
        rounding = 0.25 * reference.std()
    assert (outputs[0] - outputs[1]).square().mean().sqrt() < bound
    assert (outputs[0] - reference).square().mean().sqrt() < rounding
    assert model.weight_bytes <= exact.weight_bytes and model.n_parameters == exact.n_parameters


def test_random_weights_are_the_same_every_time_and_disturb_no_other_draw() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    one, two = (scratch.load(CATALOG["paper-base"], CPU) for _ in range(2))
    assert torch.equal(torch.rand(3), expected)
    for ours, again in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(ours, again)
    assert one.random and one.n_parameters == 63_045_632


def test_a_model_that_nobody_trained_reads_the_sentence_on_both_sides(ours: Ours) -> None:
    prompt = ours("paper-base").prompt("The animal was tired")
    assert [token.label for token in prompt.target[1:]] == [token.label for token in prompt.source.tokens]
    assert not prompt.target_written


def test_dates_are_written_by_the_model_or_read_from_the_person(ours: Ours) -> None:
    model = ours("dates")
    written = model.prompt("5 March 2024")
    assert written.target_written and model.decode([token.id for token in written.target]) == "2024-03-05"
    typed = model.prompt("5 March 2024", "1999-12-31")
    assert not typed.target_written and model.decode([token.id for token in typed.target]) == "1999-12-31"
    assert [token.id for token in typed.target][:2] == [1, model.tokenizer.convert_tokens_to_ids("1")]


def test_a_target_that_is_too_long_is_cut_and_counted(ours: Ours) -> None:
    model = ours("dates")
    prompt = model.prompt("5 March 2024", "1" * 300)
    assert len(prompt.target) == model.token_limit and prompt.target_total == 301
    assert model.prompt("5 March 2024", "123").target_total == 4


def test_full_width_characters_are_read_as_plain_ones(ours: Ours) -> None:
    model = ours("dates")
    assert model.prompt("２０２４年３月５日").source.ids == model.prompt("2024年3月5日").source.ids


def test_what_the_vocabulary_lacks_stays_visible_in_the_text_of_an_answer(ours: Ours) -> None:
    model = ours("dates")
    ids = [token.id for token in model.prompt("5 March 2024", "1😀").target]
    assert model.decode([*ids, 2]) == "1<unk>"


def test_empty_text_is_a_sentence_and_long_text_is_cut_where_the_model_ends(ours: Ours) -> None:
    model = ours("dates")
    with pytest.raises(BadText):
        model.prompt("")
    cut = model.prompt("5 March 2024 " * 40)
    assert cut.n_tokens == model.token_limit and cut.source.total == 520 and cut.source.cut_from


@pytest.mark.parametrize("text", ["   ", "🎉🎉", "\n\t", "x", "</script><b>", "法国的首都是巴黎"])
def test_whatever_is_typed_runs(text: str, ours: Ours) -> None:
    model = ours("dates")
    prompt = model.prompt(text)
    assert torch.isfinite(model.forward(prompt, AttentionCall("flash"))).all()
    assert all(token.label for token in prompt.source.tokens)


@pytest.mark.parametrize("damage", ["missing", "cut", "other weights"])
def test_a_damaged_checkpoint_is_a_sentence(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import save_file

    whole = (scratch.FOLDER / "dates" / "model.safetensors").read_bytes()
    (tmp_path / "dates").mkdir()
    path = tmp_path / "dates" / "model.safetensors"
    if damage == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "other weights":
        config = '{"vocab_size": 40, "d_model": 8, "n_heads": 2, "d_ff": 8}'
        save_file({"x": torch.zeros(2)}, path, {"config": config, "vocabulary": "[]"})
    monkeypatch.setattr(scratch, "FOLDER", tmp_path)
    with pytest.raises(ModelUnavailable) as caught:
        scratch.load(CATALOG["dates"], CPU)
    for language in LANGUAGES:
        assert CATALOG["dates"].label in caught.value.in_language(language)
