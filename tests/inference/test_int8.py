"""INT8: integer products against a double loop, rotations, shared tables, real architectures with random weights."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from tfviz.inference.precision import int8, weight_bytes
from tfviz.inference.precision.int8 import (
    Int8Embedding,
    Int8Linear,
    block_size,
    integer_product,
    quantise,
    rotate,
    to_int8,
    to_levels,
)

VOCABULARY = 320
SMALL = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
PAIR = dict(
    vocab_size=VOCABULARY,
    d_model=64,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=96,
    decoder_ffn_dim=96,
    scale_embedding=True,
    pad_token_id=1,
    bos_token_id=0,
    eos_token_id=2,
    decoder_start_token_id=1,
    forced_eos_token_id=None,
)
ARCHITECTURES = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4)),
    "bert": lambda: BertModel(BertConfig(**SMALL)),
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=0
        )
    ),
    "bart": lambda: BartForConditionalGeneration(BartConfig(**PAIR)),
    "marian": lambda: MarianMTModel(MarianConfig(**PAIR)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=2, tie_word_embeddings=True)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=16)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=4)),
    "gemma": lambda: GemmaForCausalLM(GemmaConfig(**SMALL, num_key_value_heads=2, head_dim=16)),
}


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


def relative_error(expected: torch.Tensor, actual: torch.Tensor) -> float:
    return float(((expected - actual).norm() / expected.norm()).detach())


@torch.no_grad()
def run(model: nn.Module) -> torch.Tensor:
    """Logits, or hidden states where there is no head: [2, 9, features]."""
    ids = torch.randint(3, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    out = model(input_ids=ids, decoder_input_ids=ids.flip(1)) if model.config.is_encoder_decoder else model(ids)
    return out.logits if "logits" in out else out.last_hidden_state


@pytest.mark.parametrize("size", [1, 2, 64])
def test_rotating_twice_changes_nothing(size: int) -> None:
    rows = torch.randn(3, 2 * size)
    rotation = None if size == 1 else int8._hadamard(size)
    assert torch.allclose(rotate(rotate(rows, rotation), rotation), rows, atol=1e-5)


@pytest.mark.parametrize("features, size", [(576, 64), (1536, 64), (96, 32), (300, 4), (7, 1)])
def test_blocks_divide_the_features(features: int, size: int) -> None:
    assert block_size(features) == size


def test_levels_are_within_half_a_step_of_the_row() -> None:
    rows = torch.randn(5, 64) * torch.tensor([1e-6, 1.0, 1e6, 3.0, 0.0])[:, None]
    levels, scale = to_levels(rows)
    assert levels.dtype == torch.int8 and int(levels.abs().max()) == 127
    assert torch.all(scale > 0), "a row of zeros must not divide by zero"
    assert torch.all((levels * scale - rows).abs() <= 0.5001 * scale)


def test_integer_products_equal_a_double_loop() -> None:
    levels = torch.randint(-127, 128, (3, 17), dtype=torch.int8)
    weight = torch.randint(-127, 128, (5, 17), dtype=torch.int8)
    ours = integer_product(levels, weight)
    loop = [[sum(int(a) * int(b) for a, b in zip(row, column, strict=True)) for column in weight] for row in levels]
    assert ours.tolist() == loop


def test_integer_products_are_exact_on_a_processor_without_vnni() -> None:
    code = """import torch
