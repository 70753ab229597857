"""What a notebook uses, on a folder of one's own; and the article's sentence on the default model."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tfviz
from tests.conftest import Checkpoint
from tfviz.config import Settings
from tfviz.errors import TfvizError
from tfviz.introspection.workbench import default_workbench
from tfviz.sources.catalog import CATALOG

TEXT = "The animal didn't cross the street because it was too tired"
SMOLLM2 = Settings.from_environment({}).cache / "models" / "smollm2-135m"


@pytest.fixture
def own_workbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process's workbench, made anew from an environment of the test's own."""
    monkeypatch.setenv("TFVIZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TFVIZ_DEVICE", "cpu")
    monkeypatch.setenv("TFVIZ_ALLOW_LOCAL", "1")
    default_workbench.cache_clear()
    yield
    default_workbench.cache_clear()


pytestmark = pytest.mark.usefixtures("own_workbench")


def test_importing_loads_no_torch_and_the_names_are_there() -> None:
    code = "import sys, tfviz; print('torch' in sys.modules, tfviz.__all__); assert all(map(callable, map(tfviz.__getattr__, tfviz.__all__)))"  # noqa: E501
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split(" ", 1) == ["False", "['generate', 'measure', 'models', 'trace']\n"]


@pytest.mark.parametrize(
    ("own", "heard"),
    [({}, str(tfviz.SPIN_COUNT)), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
    ids=["nothing", "a count", "a policy"],
)
def test_threads_spin_little_unless_a_person_says_otherwise(own: dict[str, str], heard: str) -> None:
    code = "import os, tfviz; print(os.environ.get('GOMP_SPINCOUNT'))"
    unset = {name: value for name, value in os.environ.items() if name not in {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}}
    printed = subprocess.run([sys.executable, "-c", code], env=unset | own, capture_output=True, text=True).stdout
    assert printed == heard + "\n"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="tfviz.*'trades'"):
        tfviz.trades  # noqa: B018


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_a_trace_has_tokens_ids_attention_and_cost(name: str, checkpoint: Checkpoint) -> None:
    trace = tfviz.trace(TEXT, model=str(checkpoint(name)), kernel="naive")
    n = len(trace.tokens)
    assert all(isinstance(token, str) and token for token in trace.tokens)
    assert len(trace.token_ids) == n and all(isinstance(i, int) for i in trace.token_ids)
    assert list(trace.attention) == ["self"]
    weights = trace.attention["self"]
    assert weights.dtype == np.float32 and weights.shape[1:] == (4, n, n)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert trace.cost.seconds > 0 and trace.cost.device == "cpu"
    assert trace.cost.peak_bytes is not None and trace.cost.peak_bytes > 4 * n * n  # at least one head's weights


def test_a_pair_is_source_and_target_of_an_encoder_decoder(checkpoint: Checkpoint) -> None:
    trace = tfviz.trace(("the cat", "the door"), model=str(checkpoint("t5")))
    assert list(trace.attention) == ["encoder", "decoder", "cross"]
    assert [token.text for token in trace.target_tokens] == ["<pad>", "the", "door"]
    assert trace.attention["cross"].shape[-2:] == (3, len(trace.tokens))


def test_a_pair_with_nothing_second_is_one_text(checkpoint: Checkpoint) -> None:
    model = str(checkpoint("llama"))
    assert tfviz.trace((TEXT, None), model=model).tokens == tfviz.trace(TEXT, model=model).tokens


def test_both_kernels_show_the_same_attention(checkpoint: Checkpoint) -> None:
    naive, flash = (tfviz.trace(TEXT, model=str(checkpoint("llama")), kernel=kernel) for kernel in ("naive", "flash"))
    np.testing.assert_allclose(naive.attention["self"], flash.attention["self"], atol=1e-5)


def test_layers_and_thumbnails_can_be_asked_for(checkpoint: Checkpoint) -> None:
    trace = tfviz.trace(TEXT, model=str(checkpoint("llama")), layers=[2, 0], overview=True)
    assert trace.attention["self"].shape[0] == 2 and list(sorted(trace.stacks["self"].layers)) == [0, 2]
    assert trace.stacks["self"].overview is not None and len(trace.stacks["self"].overview) == 3


