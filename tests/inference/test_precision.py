"""Casting: what changes, what stays, what is shared, and that the resident model is never touched."""

import pytest
import torch
from torch import nn

from tfviz.inference.precision import PRECISIONS, weight_bytes
from tfviz.messages import LANGUAGES, text


class TinyModel(nn.Module):
    """A tied table and head, a norm, a persistent and a non-persistent buffer, an integer buffer, a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 64)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 32, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("running", torch.rand(64))
        self.register_buffer("frequencies", torch.rand(64), persistent=False)
        self.register_buffer("positions", torch.arange(32))
        self.settings = {"dropout": 0.1}

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.table(ids)))


@pytest.fixture
def model() -> TinyModel:
    torch.manual_seed(0)
    return TinyModel().eval()


def snapshot(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


@pytest.mark.parametrize("key", PRECISIONS)
def test_converting_leaves_the_resident_model_as_it_was(model: TinyModel, key: str) -> None:
    before = snapshot(model)
    converted = PRECISIONS[key].convert(model)
    after = snapshot(model)
    assert before.keys() == after.keys()
    assert all(before[name].dtype == after[name].dtype and torch.equal(before[name], after[name]) for name in before)
    assert converted is not model and converted.settings is not model.settings
    assert not {id(module) for module in converted.modules()} & {id(module) for module in model.modules()}


@pytest.mark.parametrize("key", ["fp16", "bf16"])
def test_a_cast_reaches_parameters_and_persistent_buffers_only(model: TinyModel, key: str) -> None:
    precision = PRECISIONS[key]
    converted = precision.convert(model)
    assert {parameter.dtype for parameter in converted.parameters()} == {precision.dtype}
    assert converted.running.dtype == precision.dtype
    assert converted.frequencies.dtype == torch.float32
    assert converted.positions.dtype == torch.int64
    assert torch.equal(converted.norm.weight, model.norm.weight.to(precision.dtype))


@pytest.mark.parametrize("key", ["fp32", "fp16", "bf16"])
def test_tied_weights_stay_tied(model: TinyModel, key: str) -> None:
    converted = PRECISIONS[key].convert(model)
    assert converted.head.weight is converted.table.weight


def test_fp32_shares_every_weight_and_computes_the_same(model: TinyModel) -> None:
    converted = PRECISIONS["fp32"].convert(model)
    assert converted.table.weight is model.table.weight
    ids = torch.arange(5)[None]
    assert torch.equal(converted(ids), model(ids))


def test_training_flags_travel_with_the_copy(model: TinyModel) -> None:
    assert not any(module.training for key in PRECISIONS for module in PRECISIONS[key].convert(model).modules())


def test_a_layer_declared_too_fine_for_fp16_stays_fp32(model: TinyModel) -> None:
    model._keep_in_fp32_modules = {"norm"}
    converted = PRECISIONS["fp16"].convert(model)
    assert converted.norm.weight.dtype == torch.float32
    assert converted.table.weight.dtype == torch.float16
    assert PRECISIONS["bf16"].convert(model).norm.weight.dtype == torch.bfloat16


def test_weight_bytes_counts_a_tied_table_once(model: TinyModel) -> None:
    floats = 32 * 64 + 2 * 64 + 2 * 64  # table, norm, two buffers
    assert weight_bytes(model) == 4 * floats + 8 * 32
    assert weight_bytes(PRECISIONS["fp16"].convert(model)) == 2 * (floats - 64) + 4 * 64 + 8 * 32


def test_the_table_is_in_the_order_of_the_page() -> None:
    assert list(PRECISIONS) == ["fp32", "fp16", "bf16", "int8_weights", "int8", "int4"]
    assert all(key == precision.key for key, precision in PRECISIONS.items())


def test_every_precision_runs_on_the_cpu() -> None:
    assert [precision.unsupported(torch.device("cpu")) for precision in PRECISIONS.values()] == [None] * 6


def test_a_precision_a_device_cannot_run_says_so_in_both_languages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    reasons = [
        PRECISIONS["int8"].unsupported(torch.device("mps")),
        PRECISIONS["bf16"].unsupported(torch.device("cuda")),
        PRECISIONS["int4"].unsupported(torch.device("mps")),
        PRECISIONS["int8_weights"].unsupported(torch.device("mps")),
    ]
    assert all(text(reason, language) for reason in reasons for language in LANGUAGES)
