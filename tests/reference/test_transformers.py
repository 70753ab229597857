"""Ours against transformers' own models, tiny and random, weights copied over: GPT-2, LLaMA, BERT, Marian; T5's layers.

Weights are loaded by name and strictly: a parameter of ours that theirs does not fill fails the test.
"""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.closeness import difference
from tests.model.tiny import KERNELS, shake, using
from tfviz.config import RopeScaling, TransformerConfig
from tfviz.model import Transformer
from tfviz.model.decoder import DecoderLayer
from tfviz.model.encoder import EncoderLayer
from tfviz.model.positions.rope import angles
from tfviz.model.probes import probes

pytestmark = pytest.mark.usefixtures("quiet_transformers")

IDS = torch.randint(3, 50, (2, 9), generator=torch.Generator().manual_seed(0))
D = 24


def layer_state(theirs: nn.Module, names: Mapping[str, str], prefix: str = "") -> dict[str, Tensor]:
    """Weight (and bias) of each of their modules, `names` being ours -> theirs, under our names."""
    state = {}
    for our_name, their_name in names.items():
        for key, tensor in theirs.get_submodule(their_name).named_parameters(recurse=False):
            state[f"{prefix}{our_name}.{key}"] = tensor
    return state


def fill(ours: nn.Module, state: Mapping[str, Tensor]) -> None:
    ours.load_state_dict(dict(state))
    ours.eval()


def gpt2() -> tuple[Transformer, Any]:
    torch.manual_seed(0)
    theirs: Any = shake(
        hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=50, n_positions=16, n_embd=D, n_layer=2, n_head=4, n_inner=40))
    )
    ours = Transformer(
        TransformerConfig(
            vocab_size=50,
            d_model=D,
            d_ff=40,
            n_heads=4,
            n_encoder_layers=0,
            n_decoder_layers=2,
            max_seq_len=16,
            positions="learned",
            placement="pre",
            feed_forward="gelu_tanh",
            attention_bias=True,
            scale_embedding=False,
            pad_id=None,
        )
    )
    body = theirs.transformer
    state = {
        "decoder.embedding.tokens.table.weight": body.wte.weight,
        "decoder.embedding.positions.table.weight": body.wpe.weight,
        "output.weight": body.wte.weight,
    } | layer_state(body, {"decoder.norm": "ln_f"})
    for i, block in enumerate(body.h):
        prefix = f"decoder.layers.{i}."
        state |= layer_state(block, {"attention_residual.norm": "ln_1", "feed_forward_residual.norm": "ln_2"}, prefix)
        heads = zip("qkv", block.attn.c_attn.weight.chunk(3, 1), block.attn.c_attn.bias.chunk(3), strict=True)
        for name, weight, bias in heads:  # Conv1D: [in, out]
            state |= {f"{prefix}attention.w_{name}.weight": weight.T, f"{prefix}attention.w_{name}.bias": bias}
        convs = {
            "attention.w_o": block.attn.c_proj,
            "feed_forward.w_1": block.mlp.c_fc,
            "feed_forward.w_2": block.mlp.c_proj,
        }
        for name, conv in convs.items():
            state |= {f"{prefix}{name}.weight": conv.weight.T, f"{prefix}{name}.bias": conv.bias}
    fill(ours, state)
    return ours, theirs


