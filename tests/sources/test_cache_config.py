"""Reading a config's numbers: the prediction is the real cache's bytes, exactly, for every kind of model; and what is
no config is refused in a sentence."""

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers as hf
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.conftest import Loaded
from tfviz.errors import TfvizError
from tfviz.inference.cache_size import CACHE_PRECISIONS, cache_bytes
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.sources import pasted_config
from tfviz.sources.cache_config import CONFIGS, read_config, shape_from, shape_of, shape_of_entry
from tfviz.sources.catalog import CATALOG
from tfviz.sources.pasted_config import SYNONYMS
from tfviz.ui.tabs.cache.planner import TRIES

Small = dict[str, Any]
FP32 = CACHE_PRECISIONS["fp32"]
BASE: Small = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
GPT: Small = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
LATENT: Small = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
}
EXPERTS: Small = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
GEMMA3: Small = {"head_dim": 16, "sliding_window": 4, "sliding_window_pattern": 3}
GEMMA4: Small = {
    "head_dim": 8,
    "global_head_dim": 16,
    "sliding_window": 4,
    "num_kv_shared_layers": 0,
    "vocab_size_per_layer_input": 64,
    "hidden_size_per_layer_input": 8,
}
SHARED: Small = {
    "head_dim": 8,
    "sliding_window": 4,
    "num_hidden_layers": 10,
    "num_kv_shared_layers": 4,
    "vocab_size_per_layer_input": 64,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 4,
    "activation_sparsity_pattern": [0.0] * 10,
    "intermediate_size": [48] * 10,
}
OPT: Small = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
MODELS: dict[str, tuple[str, Small]] = {  # name -> (model_type, its config)
    "llama": ("llama", BASE),
    "mistral": ("mistral", BASE | {"sliding_window": 4}),
    "mistral, no window": ("mistral", BASE | {"sliding_window": None}),
    "gemma, one KV head": ("gemma", BASE | {"head_dim": 16, "num_key_value_heads": 1}),
    "gemma2": ("gemma2", BASE | {"head_dim": 8, "sliding_window": 4}),
    "gemma3": ("gemma3_text", BASE | GEMMA3),
    "gemma3n": ("gemma3n_text", BASE | SHARED),
    "gemma4": ("gemma4_text", BASE | GEMMA4),
    "qwen2, its window off": ("qwen2", BASE | {"use_sliding_window": False, "sliding_window": 4}),
    "qwen2, its window on": ("qwen2", BASE | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}),
    "qwen3": ("qwen3", BASE | {"head_dim": 16}),
    "gpt-oss": (
        "gpt_oss",
        BASE | {"head_dim": 16, "sliding_window": 4, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "cohere2": ("cohere2", BASE | {"sliding_window": 4, "sliding_window_pattern": 2}),
    "llama4, chunks": (
        "llama4_text",
        BASE | {"head_dim": 8, "attention_chunk_size": 4, "num_local_experts": 2, "intermediate_size_mlp": 48},
    ),
    "deepseek-v2": ("deepseek_v2", BASE | LATENT | EXPERTS),
    "deepseek-v3": ("deepseek_v3", BASE | LATENT | EXPERTS),
    "minicpm3": ("minicpm3", BASE | LATENT),
    "falcon, one KV head": ("falcon", {k: BASE[k] for k in ("vocab_size", "hidden_size", "num_attention_heads")}),
    "starcoder, one KV head": ("gpt_bigcode", GPT),
    "gpt2": ("gpt2", GPT),
    "opt": ("opt", OPT | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "bloom": ("bloom", {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "jamba, mostly Mamba": (
        "jamba",
        BASE | {"num_experts": 2, "attn_layer_period": 3, "attn_layer_offset": 1, "mamba_d_state": 4},
    ),
    "lfm2, mostly convolutions": ("lfm2", BASE | {"full_attn_idxs": [1, 3], "block_auto_adjust_ff_dim": False}),
    "t5": (
        "t5",
        {
            "vocab_size": 64,
            "d_model": 32,
            "d_kv": 16,
            "d_ff": 48,
            "num_layers": 3,
            "num_decoder_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
    ),
    "bart": (
        "bart",
        {
            "vocab_size": 64,
            "d_model": 32,
            "encoder_layers": 3,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 64,
        },
    ),
}
TOKENS, SOURCE, ROWS = 7, 5, 2
GEMMA4_48B: Small = {  # hidden sizes are stand-ins: a cache does not depend on them
    "model_type": "gemma4_text",
    "num_hidden_layers": 48,
    "hidden_size": 3840,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "sliding_window": 1024,
    "num_kv_shared_layers": 0,
    "max_position_embeddings": 131072,
}
GPT_OSS: Small = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
}
DEEPSEEK_V3: Small = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
}
QWEN3_VL: Small = {  # Qwen3-VL-2B
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "model_type": "qwen3_vl",
    "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_vl_text",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-06,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000000, "mrope_section": [24, 20, 20]},
    },
    "vision_config": {"model_type": "qwen3_vl", "depth": 24, "hidden_size": 1024, "num_heads": 16},
}


def measured(config: Any) -> int:
    """Bytes of keys and values of the cache that a real forward pass of a random model fills."""
    torch.manual_seed(0)
    auto: Any = hf.AutoModelForSeq2SeqLM if config.is_encoder_decoder else hf.AutoModelForCausalLM
    model = auto.from_config(config).eval()
    ids = torch.randint(2, 60, (ROWS, TOKENS))
    inputs = {"input_ids": ids}
    if config.is_encoder_decoder:
        inputs = {"input_ids": torch.randint(2, 60, (ROWS, SOURCE)), "decoder_input_ids": ids}
    with torch.no_grad():
        output = model(**inputs, use_cache=True)
    cache = output["cache"] if "cache" in output else output["past_key_values"]
    parts = [cache.self_attention_cache, cache.cross_attention_cache] if config.is_encoder_decoder else [cache]
    tensors = [getattr(layer, name, None) for part in parts for layer in part.layers for name in ("keys", "values")]
    return sum(one.numel() * one.element_size() for one in tensors if one is not None)


@pytest.mark.parametrize("name", MODELS)
def test_the_prediction_is_the_real_cache(name: str, quiet_transformers: None) -> None:
    kind, numbers = MODELS[name]
    config = hf.AutoConfig.for_model(kind, **numbers)
    real = measured(config)
    pasted = read_config(json.dumps(config.to_dict()))  # as transformers saves it
    short = shape_from({"model_type": kind, **numbers})  # as people write it
    for shape in (pasted, short):
        assert cache_bytes(shape, TOKENS, ROWS, FP32, SOURCE) == real > 0
    assert not {"guessed"} & {*pasted.remarks, *short.remarks}


def test_layers_that_read_anothers_cache_and_states_are_said() -> None:
    shared = shape_from({"model_type": "gemma3n_text", **MODELS["gemma3n"][1]})
    assert [layer.kind for layer in shared.layers].count("shared") == 4
    assert "state" in shape_from({"model_type": "jamba", **MODELS["jamba, mostly Mamba"][1]}).remarks
    assert "latent" in shape_from({"model_type": "deepseek_v3", **MODELS["deepseek-v3"][1]}).remarks


def test_a_text_model_inside_another_is_found() -> None:
    inside = {"num_hidden_layers": 3, "sliding_window": 1024, "model_type": "gemma3_text"}
    shape = shape_from({"model_type": "gemma3", "text_config": inside, "vision_config": {"num_hidden_layers": 27}})
    assert len(shape.layers) == 3 and shape.layers[0].window == 1024 and shape.layers[0].key_dim == 256
    unknown = shape_from({"model_type": "new_vision", "text_config": {"model_type": "llama", **BASE}})
    assert len(unknown.layers) == 6 and unknown.layers[0].n_heads == 2


@pytest.mark.parametrize("kind", ["bert", "roberta", "albert", "distilbert"])
def test_encoders_have_no_cache(kind: str) -> None:
    shape = shape_from({"model_type": kind})
    assert shape.family == "encoder" and not shape.layers


def test_roberta_counts_its_positions_from_after_the_padding() -> None:
    assert [shape_from({"model_type": kind}).limit for kind in ("bert", "roberta")] == [512, 512 - 2]
    assert shape_from({"model_type": "roberta", "max_position_embeddings": 514}).limit == 512


def test_a_mark_of_the_byte_order_before_the_text_is_passed_over() -> None:
    assert read_config("\ufeff" + json.dumps({"model_type": "bert"})).label == "bert"


def test_a_bert_that_decodes_has_one() -> None:
    assert shape_from({"model_type": "bert", "is_decoder": True}).family == "decoder"


def test_an_unknown_model_type_is_read_by_the_usual_names() -> None:
    own = {"model_type": "mine", "n_layer": 4, "n_head": 4, "n_embd": 32, "n_positions": 99}
    shape = shape_from(own)
    assert [(one.n_heads, one.key_dim) for one in shape.layers] == [(4, 8)] * 4
    assert shape.limit == 99 and "guessed" in shape.remarks
    hybrid = shape_from({**own, "num_kv_heads": 2, "sliding_window": 6, "sliding_window_pattern": 2})
    assert [one.kind for one in hybrid.layers] == ["sliding", "full"] * 2
    off = shape_from({**own, "sliding_window": 6, "use_sliding_window": False})
    assert {one.kind for one in off.layers} == {"full"}


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "not JSON"),
        ("hello", "not JSON"),
        ("{'a': 1}", "not JSON"),
        ("[" * 50_000, "nested too deeply"),
        ('{"num_hidden_layers": ' + "9" * 5000 + "}", "too many digits"),
        ('{"text_config": ' * 900 + "{}" + "}" * 900, "no num_hidden_layers"),
        ("[1, 2]", "this is a list"),
        ("7", "this is a number"),
        ("null", "this is null"),
        ('"x"', "a text in quotes"),
        ("true", "this is true or false"),
        ("{not json", "at line 1, letter 2"),
        ('{"num_attention_heads": 0}', "it must be a whole number, 1 or more."),
        ("{}", "no num_hidden_layers"),
        ('{"num_hidden_layers": 2}', "no num_attention_heads"),
        ('{"num_hidden_layers": 2, "num_attention_heads": 4}', "no hidden_size"),
        ('{"num_hidden_layers": -2}', "num_hidden_layers is -2"),
        ('{"num_hidden_layers": 1e9}', "num_hidden_layers is 1000000000.0"),
        ('{"num_hidden_layers": 1000000}', "at most 1,000"),
        ('{"num_hidden_layers": true}', "num_hidden_layers is true"),
        ('{"num_hidden_layers": "12"}', 'num_hidden_layers is "12"'),
        ('{"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 99999999999999}', "hidden_size is"),
        ('{"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 30}', "does not divide by 4"),
        (
            '{"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "num_key_value_heads": 3}',
            "cannot share",
        ),
        (
            '{"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "layer_types": "all"}',
            "layer_types is",
        ),
        (
            '{"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "layer_types": ["odd", "odd"]}',
            '"odd"',
        ),
        ('{"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "layer_types": ["conv"]}', "length 1"),
        ('{"num_hidden_layers": 2, "is_decoder": "yes"}', "true or false"),
        ('{"model_type": "nemotron3_5_asr"}', "make no config of nemotron3_5_asr"),
        ('{"model_type": "deepseek_v4"}', "not known here"),
        ('{"model_type": "llama", "num_attention_heads": 7}', "In its words: The hidden size"),
        ('{"model_type": "gemma3_text", "sliding_window_pattern": "LLG"}', "make no config of gemma3_text"),
        ('{"model_type": "llama", "text_config": {"a": 1}}', "make no config of llama"),
        ('{"model_type": "llama", "layer_types": ["odd"]}', "llama"),
        ('{"num_hidden_layers": NaN}', "num_hidden_layers is NaN"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(TfvizError) as error:
        read_config(text)
    assert said in str(error.value) and error.value.in_language("zh") != str(error.value)


def test_a_text_beyond_the_limit_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pasted_config.json, "loads", lambda text: pytest.fail("parsed"))
    with pytest.raises(TfvizError, match="200,000"):
        read_config(" " * 200_001)