from tfviz.inference.precision.int8 import integer_product
levels, weight = (torch.randint(-127, 128, (rows, 576), dtype=torch.int8) for rows in (40, 96))
levels[0], weight[0], levels[1], weight[1] = 127, 127, -127, -127
exact = levels.double() @ weight.double().T
print(all(torch.equal(integer_product(some, weight).double(), exact[: len(some)]) for some in (levels[:1], levels)))"""
    old = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}  # on other processors it changes nothing
    assert subprocess.run([sys.executable, "-c", code], env=old, capture_output=True, text=True).stdout == "True\n"


@pytest.mark.parametrize("features, outputs, bias", [(64, 48, True), (576, 192, False), (7, 3, True), (30, 1, True)])
def test_an_int8_layer_is_close_to_its_fp32_layer(features: int, outputs: int, bias: bool) -> None:
    layer = nn.Linear(features, outputs, bias=bias)
    x = torch.randn(2, 5, features)
    ours, theirs = to_int8(layer)(x), layer(x)
    assert ours.shape == theirs.shape and ours.dtype == torch.float32
    assert relative_error(theirs, ours) < 0.02


def test_a_transposed_input_and_a_single_row_give_the_same_rows() -> None:
    layer = to_int8(nn.Linear(64, 16))
    x = torch.randn(64, 6).t()
    assert torch.allclose(layer(x)[3], layer(x[3]), atol=1e-6)


def test_one_huge_channel_does_not_drown_the_others() -> None:
    """What the rotation is for: without it the channel sets the scale of the whole row."""
    layer = nn.Linear(576, 64, bias=False)
    x = torch.randn(8, 576)
    x[:, 5] = 60.0
    ours = relative_error(layer(x), to_int8(layer)(x))
    plain = Int8Linear(quantise(layer.weight), None)
    plain.levels, scale = to_levels(layer.weight.detach())
    plain.scale, plain.rotation = scale[:, 0], None
    assert ours < 0.5 * relative_error(layer(x), plain(x))


def test_the_weight_stand_in_has_the_shape_and_dtype_but_no_values() -> None:
    linear = nn.Linear(64, 48)
    layer = to_int8(linear)
    assert layer.weight.shape == (48, 64) and layer.weight.dtype == torch.float32
    assert layer.weight.untyped_storage().nbytes() == 4 and bool(layer.weight.isnan().all())
    assert (layer.in_features, layer.out_features) == (64, 48)
    assert relative_error(linear.weight, layer.dequantised()) < 0.01


def test_a_table_is_converted_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(100, 64)
    whole = quantise(weight)
    monkeypatch.setattr(int8, "ROWS_AT_ONCE", 7)
    pieces = quantise(weight)
    assert (
        torch.allclose(whole.scale, pieces.scale) and int((whole.levels.int() - pieces.levels.int()).abs().max()) <= 1
    )


def test_a_small_table_that_no_layer_shares_stays_fp32() -> None:
    model = nn.Sequential(nn.Embedding(16, 64), nn.Linear(64, 8))
    converted = to_int8(model)
    assert type(converted[0]) is nn.Embedding and converted[0].weight is model[0].weight


def test_a_large_table_is_looked_up_in_int8() -> None:
    table = nn.Embedding(2**14, 64)
    converted = to_int8(table)
    ids = torch.randint(2**14, (3, 4))
    assert isinstance(converted, Int8Embedding)
    assert relative_error(table(ids), converted(ids)) < 0.01
    assert weight_bytes(converted) < 0.3 * weight_bytes(table)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_runs_in_int8_close_to_fp32(name: str) -> None:
    model = ARCHITECTURES[name]().eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    expected = run(model)
    converted = to_int8(model)
    assert not any(type(module) is nn.Linear or type(module).__name__ == "Conv1D" for module in converted.modules())
    assert relative_error(expected, run(converted)) < 0.06
    assert torch.equal(run(model), expected) and all(
        torch.equal(model.state_dict()[key], before[key]) for key in before
    )


@pytest.mark.parametrize("name", ["gpt2", "t5", "bart", "marian", "llama", "gemma"])
def test_a_tied_head_and_its_embedding_share_one_table(name: str) -> None:
    converted = to_int8(ARCHITECTURES[name]().eval())
    table, head = converted.get_input_embeddings(), converted.get_output_embeddings()
    assert isinstance(table, Int8Embedding) and isinstance(head, Int8Linear)
    assert table.levels.data_ptr() == head.levels.data_ptr()


def test_an_embedding_that_scales_still_scales() -> None:
    model = ARCHITECTURES["bart"]().eval()
    ids = torch.arange(4)[None]
    ours, theirs = to_int8(model).get_input_embeddings()(ids), model.get_input_embeddings()(ids)
    assert model.get_input_embeddings().embed_scale == 8.0
    assert relative_error(theirs, ours) < 0.01


def test_int8_weights_of_a_model_take_little_more_than_a_quarter() -> None:
    config = LlamaConfig(**(SMALL | dict(hidden_size=256, intermediate_size=512)), tie_word_embeddings=True)
    model = LlamaForCausalLM(config)
    assert weight_bytes(to_int8(model)) < 0.3 * weight_bytes(model)


@torch.no_grad()
def test_a_cached_step_continues_an_int8_prefill() -> None:
    model = to_int8(ARCHITECTURES["llama"]().eval())
    ids = torch.randint(3, VOCABULARY, (1, 8))
    whole = model(ids).logits[:, -1]
    prefill = model(ids[:, :-1], use_cache=True)
    step = model(ids[:, -1:], cache=prefill.past_key_values).logits[:, -1]
    assert relative_error(whole, step) < 0.03
