"""INT4: levels against their formula, the packed product against plain arithmetic, real architectures, a real model
whose weights were never in 4 bits."""

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from tests.inference.test_int8 import ARCHITECTURES, SMALL, VOCABULARY, relative_error, run
from tfviz.config import Settings
from tfviz.inference.precision import int4, weight_bytes
from tfviz.inference.precision.int4 import (
    GROUP,
    Int4Linear,
    fits,
    pack,
    packed_block,
    packed_product,
    to_groups,
    to_int4,
)
from tfviz.inference.precision.int8 import Int8Embedding
from tfviz.inference.precision.int8_weights import Int8WeightLinear

SENTENCES = ["The animal didn't cross the street because it was too tired.", "Water expands when it freezes."]


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


def restored(levels: Tensor, pairs: Tensor) -> Tensor:
    """The formula, number by number: (q - 8) s + z."""
    made = torch.empty(levels.shape)
    for out in range(levels.shape[0]):
        for i in range(levels.shape[1]):
            scale, middle = pairs[i // GROUP, out].float()
            made[out, i] = (int(levels[out, i]) - 8) * scale + middle
    return made


def test_levels_are_within_half_a_step_of_the_weight_or_cut_off_at_an_end() -> None:
    weight = torch.randn(16, 64)
    levels, pairs = to_groups(weight)
    assert levels.dtype == torch.int32 and int(levels.min()) == 0 and int(levels.max()) == 15
    assert pairs.dtype == torch.bfloat16 and pairs.shape == (2, 16, 2) and pairs.is_contiguous()
    steps = pairs[..., 0].float().t().repeat_interleave(GROUP, dim=1)
    off = (restored(levels, pairs) - weight).abs()
    assert bool(((off <= 0.51 * steps) | (levels == 0) | (levels == 15)).all())
    assert relative_error(weight, restored(levels, pairs)) < 0.09


def test_a_weight_that_has_sixteen_values_a_group_is_kept_exactly() -> None:
    weight = torch.randint(0, 16, (16, 64)).float().mul_(0.25).sub_(2.0)
    weight[:, ::GROUP], weight[:, 1::GROUP] = -2.0, 1.75  # both ends are there
    assert torch.equal(restored(*to_groups(weight)), weight)


def test_the_levels_are_better_than_those_of_the_whole_range() -> None:
    weight = torch.randn(32, 64)
    groups = weight.view(32, -1, GROUP)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    plain = ((groups - low) * 15 / (high - low)).round() * (high - low) / 15 + low
    assert relative_error(weight, restored(*to_groups(weight))) < 0.96 * relative_error(groups, plain)


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_group_of_equal_weights_divides_by_nothing(value: float) -> None:
    made = restored(*to_groups(torch.full((16, 32), value)))
    assert float((made - value).abs().max()) < 1e-3


@pytest.mark.parametrize("n_out, n_in", [(64, 64), (576, 96), (16, 32), (80, 64), (32, 512)])
def test_the_packed_product_equals_plain_arithmetic(n_out: int, n_in: int) -> None:
    linear = nn.Linear(n_in, n_out)
    layer = to_int4(linear)
    expected = restored(*to_groups(linear.weight.detach()))
    assert isinstance(layer, Int4Linear)
    assert torch.allclose(layer.dequantised().float(), expected, atol=2e-3, rtol=1e-2)
    for rows in (1, 2, 5):
        x = torch.randn(rows, n_in).bfloat16()
        assert relative_error(x.float() @ expected.t() + linear.bias, layer(x).float()) < 0.01
    assert layer(torch.randn(2, 3, n_in)).shape == (2, 3, n_out)


@pytest.mark.skipif(packed_block() is None, reason="this processor packs in another order: nothing is taken back")
def test_many_rows_are_multiplied_with_the_dequantised_weight_to_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer, x = to_int4(nn.Linear(96, 128)), torch.randn(40, 96).bfloat16()
    packed = layer(x)
    monkeypatch.setattr(int4, "MANY_ROWS", 1)
    monkeypatch.setattr(Int4Linear, "_product", lambda *_: pytest.fail("the packed product was called"))
    assert relative_error(packed.float(), layer(x).float()) < 0.01


def test_an_order_that_is_not_known_is_taken_back_by_the_product_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = to_int4(nn.Linear(64, 64))
    known = layer.dequantised()
    monkeypatch.setattr(int4, "packed_block", lambda: None)
    assert relative_error(known.float(), layer.dequantised().float()) < 0.005


def test_a_transposed_input_gives_the_same_rows() -> None:
    layer, x = to_int4(nn.Linear(64, 16)), torch.randn(64, 6).bfloat16().t()
    assert torch.equal(layer(x), layer(x.contiguous()))


def test_rows_that_are_a_part_of_wider_ones_are_multiplied_as_they_are() -> None:
    layer, rows = to_int4(nn.Linear(64, 16, bias=False)), torch.randn(3, 128).bfloat16().narrow(1, 0, 64)
    assert torch.equal(packed_product(rows, layer.packed, layer.groups), layer(rows.contiguous()))


@pytest.mark.parametrize("known", [True, False])
def test_what_the_levels_stand_for_is_given_in_fp32(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not known:
        monkeypatch.setattr(int4, "packed_block", lambda: None)
    model = ARCHITECTURES["llama"]().eval()
    converted = to_int4(model)
    pairs = list(zip(model.modules(), converted.modules(), strict=True))
    made = [(one.weight, other.dequantised()) for one, other in pairs if hasattr(other, "dequantised")]
    assert len(made) > 10
    for weight, restored_ in made:
        assert restored_.dtype == torch.float32 and relative_error(weight, restored_) < 0.1


@pytest.mark.parametrize("n_in, n_out, packs", [(30, 16, False), (64, 7, False), (32, 16, True)])
def test_sizes_that_do_not_divide_stay_bf16(n_in: int, n_out: int, packs: bool) -> None:
    linear = nn.Linear(n_in, n_out)
    layer, x = to_int4(linear), torch.randn(3, n_in)
    assert fits(linear.weight) == packs == isinstance(layer, Int4Linear)
    assert layer.weight.dtype == torch.bfloat16 and layer.weight.shape == (n_out, n_in)
    assert relative_error(linear(x), layer(x.bfloat16()).float()) < (0.2 if packs else 0.01)


def test_two_levels_are_packed_into_a_byte() -> None:
    assert pack(torch.zeros(64, 64, dtype=torch.int32)).untyped_storage().nbytes() == 64 * 32
    layer = to_int4(nn.Linear(256, 256, bias=False))
    assert weight_bytes(layer) == 256 * 256 // 2 + 256 * 256 // GROUP * 2 * 2  # levels; scale and middle in BF16


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_every_architecture_runs_in_int4_close_to_fp32(name: str) -> None:
    model = ARCHITECTURES[name]().eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    expected = run(model)
    converted = to_int4(model)
    assert any(isinstance(module, Int4Linear) for module in converted.modules())
    assert not any(type(module).__name__ == "Conv1D" for module in converted.modules())
    ours = run(converted)
    assert ours.dtype in {torch.bfloat16, torch.float32} and relative_error(expected, ours.float()) < 0.25
    assert torch.equal(run(model), expected)
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)


@pytest.mark.parametrize("name", ["gpt2", "t5", "bart", "marian", "llama", "gemma"])
def test_a_tied_head_and_its_embedding_share_one_int8_table(name: str) -> None:
    converted = to_int4(ARCHITECTURES[name]().eval())
    table, head = converted.get_input_embeddings(), converted.get_output_embeddings()
    assert isinstance(table, Int8Embedding) and isinstance(head, Int8WeightLinear)
    assert table.levels.data_ptr() == head.levels.data_ptr()
    assert table(torch.arange(4)).dtype == torch.bfloat16


def test_a_head_says_the_same_for_one_row_and_for_many() -> None:
    model = ARCHITECTURES["qwen3"]().eval()  # its head is not tied
    head = to_int4(model).get_output_embeddings()
    assert isinstance(head, Int8WeightLinear)
    x = torch.randn(9, 64).bfloat16()
    assert relative_error(head(x)[3].float(), head(x[3]).float()) < 0.01
    assert relative_error(model.get_output_embeddings()(x.float()), head(x).float()) < 0.02


def test_int4_weights_of_a_model_take_little_more_than_an_eighth() -> None:
    config = LlamaConfig(**(SMALL | dict(hidden_size=256, intermediate_size=512)), tie_word_embeddings=True)
    model = LlamaForCausalLM(config)
    assert weight_bytes(to_int4(model)) < 0.18 * weight_bytes(model)


@torch.no_grad()
def test_a_cached_step_continues_an_int4_prefill() -> None:
    model = to_int4(ARCHITECTURES["llama"]().eval())
    ids = torch.randint(3, VOCABULARY, (1, 8))
    whole = model(ids).logits[:, -1]
    prefill = model(ids[:, :-1], use_cache=True)
    step = model(ids[:, -1:], cache=prefill.past_key_values).logits[:, -1]
    assert relative_error(whole.float(), step.float()) < 0.03


@torch.no_grad()
@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_model_that_never_was_in_four_bits_still_means_the_same(sentence: str) -> None:
    """MiniLM's sentence vector; cosine .964 was measured for plain rounding in groups of 32."""
    from tfviz.sources.resident import Resident

    settings = Settings.from_environment()
    if not (settings.cache / "models" / "minilm-l6").exists():
        pytest.skip("MiniLM is not on this disk")
    resident = Resident(settings)
    vectors = []
    for precision in ("fp32", "int4"):
        loaded = resident.get("minilm-l6", precision)
        hidden = loaded.model(**loaded.prompt(sentence).inputs)[0]
        vectors.append(hidden[0].float().mean(0))
    assert float(torch.cosine_similarity(*vectors, dim=0)) > 0.96
