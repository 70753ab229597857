"""Parameters from a config alone: the published counts, tfviz's conversions to the byte, and texts that mean harm."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import transformers as hf

from tests.conftest import Loaded
from tests.sources.test_cache_config import QWEN3_VL
from tfviz.config import Settings
from tfviz.errors import ModelUnavailable, TfvizError
from tfviz.inference.cache_size import Packed
from tfviz.inference.memory_plan import plan
from tfviz.inference.memory_shapes import Load
from tfviz.inference.precision import PRECISIONS, weight_bytes
from tfviz.messages import LANGUAGES
from tfviz.sources import config_file
from tfviz.sources.cache_config import shape_of
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


# ---- entries that no class declares, text parts of larger models, layers that differ


def real_count(kind: str, **numbers: Any) -> int:
    """Parameters of the model that transformers builds of these numbers."""
    with torch.device("meta"):
        model = hf.AutoModelForCausalLM.from_config(hf.AutoConfig.for_model(kind, **numbers))
    return sum({id(one): one.numel() for one in model.parameters()}.values())


def count(config: dict[str, Any]) -> int:
    return model_from(json.dumps(config)).weights.parameters


SMALL: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
    "pad_token_id": 0,
}


def test_the_head_dim_of_qwen3_moe_counts() -> None:
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048}
    config |= {"intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48, "head_dim": 128}
    config |= {"num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8}
    assert count({**config, "vocab_size": 151936, "tie_word_embeddings": False}) == 30_532_122_624


@pytest.mark.parametrize("kind", ["qwen2", "qwen3_moe", "phi3", "glm4_moe", "mixtral", "olmo2", "exaone", "starcoder2"])
def test_a_head_dim_that_no_class_declares_counts(kind: str, quiet_transformers: None) -> None:
    narrow = count({"model_type": kind, **SMALL, "head_dim": 12})  # hidden_size / heads
    assert count({"model_type": kind, **SMALL}) == real_count(kind, **SMALL) > narrow


def test_the_head_dim_of_qwen2_counts() -> None:
    config = {"model_type": "qwen2", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28}
    config |= {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
    assert count({**config, "tie_word_embeddings": True}) == 596_157_440


def test_glm_4_5_is_planned_by_its_head_dim() -> None:
    config = {"model_type": "glm4_moe", "hidden_size": 5120, "num_attention_heads": 96, "num_key_value_heads": 8}
    kinds = model_from(json.dumps({**config, "head_dim": 128, "num_hidden_layers": 92})).weights.by_kind()
    assert kinds["attention"] >= 92 * 2 * 5120 * (96 + 8) * 128  # q, o and k, v; biases beside them


@pytest.mark.parametrize(
    ("outer", "inner", "right"),
    [(True, True, 1_720_574_976), (True, None, 1_720_574_976), (False, None, 2_031_739_904)],
)
def test_a_text_part_is_tied_as_the_outer_config_says(outer: bool, inner: bool | None, right: int) -> None:
    text = {name: value for name, value in QWEN3_VL["text_config"].items() if name != "tie_word_embeddings"}
    text |= {} if inner is None else {"tie_word_embeddings": inner}
    model = model_from(json.dumps({**QWEN3_VL, "tie_word_embeddings": outer, "text_config": text}))
    assert model.weights.parameters == right and "tower" in model.cache.remarks
    assert sum(one.nbytes("bf16") for one in model.weights.matrices) == 2 * right
    assert model.forward.vocabulary == 151936 and model.forward.tied is outer


TEXT = {**SMALL, "head_dim": 12, "tie_word_embeddings": False}


@pytest.mark.parametrize(
    ("outer", "twin"),  # models with the same layers as the text part, and a class of their own
    [
        ("qwen3_vl", "qwen3"), ("qwen2_vl", "qwen2"), ("qwen2_5_vl", "qwen2"), ("glm4v", "glm4"),
        ("llava", "llama"), ("gemma3", "gemma3_text"), ("voxtral", "llama"),
    ],
)  # fmt: skip
def test_a_text_part_has_the_parameters_of_a_model_of_its_own(outer: str, twin: str, quiet_transformers: None) -> None:
    wrapped = {"model_type": outer, "text_config": TEXT, "tie_word_embeddings": False}
    if outer in ("gemma3", "voxtral", "llava"):  # of any kind
        wrapped["text_config"] = {**TEXT, "model_type": twin}
    assert count(wrapped) == real_count(twin, **TEXT)


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
def test_a_text_part_that_lies_flat_counts_the_same(kind: str) -> None:
    text = {name: value for name, value in TEXT.items() if name != "head_dim"}
    assert count({"model_type": kind, **text}) == count({"model_type": kind, "text_config": text})
    assert count({"model_type": f"{kind}_text", **text}) == count({"model_type": kind, "text_config": text})


def test_a_text_part_two_levels_down_and_one_inside_an_unknown_model_are_counted() -> None:
    own = count({"model_type": "qwen2", **TEXT, "head_dim": 12})
    thinker = {"text_config": TEXT, "tie_word_embeddings": False}
    assert count({"model_type": "qwen2_5_omni", "thinker_config": thinker}) == own
    untold = {name: value for name, value in TEXT.items() if name != "tie_word_embeddings"}
    inside = {"model_type": "mine", "llm_config": {"model_type": "qwen2", **untold}}
    assert [count({**inside, "tie_word_embeddings": tied}) for tied in (False, True)] == [own, own - 100 * 48]


def test_a_text_part_whose_tower_cannot_be_built_here_is_counted_alone() -> None:
    """Gemma 3n's tower needs a package that is no requirement of tfviz."""
    text = {"model_type": "gemma3n_text", "tie_word_embeddings": True}
    assert count({"model_type": "gemma3n", "text_config": text}) == count(text)