def test_a_pasted_text_names_no_file_that_would_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.open", lambda *args, **more: pytest.fail(f"opened {args[0]}"))
    read_config(json.dumps({"model_type": "llama", **BASE}))  # its config class is loaded already
    odd = {"auto_map": {"AutoConfig": "evil--code"}, "_name_or_path": "/etc/passwd", "config": "http://127.0.0.1/"}
    assert read_config(json.dumps({"model_type": "llama", **BASE, **odd})).label == "/etc/passwd"


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral", "gemma2", "gpt2", "t5", "bart", "marian", "bert-mlm"])
def test_a_loaded_model_gives_its_own_numbers(name: str, loaded: Loaded) -> None:
    model = loaded(name)
    shape = shape_of(model)
    assert shape.n_parameters == model.n_parameters and shape.family == model.family
    config: Any = model.model.config
    if shape.family != "encoder":
        with attention_call(AttentionCall("naive")):
            assert cache_bytes(shape, TOKENS, ROWS, FP32, SOURCE) == measured(config)


# ---- the catalog's numbers


@pytest.mark.parametrize(
    "name", [name for name, entry in CATALOG.items() if entry.family != "encoder" and not entry.ours]
)
def test_the_catalogs_numbers_are_those_of_its_parameter_count(name: str) -> None:
    """A model of these numbers, and of the sizes that do not matter to a cache, has as many parameters as it should."""
    sizes: Mapping[str, Small] = {
        "smollm2-135m": {"vocab_size": 49152, "intermediate_size": 1536, "tie_word_embeddings": True},
        "HuggingFaceTB/SmolLM2-360M": {"vocab_size": 49152, "intermediate_size": 2560, "tie_word_embeddings": True},
        "Qwen/Qwen3-0.6B": {"vocab_size": 151936, "intermediate_size": 3072, "tie_word_embeddings": True},
        "google-t5/t5-small": {"vocab_size": 32128, "d_ff": 2048},
        "google/flan-t5-small": {"vocab_size": 32128, "d_ff": 1024, "feed_forward_proj": "gated-gelu"},
        "Helsinki-NLP/opus-mt-en-zh": {"vocab_size": 65001, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048},
        "facebook/bart-base": {"vocab_size": 50265, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072},
    }
    more = dict(CONFIGS[name])
    config = hf.AutoConfig.for_model(more.pop("model_type"), **more, **sizes.get(name, {}))
    auto: Any = hf.AutoModelForSeq2SeqLM if config.is_encoder_decoder else hf.AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config)
    count = sum({id(p): math.prod(p.shape) for p in model.parameters()}.values())
    own_head = 32128 * 512 if name == "google/flan-t5-small" else 0  # not tied there; transformers' config ties it
    assert count + own_head == CATALOG[name].parameters
    assert config.get_text_config(decoder=True).num_hidden_layers == CATALOG[name].n_layers
    assert config.num_attention_heads == CATALOG[name].n_heads


