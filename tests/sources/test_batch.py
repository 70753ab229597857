"""A padded batch: rows filled up on either side, positions that follow the mask, tokens that say where padding is."""

from collections.abc import Callable

import pytest
import torch

from tests.conftest import Loaded
from tfviz.config import Settings
from tfviz.errors import BadText, TfvizError
from tfviz.sources.base import LoadedModel
from tfviz.sources.batch import MAX_TOKENS, PAD, make_batch, read_rows
from tfviz.sources.resident import Resident

TEXT = ("The animal didn't cross the street", None)


@pytest.fixture(scope="module")
def dates() -> LoadedModel:
    return Resident(Settings.from_environment({"TFVIZ_DEVICE": "cpu"})).get("dates", "fp32")


def batch_of(model: LoadedModel, *lines: str, side: str = "right"):  # type: ignore[no-untyped-def]
    return make_batch(model, read_rows(model, model.prompt(*TEXT), TEXT, lines), side)


@pytest.mark.parametrize("side", ["right", "left"])
def test_short_rows_are_filled_up_on_that_side(loaded: Loaded, side: str) -> None:
    model = loaded("llama")
    batch = batch_of(model, "the cat", "", side=side)
    ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    for row, prompt in enumerate(batch.prompts):
        own = [] if prompt is None else prompt.inputs["input_ids"][0].tolist()
        blank = ids.shape[1] - len(own)
        ones, zeros = [1] * len(own), [0] * blank
        assert mask[row].tolist() == (ones + zeros if side == "right" else zeros + ones)
        assert ids[row][mask[row] == 1].tolist() == own
        assert [token.text == PAD for token in batch.source.tokens[row]] == (mask[row] == 0).tolist()
    assert batch.prompts[2] is None and batch.source.padding[2].all()


@pytest.mark.parametrize("name, first", [("llama", 0), ("gpt2", 0), ("bert", 0), ("roberta", 2)])
def test_positions_count_real_tokens_from_where_the_model_starts(loaded: Loaded, name: str, first: int) -> None:
    batch = batch_of(loaded(name), "the cat", side="left")
    for row, prompt in enumerate(batch.prompts):
        assert prompt is not None
        real = batch.inputs["position_ids"][row][batch.inputs["attention_mask"][row] == 1]
        assert real.tolist() == [first + place for place in range(prompt.n_tokens)]


def test_a_model_that_takes_no_positions_gets_none(loaded: Loaded, dates: LoadedModel) -> None:
    assert "position_ids" not in batch_of(loaded("bart"), "cat").inputs
    assert "position_ids" not in batch_of(dates, "2024").inputs


def test_both_sides_of_an_encoder_decoder_are_filled_up(dates: LoadedModel) -> None:
    batch = batch_of(dates, "5 May 2024", "", side="left")
    assert batch.target is not None and batch.target.padding[2].all()
    written = [0 if prompt is None else len(prompt.target) for prompt in batch.prompts]
    assert batch.inputs["decoder_attention_mask"].sum(dim=1).tolist() == written
    assert batch.sides("cross") == (batch.target, batch.source)
    assert batch.sides("decoder") == (batch.target,) * 2 and batch.sides("encoder") == (batch.source,) * 2


def test_segments_of_a_pair_are_filled_up_too(loaded: Loaded) -> None:
    model = loaded("bert")
    pair, single = model.prompt("the cat", "the door"), model.prompt("cat")
    pair.inputs["token_type_ids"] = torch.tensor([[token.segment for token in pair.source.tokens]])
    single.inputs["token_type_ids"] = torch.zeros(1, single.n_tokens, dtype=torch.long)
    batch = make_batch(model, [pair, single], "left")
    filled = batch.inputs["token_type_ids"]
    assert filled.shape == batch.inputs["input_ids"].shape
    assert filled[0].tolist() == pair.inputs["token_type_ids"][0].tolist() and 1 in filled[0] and not filled[1].any()


def test_long_rows_are_cut_and_say_what_they_were(loaded: Loaded) -> None:
    long = "the cat saw the other cat " * 20
    for prompt in batch_of(loaded("llama"), long).prompts[1:]:
        assert prompt is not None and prompt.n_tokens == MAX_TOKENS < prompt.source.total


@pytest.mark.parametrize(
    "rows, side, said",
    [
        (lambda prompt: [prompt] * 7, "right", "at most 6 sentences"),
        (lambda prompt: [None, None], "right", "Every line is empty"),
        (lambda prompt: [prompt], "top", "side = 'top'"),
    ],
)
def test_what_makes_no_batch_is_refused(loaded: Loaded, rows: Callable, side: str, said: str) -> None:
    model = loaded("gpt2")
    with pytest.raises(TfvizError, match=said) as refused:
        make_batch(model, rows(model.prompt(*TEXT)), side)
    assert isinstance(refused.value, BadText) or side == "top"


@pytest.mark.parametrize(
    "name, kind, windows",
    [
        ("mistral", "self", (4, 4, 4)),
        ("gemma2", "self", (4, None, 4)),
        ("llama", "self", (None, None, None)),
        ("bart", "cross", (None, None)),
    ],
)
def test_windows_are_those_of_the_config(loaded: Loaded, name: str, kind: str, windows: tuple) -> None:
    assert tuple(loaded(name).window(kind, layer) for layer in range(len(windows))) == windows


def test_padding_is_an_id_that_the_model_has(loaded: Loaded, dates: LoadedModel) -> None:
    assert dates.pad_id == dates.model.config.pad_id  # type: ignore[union-attr]
    assert all(0 <= loaded(name).pad_id < loaded(name).n_embeddings for name in ("gpt2", "t5", "bert"))
    assert torch.equal(batch_of(loaded("t5"), "cat").inputs["input_ids"][1, -1:], torch.tensor([loaded("t5").pad_id]))