@pytest.mark.parametrize("wrong", [{"kernel": "quick"}, {"precision": "int3"}, {"model": "/no/such/folder"}])
def test_what_is_wrong_is_a_value_error_of_one_sentence(wrong: dict[str, str], checkpoint: Checkpoint) -> None:
    with pytest.raises(ValueError) as refused:
        tfviz.trace(TEXT, **{"model": str(checkpoint("llama"))} | wrong)
    assert next(iter(wrong.values())) in str(refused.value) and "\n" not in str(refused.value)


# ---- generate


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_generate_yields_each_token_with_its_numbers(name: str, checkpoint: Checkpoint) -> None:
    model = str(checkpoint(name))
    settings: dict[str, Any] = {"temperature": 1.4, "top_k": 50, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1}
    steps = list(tfviz.generate("the cat sat", model=model, max_new_tokens=6, seed=4, **settings))
    assert [step.index for step in steps] == list(range(len(steps))) and 1 <= len(steps) <= 6
    assert steps[-1].stopped in {"end", "max_new_tokens"} and all(step.stopped is None for step in steps[:-1])
    for step in steps:
        assert isinstance(step.token.label, str) and step.token.id == step.id
        assert 0 < step.prob <= 1 and 0 < step.drawn_prob <= 1 and step.entropy > 0 and step.surprise >= 0
        stages = list(step.top[0].probs)
        assert stages == list(step.kept) == ["model", "repetition", "temperature", "top_k", "top_p", "min_p"]
        assert step.seconds > 0 and step.cache_bytes > 0 and step.seen is None
    again = tfviz.generate("the cat sat", model=model, max_new_tokens=6, seed=4, use_cache=False, **settings)
    assert [step.id for step in again] == [step.id for step in steps]
    assert all(step.cache_bytes == 0 for step in tfviz.generate("cat", model=model, max_new_tokens=2, use_cache=False))


def test_generate_is_greedy_unless_it_is_told_otherwise(checkpoint: Checkpoint) -> None:
    for step in tfviz.generate("the cat sat", model=str(checkpoint("llama")), kernel="naive", max_new_tokens=4):
        assert step.id == step.top[0].id and step.drawn_prob == 1


def test_a_precision_can_be_chosen_for_generate(checkpoint: Checkpoint) -> None:
    (full,), (half,) = (
        list(tfviz.generate("the cat", model=str(checkpoint("llama")), precision=precision, max_new_tokens=1))
        for precision in ("fp32", "bf16")
    )
    assert half.cache_bytes * 2 == full.cache_bytes


def test_the_device_is_free_between_two_tokens(checkpoint: Checkpoint) -> None:
    model = str(checkpoint("llama"))
    steps = tfviz.generate("the cat sat", model=model, max_new_tokens=5)
    first = next(steps)
    assert tfviz.trace("the door", model=model).tokens and first.index == 0
    assert [step.index for step in steps] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"prompt": ("a", "b")}, "prompt"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 0}, "top_p"),
        ({"min_p": 2}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": None}, "seed"),
        ({"kernel": "quick"}, "quick"),
        ({"precision": "int3"}, "int3"),
        ({"prompt": ""}, "token"),
        ({"chat": True}, "template"),
    ],
)
def test_what_generate_cannot_do_is_a_sentence(wrong: dict[str, Any], name: str, checkpoint: Checkpoint) -> None:
    with pytest.raises(ValueError, match=name) as refused:
        next(tfviz.generate(**{"prompt": "the cat", "model": str(checkpoint("llama"))} | wrong))
    assert "\n" not in str(refused.value)


def test_an_encoder_generates_nothing_and_says_so_at_once(checkpoint: Checkpoint) -> None:
    with pytest.raises(ValueError, match="writes no text"):
        tfviz.generate("the cat", model=str(checkpoint("bert")))