@pytest.mark.parametrize("name", CATALOG)
def test_every_entry_of_the_catalog_can_be_planned(name: str) -> None:
    shape = shape_of_entry(CATALOG[name])
    assert shape.family == CATALOG[name].family and shape.n_parameters == CATALOG[name].parameters
    assert bool(shape.layers) == (shape.family != "encoder")


@pytest.mark.parametrize(
    "key, per_token, window",
    [("llama2", 524_288, None), ("llama3", 131_072, None), ("mistral", 0, 4096), ("gemma", 172_032, 4096)],
)
def test_the_examples_take_what_is_known_of_them(key: str, per_token: int, window: int | None) -> None:
    one = next(one for one in TRIES if one.key == key)
    shape = read_config(one.values["config"])
    assert cache_bytes(shape, 30_001) - cache_bytes(shape, 30_000) == per_token
    assert shape.layers[0].window == window and not shape.remarks


@pytest.mark.parametrize(
    "key, more",
    [
        ("llama2", {"vocab_size": 32000, "intermediate_size": 11008}),
        ("llama3", {"vocab_size": 128256, "intermediate_size": 14336}),
        ("mistral", {"vocab_size": 32000, "intermediate_size": 14336}),
        ("gemma", {"vocab_size": 256000, "intermediate_size": 14336}),
    ],
)
def test_the_examples_have_their_parameters(key: str, more: Small) -> None:
    one = next(one for one in TRIES if one.key == key)
    numbers = json.loads(one.values["config"])
    kind = numbers.pop("model_type")
    assert kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    with torch.device("meta"):
        model = hf.AutoModelForCausalLM.from_config(hf.AutoConfig.for_model(kind, **{**numbers, **more}))
    count = sum({id(p): math.prod(p.shape) for p in model.parameters()}.values())
    assert count == pytest.approx(1e9 * one.values["parameters"], rel=1e-3)