def test_a_mixture_inside_a_model_with_a_tower_is_counted() -> None:
    text = {**TEXT, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    own = count({"model_type": "qwen3_moe", **text})
    assert count({"model_type": "qwen3_vl_moe", "text_config": text, "tie_word_embeddings": False}) == own


GEMMA4 = {
    "vocab_size": 400, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32, "sliding_window": 8, "num_kv_shared_layers": 0,
    "vocab_size_per_layer_input": 400, "hidden_size_per_layer_input": 8,
}  # fmt: skip


def test_layers_whose_heads_differ_are_each_counted(quiet_transformers: None) -> None:
    config = hf.AutoConfig.for_model("gemma4_text", **GEMMA4)
    for pasted in ({"model_type": "gemma4_text", **GEMMA4}, config.to_dict()):
        model = model_from(json.dumps(pasted))
        assert model.weights.parameters == real_count("gemma4_text", **GEMMA4)
        assert sorted({(layer.query, layer.key) for layer, _ in model.forward.layers}) == [(64, 32), (128, 64)]
    with torch.device("meta"):
        loaded = hf.AutoModelForCausalLM.from_config(config)
    held = SimpleNamespace(model=loaded, label="tiny", family="decoder", n_parameters=model.weights.parameters)
    assert model_of(cast(Any, held)) == replace(model, label="tiny", cache=shape_of(cast(Any, held)))


@pytest.mark.parametrize("more", [{}, {"torch_dtype": "bfloat16"}, {"dtype": "float32"}, {"torch_dtype": "auto"}])
def test_the_precision_that_a_config_names_does_not_move_the_count(more: dict[str, Any]) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "vocab_size": 128256}
    config |= {"intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8}
    model = model_from(json.dumps({**config, "tie_word_embeddings": False, **more}))
    assert model.weights.parameters == 70_553_706_496
    assert sum(one.nbytes("fp16") for one in model.weights.matrices) == 141_107_412_992
    for precision in ("fp32", "bf16"):
        parts = plan(model, Load(1, precision=precision, training=True))
        buffers = model.weights.fixed_bytes  # angles of RoPE, beside the 16 bytes a parameter
        assert sum(parts.values()) - parts["activations"] - buffers == 16 * 70_553_706_496


def test_all_experts_count_and_those_in_one_block_stay_floats() -> None:
    config = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096}
    config |= {"intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
    model = model_from(json.dumps({**config, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000}))
    assert model.weights.parameters == 46_702_792_704
    assert model.weights.by_kind()["experts"] == 45_097_156_608
    assert model.weights.nbytes("int4") > 90e9  # memory_picture says why


def test_a_quantised_file_has_the_parameters_of_the_model() -> None:
    config = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
    config |= {"num_attention_heads": 32, "vocab_size": 32000}
    said = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    model = model_from(json.dumps({**config, "quantization_config": said}))
    assert model.weights.parameters == 6_738_415_616 and model.cache.packed == Packed("bitsandbytes", 4)


def test_what_transformers_saves_of_a_mixed_model_is_read() -> None:
    """Infinity stands there as an object, lists of sizes are long, and many entries are null."""
    for kind in ("bamba", "mamba2", "gemma3n_text", "gemma4_text"):
        assert count(json.loads(hf.AutoConfig.for_model(kind).to_json_string(use_diff=False))) > 1e9


@pytest.mark.parametrize(
    ("names", "right"),
    [
        ({"multi_query": True}, 2 * 2 * 64 * (64 + 16)),
        ({"n_head_kv": 2}, 2 * 2 * 64 * (64 + 32)),
        ({"head_size": 32, "num_query_groups": 1}, 2 * 2 * 64 * (4 + 1) * 32),
    ],
)
def test_the_formula_reads_the_names_that_the_cache_reads(names: dict[str, Any], right: int) -> None:
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 64, "hidden_dim": 128, "padded_vocab_size": 100}
    model = model_from(json.dumps({"model_type": "mine", **sizes, **names}))
    kinds = model.weights.by_kind()
    assert kinds["attention"] == right and kinds["feed_forward"] == 2 * 3 * 64 * 128 and kinds["head"] == 6400
    assert sum(2 * (one.key_dim + one.value_dim) * one.n_heads for one in model.cache.layers) > 0


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


def test_a_base_of_rope_inside_a_part_is_no_count() -> None:
    """DBRX has rope_theta among the numbers of its attention."""
    attention = {"kv_n_heads": 2, "rope_theta": 500_000}
    text = {
        "model_type": "dbrx",
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 1,
        "vocab_size": 10,
        "attn_config": attention,
    }
    ffn = {"ffn_hidden_size": 32, "moe_num_experts": 2, "moe_top_k": 1}
    attention_part = 64 * (64 + 2 * 2 * 16) + 64 * 64
    expected = 2 * 10 * 64 + attention_part + 2 * 64 + 2 * 3 * 64 * 32 + 3 * 64
    assert model_from(json.dumps({**text, "ffn_config": ffn})).weights.parameters == expected


def test_a_text_part_inside_another_is_refused_in_a_sentence() -> None:
    text = {"model_type": "gemma3_text", "text_config": {"model_type": "gemma3_text"}}
    with pytest.raises(TfvizError):
        model_from(json.dumps(text))
