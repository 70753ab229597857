"""Architectures that compute attention in a way of their own: shown as transformers computes them, or refused.

A few that stand for what a sweep over all text models of transformers 5.24 found.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from tests.checkpoints import (
    BART_LIKE,
    BERT_LIKE,
    LLAMA_LIKE,
    VOCABULARY,
    byte_level_tokenizer,
    sentence_piece_like_tokenizer,
    word_piece_tokenizer,
)
from tests.conftest import Checkpoint
from tfviz.errors import TfvizError
from tfviz.introspection.batch import run_batch
from tfviz.introspection.capture import capture
from tfviz.introspection.generation import run_steps
from tfviz.introspection.run import Plan
from tfviz.messages import LANGUAGES
from tfviz.model.attention_call import AttentionCall
from tfviz.sources.base import LoadedModel
from tfviz.sources.huggingface import load_folder

TEXT, TARGET = "the cat saw the other cat near the door", "the door"
T5_LIKE: dict[str, Any] = dict(
    vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, pad_token_id=0, eos_token_id=1
)
LATENT: dict[str, Any] = LLAMA_LIKE | dict(
    num_key_value_heads=4,
    num_hidden_layers=2,
    moe_intermediate_size=16,
    n_routed_experts=4,
    n_group=1,
    topk_group=1,
    num_experts_per_tok=2,
    q_lora_rank=16,
    kv_lora_rank=16,
    qk_rope_head_dim=8,
    qk_nope_head_dim=8,
    v_head_dim=8,
    index_head_dim=16,
    index_n_heads=2,
    index_topk=4,
)
XLNET: dict[str, Any] = dict(vocab_size=VOCABULARY, d_model=32, n_layer=2, n_head=4, d_inner=48)
SHOWN: dict[str, Callable[[], Any]] = {
    "a decoder that leaves causality to its masks": lambda: hf.BigBirdPegasusForCausalLM(
        hf.BigBirdPegasusConfig(**BART_LIKE | {"forced_eos_token_id": None}, attention_type="original_full")
    ),
    "keys chosen by an indexer": lambda: hf.DeepseekV32ForCausalLM(hf.DeepseekV32Config(**LATENT)),
}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "DiffLlama": (lambda: hf.DiffLlamaForCausalLM(hf.DiffLlamaConfig(**LLAMA_LIKE)), "error.attention_twice"),
    "LongT5": (
        lambda: hf.LongT5ForConditionalGeneration(hf.LongT5Config(**T5_LIKE, decoder_start_token_id=0)),
        "error.no_attention",
    ),
    "XLNet": (lambda: hf.XLNetLMHeadModel(hf.XLNetConfig(**XLNET)), "error.no_attention"),
    "I-BERT": (lambda: hf.IBertForMaskedLM(hf.IBertConfig(**BERT_LIKE)), "error.no_attention"),
    "X-MOD, which wants a language": (
        lambda: hf.XmodForMaskedLM(hf.XmodConfig(**BERT_LIKE, languages=("a", "b"))),
        "error.cannot_load",
    ),
    "T5 without a start token": (
        lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5_LIKE, decoder_start_token_id=None)),
        "error.no_start_token",
    ),
}


def loaded_from(make: Callable[[], Any], folder: Path) -> LoadedModel:
    torch.manual_seed(0)
    model = make()
    for parameter in model.parameters():
        parameter.data.mul_(3.0)
    model.save_pretrained(folder)
    pair = model.config.is_encoder_decoder
    masked = type(model).__name__.endswith("MaskedLM")
    tokenizer = sentence_piece_like_tokenizer if pair else word_piece_tokenizer if masked else byte_level_tokenizer
    tokenizer().save_pretrained(folder)
    return read_folder(folder)


def read_folder(folder: Path) -> LoadedModel:
    return load_folder(folder, model_id=folder.name, revision="local", device=torch.device("cpu"))


@pytest.mark.usefixtures("quiet_transformers")
@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_is_what_transformers_computes(name: str, tmp_path: Path) -> None:
    model = loaded_from(SHOWN[name], tmp_path)
    theirs: Any = type(model.model).from_pretrained(tmp_path, attn_implementation="eager")  # type: ignore[attr-defined]
    prompt = model.prompt(TEXT)
    with torch.inference_mode():
        eager = theirs(prompt.inputs["input_ids"], output_attentions=True, use_cache=False)
    for kernel in ("naive", "flash"):
        logits = model.forward(prompt, AttentionCall(kernel))
        assert float((logits - eager.logits).abs().max()) < 1e-5 * float(
            eager.logits.abs().max()
        )  # FP32, another order
    shown = capture(model, prompt, (TEXT, None)).attention["self"]
    assert len(shown) == len(eager.attentions)
    assert (
        max(float(abs(one - them[0].numpy()).max()) for one, them in zip(shown, eager.attentions, strict=True)) < 1e-5
    )


@pytest.mark.usefixtures("quiet_transformers")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_shown_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    make, key = REFUSED[name]
    with pytest.raises(TfvizError) as refused:
        model = loaded_from(make, tmp_path)
        capture(model, model.prompt(TEXT, TARGET if model.family == "encoder-decoder" else None), (TEXT, None))
    assert refused.value.key == key
    assert len({refused.value.in_language(language) for language in LANGUAGES}) == 2


@pytest.mark.usefixtures("quiet_transformers")
def test_a_window_of_no_positions_is_no_window_or_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folders = {name: _without_window(checkpoint(name), tmp_path / name) for name in ("mistral", "gemma2")}
    model = read_folder(folders["mistral"])
    prompt = model.prompt(TEXT)
    stack = capture(model, prompt, (TEXT, None)).stacks["self"]
    assert stack.layers[0].weights().sum(axis=-1) == pytest.approx(1, abs=1e-5)
    assert stack.layers[0].blocked.sum() == len(prompt.source.tokens) * (len(prompt.source.tokens) - 1) / 2
    assert run_batch(model, prompt, (TEXT, None)).windows == {"self": (None, None, None)}
    assert len(list(run_steps(model, prompt, Plan(3)))) == 3
    with pytest.raises(TfvizError, match="sliding_window = 0"):
        read_folder(folders["gemma2"])


def _without_window(source: Path, folder: Path) -> Path:
    shutil.copytree(source, folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"sliding_window": 0}), encoding="utf-8")
    return folder


@pytest.mark.usefixtures("quiet_transformers")
def test_layers_without_attention_are_counted(tmp_path: Path) -> None:
    kinds = ["conv", "full_attention", "conv"]
    model = loaded_from(lambda: hf.Lfm2ForCausalLM(hf.Lfm2Config(**LLAMA_LIKE, layer_types=kinds)), tmp_path)
    trace = capture(model, model.prompt(TEXT), (TEXT, None))
    assert trace.stacks["self"].n_layers == 1 and trace.other_layers == 2


@pytest.mark.usefixtures("quiet_transformers")
def test_a_decoder_deeper_than_its_encoder_writes_without_a_cache(tmp_path: Path) -> None:
    config = hf.T5Config(**T5_LIKE, num_decoder_layers=3, decoder_start_token_id=0)
    model = loaded_from(lambda: hf.T5ForConditionalGeneration(config), tmp_path)
    trace = capture(model, model.prompt(TEXT), (TEXT, None))
    assert [trace.stacks[kind].n_layers for kind in ("encoder", "decoder", "cross")] == [2, 3, 3]
    with pytest.raises(TfvizError, match="without the cache"):
        next(run_steps(model, model.prompt(TEXT), Plan(2)))
    assert len(list(run_steps(model, model.prompt(TEXT), Plan(2, use_cache=False)))) == 2