def llama(theta: float = 10000.0, scaling: RopeScaling | None = None) -> tuple[Transformer, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if scaling is not None:
        rope |= {"rope_type": scaling.kind, "factor": scaling.factor}
        rope |= {"original_max_position_embeddings": scaling.original} if scaling.kind == "yarn" else {}
    torch.manual_seed(0)
    theirs: Any = shake(
        hf.LlamaForCausalLM(
            hf.LlamaConfig(
                vocab_size=50,
                hidden_size=D,
                intermediate_size=40,
                num_hidden_layers=2,
                num_attention_heads=6,
                num_key_value_heads=2,
                head_dim=8,
                max_position_embeddings=64,
                rope_parameters=rope,
                rms_norm_eps=1e-6,
            )
        )
    )
    ours = Transformer(
        TransformerConfig(
            vocab_size=50,
            d_model=D,
            d_ff=40,
            n_heads=6,
            n_kv_heads=2,
            head_dim=8,
            n_encoder_layers=0,
            n_decoder_layers=2,
            positions="rope",
            norm="rms_norm",
            norm_eps=1e-6,
            placement="pre",
            feed_forward="swiglu",
            feed_forward_bias=False,
            tie_embeddings=False,
            scale_embedding=False,
            rope_base=theta,
            rope_scaling=scaling,
            pad_id=None,
        )
    )
    names = {
        "decoder.embedding.tokens.table": "model.embed_tokens",
        "decoder.norm": "model.norm",
        "output": "lm_head",
    }
    for i in range(2):
        there, here = f"model.layers.{i}.", f"decoder.layers.{i}."
        names |= {
            f"{here}attention_residual.norm": f"{there}input_layernorm",
            f"{here}attention.w_q": f"{there}self_attn.q_proj",
            f"{here}attention.w_k": f"{there}self_attn.k_proj",
            f"{here}attention.w_v": f"{there}self_attn.v_proj",
            f"{here}attention.w_o": f"{there}self_attn.o_proj",
            f"{here}feed_forward_residual.norm": f"{there}post_attention_layernorm",
            f"{here}feed_forward.w_1": f"{there}mlp.gate_proj",
            f"{here}feed_forward.w_3": f"{there}mlp.up_proj",
            f"{here}feed_forward.w_2": f"{there}mlp.down_proj",
        }
    fill(ours, layer_state(theirs, names))
    return ours, theirs


def bert() -> tuple[Transformer, Any]:
    torch.manual_seed(0)
    theirs: Any = shake(
        hf.BertModel(
            hf.BertConfig(
                vocab_size=50,
                hidden_size=D,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=40,
                max_position_embeddings=16,
            ),
            add_pooling_layer=False,
        )
    )
    ours = Transformer(
        TransformerConfig(
            vocab_size=50,
            d_model=D,
            d_ff=40,
            n_heads=4,
            n_encoder_layers=2,
            n_decoder_layers=0,
            max_seq_len=16,
            positions="learned",
            norm_eps=1e-12,
            feed_forward="gelu",
            attention_bias=True,
            scale_embedding=False,
            embedding_norm=True,
        )
    )
    words, table = theirs.embeddings.word_embeddings.weight, theirs.embeddings.position_embeddings.weight
    state = {
        "encoder.embedding.tokens.table.weight": words,
        "output.weight": words,
        "encoder.embedding.positions.table.weight": table + theirs.embeddings.token_type_embeddings.weight[0],
    } | layer_state(theirs, {"encoder.embedding.norm": "embeddings.LayerNorm"})
    for i, layer in enumerate(theirs.encoder.layer):
        names = {
            "attention.w_q": "attention.self.query",
            "attention.w_k": "attention.self.key",
            "attention.w_v": "attention.self.value",
            "attention.w_o": "attention.output.dense",
            "attention_residual.norm": "attention.output.LayerNorm",
            "feed_forward.w_1": "intermediate.dense",
            "feed_forward.w_2": "output.dense",
            "feed_forward_residual.norm": "output.LayerNorm",
        }
        state |= layer_state(layer, names, f"encoder.layers.{i}.")
    fill(ours, state)
    return ours, theirs


def marian() -> tuple[Transformer, Any]:
    """The paper's architecture as Marian has it: its sinusoids lie in halves, so they are copied as a table."""
    torch.manual_seed(0)
    theirs: Any = shake(
        hf.MarianMTModel(
            hf.MarianConfig(
                vocab_size=50,
                d_model=D,
                encoder_layers=3,
                decoder_layers=2,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=40,
                decoder_ffn_dim=40,
                max_position_embeddings=16,
                activation_function="relu",
                scale_embedding=True,
                pad_token_id=0,
                eos_token_id=2,
                decoder_start_token_id=1,
                forced_eos_token_id=2,
            )
        )
    )
    ours = Transformer(
        TransformerConfig(
            vocab_size=50,
            d_model=D,
            d_ff=40,
            n_heads=4,
            n_encoder_layers=3,
            n_decoder_layers=2,
            max_seq_len=16,
            positions="learned",
            attention_bias=True,
        )
    )
    body = theirs.model
    state = {"output.weight": body.shared.weight}
    for stack in ("encoder", "decoder"):
        there = getattr(body, stack)
        state[f"{stack}.embedding.tokens.table.weight"] = body.shared.weight
        state[f"{stack}.embedding.positions.table.weight"] = there.embed_positions.weight
        for i, layer in enumerate(there.layers):
            names = {
                "attention.w_q": "self_attn.q_proj",
                "attention.w_k": "self_attn.k_proj",
                "attention.w_v": "self_attn.v_proj",
                "attention.w_o": "self_attn.out_proj",
                "attention_residual.norm": "self_attn_layer_norm",
                "feed_forward.w_1": "fc1",
                "feed_forward.w_2": "fc2",
                "feed_forward_residual.norm": "final_layer_norm",
            }
            if stack == "decoder":
                names |= {
                    "cross_attention.w_q": "encoder_attn.q_proj",
                    "cross_attention.w_k": "encoder_attn.k_proj",
                    "cross_attention.w_v": "encoder_attn.v_proj",
                    "cross_attention.w_o": "encoder_attn.out_proj",
                    "cross_residual.norm": "encoder_attn_layer_norm",
                }
            state |= layer_state(layer, names, f"{stack}.layers.{i}.")
    fill(ours, state)
    return ours, theirs


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
def test_gpt2_logits_equal_theirs(kernel: str) -> None:
    ours, theirs = gpt2()
    with using(kernel):
        assert difference(ours(IDS), theirs(IDS).logits) < 1e-5


SCALED = {
    "as published": (10000.0, None),
    "another base": (500_000.0, None),
    "linear": (10000.0, RopeScaling("linear", 4.0)),
    "yarn": (10000.0, RopeScaling("yarn", 4.0, original=16)),
}


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("theta, scaling", SCALED.values(), ids=SCALED)
def test_llama_logits_with_grouped_heads_equal_theirs(theta: float, scaling: RopeScaling | None, kernel: str) -> None:
    ours, theirs = llama(theta, scaling)
    with using(kernel):
        assert difference(ours(IDS), theirs(IDS).logits) < 1e-5


@torch.no_grad()
def test_llama_steps_over_our_cache_equal_their_whole_pass() -> None:
    ours, theirs = llama()
    cache = ours.new_cache()
    steps = [ours.decode(part, cache=cache) for part in IDS.split([4, 1, 1, 3], dim=1)]
    assert difference(torch.cat(steps, 1), theirs(IDS).logits) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
def test_bert_hidden_states_and_weights_equal_theirs_layer_by_layer(kernel: str) -> None:
    ours, theirs = bert()
    theirs.set_attn_implementation("eager")  # the one that gives weights
    padded = IDS.clone()
    padded[1, 6:] = 0
    real = padded != 0
    expected = theirs(padded, attention_mask=real.long(), output_hidden_states=True, output_attentions=True)
    with using(kernel), probes(ours, "embedded", "resid_post", "weights") as seen:
        ours(padded)
    states = [seen["encoder.embedding.embedded"], *(seen[f"encoder.layers.{i}.resid_post"] for i in range(2))]
    for state, their_state in zip(states, expected.hidden_states, strict=True):
        assert difference(state[real], their_state[real]) < 1e-5
    for i, their_weights in enumerate(expected.attentions):
        weights = seen[f"encoder.layers.{i}.attention.weights"]  # [batch, head, query, key]; padded queries are free
        assert difference(weights.transpose(1, 2)[real], their_weights.transpose(1, 2)[real]) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
def test_marian_translation_logits_equal_theirs_with_padded_sources(kernel: str) -> None:
    ours, theirs = marian()
    source, target = IDS.clone(), IDS.flip(0)[:, :7].clone()
    source[1, 5:] = 0
    target[:, 0] = 1
    expected = theirs(input_ids=source, attention_mask=(source != 0).long(), decoder_input_ids=target)
    with using(kernel):
        memory, mask = ours.encode(source)
        assert difference(memory[source != 0], expected.encoder_last_hidden_state[source != 0]) < 1e-5
        assert difference(ours.decode(target, memory, mask), expected.logits) < 1e-5


@pytest.mark.parametrize("d, base, original", [(64, 10000.0, 2048), (128, 500_000.0, 8192), (10, 1000.0, 64)])
@pytest.mark.parametrize("kind, factor", [("linear", 4.0), ("yarn", 4.0), ("yarn", 1.0), ("yarn", 32.0)])
def test_scaled_angles_equal_their_inverse_frequencies(
    kind: str, factor: float, d: int, base: float, original: int
) -> None:
    rope = {"rope_type": kind, "rope_theta": base, "factor": factor}
    rope |= {"original_max_position_embeddings": original} if kind == "yarn" else {}
    config = hf.LlamaConfig(head_dim=d, max_position_embeddings=int(factor * original), rope_parameters=rope)
    expected, their_growth = ROPE_INIT_FUNCTIONS[kind](config)
    theta, growth = angles(d, base, RopeScaling(kind, factor, original))
    torch.testing.assert_close(theta, expected, rtol=1e-6, atol=0)
    assert growth == pytest.approx(their_growth, rel=1e-9)


T5_SELF = {
    "attention_residual.norm": "layer.0.layer_norm",
    "attention.w_q": "layer.0.SelfAttention.q",
    "attention.w_k": "layer.0.SelfAttention.k",
    "attention.w_v": "layer.0.SelfAttention.v",
    "attention.w_o": "layer.0.SelfAttention.o",
}
T5_CROSS = {
    "cross_residual.norm": "layer.1.layer_norm",
    "cross_attention.w_q": "layer.1.EncDecAttention.q",
    "cross_attention.w_k": "layer.1.EncDecAttention.k",
    "cross_attention.w_v": "layer.1.EncDecAttention.v",
    "cross_attention.w_o": "layer.1.EncDecAttention.o",
}


def t5_feed_forward(place: int, gated: bool) -> dict[str, str]:
    there = f"layer.{place}.DenseReluDense"
    widenings = {"w_1": "wi_0", "w_3": "wi_1"} if gated else {"w_1": "wi"}
    return {"feed_forward_residual.norm": f"layer.{place}.layer_norm"} | {
        f"feed_forward.{ours}": f"{there}.{theirs}" for ours, theirs in (widenings | {"w_2": "wo"}).items()
    }


def t5_configs(gated: bool) -> tuple[TransformerConfig, Any]:
    ours = TransformerConfig(
        vocab_size=50,
        d_model=D,
        d_ff=40,
        n_heads=3,
        head_dim=10,
        norm="rms_norm",
        norm_eps=1e-6,
        placement="pre",
        feed_forward="swiglu" if gated else "relu",
        feed_forward_bias=False,
    )
    theirs = hf.T5Config(
        vocab_size=50,
        d_model=D,
        d_kv=10,
        num_heads=3,
        d_ff=40,
        num_layers=1,
        num_decoder_layers=1,
        feed_forward_proj="gated-silu" if gated else "relu",
        attn_implementation="eager",
    )
    return ours, theirs


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("gated", [False, True], ids=["relu", "gated"])
def test_the_t5_encoder_layer_equals_theirs_with_its_relative_bias_and_no_scale(gated: bool, kernel: str) -> None:
    config, their_config = t5_configs(gated)
    torch.manual_seed(0)
    theirs: Any = shake(hf.T5EncoderModel(their_config)).encoder.block[0]
    ours = EncoderLayer(config)
    ours.attention.scale = 1.0
    fill(ours, layer_state(theirs, T5_SELF | t5_feed_forward(1, gated)))
    x = torch.randn(2, 20, D)
    blocked = torch.zeros(2, 1, 1, 20, dtype=torch.bool)
    blocked[1, ..., 15:] = True
    bias = theirs.layer[0].SelfAttention.compute_bias(20, 20)
    expected = theirs(x, attention_mask=blocked.float() * torch.finfo(torch.float32).min, position_bias=bias)[0]
    with using(kernel):
        assert difference(ours(x, blocked, bias=bias), expected) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("gated", [False, True], ids=["relu", "gated"])
def test_the_t5_decoder_layer_equals_theirs(gated: bool, kernel: str) -> None:
    config, their_config = t5_configs(gated)
    torch.manual_seed(0)
    theirs: Any = shake(hf.T5Model(their_config)).decoder.block[0]
    ours = DecoderLayer(config)
    assert ours.cross_attention is not None
    ours.attention.scale = ours.cross_attention.scale = 1.0
    fill(ours, layer_state(theirs, T5_SELF | T5_CROSS | t5_feed_forward(2, gated)))
    x, memory = torch.randn(2, 9, D), torch.randn(2, 12, D)
    blocked = torch.zeros(2, 1, 1, 12, dtype=torch.bool)
    blocked[1, ..., 8:] = True
    lowest = torch.finfo(torch.float32).min
    bias = theirs.layer[0].SelfAttention.compute_bias(9, 9)
    expected = theirs(
        x,
        attention_mask=torch.ones(9, 9).triu(1)[None, None] * lowest,
        position_bias=bias,
        encoder_hidden_states=memory,
        encoder_attention_mask=blocked.float() * lowest,
    )[0]
    with using(kernel):
        assert difference(ours(x, memory, None, blocked, bias=bias), expected) < 1e-5
