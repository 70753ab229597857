"""Anatomy against the sums that each architecture promises, our own probes, and what a trace says; on every kind of
layer: before, after and beside the norm, gated and not, fused and grouped projections, mixtures of experts."""

import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import nn
from torch.nn.modules import module as torch_module

from tests.checkpoints import (
    ARCHITECTURES,
    BERT_LIKE,
    LLAMA_LIKE,
    VOCABULARY,
    byte_level_tokenizer,
    sentence_piece_like_tokenizer,
    word_piece_tokenizer,
)
from tests.closeness import SUM, difference
from tests.conftest import Checkpoint, Loaded
from tests.model import tiny
from tfviz.config import PRESETS, TransformerConfig
from tfviz.errors import UnsupportedHere
from tfviz.inference.precision import PRECISIONS
from tfviz.introspection import anatomy
from tfviz.introspection.anatomy import Anatomy, examine
from tfviz.introspection.capture import capture
from tfviz.introspection.layer_calls import observe
from tfviz.introspection.placement import sum_error
from tfviz.messages import LANGUAGES
from tfviz.model.probes import probes
from tfviz.model.transformer import Transformer
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.huggingface import load_folder
from tfviz.sources.scratch import ScratchModel, byte_pair_tokenizer

TEXT = "The animal didn't cross the street because it was too tired"
NEOX: dict[str, Any] = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=64,
)
GATED_T5 = dict(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=2, num_heads=4)
LATENT: dict[str, Any] = dict(q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8)
EXPERTS: dict[str, Any] = dict(
    first_k_dense_replace=1, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1
)
SPECIAL: dict[str, Any] = dict(pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3)
SHARED: dict[str, Any] = dict(num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16)
MORE: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "gemma3": (
        lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**LLAMA_LIKE, head_dim=8, sliding_window=4)),
        byte_level_tokenizer,
    ),
    "neox": (lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**NEOX)), byte_level_tokenizer),
    "neox-sequential": (
        lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**NEOX, use_parallel_residual=False)),
        byte_level_tokenizer,
    ),
    "phi3": (lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**LLAMA_LIKE, pad_token_id=0)), byte_level_tokenizer),
    "olmo2": (lambda: hf.Olmo2ForCausalLM(hf.Olmo2Config(**LLAMA_LIKE)), byte_level_tokenizer),
    "granite": (
        lambda: hf.GraniteForCausalLM(hf.GraniteConfig(**LLAMA_LIKE, residual_multiplier=0.25)),
        byte_level_tokenizer,
    ),
    "mixtral": (
        lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**LLAMA_LIKE, num_local_experts=4)),
        byte_level_tokenizer,
    ),
    "qwen2-moe": (lambda: hf.Qwen2MoeForCausalLM(hf.Qwen2MoeConfig(**LLAMA_LIKE, **SHARED)), byte_level_tokenizer),
    "deepseek": (
        lambda: hf.DeepseekV3ForCausalLM(
            hf.DeepseekV3Config(
                **LLAMA_LIKE | {"num_key_value_heads": 4}, **LATENT, **EXPERTS, moe_intermediate_size=16
            )
        ),
        byte_level_tokenizer,
    ),
    "distilbert": (
        lambda: hf.DistilBertModel(
            hf.DistilBertConfig(vocab_size=VOCABULARY, dim=32, hidden_dim=48, n_layers=2, n_heads=4)
        ),
        word_piece_tokenizer,
    ),
    "modernbert": (
        lambda: hf.ModernBertModel(
            hf.ModernBertConfig(
                **BERT_LIKE, pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3
            )
        ),
        word_piece_tokenizer,
    ),
    "t5-gated": (
        lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(
                **GATED_T5,
                feed_forward_proj="gated-gelu",
                decoder_start_token_id=0,
                pad_token_id=0,
                eos_token_id=1,
            )
        ),
        sentence_piece_like_tokenizer,
    ),
}
EXPECTED = {  # placement, activation, norm of the layers
    "gpt2": ("pre", "gelu_tanh", "layer"),
    "llama": ("pre", "swiglu", "rms"),
    "qwen3": ("pre", "swiglu", "rms"),
    "mistral": ("pre", "swiglu", "rms"),
    "gemma2": ("pre", "geglu_tanh", "rms"),
    "opt": ("pre", "relu", "layer"),
    "bert": ("post", "gelu", "layer"),
    "bert-mlm": ("post", "gelu", "layer"),
    "roberta": ("post", "gelu", "layer"),
    "albert": ("post", "gelu_tanh", "layer"),
    "t5": ("pre", "relu", "rms"),
    "bart": ("post", "gelu", "layer"),
    "marian": ("post", "gelu", "layer"),
    "gemma3": ("pre", "geglu_tanh", "rms"),
    "neox": ("parallel", "gelu", "layer"),
    "neox-sequential": ("pre", "gelu", "layer"),
    "phi3": ("pre", "swiglu", "rms"),
    "olmo2": ("pre", "swiglu", "rms"),
    "granite": ("pre", "swiglu", "rms"),
    "mixtral": ("pre", "", "rms"),
    "qwen2-moe": ("pre", "", "rms"),
    "distilbert": ("post", "gelu", "layer"),
    "modernbert": ("pre", "geglu", "layer"),
    "t5-gated": ("pre", "geglu_tanh", "rms"),
}
NORMED_INSIDE = {"qwen3", "gemma3", "olmo2"}  # norms on q and k: what the attention gets is not what they were
Load = Callable[[str], LoadedModel]


