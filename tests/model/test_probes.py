"""Probes: their names, that they show what was computed, change nothing, stay nowhere, and meet nobody else's."""

import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.closeness import MODEL, SUM, difference
from tests.model.tiny import (
    DECODER,
    ENCODER_DECODER,
    FAMILIES,
    KERNELS,
    LLAMA_LIKE,
    build,
    ids,
    using,
)
from tfviz.config import TransformerConfig
from tfviz.errors import UnknownChoice
from tfviz.model import Transformer
from tfviz.model import attention as attention_module
from tfviz.model.attention_call import current_call
from tfviz.model.probes import OF_ATTENTION, PROBES, REPORTED, probes


def run(model: Transformer) -> Tensor:
    return model(ids(2, 5), ids(2, 4)) if model.config.family == "encoder-decoder" else model(ids(2, 4))


def expected_names(config: TransformerConfig) -> set[str]:
    names = set()
    for stack, n in (("encoder", config.n_encoder_layers), ("decoder", config.n_decoder_layers)):
        names |= {f"{stack}.embedding.embedded"} if n else set()
        for i in range(n):
            cross = stack == "decoder" and config.n_encoder_layers > 0
            places = ["resid_pre", "attention_out", "resid_mid", "feed_forward_out", "resid_post"]
            places += ["cross_out", "resid_cross"] if cross else []
            places += ["feed_forward.feed_forward_hidden"]
            places += [f"{a}.{name}" for a in (["attention", "cross_attention"][: 1 + cross]) for name in OF_ATTENTION]
            names |= {f"{stack}.layers.{i}.{place}" for place in places}
    return names


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_all_probes_at_once_are_every_place_of_every_layer_by_its_path(config: TransformerConfig) -> None:
    model = build(config)
    with probes(model) as seen:
        run(model)
    assert seen.keys() == expected_names(config)
    assert {name.rsplit(".", 1)[-1] for name in seen} <= set(PROBES) == {*REPORTED, *OF_ATTENTION}


@pytest.mark.parametrize("name", PROBES)
def test_one_probe_is_that_one_only(name: str) -> None:
    model = build(ENCODER_DECODER)
    with probes(model, name) as seen:
        run(model)
    assert seen and all(path.rsplit(".", 1)[-1] == name for path in seen)


def test_an_unknown_probe_is_answered_with_the_known_ones_in_both_languages() -> None:
    with (
        pytest.raises(UnknownChoice, match="probe called “resid_middle”.*resid_mid") as refused,
        probes(build(DECODER), "resid_middle"),
    ):
        pass
    assert "探针" in refused.value.in_language("zh")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("config", [*FAMILIES.values(), LLAMA_LIKE], ids=[*FAMILIES, "grouped heads"])
def test_looking_does_not_change_the_output(config: TransformerConfig, kernel: str) -> None:
    model = build(config)
    with using(kernel):
        plain = run(model)
        with probes(model):
            watched = run(model)
    assert torch.equal(watched, plain)


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, {"positions": "alibi"}, {"window": 2}], ids=["rope", "alibi", "window"])
def test_weights_are_the_softmax_of_the_scores_and_those_that_the_naive_kernel_used(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, used = build(LLAMA_LIKE, **changes), []
    kernel = attention_module.naive

    def spy(*arguments: Any) -> tuple[Tensor, Tensor]:
        output, weights = kernel(*arguments)
        used.append(weights)
        return output, weights

    with using("flash"), probes(model, "scores", "weights") as seen:
        run(model)
    monkeypatch.setitem(attention_module.ATTENTION_KERNELS, "naive", spy)
    with using("naive"):
        run(model)
    assert len(used) == 2
    for i, weights in enumerate(used):
        at = f"decoder.layers.{i}.attention."
        assert difference(seen[at + "weights"], weights) < SUM
        assert difference(seen[at + "scores"].softmax(-1), seen[at + "weights"]) < SUM
        assert torch.equal(seen[at + "scores"].isneginf(), seen[at + "weights"] == 0)


@torch.no_grad()
def test_queries_and_keys_are_shown_as_they_met_and_make_the_scores() -> None:
    model = build(LLAMA_LIKE)
    with probes(model, "query", "key", "scores") as seen:
        run(model)
    at = "decoder.layers.1.attention."
    query, key = seen[at + "query"], seen[at + "key"]
    assert query.shape == (2, 4, 4, 4) and key.shape == (2, 2, 4, 4)  # four heads share two of keys
    scores = query @ key.repeat_interleave(2, 1).transpose(2, 3) / 2
    triangle = torch.ones(4, 4, dtype=torch.bool).triu(1)
    assert difference(scores.masked_fill(triangle, 0), seen[at + "scores"].masked_fill(triangle, 0)) < SUM


@pytest.mark.parametrize("kernel", KERNELS)
def test_nothing_is_left_after_the_with_neither_on_modules_nor_in_memory(kernel: str) -> None:
    model = build(ENCODER_DECODER)
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    with using(kernel):
        with probes(model) as seen:
            run(model)
        n_seen = len(seen)
        run(model)
        assert len(seen) == n_seen and current_call().tap is None and current_call().watch is None
        assert current_call().kernel == kernel
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    tensors = [weakref.ref(tensor) for tensor in seen.values()]
    del seen
    gc.collect()
    assert not [tensor for tensor in tensors if tensor() is not None and not tensor().is_leaf]


def test_an_error_inside_takes_the_probes_off() -> None:
    model = build(DECODER)
    with pytest.raises(RuntimeError, match="on the way"), probes(model, "weights"):
        raise RuntimeError("on the way")
    assert current_call().tap is None and current_call().watch is None


def test_gradients_reach_what_a_probe_has_seen() -> None:
    model = build(DECODER)
    with probes(model, "resid_mid") as seen:
        logits = run(model)
    [gradient] = torch.autograd.grad(logits[0, -1].sum(), seen["decoder.layers.0.resid_mid"])
    assert gradient.shape == (2, 4, 16) and (gradient[0] != 0).any() and (gradient[1] == 0).all()


def test_another_model_inside_the_with_is_not_seen() -> None:
    model, other = build(DECODER), build(DECODER)
    with probes(model, "resid_post") as seen:
        run(other)
    assert seen == {}


def test_two_threads_with_their_own_probes_and_kernels_on_one_model_do_not_see_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, meet, results, kernels = build(LLAMA_LIKE), threading.Barrier(2), {}, {}
    for name in KERNELS:

        def counted(*arguments: Any, kernel: Any = attention_module.ATTENTION_KERNELS[name], name: str = name) -> Any:
            meet.wait(timeout=20)  # both threads are inside a layer at once
            kernels.setdefault(threading.current_thread().name, set()).add(name)
            return kernel(*arguments)

        monkeypatch.setitem(attention_module.ATTENTION_KERNELS, name, counted)

    def visit(kernel: str, probe: str, tokens: Tensor) -> None:
        with torch.no_grad(), using(kernel), probes(model, probe) as seen:
            results[kernel] = model(tokens), seen

    visits = {"naive": ("resid_mid", ids(1, 4)), "flash": ("weights", ids(1, 7))}
    threads = [threading.Thread(target=visit, args=(kernel, *visits[kernel]), name=kernel) for kernel in visits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    monkeypatch.undo()
    assert kernels == {"naive": {"naive"}, "flash": {"flash"}}
    for kernel, (probe, tokens) in visits.items():
        logits, seen = results[kernel]
        assert seen and all(path.endswith(probe) and value.shape[-2] == tokens.shape[1] for path, value in seen.items())
        assert difference(logits, model(tokens)) < MODEL
