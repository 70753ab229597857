"""The parts of real small models: FLOPs and bytes by hand, every matrix in its part, times that add up."""

from typing import Any

import pytest
import torch

from tests.conftest import Loaded
from tfviz.inference.operator_clock import OperatorWatch
from tfviz.introspection import roofline_run
from tfviz.introspection.roofline_operations import attention_of, product_of
from tfviz.introspection.roofline_parts import Counted, Rounds, count
from tfviz.sources.base import LoadedModel

TEXT = "The animal didn't cross the street because it was too tired"
MODELS = ("llama", "bert", "gpt2", "bart", "t5")


def counted(model: LoadedModel, n: int = 16) -> Counted:
    target = "the cat saw" if model.family == "encoder-decoder" else None
    return count(model, model.prompt(TEXT, target), n)


def of(found: Counted, phase: str, name: str) -> int:
    return sum(one.flops for one in found.parts if one.phase == phase and one.name == name)


@pytest.mark.parametrize("name", MODELS)
def test_counts_of_a_step_equal_the_formula_that_was_written_apart(name: str, loaded: Loaded) -> None:
    found = counted(loaded(name))
    own = sum(one.flops for one in found.parts if one.phase == "decode" and one.name != "other")
    assert found.formula is None if name == "bert" else own == found.formula
    assert {one.name for one in found.parts if one.phase == "prefill"} >= {"projections", "attention", "feed_forward"}


def test_flops_of_a_llama_are_those_of_its_shapes(loaded: Loaded) -> None:
    model, n = loaded("llama"), 16
    config: Any = model.model.config
    found = counted(model, n)
    heads, dim = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    width, layers = config.hidden_size, config.num_hidden_layers
    projections = 2 * width * width + 2 * width * config.num_key_value_heads * dim
    assert of(found, "prefill", "projections") == 2 * n * layers * projections
    assert of(found, "prefill", "attention") == 4 * n * n * layers * heads * dim
    assert of(found, "prefill", "feed_forward") == 2 * n * layers * 3 * width * config.intermediate_size
    assert of(found, "decode", "head") == of(found, "prefill", "head") == 2 * width * config.vocab_size
    assert of(found, "decode", "projections") == 2 * layers * projections


@pytest.mark.parametrize("by_columns", [False, True])
def test_a_product_is_2mkn_and_reads_each_operand_once(by_columns: bool) -> None:
    x, weight = torch.ones(1, 3, 8), torch.ones(5, 8)
    weight = weight.t().contiguous().t() if by_columns else weight
    one = product_of("linear", [x, weight], x @ weight.t(), True)
    assert (one.rows, one.inner, one.outer, one.flops) == (3, 8, 5, 240)
    assert one.weights == 160 and one.nbytes == 96 + 160 + 60 and one.route.by_columns is by_columns


def test_an_attention_counts_every_pair_and_shared_keys_once() -> None:
    q, k = torch.ones(1, 4, 6, 8), torch.ones(1, 2, 6, 8)
    one = attention_of((q, k, k, None, 0.0, True), q)
    assert (
        one.flops == 2 * 4 * 6 * 6 * 16
        and one.route.op == "causal"
        and one.nbytes == 4 * (2 * q.numel() + 2 * k.numel())
    )
    assert attention_of((q[:, :, :1], k, k, None, 0.0, False), q[:, :, :1]).route.op == "full"


@pytest.mark.parametrize("name", ["llama", "bert", "bart"])
def test_parts_are_timed_and_their_sum_is_no_longer_than_seconds(name: str, loaded: Loaded) -> None:
    model = loaded(name)
    found, prompt = counted(model), model.prompt(TEXT, "the cat saw" if name == "bart" else None)
    timed = Rounds(model, prompt, found, 0.0)(2)
    assert timed.parts.keys() == {part.key for part in found.parts} and timed.whole.keys() == {
        p.name for p in found.phases
    }
    assert all(0 < one.low <= one.median <= one.high < 1 for one in timed.parts.values())


def test_a_run_ends_with_errors_of_every_part_and_their_records(loaded: Loaded, monkeypatch: Any) -> None:
    monkeypatch.setattr("tfviz.inference.roofline_probes.RUNS", (1, 1))
    monkeypatch.setattr("tfviz.inference.roofline.READ", (2**18, 2**20))
    monkeypatch.setattr("tfviz.inference.roofline.PASSED", (0, 2**18, 2**20))
    model = loaded("llama")
    found = counted(model)
    *_, last = roofline_run.run(model, model.prompt(TEXT), found, cycles=1)
    assert (
        last.part == 1 and last.median_error is not None and all(last.error(part) is not None for part in found.parts)
    )
    assert last.sums("prefill") is not None
    rows = roofline_run.records(last)
    assert {one.quantity for one in rows} == {
        "bandwidth",
        "throughput",
        "latency",
        "predicted_latency",
        "flops",
        "bytes",
    }
    assert sum(one.quantity == "latency" for one in rows) == len(found.parts)


def test_a_watch_tells_of_operators_and_changes_nothing() -> None:
    names: list[str] = []
    with torch.inference_mode(), OperatorWatch(lambda func, args, output: names.append(func.__name__)):
        made = torch.ones(2) + 1
    assert names[-1] == "add.Tensor" and made.tolist() == [2, 2]