# ---- sizes by other names, switches, and numbers derived by hand

UNKNOWN: Small = {"model_type": "mine", "n_layer": 24, "n_head": 16, "n_embd": 2048}


@pytest.mark.parametrize(
    ("more", "kv_heads"),
    [
        ({}, 16),
        ({"multi_query": True}, 1),
        ({"multi_query": False}, 16),
        ({"multi_query_attention": True}, 1),
        ({"multi_query_attention": True, "multi_query_group_num": 2}, 2),
        ({"multi_query_attention": False, "multi_query_group_num": 2}, 16),
        ({"multi_query": True, "n_head_kv": 4}, 4),
        ({"attn_config": {"kv_n_heads": 4}}, 4),
        *(({name: 4}, 4) for name in SYNONYMS["num_key_value_heads"] if name != "multi_query_group_num"),
    ],
)
def test_key_value_heads_of_an_unknown_type_by_a_switch_or_any_usual_name(more: Small, kv_heads: int) -> None:
    assert cache_bytes(shape_from({**UNKNOWN, **more}), 8192) == 24 * kv_heads * 128 * 2 * 2 * 8192


@pytest.mark.parametrize(("name", "other"), [(name, other) for name, others in SYNONYMS.items() for other in others])
def test_every_size_of_an_unknown_type_is_read_by_each_of_its_names(name: str, other: str) -> None:
    sizes: Small = {
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "hidden_size": 64,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "sliding_window": 32,
    }
    usual = shape_from(sizes)
    assert shape_from({other if one == name else one: value for one, value in sizes.items()}) == usual
    assert (len(usual.layers), usual.limit, usual.n_query_heads) == (4, 512, 8)
    assert {(one.n_heads, one.key_dim, one.window) for one in usual.layers} == {(2, 16, 32)}


