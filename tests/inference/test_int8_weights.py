"""INT8 weights: the packed product against plain arithmetic, real architectures, tied tables, odd sizes."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from tests.inference.test_int8 import ARCHITECTURES, SMALL, relative_error, run
from tfviz.inference.precision import PRECISIONS, int8_weights, weight_bytes
from tfviz.inference.precision.int8 import Int8Embedding
from tfviz.inference.precision.int8_weights import FEW_ROWS, Int8WeightLinear, table_of, to_int8_weights


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


def test_a_level_is_the_nearest_multiple_of_its_rows_scale() -> None:
    weight = torch.randn(5, 40)
    table = table_of(weight)
    for out in range(5):
        scale = float(weight[out].abs().max()) / 127
        assert float(table.scale[out]) == pytest.approx(scale, rel=2**-8)  # held in BF16
        for i in range(40):
            assert int(table.levels[out, i]) == round(float(weight[out, i]) / scale)


@pytest.mark.parametrize("n_out, n_in", [(64, 64), (7, 48), (1, 16), (33, 40), (5, 7), (16, 1)])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_the_product_is_that_of_the_dequantised_weight(n_out: int, n_in: int, bias: bool) -> None:
    linear = nn.Linear(n_in, n_out, bias=bias)
    layer = to_int8_weights(linear)
    assert isinstance(layer, Int8WeightLinear)
    assert relative_error(linear.weight, layer.dequantised()) < 0.01
    for rows in (1, 2, FEW_ROWS, FEW_ROWS + 1):
        x = torch.randn(rows, n_in).bfloat16()
        expected = x.float() @ layer.dequantised().t() + (linear.bias.bfloat16() if bias else 0.0)
        found = layer(x)
        assert found.dtype == torch.bfloat16 and found.shape == (rows, n_out)
        assert relative_error(expected, found.float()) < 0.01
    assert layer(torch.randn(2, 3, n_in)).shape == (2, 3, n_out)


def test_few_rows_read_the_packed_levels_and_many_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, called = to_int8_weights(nn.Linear(32, 16)), []
    monkeypatch.setattr(int8_weights.F, "linear", lambda x, w: called.append(len(x)) or x @ w.t())
    for rows in (1, FEW_ROWS, FEW_ROWS + 1):
        layer(torch.randn(rows, 32))
    assert called == [FEW_ROWS + 1]


def test_a_transposed_input_gives_the_same_rows() -> None:
    layer, x = to_int8_weights(nn.Linear(64, 16)), torch.randn(64, 6).bfloat16().t()
    assert torch.equal(layer(x), layer(x.contiguous()))


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_every_architecture_runs_close_to_fp32(name: str) -> None:
    model = ARCHITECTURES[name]().eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    expected = run(model)
    converted = to_int8_weights(model)
    left = [type(module).__name__ for module in converted.modules() if type(module) is nn.Linear]
    assert not left and not any(type(module).__name__ == "Conv1D" for module in converted.modules())
    assert relative_error(expected, run(converted).float()) < 0.03
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)


@pytest.mark.parametrize("name", ["gpt2", "t5", "bart", "marian", "llama", "gemma"])
def test_a_tied_head_and_its_embedding_share_one_table(name: str) -> None:
    converted = to_int8_weights(ARCHITECTURES[name]().eval())
    table, head = converted.get_input_embeddings(), converted.get_output_embeddings()
    assert isinstance(table, Int8Embedding) and isinstance(head, Int8WeightLinear)
    assert table.levels.data_ptr() == head.levels.data_ptr()
    assert table(torch.arange(4)).dtype == torch.bfloat16


def test_the_weights_take_little_more_than_a_quarter() -> None:
    config = LlamaConfig(**(SMALL | dict(hidden_size=256, intermediate_size=512)), tie_word_embeddings=True)
    model = LlamaForCausalLM(config)
    assert weight_bytes(to_int8_weights(model)) < 0.26 * weight_bytes(model)
    layer = to_int8_weights(nn.Linear(256, 64, bias=False))
    assert weight_bytes(layer) == 256 * 64 + 2 * 64  # levels, and a scale in BF16 for each output


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@torch.no_grad()
def test_cuda_gives_what_the_cpu_gives() -> None:
    linear = nn.Linear(64, 48)
    here, there = to_int8_weights(linear), to_int8_weights(linear.cuda())
    for rows in (1, 40):
        x = torch.randn(rows, 64).bfloat16()
        assert relative_error(here(x).float(), there(x.cuda()).float().cpu()) < 0.01
    assert PRECISIONS["int8_weights"].unsupported(torch.device("cuda")) is None
