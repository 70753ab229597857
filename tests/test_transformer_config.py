"""TransformerConfig: what makes no Transformer is refused with name, value and what is allowed; JSON and back."""

import json
import re
from dataclasses import FrozenInstanceError, replace

import pytest
import torch

from tfviz.config import PRESETS, RopeScaling, TransformerConfig
from tfviz.errors import TfvizError, UnknownChoice
from tfviz.messages import LANGUAGES
from tfviz.model import MultiHeadAttention, Transformer
from tfviz.model.encoder import EncoderLayer

GOOD = TransformerConfig(vocab_size=100, d_model=48, d_ff=64, n_heads=6, n_encoder_layers=1, n_decoder_layers=1)
ROPE = {"positions": "rope"}
ODD = {"d_model": 30, "n_heads": 6} | ROPE  # heads of 5

BAD = [  # changes, the name blamed, the value as printed, what is allowed
    ({"n_heads": 7}, "n_heads", "7", "a divisor of d_model = 48"),
    ({"n_kv_heads": 4}, "n_kv_heads", "4", "a divisor of n_heads = 6"),
    ({"n_kv_heads": 12}, "n_kv_heads", "12", "a divisor of n_heads = 6"),
    ({"n_kv_heads": 0}, "n_kv_heads", "0", "1 or more"),
    (ODD, "head_dim", "5", "even number"),
    (ROPE | {"head_dim": 7}, "head_dim", "7", "even number"),
    (ROPE | {"rope_dims": 3}, "rope_dims", "3", "even number from 2 to head_dim = 8"),
    (ROPE | {"rope_dims": 10}, "rope_dims", "10", "even number from 2 to head_dim = 8"),
    (ROPE | {"rope_dims": 0}, "rope_dims", "0", "1 or more"),
    (ROPE | {"rope_base": 1.0}, "rope_base", "1.0", "more than 1"),
    (ROPE | {"rope_pairs": "quarters"}, "rope_pairs", "quarters", "halves or interleaved"),
    (ROPE | {"rope_scaling": RopeScaling("linear", 0.5)}, "rope_scaling", "0.5", "factor of 1 or more"),
    (ROPE | {"rope_scaling": RopeScaling("yarn", "2")}, "rope_scaling", "'2'", "factor of 1 or more"),
    (ROPE | {"rope_scaling": RopeScaling("yarn", 2.0, original=0)}, "rope_scaling", "original=0", "original"),
    (ROPE | {"rope_scaling": RopeScaling("yarn", 2.0, fast=1, slow=2)}, "rope_scaling", "fast=1", "fast"),
    (ROPE | {"rope_scaling": RopeScaling("yarn", 2.0, slow=0)}, "rope_scaling", "slow=0", "slow"),
    (ROPE | {"rope_scaling": {"kind": "yarn", "factor": 2.0}}, "rope_scaling", "'yarn'", "RopeScaling"),
    ({"n_encoder_layers": -1}, "n_encoder_layers", "-1", "0 or more"),
    ({"n_decoder_layers": -2}, "n_decoder_layers", "-2", "0 or more"),
    ({"n_encoder_layers": 0, "n_decoder_layers": 0}, "n_decoder_layers", "0", "at least one layer"),
    ({"vocab_size": 0}, "vocab_size", "0", "1 or more"),
    ({"target_vocab_size": 0}, "target_vocab_size", "0", "1 or more"),
    ({"max_seq_len": 0}, "max_seq_len", "0", "1 or more"),
    ({"d_ff": -8}, "d_ff", "-8", "1 or more"),
    ({"dropout": 1.0}, "dropout", "1.0", "less than 1"),
    ({"dropout": -0.1}, "dropout", "-0.1", "0 or more"),
    ({"dropout": float("nan")}, "dropout", "nan", "less than 1"),
    ({"norm_eps": 0.0}, "norm_eps", "0.0", "more than 0"),
    ({"placement": "middle"}, "placement", "middle", "pre or post"),
    ({"window": 0}, "window", "0", "1 or more"),
    ({"pad_id": 1}, "pad_id", "1", "neither start_id nor end_id"),
    ({"pad_id": 100}, "pad_id", "100", "0 to 99"),
    ({"end_id": -1}, "end_id", "-1", "0 to 99"),
    ({"start_id": 60, "target_vocab_size": 50}, "start_id", "60", "0 to 49"),
    ({"n_heads": 2.5}, "n_heads", "2.5", "a whole number"),
    ({"n_heads": 6.0}, "n_heads", "6.0", "a whole number"),
    ({"d_model": "512"}, "d_model", "512", "a whole number"),
    ({"d_ff": True}, "d_ff", "True", "a whole number"),
    ({"n_encoder_layers": None}, "n_encoder_layers", "None", "a whole number"),
    ({"window": "all"}, "window", "all", "a whole number"),
    ({"head_dim": 8.0}, "head_dim", "8.0", "a whole number"),
    ({"start_id": "<s>"}, "start_id", "<s>", "0 to 99"),
    ({"start_id": None}, "start_id", "None", "0 to 99"),
    ({"pad_id": False}, "pad_id", "False", "0 to 99"),
    ({"dropout": "0.1"}, "dropout", "0.1", "less than 1"),
    ({"norm_eps": None}, "norm_eps", "None", "more than 0"),
    (ROPE | {"rope_base": "10000"}, "rope_base", "10000", "more than 1"),
    ({"tie_embeddings": "no"}, "tie_embeddings", "no", "True or False"),
    ({"attention_bias": 1}, "attention_bias", "1", "True or False"),
    ({"norm": None}, "norm", "None", "a name"),
    ({"placement": ["pre"]}, "placement", "['pre']", "pre or post"),
]


