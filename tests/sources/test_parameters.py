"""Parameters from a config alone: the published counts, tfviz's conversions to the byte, and texts that mean harm."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Loaded
from tfviz.config import Settings
from tfviz.errors import ModelUnavailable, TfvizError
from tfviz.inference.precision import PRECISIONS, weight_bytes
from tfviz.messages import LANGUAGES
from tfviz.sources import config_file
from tfviz.sources.catalog import CATALOG
from tfviz.sources.config_file import config_text
from tfviz.sources.parameters import model_from, model_of, model_of_entry, weights_of
from tfviz.ui.tabs.speed.memory import CONFIGS

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
PUBLISHED = {"llama2": 6.738e9, "llama3": 8.030e9, "mistral": 7.242e9, "gemma": 9.242e9, "deepseek": 671.0e9}


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_are_the_published_ones(name: str) -> None:
    start = time.perf_counter()
    model = model_from(CONFIGS[name])
    assert model.weights.parameters == pytest.approx(PUBLISHED[name], rel=1e-3)
    assert time.perf_counter() - start < 120  # 0.1 s when the machine is quiet


@pytest.mark.parametrize("name", CATALOG)
def test_the_catalog_counts_the_same(name: str) -> None:
    model = model_of_entry(CATALOG[name])
    assert model.weights.parameters == pytest.approx(CATALOG[name].parameters, rel=1e-3)
    assert sum(model.weights.by_kind().values()) == model.weights.parameters
    assert model.forward.layers and all(layer.heads and layer.hidden for layer, _ in model.forward.layers)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5", "bart"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_bytes_are_those_of_the_conversion(name: str, precision: str, loaded: Loaded) -> None:
    model = loaded(name)
    recipe = PRECISIONS[precision]
    if recipe.unsupported(torch.device("cpu")):
        pytest.skip("this processor has no product for it")
    assert model_of(model).weights.nbytes(precision) == weight_bytes(recipe.convert(model.model))


def test_kinds_and_shapes_of_a_small_llama() -> None:
    model = model_from(json.dumps(LLAMA))
    kinds = model.weights.by_kind()
    assert kinds == {
        "embedding": 6400, "attention": 2 * 4 * 64 * 64, "feed_forward": 2 * 3 * 64 * 128, "norm": 5 * 64, "head": 6400
    }  # fmt: skip
    ((layer, n),) = model.forward.layers
    assert n == 2 and (layer.heads, layer.query, layer.widened, layer.hidden, layer.norms) == (4, 64, 256, 128, 2)
    assert layer.rms and layer.pre and layer.rope == 32 and model.forward.vocabulary == 100 and not model.forward.tied


def test_a_model_type_that_nobody_knows_is_counted_by_a_formula() -> None:
    known, unknown = model_from(json.dumps(LLAMA)), model_from(json.dumps({**LLAMA, "model_type": "nobody"}))
    assert unknown.weights.formula and not known.weights.formula
    assert unknown.weights.by_kind() == known.weights.by_kind()


ODD: list[tuple[str, Any, str]] = [  # entry, value, what the sentence says is allowed
    ("num_hidden_layers", 10**9, "at most 1,000"),
    ("num_hidden_layers", -3, "1 or more"),
    ("hidden_size", -64, "1 or more"),
    ("hidden_size", "64", "whole number"),
    ("hidden_size", [64], "whole number"),
    ("intermediate_size", 10**30, "from 1 to 268,435,456"),
    ("intermediate_size", 0, "from 1 to 268,435,456"),
    ("intermediate_size", True, "from 1 to 268,435,456"),
    ("intermediate_size", "x", "from 1 to 268,435,456"),
    ("intermediate_size", {"a": {"b": {"c": {"d": {}}}}}, "from 1 to 268,435,456"),
    ("vocab_size", 0, "from 1 to 268,435,456"),
    ("vocab_size", 1e300, "from 1 to 268,435,456"),
    ("vocab_size", "100", "from 1 to 268,435,456"),
    ("num_attention_heads", 0, "1 or more"),
    ("hidden_act", 5, "text|activation function"),
    ("tie_word_embeddings", "yes", "true or false"),
    ("architectures", "LlamaForCausalLM", "a list of texts"),
    ("text_config", 5, "an object in braces"),
    ("model_type", 5, "a text of at most"),
    ("_name_or_path", ["a"], "a text of at most"),
]
OF_THE_CLASS: list[tuple[str, Any, str]] = [  # entries that transformers' class alone reads
    ("hidden_act", "x" * 5000, "activation function"),
    ("hidden_act", "nonsense", "activation function"),
    ("mlp_bias", "x", "true or false"),
    ("rms_norm_eps", None, "a number"),
    ("rms_norm_eps", "x", "a number"),
    ("use_cache", "maybe", "true or false"),
    ("vocab_size", None, "from 1 to 268,435,456"),
]


@pytest.mark.parametrize(
    ("kind", "one"), [(k, o) for k in ("llama", "nobody") for o in ODD] + [("llama", o) for o in OF_THE_CLASS]
)
def test_an_odd_entry_is_named_with_its_value_and_what_is_allowed(kind: str, one: tuple[str, Any, str]) -> None:
    name, value, allowed = one
    with pytest.raises(TfvizError, match=allowed) as caught:
        model_from(json.dumps({**LLAMA, "model_type": kind, name: value}))
    for language in LANGUAGES:
        said = caught.value.in_language(language)
        assert name in said and json.dumps(value)[:30] in said and "缓存" not in said


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model_type": "bert", "hidden_size": 63}, "make no model of kind bert"),
        ({"model_type": "nobody", "num_hidden_layers": None}, "num_hidden_layers, which the parameters depend on"),
        ({"num_hidden_layers": None}, "num_hidden_layers is null; it must be a whole number"),
    ],
)
def test_refusals_are_about_the_model_and_not_its_cache(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TfvizError, match=sentence) as caught:
        model_from(json.dumps({**LLAMA, **changes}))
    assert "cache" not in str(caught.value) and "缓存" not in caught.value.in_language("zh")


def test_an_activation_of_a_model_that_nobody_knows_may_be_its_own() -> None:
    own = {**LLAMA, "model_type": "nobody", "hidden_act": "swiglu_of_ours"}
    assert model_from(json.dumps(own)).weights.by_kind()["feed_forward"] == 2 * 3 * 64 * 128


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "[" * 100_000, '{"a": ' + "9" * 5000 + "}", "{}", '{"model_type": "vit"}']
)
def test_what_is_no_config_is_a_sentence(text: str) -> None:
    with pytest.raises(TfvizError):
        model_from(text)


def test_nothing_that_a_text_names_is_looked_up_or_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries beyond the config class's own are left behind, code and other implementations among them."""
    bad = {
        "auto_map": {"AutoModelForCausalLM": "evil.Model"},
        "attn_implementation": "evil/kernels",
        "_attn_implementation": "evil/kernels",
        "quantization_config": {"quant_method": "evil"},
        "get_text_config": 5,
        "num_labels": 10**9,
        "dtype": "evil",
    }
    assert model_from(json.dumps({**LLAMA, **bad})).weights == model_from(json.dumps(LLAMA)).weights


