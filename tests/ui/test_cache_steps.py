"""KV cache, the steps: what is sent is what was computed, and each badge turns red when a number is tampered with."""

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import ARCHITECTURES
from tests.conftest import Loaded
from tfviz.introspection.cache_trace import CacheRun, Counted, HeadTrace, cache_steps, head_trace
from tfviz.introspection.workbench import Workbench
from tfviz.messages import LANGUAGES, sentences
from tfviz.ui.components.picture import Picture, pack, payload
from tfviz.ui.components.section import Scene
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.cache import steps

EN = Translator("en")
TEXT = "The animal didn't cross the street because it was too tired"
WRITERS = [name for name, (_, _, family) in ARCHITECTURES.items() if family != "encoder"]
Made = tuple[CacheRun, HeadTrace]
Make = Callable[..., Made]


@pytest.fixture(scope="module")
def runs() -> dict[tuple[str, int], CacheRun]:
    return {}


@pytest.fixture
def made(loaded: Loaded, runs: dict[tuple[str, int], CacheRun]) -> Make:
    """`made("llama", head=1)`: a run of that model and one head of it."""

    def make(name: str, kind: str = "", layer: int = 1, head: int = 1, n: int = 4) -> Made:
        if (name, n) not in runs:
            model = loaded(name)
            prompt = model.prompt(TEXT, "the cat saw" if model.family == "encoder-decoder" else None)
            opening, *found = cache_steps(model, prompt, "naive", n)
            runs[name, n] = CacheRun(opening, tuple(found))  # type: ignore[arg-type]
        run = runs[name, n]
        return run, head_trace(run, kind or run.opening.own, layer, head)

    return make


def data(picture: Picture) -> dict[str, Any]:
    return json.loads(json.dumps(payload(picture), allow_nan=False))["panels"][0]["data"]


def failing(found: Any) -> list[str]:
    return [badge.text for badge in found if badge.ok is False]


def unpacked(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=kind)


def tampered(run: CacheRun, at: int = 1, **changes: Any) -> CacheRun:
    changed = replace(run.steps[at], **changes)
    return replace(run, steps=(*run.steps[:at], changed, *run.steps[at + 1 :]))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", WRITERS)
def test_every_writer_is_drawn_and_every_check_holds(name: str, language: str, made: Make) -> None:
    run, head = made(name)
    picture = steps.picture(run, head, 4, Translator(language))
    assert not failing(picture.badges) and [badge.ok for badge in picture.badges] == [True] * 4
    sent = data(picture)
    assert len(sent["steps"]) == len(sent["said"]) == len(run.steps) and sent["done"]
    assert all(sent["words"].values()) and sent["wanted"] == 4


def test_what_is_sent_is_what_was_computed(made: Make) -> None:
    run, head = made("llama")
    sent = data(steps.picture(run, head, 4, EN, "trace"))
    assert sent["id"] == "trace" and sent["tokens"] == [token.label for token in run.opening.tokens]
    assert sent["formula"] == {
        "layers": 3, "kv_heads": 2, "head_dim": 8, "element": 4, "token": 384, "memory": 0, "window": 0
    }  # fmt: skip
    assert [one["bytes"] for one in sent["steps"]] == [[step.own_bytes, 0] for step in run.steps]
    assert [sum(one["work"][0]) for one in sent["steps"]] == [step.work.total for step in run.steps]
    assert sent["steps"][1]["ms"] == pytest.approx(
        [1e3 * run.steps[1].seconds, 1e3 * run.steps[1].seconds_without], 1e-2
    )
    np.testing.assert_array_equal(unpacked(sent["rows"], "<f4"), np.concatenate(head.weights))
    assert sent["row_lengths"] == [step.total for step in run.steps]
    key = sent["vectors"]["k"]
    assert key["shape"] == [run.steps[-1].total, 8] and key["few"][0] == pytest.approx(
        head.key[0, :4].tolist(), rel=1e-3
    )
    ink = unpacked(key["ink"], "i1").reshape(key["shape"])
    np.testing.assert_allclose(ink / 127 * np.abs(head.key).max(), head.key, atol=np.abs(head.key).max() / 250)
    assert np.abs(ink).max() == 127


def test_while_it_grows_it_is_light(made: Make) -> None:
    run, head = made("llama")
    growing = steps.picture(run, head, 16, EN, part=0.25)
    assert "vectors" not in data(growing) and not data(growing)["done"] and growing.part == 0.25
    assert len(pack(payload(growing))) < len(pack(payload(steps.picture(run, head, 16, EN))))