@pytest.fixture(scope="module")
def load(loaded: Loaded, checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Load:
    """The checkpoints of tests/checkpoints.py and the further architectures of this file."""
    folder = tmp_path_factory.mktemp("more")

    def make(name: str) -> LoadedModel:
        if name in ARCHITECTURES:
            return loaded(name)
        build, tokenizer = MORE[name]
        torch.manual_seed(0)
        model = build()
        for parameter in model.parameters():
            parameter.data.add_(0.2 * torch.randn_like(parameter))  # gains and biases too
        model.save_pretrained(folder / name)
        tokenizer().save_pretrained(folder / name)
        return load_folder(folder / name, model_id=name, revision="local", device=torch.device("cpu"))

    return cache(make)


def prompt_of(model: LoadedModel) -> Prompt:
    return model.prompt(TEXT, "the cat saw" if model.family == "encoder-decoder" else None)


@pytest.fixture(scope="module")
def seen(load: Load) -> Callable[[str], Anatomy]:
    return cache(lambda name: examine(load(name), prompt_of(load(name))))


def heads_of(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """[pos, head x dim] -> [head, pos, dim]"""
    return rows.reshape(len(rows), n_heads, -1).transpose(1, 0, 2)


# ---- what each architecture is


@pytest.mark.parametrize("name", EXPECTED)
def test_placement_activation_and_norm_are_read_from_the_numbers(name: str, seen: Callable[[str], Anatomy]) -> None:
    layers = seen(name).layers.values()
    assert {(layer.placement, layer.activation) for layer in layers} == {EXPECTED[name][:2]}
    assert {norm.kind for layer in layers for norm in layer.norms} == {EXPECTED[name][2]}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_layer_and_every_attention_is_there(name: str, load: Load, seen: Callable[[str], Anatomy]) -> None:
    trace = capture(load(name), prompt_of(load(name)), (TEXT, None), kernel="naive")
    places = {(kind, layer) for kind, stack in trace.stacks.items() for layer in range(stack.n_layers)}
    assert seen(name).attentions.keys() == places
    assert seen(name).layers.keys() == {place for place in places if place[0] != "cross"}


# ---- the residual stream


def apart(total: np.ndarray, *terms: np.ndarray | None) -> float:
    return sum_error(total, [term for term in terms if term is not None])


@pytest.mark.parametrize("name", EXPECTED)
def test_the_sums_of_the_residual_stream_hold(name: str, seen: Callable[[str], Anatomy]) -> None:
    for layer in seen(name).layers.values():
        a, c, f = layer.attention_out, layer.cross_out, layer.feed_forward_out
        before_f = layer.resid_mid if layer.resid_cross is None else layer.resid_cross
        if layer.placement == "post":
            first, *_, last = layer.norms
            assert apart(first.before, layer.resid_pre, a) < 1e-6 and layer.resid_mid is first.after
            assert apart(last.before, before_f, f) < 1e-6
            np.testing.assert_array_equal(layer.resid_post, last.after)
        else:
            assert apart(layer.resid_post, layer.resid_pre, a, c, f) < 1e-6
            assert apart(layer.resid_mid, layer.resid_pre, a) < 1e-6
            assert apart(layer.resid_post, before_f, f) < 1e-6


@pytest.mark.parametrize("name", EXPECTED)
def test_a_layer_begins_where_the_one_before_ended(name: str, seen: Callable[[str], Anatomy]) -> None:
    layers = seen(name).layers
    for (side, index), layer in layers.items():
        following = layers.get((side, index + 1))
        assert following is None or np.array_equal(layer.resid_post, following.resid_pre)


@pytest.mark.parametrize("name", ["llama", "gemma2", "bert", "t5", "neox", "t5-gated", "phi3"])
def test_the_hidden_features_are_what_the_down_projection_read(name: str, load: Load, seen: Any) -> None:
    layer = next(iter(seen(name).layers.values()))
    width = load(name).model.config.intermediate_size if name not in {"t5", "t5-gated"} else 48
    assert layer.hidden.shape == layer.up.shape == (len(layer.resid_pre), width)


def test_a_mixture_of_experts_has_no_hidden_features_of_its_own(seen: Callable[[str], Anatomy]) -> None:
    for name in ("mixtral", "qwen2-moe"):
        assert all(layer.hidden is None and layer.up is None for layer in seen(name).layers.values())


def test_granites_branches_are_scaled_before_they_are_added(load: Load, seen: Callable[[str], Anatomy]) -> None:
    found = seen("granite")
    for (side, index), layer in found.layers.items():
        np.testing.assert_allclose(
            layer.attention_out, 0.25 * found.attentions[side, index].output, rtol=1e-3, atol=1e-6
        )


def test_a_layer_that_adds_nothing_up_is_other(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("llama")
    for layer in model.model.model.layers:  # type: ignore[union-attr, operator]
        monkeypatch.setattr(layer, "forward", _halving(layer.forward))
    layers = examine(model, prompt_of(model)).layers
    assert {layer.placement for layer in layers.values()} == {"other"}


def _halving(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *args, **kwargs: forward(*args, **kwargs) / 2


# ---- attention


@pytest.mark.parametrize("name", EXPECTED)
def test_w_o_of_the_joined_heads_is_the_output(name: str, seen: Callable[[str], Anatomy]) -> None:
    for one in seen(name).attentions.values():
        assert one.out_weight is not None
        made = one.joined @ one.out_weight.T + (0 if one.out_bias is None else one.out_bias)
        assert sum_error(one.output, [made]) < 1e-4


@pytest.mark.parametrize("name", EXPECTED)
def test_joined_heads_are_weights_times_values(name: str, load: Load, seen: Callable[[str], Anatomy]) -> None:
    trace = capture(load(name), prompt_of(load(name)), (TEXT, None), kernel="naive")
    for (kind, index), one in seen(name).attentions.items():
        layer = trace.stacks[kind].layers[index]
        heads = len(layer.query)
        value = np.repeat(heads_of(one.value, len(layer.key)), heads // len(layer.key), axis=0)
        np.testing.assert_allclose(heads_of(one.joined, heads), layer.weights() @ value, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("name", [name for name in EXPECTED if name not in NORMED_INSIDE])
def test_projections_are_what_attention_got_before_positions(name: str, load: Load, seen: Any) -> None:
    """At position 0 a rotation does nothing; OPT scales its queries early."""
    trace = capture(load(name), prompt_of(load(name)), (TEXT, None), kernel="naive")
    for (kind, index), one in seen(name).attentions.items():
        layer = trace.stacks[kind].layers[index]
        early = 8**-0.5 if name == "opt" else 1.0
        np.testing.assert_allclose(heads_of(one.query, len(layer.query))[:, 0] * early, layer.query[:, 0], atol=1e-5)
        np.testing.assert_allclose(heads_of(one.key, len(layer.key))[:, 0], layer.key[:, 0], atol=1e-5)
        np.testing.assert_allclose(heads_of(one.value, len(layer.key)), layer.value, atol=1e-5)


def test_projections_before_a_norm_on_q_and_k_are_the_projections(load: Load, seen: Any) -> None:
    module: Any = load("qwen3").model
    rows = torch.from_numpy(seen("qwen3").layers["self", 1].norms[0].after)
    expected = module.model.layers[1].self_attn.q_proj(rows)
    np.testing.assert_allclose(seen("qwen3").attentions["self", 1].query, expected.numpy(), atol=1e-5)


def test_latent_attention_is_refused_in_a_sentence_and_its_layers_are_not(seen: Callable[[str], Anatomy]) -> None:
    found = seen("deepseek")
    assert set(found.layers) == {("self", 0), ("self", 1), ("self", 2)} and not found.attentions
    with pytest.raises(UnsupportedHere) as error:
        found.attentions["self", 1]
    for language in LANGUAGES:
        assert "deepseek" in error.value.in_language(language) and "1" in error.value.in_language(language)


# ---- norms


@pytest.mark.parametrize("name", ["llama", "gemma3", "neox", "t5"])
def test_a_norm_is_its_formula_with_the_gain_given(name: str, seen: Callable[[str], Anatomy]) -> None:
    for norm in (norm for layer in seen(name).layers.values() for norm in layer.norms):
        rows = norm.before - (norm.before.mean(1, keepdims=True) if norm.kind == "layer" else 0)
        made = rows / np.sqrt((rows * rows).mean(1, keepdims=True) + norm.eps)
        made = made * norm.weight + (0 if norm.bias is None else norm.bias)
        np.testing.assert_allclose(made, norm.after, atol=1e-4)


def test_gemmas_gain_is_one_plus_its_weight(load: Load, seen: Callable[[str], Anatomy]) -> None:
    weight = load("gemma3").model.model.layers[0].input_layernorm.weight  # type: ignore[union-attr, index]
    assert np.abs(weight.numpy()).min() > 0  # the checkpoint's is not zero
    np.testing.assert_allclose(seen("gemma3").layers["self", 0].norms[0].weight, 1 + weight.numpy(), rtol=1e-6)


# ---- models of ours


def scratch(config: TransformerConfig) -> LoadedModel:
    torch.manual_seed(1)
    model = Transformer(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))  # gains and biases too
    tokenizer = byte_pair_tokenizer([], config.vocab_size)
    return ScratchModel(
        id="ours",
        label="ours",
        revision="",
        family=config.family,
        precision="fp32",
        device=torch.device("cpu"),
        model=model,
        tokenizer=tokenizer,
        token_limit=config.max_seq_len,
        has_logits=True,
        n_parameters=0,
        weight_bytes=0,
        random=True,
    )


ROOM: dict[str, Any] = dict(vocab_size=300, max_seq_len=64)
OURS = {
    "post": replace(tiny.ENCODER_DECODER, **ROOM),
    "pre, rms, swiglu, rope": replace(tiny.LLAMA_LIKE, **ROOM, n_encoder_layers=1),
    "decoder": replace(tiny.DECODER, **ROOM, placement="pre", feed_forward="gelu_tanh"),
}


@pytest.mark.parametrize("name", OURS)
def test_our_models_report_the_same_as_was_found_from_outside(name: str) -> None:
    model = scratch(OURS[name])
    prompt = model.prompt(TEXT[:20], None if model.family == "decoder" else "the cat")
    found = examine(model, prompt)
    with torch.inference_mode(), probes(model.model) as said:
        model.model(prompt.inputs["input_ids"], prompt.inputs.get("decoder_input_ids"))
    for (side, index), layer in found.layers.items():
        path = f"{'encoder' if side == 'encoder' else 'decoder'}.layers.{index}"
        pairs = {
            "resid_pre": layer.resid_pre,
            "attention_out": layer.attention_out,
            "resid_mid": layer.resid_mid,
            "cross_out": layer.cross_out,
            "resid_cross": layer.resid_cross,
            "feed_forward.feed_forward_hidden": layer.hidden,
            "feed_forward_out": layer.feed_forward_out,
            "resid_post": layer.resid_post,
        }
        for probe, array in pairs.items():
            assert (array is None) == (f"{path}.{probe}" not in said), probe
            if array is not None:
                assert difference(array, said[f"{path}.{probe}"][0]) < SUM, probe
        assert layer.placement == OURS[name].placement and layer.activation == OURS[name].feed_forward


def test_parameters_are_the_layers_own_and_the_papers_feed_forward_has_two_million() -> None:
    model = scratch(PRESETS["paper-base"])
    prompt = model.prompt("cat", "cat")
    layer = examine(model, prompt).layers["decoder", 0]
    module = model.model.decoder.layers[0]  # type: ignore[union-attr, index]
    assert sum(layer.parameters.values()) == sum(parameter.numel() for parameter in module.parameters())  # type: ignore[operator]
    assert layer.parameters == {
        "attention": 4 * 512 * 512,
        "cross": 4 * 512 * 512,
        "feed_forward": 2 * 512 * 2048 + 2048 + 512,
        "norm": 3 * 2 * 512,
    }


# ---- care


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5"])
def test_other_precisions_are_read_as_well(name: str, precision: str, load: Load) -> None:
    exact = load(name)
    model = replace(exact, model=PRECISIONS[precision].convert(exact.model), precision=precision)
    found, expected = examine(model, prompt_of(exact)), examine(exact, prompt_of(exact))
    assert found.layers.keys() == expected.layers.keys() and found.attentions.keys() == expected.attentions.keys()
    for place, layer in found.layers.items():
        assert layer.placement == expected.layers[place].placement
        assert layer.parameters == expected.layers[place].parameters
    for one in found.attentions.values():
        made = one.joined @ one.out_weight.T + (0 if one.out_bias is None else one.out_bias)
        assert sum_error(one.output, [made]) < 0.1


def test_the_resident_model_is_left_as_it_was_also_after_an_error(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("llama")

    def stumble(*args: object) -> None:
        raise RuntimeError("the pass failed")

    monkeypatch.setattr("tfviz.introspection.layer_calls._Watcher.attended", stumble)
    with pytest.raises(RuntimeError, match="the pass failed"):
        examine(model, prompt_of(model))
    assert not torch_module._global_forward_hooks
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.model.modules())


def test_a_pass_of_another_thread_is_not_watched(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("gpt2")
    alone = len(observe(model, prompt_of(model))[0].steps)
    original = nn.Linear.forward
    visitor = threading.Thread(target=lambda: model.model(**prompt_of(model).inputs))
    layer: Any = model.model.transformer.h[0].attn.c_attn  # type: ignore[union-attr, index]

    def meeting(self: Any, *args: Any) -> Any:
        if threading.current_thread() is not visitor and not visitor.ident:
            visitor.start()
            visitor.join()
        return type(self).forward(self, *args)

    monkeypatch.setattr(layer, "forward", meeting.__get__(layer))
    assert len(observe(model, prompt_of(model))[0].steps) == alone and visitor.ident
    assert nn.Linear.forward is original


def test_a_text_that_would_take_too_much_memory_is_refused(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("llama")
    n = prompt_of(model).n_tokens
    monkeypatch.setattr(anatomy, "BUDGET", 4 * 3 * (32 + 16 + 16 + 32 + 48 + 48 + (48 + 32) + 4 * 32) * n)
    assert anatomy.longest(model) == n
    examine(model, prompt_of(model))
    monkeypatch.setattr(anatomy, "BUDGET", anatomy.BUDGET - 1)
    with pytest.raises(UnsupportedHere, match=f"up to {n - 1} tokens; this text has {n}"):
        examine(model, prompt_of(model))


def test_what_is_kept_is_near_what_was_foreseen_and_equal_arrays_are_kept_once(load: Load, seen: Any) -> None:
    found, model = seen("llama"), load("llama")
    rows = found.nbytes - sum(one.out_weight.nbytes for one in found.attentions.values())
    foreseen = anatomy.BUDGET / anatomy.longest(model) * prompt_of(model).n_tokens
    assert 0.85 < rows / foreseen < 1.15
    assert found.layers["self", 0].resid_post is found.layers["self", 1].resid_pre


def test_an_anatomy_travels_between_processes(seen: Callable[[str], Anatomy]) -> None:
    found = pickle.loads(pickle.dumps(seen("deepseek")))
    assert found.layers.keys() == seen("deepseek").layers.keys()
    with pytest.raises(UnsupportedHere, match="deepseek"):
        found.attentions["self", 0]