def test_many_layers_and_positions_take_no_time() -> None:
    start = time.perf_counter()
    model_from(json.dumps({**LLAMA, "num_hidden_layers": 80, "hidden_size": 8192, "max_position_embeddings": 1 << 24}))
    assert time.perf_counter() - start < 120


def test_weights_of_a_model_of_ours_are_its_own(loaded: Loaded) -> None:
    model = loaded("llama").model
    assert weights_of(model).nbytes("fp32") == weight_bytes(model)


# ---- where a config.json comes from


def test_a_folder_needs_nothing_but_its_config(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert model_from(config_text(str(tmp_path), settings)).weights.parameters > 0
    assert json.loads(config_text(str(tmp_path / "config.json"), settings)) == LLAMA
    with pytest.raises(ModelUnavailable, match="does not open folders"):
        config_text(str(tmp_path), replace(settings, allow_local=False))
    with pytest.raises(ModelUnavailable):
        config_text(str(tmp_path / "nowhere"), settings)


def test_a_hub_id_is_fetched_where_it_is_allowed(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    fetched: Callable[[str], Path] = lambda repo: tmp_path / "config.json"  # noqa: E731
    monkeypatch.setattr(config_file, "fetched", fetched)
    assert json.loads(config_text("some/model", settings)) == LLAMA
    with pytest.raises(ModelUnavailable):
        config_text("some/model", replace(settings, allow_hub=("other/model",)))
    for odd in ("../etc/passwd", "a b", "https://evil", "a/b/c", "x" * 2000):
        with pytest.raises(ModelUnavailable):
            config_text(odd, replace(settings, allow_local=False))


def test_without_a_hub_a_sentence_says_so(settings: Settings) -> None:
    with pytest.raises(ModelUnavailable, match="cannot be reached"):
        config_text("nobody/has-this", settings)