def test_models_lists_the_catalog() -> None:
    table = tfviz.models()
    assert isinstance(table, pd.DataFrame) and list(table["id"]) == list(CATALOG)
    assert {"id", "label", "family", "parameters", "n_layers", "n_heads", "license", "from", "on_disk"} == set(table)
    assert set(table["family"]) == {"decoder", "encoder", "encoder-decoder"}
    assert set(table["from"]) <= {"disk", "wheel", "hub"} and table["on_disk"].equals(table["from"] == "disk")


def test_measure_is_a_row_for_each_setting(checkpoint: Checkpoint) -> None:
    table = tfviz.measure(TEXT, model=str(checkpoint("llama")), precisions=["fp32", "int8"], repeats=2)
    settings = list(zip(table["kernel"], table["precision"], strict=True))
    assert settings == [("naive", "fp32"), ("flash", "fp32"), ("naive", "int8"), ("flash", "int8")]
    assert (table["seconds"] > 0).all() and (table["low"] <= table["seconds"]).all()
    assert (table["seconds"] <= table["high"]).all() and (table["peak_bytes"] >= 0).all()
    assert table["speedup"][0] == 1
    np.testing.assert_allclose(table["speedup"], table["seconds"][0] / table["seconds"])
    assert table["weight_bytes"][2] < table["weight_bytes"][0] and table["max_abs"][0] == 0 and table["top1"][0] == 1


def test_measure_compares_hidden_states_where_there_is_no_head(checkpoint: Checkpoint) -> None:
    table = tfviz.measure("the cat", model=str(checkpoint("bert")), precisions=["fp32"], kernels=["flash"], repeats=1)
    assert len(table) == 1 and table["top1"].isna().all()


def test_measure_refuses_a_kernel_the_model_cannot_run_in_a_sentence(checkpoint: Checkpoint) -> None:
    with pytest.raises(ValueError, match="Choose naive"):
        tfviz.measure("the cat", model=str(checkpoint("gemma2")), precisions=["fp32"], repeats=1)
    table = tfviz.measure("the cat", model=str(checkpoint("gemma2")), kernels=["naive"], precisions=["fp32"], repeats=1)
    assert list(table["kernel"]) == ["naive"]


# ---- the article's sentence


@pytest.mark.weights
@pytest.mark.skipif(not SMOLLM2.exists(), reason="SmolLM2 is not on disk: python -m tfviz.sources.fetch")
@pytest.mark.parametrize("kernel", ["naive", "flash"])
def test_in_layer_13_head_8_of_smollm2_it_looks_at_animal(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TFVIZ_CACHE")
    default_workbench.cache_clear()
    trace = tfviz.trace(TEXT, model="smollm2-135m", kernel=kernel, layers=[13])
    it, animal = trace.tokens.index("it"), trace.tokens.index("animal")
    weights = trace.attention["self"][0, 8]
    assert weights[it, animal] == pytest.approx(0.75, abs=0.01)
    assert weights[it].argmax() == animal
    assert trace.stacks["self"].n_layers == 30 and (trace.stacks["self"].n_heads, trace.stacks["self"].n_kv_heads) == (
        9,
        3,
    )


@pytest.mark.parametrize(
    "changes, name", [({"repeats": 0}, "repeats"), ({"kernels": []}, "kernels"), ({"precisions": ()}, "precisions")]
)
def test_a_measurement_of_nothing_is_refused(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} = "):
        tfviz.measure("the cat", **changes)


@pytest.mark.parametrize("text", [None, 5, ("a", 5), ("a", "b", "c")])
def test_what_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="a text, or a pair of texts"):
        tfviz.trace(text)


def test_generate_refuses_a_prompt_that_would_be_cut(checkpoint: Checkpoint) -> None:
    with pytest.raises(TfvizError, match="The prompt has 1[0-9][0-9] tokens; gpt2 reads 64"):
        tfviz.generate("the cat " * 60, model=str(checkpoint("gpt2")))


def test_a_model_that_is_no_text_is_refused_by_name() -> None:
    """A notebook's own Path or None ends in a sentence, not in Python's words about an attribute."""
    for call in (tfviz.trace, tfviz.generate, tfviz.measure):
        for model in (None, Path("folder")):
            with pytest.raises(ValueError, match="model = "):
                call("a", model=model)  # type: ignore[arg-type, operator]
