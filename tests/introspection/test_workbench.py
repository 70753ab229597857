"""The workbench: traces kept within a budget, settings measured on them, one heavy call at a time."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from tests.conftest import Checkpoint
from tfviz.config import Settings
from tfviz.errors import BadText, ModelUnavailable, Overtaken, TfvizError, UnknownChoice
from tfviz.introspection.workbench import Gone, Measurement, Request, Workbench
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.resident import Resident

TEXT = "The animal didn't cross the street because it was too tired"
Ask = Callable[..., Request]


@pytest.fixture
def bench(settings: Settings) -> Workbench:
    return Workbench(settings)


@pytest.fixture
def ask(checkpoint: Checkpoint) -> Ask:
    def request(name: str = "llama", first: str = TEXT, second: str | None = None, **switches: str) -> Request:
        return Request(first, second, str(checkpoint(name)), **switches)

    return request


def measured(bench: Workbench, trace_id: str, kernel: str, precision: str, repeats: int = 3) -> Measurement:
    result = bench.measure(trace_id, kernel, precision, repeats=repeats, stop=lambda: False)
    assert result is not None
    return result


# ---- traces


def test_a_trace_is_found_by_its_id(bench: Workbench, ask: Ask) -> None:
    first_id, first = bench.trace(ask())
    second_id, second = bench.trace(ask(first="the cat"))
    assert first_id != second_id
    assert bench.find(first_id) is first and bench.find(second_id) is second
    assert bench.find("no such id") is None


def test_a_trace_carries_the_switches_it_was_made_with(bench: Workbench, ask: Ask) -> None:
    request = ask("bert", "the cat", "the door", kernel="naive", precision="bf16")
    _, trace = bench.trace(request, layers=[1], overview=True)
    assert (trace.text, trace.kernel, trace.precision, trace.model) == (request.text, "naive", "bf16", request.model)
    assert list(trace.stacks["self"].layers) == [1] and trace.stacks["self"].overview is not None


def test_a_limit_cuts_the_text_and_says_what_was_left_out(bench: Workbench, ask: Ask) -> None:
    _, trace = bench.trace(ask(), limit=5)
    assert len(trace.tokens) == 5 < trace.n_tokens_typed and trace.cut_from


def test_the_oldest_traces_make_room(settings: Settings, ask: Ask) -> None:
    size = Workbench(settings).trace(ask())[1].nbytes
    bench = Workbench(replace(settings, trace_budget=2 * size))
    ids = [bench.trace(ask())[0] for _ in range(2)]
    assert bench.find(ids[0]) is not None  # so the second is now the one that nobody looked at for longest
    ids.append(bench.trace(ask())[0])
    assert [bench.find(trace_id) is not None for trace_id in ids] == [True, False, True]


def test_a_trace_above_the_budget_is_kept_alone(settings: Settings, ask: Ask) -> None:
    bench = Workbench(replace(settings, trace_budget=1))
    old, _ = bench.trace(ask())
    new, _ = bench.trace(ask())
    assert bench.find(old) is None and bench.find(new) is not None


def test_a_request_that_fails_leaves_the_traces_and_the_device_free(bench: Workbench, ask: Ask) -> None:
    trace_id, trace = bench.trace(ask())
    for request, kind in [
        (ask(first=""), BadText),
        (ask(second="a pair"), BadText),
        (ask(kernel="quick"), UnknownChoice),
        (ask(precision="int3"), UnknownChoice),
        (Request(TEXT, None, "/no/such/folder"), ModelUnavailable),
    ]:
        with pytest.raises(kind) as refused:
            bench.trace(request)
        assert isinstance(refused.value, TfvizError)
    assert bench.find(trace_id) is trace
    assert bench.trace(ask())[1].tokens == trace.tokens


def test_visitors_wait_their_turn_and_hear_how_many_are_before_them(bench: Workbench, ask: Ask) -> None:
    heard: list[int] = []
    bench.trace(ask())  # loads the model
    with ThreadPoolExecutor(1) as pool:
        queued = threading.Event()

        def waiting(before: int) -> None:
            heard.append(before)
            queued.set()

        with bench.gate.turn():
            later = pool.submit(bench.trace, ask(), waiting=waiting)
            assert queued.wait(timeout=30) and not later.done()
        later.result(timeout=30)
    assert heard == [1, 0]


def test_a_run_that_nobody_waits_for_any_more_is_dropped_when_its_turn_comes(bench: Workbench, ask: Ask) -> None:
    asked: list[int] = []

    def gone() -> bool:
        asked.append(bench.gate.waiting)
        return True

    with pytest.raises(Overtaken):
        bench.trace(ask(), stop=gone)
    assert asked == [0]  # once, when the device was held
    assert bench.trace(ask(), stop=lambda: False)[1].tokens


# ---- measurements


@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
def test_a_measurement_has_times_bytes_and_a_difference(name: str, bench: Workbench, ask: Ask) -> None:
    trace_id, _ = bench.trace(ask(name))
    result = measured(bench, trace_id, "flash", "fp32")
    assert (result.kernel, result.precision) == ("flash", "fp32")
    assert 0 < result.latency.low <= result.latency.median <= result.latency.high and result.latency.runs == 3
    assert result.peak_bytes >= 0 and result.weight_bytes > 0
    assert result.difference.max_abs < 1e-2
    has_head = name != "bert"
    assert (result.difference.top1 is not None, result.difference.kl is not None) == (has_head, has_head)


@pytest.mark.parametrize("name", ["llama", "bert", "bart"])
def test_fp32_naive_differs_from_itself_by_nothing(name: str, bench: Workbench, ask: Ask) -> None:
    trace_id, _ = bench.trace(ask(name))
    result = measured(bench, trace_id, "naive", "fp32")
    assert result.difference.max_abs == 0
    if result.difference.top1 is not None:
        assert result.difference.top1 == 1 and result.difference.kl == 0


def test_smaller_precisions_have_smaller_weights_and_larger_differences(bench: Workbench, ask: Ask) -> None:
    trace_id, _ = bench.trace(ask())
    by = {precision: measured(bench, trace_id, "naive", precision, repeats=1) for precision in ("fp32", "bf16", "int8")}
    assert by["bf16"].weight_bytes == pytest.approx(by["fp32"].weight_bytes / 2, rel=0.02)
    assert by["int8"].weight_bytes < 0.5 * by["fp32"].weight_bytes
    assert by["bf16"].difference.max_abs > 0 and by["int8"].difference.max_abs > 0


def test_a_long_text_costs_naive_more_memory_than_flash(bench: Workbench, ask: Ask) -> None:
    trace_id, _ = bench.trace(ask(first="cat the " * 60))
    assert measured(bench, trace_id, "naive", "fp32").peak_bytes > measured(bench, trace_id, "flash", "fp32").peak_bytes


def test_stop_ends_the_repeats_after_one(bench: Workbench, ask: Ask) -> None:
    trace_id, _ = bench.trace(ask())
    answers = iter([False, False])  # output and reference are there; from then on somebody wants the device
    result = bench.measure(trace_id, "flash", "fp32", repeats=50, stop=lambda: next(answers, True))
    assert result is not None and result.latency.runs == 1


def test_a_measurement_gives_way_when_somebody_waits(
    bench: Workbench, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace_id, _ = bench.trace(ask())
    monkeypatch.setattr(type(bench.gate), "waiting_for_people", property(lambda gate: 1))
    assert bench.measure(trace_id, "flash", "fp32", repeats=50, give_way=True) is None


def test_a_trace_that_is_gone_is_not_measured(bench: Workbench) -> None:
    assert bench.measure("no such id", "flash", "fp32") is None


def test_measuring_leaves_trace_and_resident_model_as_they_were(bench: Workbench, ask: Ask) -> None:
    trace_id, trace = bench.trace(ask())
    weights = trace.attention["self"].copy()
    for precision in ("int8", "bf16"):
        measured(bench, trace_id, "flash", precision, repeats=1)
    _, again = bench.trace(ask())
    assert (again.attention["self"] == weights).all() and bench.find(trace_id) is trace


def test_the_reference_is_that_of_the_same_text_and_segments(
    checkpoint: Checkpoint, settings: Settings, ask: Ask
) -> None:
    """A pair and one text with a typed [SEP] have the same ids; the model tells them apart by their segments."""
    resident = Resident(settings)
    loaded = resident.get(str(checkpoint("bert")))
    loaded.tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    bench = Workbench(settings, resident)
    pair, _ = bench.trace(ask("bert", "the cat", "the door"))
    single, _ = bench.trace(ask("bert", "the cat [SEP] the door"))
    for trace_id in (pair, single):
        assert measured(bench, trace_id, "naive", "fp32", repeats=1).difference.max_abs == 0


def test_a_reference_is_made_once_for_all_settings_of_a_text(
    bench: Workbench, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfviz.introspection import workbench

    kernels: list[str] = []
    compared = workbench._compared
    monkeypatch.setattr(
        workbench, "_compared", lambda model, prompt, call: kernels.append(call.kernel) or compared(model, prompt, call)
    )
    trace_id, _ = bench.trace(ask())
    for precision in ("fp32", "bf16"):
        measured(bench, trace_id, "flash", precision, repeats=1)
    assert kernels == ["flash", "naive", "flash"]


# ---- what is found out about a trace later


def count_tokens(loaded: LoadedModel, prompt: Prompt) -> int:
    calls.append(loaded.id)
    return prompt.n_tokens


calls: list[str] = []


def test_a_trace_is_examined_once_and_forgotten_with_it(bench: Workbench, ask: Ask) -> None:
    calls.clear()
    trace_id, trace = bench.trace(ask())
    found = [bench.examine(trace_id, count_tokens, "tokens") for _ in range(3)]
    assert found == [len(trace.tokens)] * 3 and calls == [trace.model]
    assert bench.examine("no such id", count_tokens, "tokens") is None


def test_nobody_examines_for_a_page_that_moved_on(bench: Workbench, ask: Ask) -> None:
    calls.clear()
    trace_id, _ = bench.trace(ask())
    with pytest.raises(Overtaken):
        bench.examine(trace_id, count_tokens, "tokens", stop=lambda: True)
    assert not calls


@dataclass(frozen=True)
class Large:
    nbytes: int


def large(loaded: LoadedModel, prompt: Prompt) -> Large:
    return Large(10**9)


def test_what_was_found_counts_for_the_budget(settings: Settings, ask: Ask) -> None:
    bench = Workbench(replace(settings, trace_budget=10**8))
    ids = [bench.trace(ask())[0] for _ in range(2)]
    assert bench.examine(ids[1], large, "large") is not None
    assert bench.find(ids[0]) is None and bench.find(ids[1]) is not None


def test_a_measurement_waits_for_the_device(bench: Workbench) -> None:
    assert bench.compute(pow, 2, 10) == 1024


# ---- steps


def counted(loaded: LoadedModel, prompt: Prompt) -> Iterator[int]:
    yield from range(prompt.n_tokens)


def test_steps_come_one_by_one_and_the_device_is_free_between(bench: Workbench, ask: Ask) -> None:
    trace_id, trace = bench.trace(ask())
    steps = bench.stream(trace_id, counted)
    assert next(steps) == 0
    with bench.gate.turn():  # would never come if the steps held it
        pass
    assert [*steps] == [*range(1, len(trace.tokens))]


def test_steps_end_as_soon_as_nobody_wants_them(bench: Workbench, ask: Ask) -> None:
    trace_id, _ = bench.trace(ask())
    seen: list[int] = []
    for step in bench.stream(trace_id, counted, stop=lambda: len(seen) == 2):
        seen.append(step)
    assert seen == [0, 1]


def test_what_is_remembered_goes_with_its_trace(settings: Settings, ask: Ask) -> None:
    bench = Workbench(replace(settings, trace_budget=1))
    trace_id, trace = bench.trace(ask())
    assert bench.recall(trace_id, "run") is None
    bench.remember(trace_id, "run", Large(7))
    assert bench.recall(trace_id, "run") == Large(7)
    other = bench.keep(trace, bench.prompt_of(trace_id))
    assert bench.find(other) is trace
    for use in (bench.recall, bench.remember):
        with pytest.raises(Gone):
            use(trace_id, "run", *([0] if use == bench.remember else []))  # type: ignore[operator]
    with pytest.raises(Gone):
        next(bench.stream(trace_id, counted))