def test_the_beginning_of_a_long_prompt_is_one_column(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run, head = made("llama")
    monkeypatch.setattr(steps, "SHOWN", 5)
    picture, hidden = steps.picture(run, head, 4, EN), len(run.opening.tokens) - 5
    sent = data(picture)
    assert sent["folded"] == hidden and len(sent["tokens"]) == 5
    assert sent["row_lengths"] == [5, 6, 7, 8]
    assert sent["rest"][0] == pytest.approx(float(head.weights[0][:hidden].sum()))
    assert any(f"first {hidden} positions" in note for note in picture.notes)


def test_a_window_says_layer_by_layer_what_is_held_and_read(made: Make) -> None:
    sent = data(steps.picture(*made("mistral"), 4, EN))
    assert sent["formula"]["window"] == 4
    for one in sent["steps"]:
        assert one["first"] == [one["total"] - 3] * 3 and (one["read"] == [4] * 3 or one["new"] > 1)
    assert data(steps.picture(*made("llama"), 4, EN))["steps"][1]["read"] == 13


def test_the_cross_cache_is_sent_whole(made: Make) -> None:
    run, head = made("t5", kind="cross")
    sent = data(steps.picture(run, head, 4, EN))
    assert sent["kind"] == "cross" and sent["own"] == "decoder" and sent["n_memory"] == len(sent["memory"])
    assert sent["vectors"]["k"]["shape"] == [len(run.opening.memory), 8]
    assert sent["row_lengths"] == [len(run.opening.memory)] * len(run.steps)
    assert sent["formula"]["memory"] * sent["n_memory"] == sent["steps"][0]["bytes"][1] > 0


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"own_bytes": 1}, "tensors hold 1 B"),
        ({"cross_bytes": 8}, "step 2"),
        ({"difference": 0.5}, "differ by at most 0.500"),
        ({"same": False}, "3 of 4 tokens"),
    ],
)
def test_a_badge_turns_red_when_a_number_is_tampered_with(changes: dict[str, Any], says: str, made: Make) -> None:
    run, head = made("llama")
    (red,) = failing(steps.badges(tampered(run, **changes), head, "fp32", EN))
    assert says in red


def test_work_that_torch_counts_otherwise_is_red(made: Make) -> None:
    run, head = made("llama")
    same, other = (steps.picture(run, head, 4, EN, counted=Counted(n, 34_000)) for n in (34_000, 33_999))
    assert same.badges[-1].ok is True and "34,000 are what torch counted" in same.badges[-1].text
    assert failing(other.badges) == [
        "multiply-adds of the first decode step: the formula says 34,000, torch counted 33,999"
    ]


def test_a_row_that_does_not_sum_to_1_is_red(made: Make) -> None:
    run, head = made("llama")
    off = replace(head, weights=(head.weights[0] * 1.1, *head.weights[1:]))
    (red,) = failing(steps.badges(run, off, "fp32", EN))
    assert "sums to 1 (off by 0.1" in red


def test_other_precisions_promise_no_equality_and_say_so(made: Make) -> None:
    run, head = made("llama")
    off = tampered(run, difference=0.5, same=False)
    found = steps.badges(off, head, "bf16", EN)
    assert not failing(found) and found[0].ok is None and "BF16" in found[0].title
    assert found[1].ok is None and "3 of 4" in found[1].text


def test_a_model_without_room_says_how_much_there_was(made: Make) -> None:
    run, head = made("llama")
    narrow = replace(run, opening=replace(run.opening, room=4))
    assert any("4 new tokens" in note for note in steps.picture(narrow, head, 16, EN).notes)


def test_a_run_is_kept_and_taken_up_where_it_was_left(workbench: Workbench, loaded: Loaded) -> None:
    trace_id, trace = traced(workbench, loaded)
    pictures = list(steps.draw(scene(workbench, trace_id, trace), {}))
    assert len(pictures) == 16 and [one.part for one in pictures[:2]] == [1 / 16, 2 / 16] and pictures[-1].part is None
    (again,) = steps.draw(scene(workbench, trace_id, trace, layer=2), {"steps": "many"})  # unchecked: the default
    assert data(again)["layer"] == 2 and len(data(again)["steps"]) == 16
    more = list(steps.draw(scene(workbench, trace_id, trace), {"steps": 32}))
    assert len(more) == 16 and len(data(more[0])["steps"]) == 17 and len(data(more[-1])["steps"]) == 32
    assert data(more[-1])["said"][:16] == data(again)["said"]
    run = workbench.recall(trace_id, steps.KEY)
    assert isinstance(run, CacheRun) and len(run.steps) == 32


def test_a_newer_wish_ends_it(workbench: Workbench, loaded: Loaded) -> None:
    trace_id, trace = traced(workbench, loaded)
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 6

    pictures = list(steps.draw(replace(scene(workbench, trace_id, trace), stop=stop), {}))
    assert 0 < len(pictures) < 16 and all(one.part is not None for one in pictures)


def traced(bench: Workbench, loaded: Loaded) -> tuple[str, Any]:
    from tfviz.introspection.capture import capture

    model = loaded("llama")
    prompt = model.prompt(TEXT)
    trace = capture(model, prompt, (TEXT, None), kernel="naive")
    return bench.keep(trace, prompt), trace


def scene(bench: Workbench, trace_id: str, trace: Any, **place: int) -> Scene:
    where = {"kind": "self", "layer": 1, "head": 1, "query": 0, "key": 0, **place}
    return Scene(EN, bench, trace_id, trace, where)


@pytest.fixture
def workbench(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    """A workbench whose models are the tiny checkpoints, by name."""
    from tfviz.config import Settings

    bench = Workbench(Settings.from_environment())
    monkeypatch.setattr(bench.resident, "get", lambda model, precision, progress=None: loaded(model))
    return bench


def test_every_sentence_has_the_same_fields_in_both_languages() -> None:
    def fields(language: str) -> dict[str, set[str]]:
        own = (
            (key, text) for key, text in sentences(language).items() if key.startswith(("cache.steps", "cache.cost"))
        )
        return {key: set(re.findall(r"\{(\w+)[^}]*\}", text)) for key, text in own}

    assert fields("en") == fields("zh")


def test_the_code_shown_is_code() -> None:
    assert all(callable(one) for one in steps.SECTION.code())
