"""Weights that are NaN, activations that leave FP16: every section says it in one sentence that names the layer."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import Loaded
from tfviz.errors import UnsupportedHere
from tfviz.inference.precision import PRECISIONS
from tfviz.introspection.batch import run_batch
from tfviz.introspection.beams import beam_steps
from tfviz.introspection.cache_trace import cache_steps
from tfviz.introspection.capture import capture
from tfviz.introspection.generation import run_steps
from tfviz.introspection.layer_calls import observe
from tfviz.introspection.lens import lens_steps
from tfviz.introspection.positions import look
from tfviz.introspection.run import Plan
from tfviz.messages import LANGUAGES
from tfviz.sources.base import LoadedModel, Prompt

TEXT = "the cat saw the other cat near the door"
Section = Callable[[LoadedModel, Prompt], Any]
SECTIONS: dict[str, Section] = {
    "attention, flash": lambda model, prompt: capture(model, prompt, (TEXT, None), layers=(0,)),
    "attention, naive": lambda model, prompt: capture(model, prompt, (TEXT, None), kernel="naive", overview=True),
    "flow, residual, norms": observe,
    "positions": look,
    "masks": run_batch,
    "lens": lambda model, prompt: list(lens_steps(model, prompt, 0, 2)),
    "generation": lambda model, prompt: list(run_steps(model, prompt, Plan(2))),
    "generation without a cache": lambda model, prompt: list(run_steps(model, prompt, Plan(2, use_cache=False))),
    "beams": lambda model, prompt: list(beam_steps(model, prompt, 2, 2)),
    "cache": lambda model, prompt: list(cache_steps(model, prompt, "flash", 2)),
}


@pytest.fixture
def changed(loaded: Loaded) -> Callable[..., LoadedModel]:
    """A tiny Llama (3 layers) in `precision` after `change` was made to it."""

    def make(change: Callable[[Any], None], precision: str = "fp32") -> LoadedModel:
        base = loaded("llama")
        model = copy.deepcopy(base.model)
        with torch.no_grad():
            change(model)
        return replace(base, model=PRECISIONS[precision].convert(model), precision=precision)

    return make


def nan_in(path: str) -> Callable[[Any], None]:
    return lambda model: model.get_parameter(path).view(-1)[3].fill_(torch.nan)


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("path", ["model.layers.1.mlp.down_proj.weight", "lm_head.weight"])
def test_nan_weights_are_named_by_every_section(changed: Callable[..., LoadedModel], section: str, path: str) -> None:
    model = changed(nan_in(path))
    with pytest.raises(UnsupportedHere) as refused:
        SECTIONS[section](model, model.prompt(TEXT))
    place = f"layer 1 ({path})" if "layers" in path else path
    assert f"1 of them are NaN or infinite, first in {place}. The checkpoint is damaged" in str(refused.value)
    assert path in refused.value.in_language("zh") and "FP32" not in str(refused.value)


def grown_scores(model: Any) -> None:
    """|score| of about 1.5e5 in the last layer, q and k within FP16."""
    for name in ("q_proj", "k_proj"):
        model.model.layers[2].self_attn.get_submodule(name).weight.mul_(216)


def test_scores_that_leave_fp16_are_refused_by_naive_and_right_by_flash(changed: Callable[..., LoadedModel]) -> None:
    half, full = changed(grown_scores, "fp16"), changed(grown_scores)
    exact = capture(full, full.prompt(TEXT), (TEXT, None), kernel="naive").stacks["self"].layers[2]
    scores = exact.query @ exact.key.repeat(2, 0).transpose(0, 2, 1) * float(exact.scale or 0)
    assert 7e4 < np.abs(scores).max() < 1e6 and np.abs(exact.query).max() < 6e4, "only the scores are out of range"
    with pytest.raises(UnsupportedHere) as refused:
        capture(half, half.prompt(TEXT), (TEXT, None), kernel="naive")
    assert "attention scores overflow, first in layer 2 (model.layers.2.self_attn)" in str(refused.value)
    assert "FP16 ends at ±65504. Choose flash" in str(refused.value)
    assert "65504" in refused.value.in_language("zh")
    for precision in ("fp16", "bf16"):
        model = changed(grown_scores, precision)
        trace = capture(model, model.prompt(TEXT), (TEXT, None), kernel="flash")
        layer = trace.stacks["self"].layers[2]
        weights = layer.weights()
        assert np.isfinite(weights).all() and np.abs(weights.sum(-1) - 1).max() < 1e-5
        assert layer.kernel_difference(0, weights[0]) < 1e-4 * max(1.0, np.abs(layer.value).max())


def test_weights_shown_are_rounded_as_the_naive_kernel_rounds_them(changed: Callable[..., LoadedModel]) -> None:
    """In BF16 scores of some hundred are off by one: what FP32 makes of the same q and k is not what was computed."""
    model = changed(lambda model: None, "bf16")
    trace = capture(model, model.prompt(TEXT), (TEXT, None), kernel="naive")
    layer = trace.stacks["self"].layers[0]
    shown, widened = layer.weights(), replace(layer, score_dtype=torch.float32).weights()
    as_held = torch.from_numpy(shown)
    assert layer.score_dtype == torch.bfloat16 and torch.equal(as_held, as_held.bfloat16().float())
    assert 0 < np.abs(shown - widened).max() < 0.05


def test_activations_that_leave_fp16_outside_attention_are_named(changed: Callable[..., LoadedModel]) -> None:
    def grow(model: Any) -> None:
        model.model.layers[1].mlp.down_proj.weight.mul_(1e7).clamp_(-6e4, 6e4)
        model.model.layers[1].mlp.up_proj.weight.mul_(100)

    model = changed(grow, "fp16")
    for section in ("attention, flash", "flow, residual, norms", "generation", "lens"):
        with pytest.raises(UnsupportedHere, match=r"NaN or infinite values, first in layer 1 .*Choose FP32") as refused:
            SECTIONS[section](model, model.prompt(TEXT))
    assert {refused.value.in_language(language) != "" for language in LANGUAGES} == {True}


def test_a_last_row_that_is_whole_hides_no_row_before_it(changed: Callable[..., LoadedModel]) -> None:
    """The last layer's other rows reach no logit of the last position, and yet are drawn."""

    def infinite(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        output[:, 0] = torch.inf
        return output

    model = changed(lambda model: None)
    last: Any = model.model.get_submodule("model.layers.2.mlp.down_proj")
    last.register_forward_hook(infinite)
    with pytest.raises(UnsupportedHere, match=r"first in layer 2 \(model.layers.2.mlp\)"):
        observe(model, model.prompt(TEXT))


def test_a_head_may_rule_tokens_out(changed: Callable[..., LoadedModel]) -> None:
    def without_some(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        output[..., :9] = -torch.inf
        return output

    model = changed(lambda model: None)
    model.model.get_submodule("lm_head").register_forward_hook(without_some)
    steps: Iterator[Any] = run_steps(model, model.prompt(TEXT), Plan(2))
    assert all(step.id >= 9 for step in steps)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_no_precision_hides_a_weight_that_is_no_number(
    changed: Callable[..., LoadedModel], odd: float, precision: str
) -> None:
    """Torch's fused kernel gives zeros for a query that is NaN, and whole numbers hold neither NaN nor infinity."""
    path = "model.layers.0.self_attn.q_proj.weight"
    model = changed(lambda model: model.get_parameter(path)[0, 3].fill_(odd), precision)
    with pytest.raises(UnsupportedHere, match=r"first in layer 0 \(model.layers.0.self_attn.q_proj"):
        SECTIONS["generation"](model, model.prompt(TEXT))