@pytest.mark.parametrize("changes, name, value, allowed", BAD, ids=[str(case[0]) for case in BAD])
def test_a_bad_config_is_refused_with_name_value_and_what_is_allowed(
    changes: dict[str, object], name: str, value: str, allowed: str
) -> None:
    with pytest.raises(TfvizError, match=rf"(^|\W){name} = .*{re.escape(value)}.*{re.escape(allowed)}") as refused:
        replace(GOOD, **changes)
    assert all(name in refused.value.in_language(language) for language in LANGUAGES)
    assert all(value in refused.value.in_language(language) for language in LANGUAGES)


@pytest.mark.parametrize(
    "changes, allowed, chinese",
    [
        ({"positions": "rotary"}, "sinusoidal, learned, rope, alibi, none", "位置方案"),
        ({"norm": "batch_norm"}, "layer_norm, rms_norm", "归一化"),
        ({"feed_forward": "mish"}, "relu, gelu, gelu_tanh, swiglu", "前馈网络"),
        (ROPE | {"rope_scaling": RopeScaling("dynamic", 2.0)}, "linear, ntk, yarn", "RoPE 缩放方式"),
    ],
    ids=str,
)
def test_an_unknown_name_is_answered_with_the_table_when_it_is_built(
    changes: dict[str, object], allowed: str, chinese: str
) -> None:
    config = replace(GOOD, **changes)
    with pytest.raises(UnknownChoice, match=allowed) as refused:
        Transformer(config)
    assert chinese in refused.value.in_language("zh") and allowed in refused.value.in_language("zh")


@pytest.mark.parametrize("name, config", PRESETS.items(), ids=PRESETS)
def test_a_preset_comes_back_from_json_as_it_was(name: str, config: TransformerConfig) -> None:
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_a_scaling_comes_back_from_json_as_it_was() -> None:
    config = replace(GOOD, positions="rope", rope_scaling=RopeScaling("yarn", 8.0, original=64))
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    "values", [{"n_layers": 4}, {"rope_scaling": {"kind": "linear", "factor": 2.0, "beta": 1}}], ids=str
)
def test_from_dict_names_a_field_that_does_not_exist_and_those_that_do(values: dict[str, object]) -> None:
    unknown, one_that_exists = ("n_layers", "n_encoder_layers") if "n_layers" in values else ("beta", "factor")
    with pytest.raises(TfvizError, match=f"“{unknown}”.*{one_that_exists}") as refused:
        TransformerConfig.from_dict({"vocab_size": 100} | values)
    assert f"“{unknown}”" in refused.value.in_language("zh")


def test_from_dict_without_a_vocabulary_says_so_in_a_sentence() -> None:
    with pytest.raises(TfvizError, match="vocab_size = None.*a whole number"):
        TransformerConfig.from_dict({"d_model": 64})


@pytest.mark.parametrize(
    "arguments, name", [({"n_heads": 5}, "n_heads"), ({"n_heads": 4, "n_kv_heads": 3}, "n_kv_heads")], ids=str
)
def test_an_attention_of_its_own_refuses_heads_that_do_not_divide(arguments: dict[str, int], name: str) -> None:
    with pytest.raises(TfvizError, match=f"{name} = {arguments[name]}.*a divisor of"):
        MultiHeadAttention(32, **arguments)


def test_head_dim_frees_the_heads_from_d_model() -> None:
    config = replace(GOOD, n_heads=7, head_dim=10)
    assert config.width == 10
    assert EncoderLayer(config)(torch.randn(2, 3, 48)).shape == (2, 3, 48)


@pytest.mark.parametrize("layers, family", [((2, 3), "encoder-decoder"), ((2, 0), "encoder"), ((0, 3), "decoder")])
def test_the_family_follows_from_which_layers_there_are(layers: tuple[int, int], family: str) -> None:
    assert replace(GOOD, n_encoder_layers=layers[0], n_decoder_layers=layers[1]).family == family


def test_a_config_cannot_be_changed_after_it_was_checked() -> None:
    with pytest.raises(FrozenInstanceError):
        GOOD.n_heads = 7
