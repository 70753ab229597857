"""Every step of a generation, recorded, with and without the cache: what is held, counted and compared is real."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.checkpoints import ARCHITECTURES
from tests.closeness import MODEL
from tests.conftest import Loaded
from tfviz.errors import TfvizError
from tfviz.inference.work import without_cache
from tfviz.introspection.cache_trace import (
    CacheRun,
    Opening,
    cache_steps,
    counted_step,
    head_trace,
    opening_inputs,
)
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.sources.base import LoadedModel

TEXT = "The animal didn't cross the street because it was too tired"
WRITERS = [name for name, (_, _, family) in ARCHITECTURES.items() if family != "encoder"]
Run = Callable[..., CacheRun]


def collect(loaded: LoadedModel, steps: int = 5, known: tuple[int, ...] = (), second: str | None = None) -> CacheRun:
    opening, *found = cache_steps(loaded, loaded.prompt(TEXT, second), "naive", steps, known)
    assert isinstance(opening, Opening)
    return CacheRun(opening, tuple(found))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", WRITERS)
def test_every_step_is_checked_against_the_same_step_without_a_cache(name: str, loaded: Loaded) -> None:
    run = collect(loaded(name))
    assert run.steps and (len(run.steps) == 5 or run.steps[-1].ended)
    for i, step in enumerate(run.steps):
        assert step.index == i and step.same and step.difference <= MODEL * step.largest
        assert step.new == (len(run.opening.tokens) if i == 0 else 1)
        assert step.total == len(run.opening.tokens) + i
        assert (step.own_bytes, step.cross_bytes) == (step.predicted_own, step.predicted_cross)
        assert step.seconds > 0 and step.seconds_without > 0 and len(step.said) == i + 1
        n_memory = len(run.opening.memory)
        assert step.work_without == without_cache(run.opening.shape, step.total, n_memory)
        assert i == 0 or step.work.total < step.work_without.total
    assert run.nbytes > 0 and run.first(2).ids == run.ids[:2]


@pytest.mark.parametrize("name", WRITERS)
def test_torch_counts_what_the_formula_says(name: str, loaded: Loaded) -> None:
    found = counted_step(loaded(name), loaded(name).prompt(TEXT))
    assert found is not None and found.counted == found.formula > 0


def test_the_cache_grows_by_one_token_a_step_and_a_window_drops_the_first(loaded: Loaded) -> None:
    run = collect(loaded("llama"))
    token = 2 * 3 * 2 * 8 * 4  # keys and values, layers, kv_heads, head_dim, bytes
    assert [step.own_bytes for step in run.steps] == [token * step.total for step in run.steps]
    assert all(step.held == ((0, step.total),) * 3 for step in run.steps)
    window = collect(loaded("mistral"))
    assert all(first > 0 and n < step.total for step in window.steps for first, n in step.held)
    assert len({step.own_bytes for step in window.steps}) == 1


def test_the_cache_of_the_source_is_written_once(loaded: Loaded) -> None:
    run = collect(loaded("t5"), second="the cat saw")
    own, cross = run.opening.own, head_trace(run, "cross", 1, 2)
    assert own == "decoder" and len(run.opening.tokens) > 1  # a target that was typed is gone on with
    assert len({step.cross_bytes for step in run.steps}) == 1 and run.steps[0].cross_bytes > 0
    assert cross.key.shape == (len(run.opening.memory), 8)
    assert all(row.shape == (len(run.opening.memory),) for row in cross.weights)


@pytest.mark.parametrize("name", ["llama", "mistral", "t5"])
def test_a_run_that_was_left_is_taken_up_again(name: str, loaded: Loaded) -> None:
    whole = collect(loaded(name), 6)
    rest = collect(loaded(name), 6, known=whole.ids[:3])
    assert [step.index for step in rest.steps] == [3, 4, 5][: len(whole.steps) - 3]
    joined = CacheRun(rest.opening, whole.steps[:3] + rest.steps)
    assert joined.ids == whole.ids
    for a, b in zip(whole.steps, joined.steps, strict=True):
        for name in ("new", "total", "own_bytes", "cross_bytes", "work"):
            assert getattr(a, name) == getattr(b, name), name
    ours, theirs = (head_trace(one, one.opening.own, 1, 1) for one in (joined, whole))
    np.testing.assert_allclose(ours.key, theirs.key, rtol=1e-4, atol=1e-4)
    for a_row, b_row in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_allclose(a_row, b_row, atol=1e-3)


def test_the_rows_of_a_head_are_those_of_one_pass_over_the_whole_text(loaded: Loaded) -> None:
    from tfviz.introspection.capture import Watcher

    model = loaded("llama")
    run, prompt = collect(model, 4), model.prompt(TEXT)
    head = head_trace(run, "self", 2, 3)
    assert (head.group, head.key.shape[0]) == (1, run.steps[-1].total)
    more = torch.tensor([run.ids[:-1]])
    ids = torch.cat([prompt.inputs["input_ids"], more], dim=1)
    watcher = Watcher(set(), "self", None, False)
    model.run({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, AttentionCall("naive", watcher))
    layer = watcher.kept["self"][2]
    np.testing.assert_allclose(head.key, layer.key[1], atol=1e-5)
    scores = layer.query[3] @ layer.key[1].T * layer.query.shape[-1] ** -0.5
    for step, row in zip(run.steps, head.weights, strict=True):
        at = np.exp(scores[step.total - 1, : step.total])
        np.testing.assert_allclose(row, at / at.sum(), atol=1e-5)


def test_generation_ends_at_the_last_position_and_at_the_end_token(loaded: Loaded) -> None:
    model = loaded("gpt2")
    opening, *steps = cache_steps(model, model.prompt(TEXT), "naive", 100)
    assert isinstance(opening, Opening) and opening.room == 64 - len(opening.tokens) + 1
    assert len(steps) <= opening.room
    assert len(steps) == opening.room or steps[-1].ended  # type: ignore[union-attr]


def test_an_answer_that_the_model_wrote_is_written_again(loaded: Loaded) -> None:
    model = loaded("bart")
    assert "decoder_input_ids" not in opening_inputs(model, model.prompt(TEXT))
    assert "decoder_input_ids" in opening_inputs(model, model.prompt(TEXT, "the cat"))
    assert "decoder_input_ids" not in opening_inputs(loaded("llama"), loaded("llama").prompt(TEXT))


def test_a_model_that_cannot_write_says_so(loaded: Loaded) -> None:
    model = loaded("bert")
    with pytest.raises(TfvizError, match="writes no text"):
        next(cache_steps(model, model.prompt(TEXT), "naive", 4))


def test_nothing_stays_in_force_between_two_steps(loaded: Loaded) -> None:
    from tfviz.model.attention_call import current_call

    model = loaded("llama")
    with attention_call(AttentionCall("flash")):
        before = current_call()
        for _ in cache_steps(model, model.prompt(TEXT), "naive", 3):
            assert current_call() is before
