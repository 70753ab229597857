"""A prompt with what was generated: rows that each step really read, equal to one pass over all of it."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from tests.closeness import MODEL, difference
from tests.conftest import Loaded
from tfviz.config import Settings
from tfviz.inference.sampling import Sampling
from tfviz.introspection.capture import capture
from tfviz.introspection.generation import run_steps
from tfviz.introspection.grown import grown
from tfviz.introspection.rows import parts, settle
from tfviz.introspection.run import Plan, Run
from tfviz.introspection.trace import Trace
from tfviz.introspection.workbench import Request, Workbench
from tfviz.model.attention import PLAIN
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.decoding import RowSeen
from tfviz.sources.resident import Resident

TEXT = "the cat sat on the mat and the dog"
DECODERS = ["gpt2", "llama", "qwen3", "mistral", "gemma2", "opt"]
BOTH = ["t5", "bart", "marian", "dates"]
WARM = Sampling(1.2)
Model = Callable[[str], LoadedModel]


@pytest.fixture(scope="module")
def model(loaded: Loaded) -> Model:
    resident = Resident(Settings.from_environment({"TFVIZ_DEVICE": "cpu"}))
    return cache(lambda name: resident.get(name, "fp32") if name == "dates" else loaded(name))


def run_of(loaded: LoadedModel, plan: Plan) -> tuple[Prompt, Run]:
    prompt = loaded.prompt("5 mars 2024" if loaded.id == "dates" else TEXT)
    return prompt, Run(plan, list(run_steps(loaded, prompt, plan)))


def plan_of(name: str, kernel: str = "naive") -> Plan:
    return Plan(9, WARM, seed=2, kernel="naive" if name == "gemma2" else kernel)  # flash has no soft cap


def assert_same(ours: Trace, whole: Trace) -> None:
    assert list(ours.stacks) == list(whole.stacks)
    for kind, theirs in whole.stacks.items():
        stack = ours.stacks[kind]
        assert (stack.query_tokens, stack.key_tokens) == (theirs.query_tokens, theirs.key_tokens)
        assert (stack.n_layers, stack.n_heads, stack.n_kv_heads) == (theirs.n_layers, theirs.n_heads, theirs.n_kv_heads)
        assert stack.causal == theirs.causal and list(stack.layers) == list(theirs.layers)
        for i, layer in theirs.layers.items():
            own = stack.layers[i]
            for part in ("query", "key", "value"):
                assert difference(getattr(own, part), getattr(layer, part)) < MODEL
            shape = layer.weights().shape
            np.testing.assert_array_equal(np.broadcast_to(own.blocked, shape), np.broadcast_to(layer.blocked, shape))
            assert difference(own.weights(), layer.weights()) < 10 * MODEL  # T5's scores are in the hundreds
            assert own.weights().dtype == own.query.dtype == np.float32
        assert stack.overview is not None and theirs.overview is not None
        assert np.abs(stack.overview.astype(int) - theirs.overview.astype(int)).max() <= 1


@pytest.mark.parametrize("kernel", ["naive", "flash"])
@pytest.mark.parametrize("name", [*DECODERS, *BOTH])
def test_grown_rows_equal_one_pass_over_the_whole_text(model: Model, name: str, kernel: str) -> None:
    loaded = model(name)
    prompt, run = run_of(loaded, plan_of(name, kernel))
    trace, whole = grown(loaded, prompt, run)
    assert_same(trace, capture(loaded, whole, trace.text, kernel=run.plan.kernel, overview=True))


@pytest.mark.parametrize("name", ["llama", "mistral", "t5", "dates"])
@pytest.mark.parametrize("n", [1, 4, 9])
def test_a_text_taken_up_from_its_middle_grows_alike(model: Model, name: str, n: int) -> None:
    loaded = model(name)
    prompt, run = run_of(loaded, plan_of(name))
    _, again = run_of(loaded, replace(run.plan, path=run.ids[:n]))
    assert_same(grown(loaded, prompt, again)[0], grown(loaded, prompt, run)[0])
    for one, other in zip(again.seen, run.seen, strict=True):
        for place, row in other.items():
            assert one[place].held == row.held or name == "mistral"  # its cache drops keys that one pass only masks
            assert one[place].query.shape == row.query.shape and one[place].key.shape == row.key.shape


@pytest.mark.parametrize("name", [*DECODERS, *BOTH])
def test_the_trace_is_of_what_was_read(model: Model, name: str) -> None:
    loaded = model(name)
    prompt, run = run_of(loaded, plan_of(name))
    trace, whole = grown(loaded, prompt, run)
    read = [token.id for token in run.prompt] + list(run.ids[:-1])  # the last one was said, and not read
    side = whole.target if name in BOTH else whole.source.tokens
    assert [token.id for token in side] == read and trace.n_prompt == len(run.prompt)
    assert trace.source_tokens == whole.source.tokens and trace.target_tokens == whole.target
    assert whole.inputs["decoder_input_ids" if name in BOTH else "input_ids"].tolist() == [read]
    assert trace.n_tokens_typed == len(trace.source_tokens) and trace.cut_from == ""
    assert trace.cost.seconds == pytest.approx(sum(step.forward_seconds for step in run.steps))
    if name in BOTH:
        assert whole.source is prompt.source and whole.target_written
        answer = trace.answer
        assert answer is not None and answer.written and answer.text == run.text
        assert len(answer.tokens) == len(answer.probs) == len(trace.target_tokens)
        assert answer.probs.tolist() == pytest.approx([step.prob for step in run.steps])
        for step, alternatives in zip(run.steps, answer.alternatives, strict=True):
            assert alternatives == tuple((one.label, one.probs["model"]) for one in step.top[:5])


def test_the_rows_are_the_recorded_ones_and_no_others(model: Model) -> None:
    loaded = model("llama")
    prompt, run = run_of(loaded, plan_of("llama"))
    step = run.steps[4]
    assert step.seen is not None
    row = step.seen["self", 1]
    changed = dict(step.seen) | {("self", 1): replace(row, query=row.query + 1)}
    run.steps[4] = replace(step, seen=changed)
    trace, whole = grown(loaded, prompt, run)
    place = len(run.prompt) + 3
    difference = (
        trace.stacks["self"].layers[1].query - capture(loaded, whole, trace.text).stacks["self"].layers[1].query
    )
    np.testing.assert_allclose(difference[:, place], 1, atol=1e-4)
    np.testing.assert_allclose(np.delete(difference, place, axis=1), 0, atol=1e-4)


def test_without_a_cache_it_is_one_captured_pass(model: Model) -> None:
    loaded = model("llama")
    prompt, run = run_of(loaded, replace(plan_of("llama"), use_cache=False))
    trace, whole = grown(loaded, prompt, run)
    assert_same(trace, capture(loaded, whole, trace.text, overview=True))
    assert trace.n_prompt == len(run.prompt)


@pytest.mark.parametrize("name", ["llama", "mistral", "t5"])
def test_one_token_grows_nothing_and_layers_share_their_tables(model: Model, name: str) -> None:
    loaded = model(name)
    prompt, run = run_of(loaded, Plan(1))
    assert [token.id for token in grown(loaded, prompt, run)[1].source.tokens] == prompt.source.ids
    trace, _ = grown(loaded, *run_of(loaded, plan_of(name)))
    layers = next(iter(trace.stacks.values())).layers.values()
    assert len({id(layer.mask) for layer in layers}) == 1 and len({id(layer.bias) for layer in layers}) == 1
    assert len(trace.stacks["decoder" if name == "t5" else "self"].distinct) == 1


def test_a_cut_text_stays_cut(model: Model) -> None:
    loaded = model("llama")
    prompt = loaded.prompt(TEXT, limit=4)
    run = Run(Plan(3), list(run_steps(loaded, prompt, Plan(3))))
    trace, _ = grown(loaded, prompt, run)
    assert trace.cut_from == prompt.source.cut_from != ""
    assert trace.n_tokens_typed == prompt.source.total + 2 and len(trace.source_tokens) == 6


def test_a_chat_grows_on_what_its_template_made(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = model("llama")
    template = "A:{% for message in messages %}{{ message.content }}{% endfor %}B:"
    monkeypatch.setattr(loaded.tokenizer, "chat_template", template)
    prompt, run = run_of(loaded, replace(plan_of("llama"), chat=True))
    trace, whole = grown(loaded, prompt, run)
    assert trace.text[0].startswith(f"A:{TEXT}B:") and trace.n_prompt == len(run.prompt) > prompt.n_tokens
    assert trace.n_tokens_typed == len(trace.source_tokens) == len(run.prompt) + 8
    assert_same(trace, capture(loaded, whole, trace.text, kernel="naive", overview=True))


def test_a_grown_trace_is_kept_like_any_other(settings: Settings) -> None:
    bench = Workbench(settings)
    trace_id, _ = bench.trace(Request("5 mars 2024", None, "dates"))
    run = Run(Plan(16), list(run_steps(bench.resident.get("dates", "fp32"), bench.prompt_of(trace_id), Plan(16))))
    trace, whole = grown(bench.resident.get("dates", "fp32"), bench.prompt_of(trace_id), run)
    grown_id = bench.keep(trace, whole)
    assert bench.find(grown_id) is trace and bench.prompt_of(grown_id) is whole
    assert [token.label for token in trace.target_tokens] == ["<s>", *"2024-03-05"]
    assert trace.answer is not None and trace.answer.text == "2024-03-05"


# ---- rows on their way


def row_of(n: int, held: int, mask: torch.Tensor | None = None, bias: torch.Tensor | None = None) -> RowSeen:
    query, key = torch.arange(n * 4.0).view(2, n, 2), torch.arange(n * 2.0).view(1, n, 2)
    return RowSeen(query, key, -key, held, mask, replace(PLAIN, bias=bias))


def test_a_pass_over_several_tokens_is_told_one_by_one() -> None:
    mask = torch.rand(1, 5, 7) > 0.5
    bias = torch.randn(1, 2, 5, 7)
    whole = row_of(5, 7, mask, bias)
    first, second, third = (step["self", 0] for step in parts({("self", 0): whole}, 3))
    assert [row.query.shape[1] for row in (first, second, third)] == [3, 1, 1]
    assert [row.held for row in (first, second, third)] == [5, 6, 7]
    assert torch.equal(torch.cat([first.key, second.key, third.key], dim=1), whole.key)
    assert second.mask is not None and torch.equal(second.mask, mask[:, 3:4, :6])
    assert third.rule.bias is not None and torch.equal(third.rule.bias, bias[:, :, 4:5])
    assert first.mask is not None and torch.equal(first.mask, mask[:, :3, :5])


def test_a_memory_is_read_at_the_first_of_them_only() -> None:
    memory = torch.randn(1, 6, 2)
    whole = replace(row_of(3, 6), key=memory, value=memory)
    first, second = (step["cross", 0] for step in parts({("cross", 0): whole}, 2))
    assert torch.equal(first.key, memory) and second.key.shape == (1, 0, 2)
    assert (first.held, second.held) == (6, 6)
    later = settle({("cross", 0): whole}, first=False)["cross", 0]
    assert later.key.shape == later.value.shape == (1, 0, 2) and later.held == 6


def test_what_is_kept_holds_no_more_than_its_rows() -> None:
    cache_, mask = torch.randn(1, 500, 2), torch.zeros(1, 1, 500, dtype=torch.bool)
    rows = {("self", i): replace(row_of(1, 3), key=cache_[:, 2:3], mask=mask[..., :3]) for i in range(2)}
    kept = settle(rows, first=False)
    assert torch.equal(kept["self", 0].key, cache_[:, 2:3])
    for row in kept.values():
        assert row.key.untyped_storage().nbytes() == row.key.nbytes and row.mask is kept["self", 0].mask
        assert row.mask is not None and row.mask.untyped_storage().nbytes() == 3
