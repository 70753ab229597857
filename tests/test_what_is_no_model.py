"""Checkpoints that load but are not what they claim: random tensors, numbers that are none, a foreign tokenizer."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import ARCHITECTURES, save
from tfviz.config import Settings
from tfviz.errors import BadText, ModelUnavailable, TfvizError, UnsupportedHere
from tfviz.inference.measure import difference
from tfviz.introspection.workbench import Request, Workbench
from tfviz.sources.resident import Resident


def altered(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> str:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def test_a_checkpoint_that_lacks_a_layer_is_refused_rather_than_filled_at_random(
    settings: Settings, tmp_path: Path
) -> None:
    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if ".layers.1." in name]:
            del tensors[name]

    with pytest.raises(ModelUnavailable, match="lack 9 of the tensors"):
        Resident(settings).get(altered(save("llama", tmp_path / "holed"), drop))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_whole_checkpoint_is_called_incomplete(settings: Settings, tmp_path: Path, name: str) -> None:
    assert Resident(settings).get(str(save(name, tmp_path / name))).n_parameters > 0


def test_values_that_are_no_numbers_are_named_with_their_layer_and_never_drawn(
    settings: Settings, tmp_path: Path
) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.self_attn.q_proj.weight"][0, 0] = float("nan")

    bench = Workbench(settings)
    with pytest.raises(UnsupportedHere, match="first in layer 1"):
        bench.trace(Request("the cat", None, altered(save("llama", tmp_path / "nan"), spoil)), overview=True)


def test_an_output_that_is_no_number_never_counts_as_equal() -> None:
    good, bad = torch.randn(4, 7), torch.randn(4, 7)
    bad[2, 3] = float("nan")
    for compared in (difference(good, bad, is_logits=True), difference(bad, bad, is_logits=True)):
        assert compared.max_abs != compared.max_abs and compared.top1 != compared.top1 and compared.kl != compared.kl


def test_equal_infinities_do_not_differ() -> None:
    masked = torch.tensor([[0.0, 1.0, float("-inf")]])
    assert difference(masked, masked.clone(), is_logits=True).max_abs == 0


def test_a_tokenizer_with_more_tokens_than_the_model_is_a_sentence(settings: Settings, tmp_path: Path) -> None:
    folder = save("llama", tmp_path / "small")
    loaded = Resident(settings).get(str(folder))
    loaded.model.set_input_embeddings(torch.nn.Embedding(5, 32))
    with pytest.raises(BadText, match="knows only 5 tokens"):
        loaded.prompt("the cat saw the other cat")


def test_an_unknown_name_is_called_by_its_chinese_word_in_chinese(settings: Settings) -> None:
    with pytest.raises(TfvizError) as refused:
        Resident(settings).get("smollm2-135m", "fp64")
    assert "精度" in refused.value.in_language("zh") and "precision" not in refused.value.in_language("zh")