def test_layers_of_an_unknown_type_may_differ() -> None:
    shape = shape_from({**UNKNOWN, "n_layer": 3, "head_dim": 64, "per_layer_config": {"01": {"head_dim": 256}}})
    assert [layer.key_dim for layer in shape.layers] == [64, 256, 64]


@pytest.mark.parametrize(
    ("config", "context", "batch", "right"),
    [  # shared cases: 2 x heads x head_dim x 2 bytes a layer, windows hold w - 1
        ({"model_type": "gpt2"}, 8192, 1, 301_989_888),
        (
            {"model_type": "glm4_moe", "hidden_size": 5120, "num_attention_heads": 96, "num_key_value_heads": 8}
            | {"head_dim": 128, "num_hidden_layers": 92},
            1,
            1,
            376_832,
        ),
        (GEMMA4_48B, 1, 1, 344_064),
        (GEMMA4_48B, 32_768, 1, 872_087_552),
        (GPT_OSS | {"num_hidden_layers": 36}, 1, 1, 73_728),
        (GPT_OSS | {"num_hidden_layers": 24}, 8192, 32, 6_542_327_808),
        ({"model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64}
         | {"num_key_value_heads": 8}, 1, 1, 327_680),
        ({"model_type": "mixtral"}, 1, 1, 131_072),
        (DEEPSEEK_V3, 1, 1, 70_272),
        (DEEPSEEK_V3, 65_536, 1, 4_605_345_792),
    ],
)  # fmt: skip
def test_bytes_are_those_derived_by_hand(config: Small, context: int, batch: int, right: int) -> None:
    assert cache_bytes(shape_from(config), context, batch) == right


def test_two_head_widths_in_one_cache() -> None:
    shape = shape_from(GEMMA4_48B)
    assert [(one.n_heads, one.key_dim) for one in shape.layers[4:6]] == [(8, 256), (1, 512)]
    assert cache_bytes(shape, 5001) - cache_bytes(shape, 5000) == 16_384
    without = shape_from(GEMMA4_48B | {"attention_k_eq_v": False})
    assert (without.layers[5].n_heads, without.layers[5].key_dim) == (8, 512)


def test_latents_in_four_bits_and_unfolded() -> None:
    shape = shape_from(DEEPSEEK_V3)
    assert cache_bytes(shape, 65_536, 1, CACHE_PRECISIONS["int4"]) == 1_439_170_560
    assert 2 * sum(layer.unfolded for layer in shape.layers) == 4_997_120 and "latent" in shape.remarks


@pytest.mark.parametrize("config", [{"model_type": "mistral", **BASE}, {"model_type": "mine", **BASE}, GEMMA3 | BASE])
def test_a_window_of_zero_is_no_window(config: Small) -> None:
    shape = shape_from(config | {"sliding_window": 0})
    assert all(layer.window is None for layer in shape.layers) and "windowless" in shape.remarks
    assert cache_bytes(shape, 1) > 0
    with pytest.raises(TfvizError, match="sliding_window is -1"):
        shape_from(config | {"sliding_window": -1})


def test_a_window_of_zero_that_transformers_itself_writes_is_none() -> None:
    saved = hf.AutoConfig.for_model("qwen2_moe", **BASE).to_dict()
    assert saved["sliding_window"] == 0
    assert all(layer.window is None for layer in read_config(json.dumps(saved)).layers)


def test_an_entry_that_the_models_code_does_not_read_changes_nothing() -> None:
    assert shape_from({"model_type": "gpt2", "head_dim": 128, "num_key_value_heads": 2}).layers == (
        shape_from({"model_type": "gpt2"}).layers
    )


@pytest.mark.parametrize("more", [{}, {"text_config": {"tie_word_embeddings": None}}, {"tie_word_embeddings": False}])
def test_the_text_part_of_a_model_with_a_tower_is_planned_and_the_tower_is_said(more: Small) -> None:
    text = {**QWEN3_VL["text_config"], **more.get("text_config", {})}
    shape = shape_from({**QWEN3_VL, **more, "text_config": text})
    assert cache_bytes(shape, 1) == 114_688 and "tower" in shape.remarks and shape.family == "decoder"


def test_a_text_part_that_lies_flat_in_the_outer_config_is_read() -> None:
    flat = {"num_hidden_layers": 28, "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 2}
    shape = shape_from({"model_type": "qwen2_vl", **flat, "vision_config": {"depth": 32}})
    assert cache_bytes(shape, 1) == 28 * 2 * 128 * 2 * 2 and "tower" in shape.remarks
    assert "tower" not in shape_from({"model_type": "llama", **BASE}).remarks


def test_an_entry_that_the_config_class_takes_by_an_undeclared_name_counts() -> None:
    """BLOOM's own files give its width as n_embed: 24 layers of 1,024 numbers of a key and of a value in FP16."""
    bloom = {"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16}
    assert cache_bytes(shape_from(bloom), 1) == 24 * 2 * 1024 * 2


def test_layers_that_attend_to_an_image_keep_nothing_of_the_text() -> None:
    text = {"model_type": "mllama_text_model", "num_hidden_layers": 40, "num_key_value_heads": 8}
    text |= {"hidden_size": 4096, "num_attention_heads": 32, "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38]}
    fp16 = CACHE_PRECISIONS["fp16"]
    shape = read_config(json.dumps({"model_type": "mllama", "text_config": text}))
    one_more = cache_bytes(shape, 1001, 1, fp16) - cache_bytes(shape, 1000, 1, fp16)
    assert one_more == 32 * 8 * 128 * 2 * 2 and "images" in shape.remarks
