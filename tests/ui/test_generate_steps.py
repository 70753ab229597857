"""Generate, steps: what is sent is what was computed, each badge turns red when an array lies, and a run is shared."""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import Loaded
from tfviz.errors import BadText, WrongModel
from tfviz.inference.sampling import GREEDY, STAGES, Sampling
from tfviz.introspection.generation import run_steps
from tfviz.introspection.run import Candidate, Plan, Run, TokenStep
from tfviz.introspection.workbench import Gone
from tfviz.messages import LANGUAGES, sentences
from tfviz.sources.tokens import Token
from tfviz.ui import live
from tfviz.ui.components.picture import Badge, Picture, pack, payload
from tfviz.ui.components.section import Scene
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.attention import draw_grown
from tfviz.ui.tabs.generate import steps
from tfviz.ui.tabs.generate.words import WORDS

EN = Translator("en")
NAMES = ("model", *STAGES)
PROMPT = (Token(1, "The", "The"), Token(2, "cat", "␣cat"))
TEXT = "The animal didn't cross the street because it was too tired"


def token_step(index: int = 0, probs: tuple[float, ...] = (0.5, 0.25), taken: int = 0, **more: Any) -> TokenStep:
    """A step of a vocabulary of 10 where `probs` are listed at every stage, and only the first is left by the last."""
    top = tuple(
        Candidate(
            10 + i, f"t{i}", {name: p if name != "min_p" else float(i == 0) for name in NAMES}, "min_p" if i else None
        )
        for i, p in enumerate(probs)
    )
    token = Token(10 + taken, f"t{taken}", f"␣t{taken}")
    made: dict[str, Any] = {
        "index": index,
        "token": token,
        "id": token.id,
        "drawn": token.id,
        "forced": False,
        "prob": probs[taken],
        "drawn_prob": float(taken == 0),
        "entropy": 1.25,
        "surprise": float(-np.log(probs[taken])),
        "top": top,
        "kept": {name: 10 if name != "min_p" else 1 for name in NAMES},
        "rest": {name: 1 - sum(probs) if name != "min_p" else 0.0 for name in NAMES},
        "text": "",
        "said": (token,) * (index + 1),
        "read": PROMPT if index == 0 else (token,),
        "seconds": 0.25,
        "forward_seconds": 0.2,
        "cache_bytes": 96 * (index + 2),
    }
    return TokenStep(**made | more)


def rows(n: int) -> list[np.ndarray]:
    """Causal rows of `n` tokens, each even over what it may see."""
    return [np.array([1 / (i + 1)] * (i + 1), dtype=np.float32) for i in range(n)]


def shown(*made: TokenStep, **more: Any) -> steps.Shown:
    made = made or (token_step(0), token_step(1, stopped="max_new_tokens", limit=2))
    about: dict[str, Any] = {"id": "run", "trace_id": "trace", "plan": Plan(2, GREEDY), "made": "[]"}
    reading = steps.Reading("self", 1, 0, rows(len(made) + 1))
    return steps.Shown(**about | {"prompt": PROMPT, "source": (), "steps": made, "reading": reading} | more)


def data(picture: Picture) -> dict[str, Any]:
    return json.loads(pack(picture.panels[0].data))


def failing(badges: Any) -> list[Badge]:
    return [badge for badge in badges if badge.ok is False]


# ---- the picture


def test_every_step_is_sent_with_its_numbers_as_they_are() -> None:
    sent = data(steps.picture(shown(), EN))
    assert sent["steps"] == {
        "tokens": [{"text": "t0", "raw": "␣t0", "id": 10, "special": False, "joined": False}] * 2,
        "p": [0.5, 0.5],
        "drawn": [1.0, 1.0],
        "surprise": [0.693147, 0.693147],
        "entropy": [1.25, 1.25],
        "ms": [250.0, 250.0],
        "bytes": [192, 288],
        "taken": [0, 0],
    }
    assert [token["text"] for token in sent["prompt"]] == ["The", "cat"]
    assert (sent["going"], sent["more"], sent["said"]) == (
        False,
        16,
        "That was all 2 new tokens: the text would go on.",
    )


def test_candidates_travel_at_every_stage_with_the_probability_of_all_others() -> None:
    sent = data(steps.picture(shown(), EN))["details"]["0"]
    probs = np.frombuffer(base64.b64decode(sent["probs"]), dtype="<f4").reshape(len(NAMES), 2)
    assert probs.tolist() == [[0.5, 0.25]] * 5 + [[1.0, 0.0]]
    assert (sent["ids"], sent["labels"]) == ([10, 11], ["t0", "t1"])
    assert sent["rest"] == [0.25] * 5 + [0.0] and sent["kept"] == [10] * 5 + [1]
    assert sent["cuts"] == [len(NAMES), NAMES.index("min_p")] and sent["ends"] == [0, 0]


def test_a_piece_that_ends_a_character_is_sent_with_it() -> None:
    step = token_step()
    top = (replace(step.top[0], label="⟨8C⟩", pieces="E8 83 8C", whole="背"), step.top[1])
    assert data(steps.picture(shown(replace(step, top=top)), EN))["details"]["0"]["ends"] == [["E8 83 8C", "背"], 0]


def test_one_new_token_is_said_as_one_and_a_path_is_timed_as_one_pass() -> None:
    one = token_step(0, stopped="max_new_tokens", limit=1)
    assert data(steps.picture(shown(one), EN))["said"] == "That was the one new token: the text would go on."
    forced = [token_step(0, forced=True, seconds=0.29), token_step(1, forced=True, seconds=0.01), token_step(2)]
    said = [badge.text for badge in steps.picture(shown(*forced), EN).badges]
    assert "steps 1 to 2 read in one pass: 300 ms together" in said and not any("first token" in one for one in said)


def test_while_it_grows_only_the_newest_step_comes_with_its_candidates() -> None:
    picture = steps.picture(shown(token_step(0), token_step(1), ended=False, plan=Plan(8)), EN)
    sent = data(picture)
    assert list(sent["details"]) == ["1"] and sent["going"] and sent["more"] == 0 and picture.part == 0.25
    assert list(data(steps.picture(shown(), EN))["details"]) == ["0", "1"]


def test_rows_are_read_back_to_three_digits_and_what_may_not_be_seen_is_told_apart() -> None:
    weights = [np.array([1.0]), np.array([0.25, 0.75]), np.array([np.nan, 1e-4, 0.9999])]
    reading = steps.Reading("self", 1, 0, [row.astype(np.float32) for row in weights])
    sent = data(steps.picture(shown(reading=reading), EN))["read"]
    codes = np.frombuffer(base64.b64decode(sent["codes"]), dtype="<u2")
    assert sent["lengths"] == [1, 2, 3] and sent["bits"] == 16 and (codes == 0).tolist() == [0, 0, 0, 1, 0, 0]
    back = ((codes.astype(float) - 1) / (2**16 - 2)) ** 2
    np.testing.assert_allclose(np.delete(back, 3), np.delete(np.concatenate(weights), 3), rtol=2e-3)


def test_a_long_prompt_sends_its_rows_at_the_end_and_in_fewer_bits() -> None:
    prompt = tuple(Token(i, "a", "a") for i in range(300))
    reading = steps.Reading("self", 1, 0, rows(301))
    grows = data(steps.picture(shown(prompt=prompt, reading=reading, ended=False), EN))["read"]
    whole = data(steps.picture(shown(prompt=prompt, reading=reading), EN))["read"]
    assert (grows["skipped"], grows["lengths"]) == (299, [300, 301])
    assert (whole["skipped"], len(whole["lengths"]), whole["bits"]) == (0, 301, 8)


def test_stages_say_their_setting_and_whether_they_do_anything() -> None:
    sampling = Sampling(temperature=0.7, top_k=40, min_p=0.1)
    found = steps.stages(Plan(sampling=sampling), EN)
    assert {key: (one["set"], one["on"]) for key, one in found.items()} == {
        "model": ("", True),
        "repetition": ("1", False),
        "temperature": ("0.7", True),
        "top_k": ("40", True),
        "top_p": ("1", False),
        "min_p": ("0.1", True),
    }


@pytest.mark.parametrize(
    ("last", "more", "said"),
    [
        ({"stopped": "end"}, 0, "The model has said its end token."),
        ({"stopped": "max_positions", "limit": 9}, 0, "The model has 9 positions"),
        ({}, 16, "Stopped: 2 of 2 tokens."),
    ],
)
def test_why_it_ends_is_said_and_what_can_go_on_may(last: dict[str, Any], more: int, said: str) -> None:
    sent = data(steps.picture(shown(token_step(0), token_step(1, **last), halted=not last), EN))
    assert sent["more"] == more and sent["said"].startswith(said)


# ---- the badges


def test_every_check_holds_on_sound_arrays() -> None:
    found = steps.badges(shown(), EN)
    assert [badge.ok for badge in found] == [True, True, True, True, True, None, None]
    assert found[0].text == "Each of 12 distributions sums to 1 (largest deviation 0)"
    assert found[-1].text == "then 250 ms a token (median): 4.00 a second"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("lie", "badge"),
    [
        (lambda step: {"rest": dict(step.rest, top_k=0.3)}, 0),
        (lambda step: {"prob": 0.51}, 1),
        (lambda step: {"top": tuple(replace(c, probs=dict(c.probs, min_p=0.5 * (c.id == 11))) for c in step.top)}, 2),
        (lambda step: {"top": tuple(replace(c, probs=dict(c.probs, repetition=c.id)) for c in step.top)}, 3),
    ],
)
def test_each_badge_turns_red_when_its_array_lies(lie: Callable[..., Any], badge: int, language: str) -> None:
    step = token_step(0)
    found = steps.badges(shown(replace(step, **lie(step))), Translator(language))
    assert found[badge].ok is False


def test_the_badge_of_the_rows_turns_red_when_a_row_lies() -> None:
    bad = [*rows(2), np.array([0.5, 0.4, 0.2], dtype=np.float32)]
    found = steps.badges(shown(reading=steps.Reading("self", 1, 0, bad)), EN)
    assert [badge.text for badge in failing(found)] == [
        "Rows of attention sum to 1: 3 checked (largest deviation 0.100)"
    ]


def test_a_token_taken_by_hand_is_marked_and_not_blamed_for_the_cuts() -> None:
    by_hand = token_step(0, taken=1, forced=True, drawn=10)
    kept = token_step(0, forced=True)  # it stood in the path, and it is what is drawn as well
    assert data(steps.picture(shown(by_hand), EN))["steps"]["taken"] == [1]
    assert data(steps.picture(shown(kept), EN))["steps"]["taken"] == [0]
    assert not failing(steps.badges(shown(by_hand), EN))
    drawn = replace(by_hand, forced=False, drawn=11)
    assert "Inside the cuts: 0 of 1 drawn tokens" in [badge.text for badge in failing(steps.badges(shown(drawn), EN))]


# ---- what is wished


def test_controls_and_a_plan_sent_back_give_the_same_plan() -> None:
    controls = {
        "new_tokens": 30,
        "temperature": 0.7,
        "top_k": 0,
        "top_p": 0.9,
        "min_p": 0,
        "repetition": 1.1,
        "seed": 3,
    }
    plan = steps.planned(controls | {"chat": True, "use_cache": False}, "naive")
    assert plan.sampling == Sampling(0.7, None, 0.9, 0, 1.1)
    assert (plan.max_new_tokens, plan.seed, plan.kernel) == (30, 3, "naive")
    assert plan.chat and not plan.use_cache
    again = steps.planned(json.loads(json.dumps(steps.as_values(replace(plan, path=(5, 6))))), "naive")
    assert again == replace(plan, path=(5, 6))


@pytest.mark.parametrize(
    "bad",
    [
        {"new_tokens": 1e9, "temperature": -1, "top_k": "x", "top_p": 7, "min_p": None, "repetition": 0, "seed": -4},
        {"new_tokens": float("nan"), "temperature": True, "path": "1,2", "seed": float("inf"), "chat": "yes"},
        {"path": [1, -2, "3", None, 1.5, True] + [7] * 1000},
    ],
)
def test_nothing_that_a_browser_can_send_breaks_a_plan(bad: dict[str, Any]) -> None:
    plan = steps.planned(bad, "flash")
    assert 1 <= plan.max_new_tokens <= steps.LONGEST and len(plan.path) <= steps.LONGEST and not plan.chat


# ---- a run is shared


class Bench:
    """Enough of a workbench: what is kept, and steps that come when the test lets them."""

    def __init__(self, n: int = 4, error: Exception | None = None) -> None:
        self.found: dict[Any, Any] = {}
        self.n, self.error, self.started, self.go = n, error, 0, threading.Semaphore(0)

    def recall(self, trace_id: str, key: Any) -> Any:
        return self.found.get(key)

    def remember(self, trace_id: str, key: Any, value: Any) -> None:
        self.found[key] = value

    def find(self, trace_id: str) -> None:
        return None

    def examine(self, trace_id: str, job: Any, key: Any, stop: Callable[[], bool]) -> bool:
        assert job is steps.has_chat
        return False

    def stream(self, trace_id: str, job: Any, stop: Callable[[], bool]) -> Iterator[TokenStep]:
        self.started += 1
        if self.error:
            raise self.error
        for i in range(self.n):
            while not self.go.acquire(timeout=0.01):
                if stop():
                    return
            if stop():
                return
            yield token_step(i, stopped="max_new_tokens" if i == self.n - 1 else None, limit=self.n)


def scene(bench: Bench, stop: Callable[[], bool] = lambda: False) -> Scene:
    trace: Any = SimpleNamespace(family="decoder", kernel="flash", source_tokens=PROMPT, model_label="tiny")
    return Scene(EN, bench, "t", trace, {"kind": "self", "layer": 0, "head": 0}, stop)  # type: ignore[arg-type]


def counts(pictures: Iterator[Picture]) -> list[int]:
    return [len(picture.panels[0].data["steps"]["p"]) for picture in pictures]


def test_the_first_token_is_drawn_at_once_and_the_last_picture_has_all() -> None:
    bench = Bench(3)
    drawn = steps.draw(scene(bench), {})
    bench.go.release()
    assert counts(iter([next(drawn)])) == [1]  # and no second one was let through
    for _ in range(2):
        bench.go.release()
    pictures = list(drawn)
    assert counts(iter(pictures))[-1] == 3 and not pictures[-1].panels[0].data["going"]


def test_another_drawing_of_the_same_plan_follows_the_run_that_is_under_way() -> None:
    bench, old = Bench(3), [False]
    first = steps.draw(scene(bench, lambda: old[0]), {})
    bench.go.release()
    next(first)
    second = steps.draw(scene(bench), {})
    assert counts(iter([next(second)])) == [1]
    old[0] = True  # the first wish is overtaken
    for _ in range(2):
        bench.go.release()
    assert counts(second)[-1] == 3 and bench.started == 1
    assert counts(steps.draw(scene(bench), {})) == [3] and bench.started == 1  # kept


def test_a_run_that_nobody_follows_ends_and_is_begun_again_when_it_is_wanted() -> None:
    bench, old = Bench(3), [False]
    first = steps.draw(scene(bench, lambda: old[0]), {})
    bench.go.release()
    next(first)
    old[0] = True
    (kept,) = bench.found.values()
    deadline = time.monotonic() + 60
    while not kept.ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert kept.ended and kept.halted
    for _ in range(3):
        bench.go.release()
    assert counts(steps.draw(scene(bench), {}))[-1] == 3 and bench.started == 2


def test_stop_ends_it_after_the_step_under_way_and_shows_what_there_is() -> None:
    bench = Bench(30)
    controls = {"new_tokens": 30}
    drawn = steps.draw(scene(bench), {}, **controls)
    bench.go.release()
    picture = next(drawn)
    plan = picture.panels[0].data["plan"]
    ask = {"plan": plan, "made": json.dumps(controls), "halt": True}
    stopped = list(steps.draw(scene(bench), ask, **controls))
    assert counts(iter(stopped)) == [1] and bench.started == 1
    assert stopped[0].panels[0].data["said"] == "Stopped: 1 of 30 tokens." and stopped[0].panels[0].data["more"] == 16


def test_what_was_asked_for_with_other_controls_no_longer_counts() -> None:
    bench = Bench(1)
    bench.go.release(2)  # type: ignore[call-arg]
    ask = {"plan": {"path": [1, 2]}, "made": json.dumps({"new_tokens": 5})}
    assert list(steps.draw(scene(bench), ask, new_tokens=6))[-1].panels[0].data["plan"]["path"] == []
    assert list(steps.draw(scene(bench), ask, new_tokens=5))[-1].panels[0].data["plan"]["path"] == [1, 2]


def test_a_model_that_writes_no_text_says_so_and_is_asked_again_next_time() -> None:
    bench = Bench(error=WrongModel("error.no_generation", model="MiniLM"))
    for n in (1, 2):
        with pytest.raises(WrongModel, match="MiniLM writes no text"):
            list(steps.draw(scene(bench), {}))
        assert bench.started == n


def test_what_goes_wrong_in_the_midst_of_it_is_said_beside_the_tokens_that_there_are() -> None:
    class Breaks(Bench):
        def stream(self, trace_id: str, job: Any, stop: Callable[[], bool]) -> Iterator[TokenStep]:
            yield token_step(0)
            raise BadText("error.no_tokens", model="tiny")

    *_, picture = steps.draw(scene(Breaks()), {})
    assert len(picture.panels[0].data["steps"]["p"]) == 1 and not picture.panels[0].data["going"]
    assert list(picture.notes) == [str(BadText("error.no_tokens", model="tiny"))]


# ---- in the Attention tab


def test_a_finished_run_gives_the_attention_view_one_longer_text(loaded: Loaded) -> None:
    model = loaded("llama")
    prompt = model.prompt(TEXT)
    plan = Plan(4)

    class Kept(Bench):
        traces: dict[str, Any] = {}

        def find(self, trace_id: str) -> Any:
            return self.traces.get(trace_id)

        def keep(self, trace: Any, prompt: Any) -> str:
            self.traces["longer"] = trace
            return "longer"

        def stream(self, trace_id: str, job: Any, stop: Callable[[], bool] = lambda: False) -> Iterator[Any]:
            yield from job(model, prompt)

    bench = Kept()
    bench.found[live.KIND, "abc"] = live.Live(plan, Run(plan, list(run_steps(model, prompt, plan))), ended=True)
    place = {"kind": "self", "layer": 1, "head": 1, "query": 2, "key": 0}
    value = draw_grown(bench, {"trace": "t", "run": "abc", "place": place}, EN)["value"]  # type: ignore[arg-type]
    tokens = value["token_lists"]["source"]["tokens"]
    assert (value["trace"], value["origin"], value["written"]) == ("longer", "t", 3)
    assert [token["written"] for token in tokens] == [False] * prompt.n_tokens + [True] * 3
    assert value["kinds"][0]["n_query"] == prompt.n_tokens + 3 and value["select"] == place
    assert all(badge["state"] != "warn" for badge in value["first"]["badges"])


@pytest.mark.parametrize("request_", [None, {}, {"trace": "t", "run": 3}, {"trace": [], "place": []}])
def test_a_run_that_is_gone_or_never_was_is_gone(request_: Any) -> None:
    class Empty(Bench):
        def recall(self, trace_id: str, key: Any) -> Any:
            raise Gone

    assert draw_grown(Empty(), request_, EN) == {"gone": True}  # type: ignore[arg-type]
    assert draw_grown(Bench(), request_, EN) == {"gone": True}  # type: ignore[arg-type]


# ---- words and sizes


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_drawing_has_all_its_words(language: str) -> None:
    known = sentences(language)
    assert {f"steps.view.{word}" for word in WORDS} == {key for key in known if key.startswith("steps.view.")}


def test_sixty_four_steps_stay_light() -> None:
    made = [token_step(i, probs=tuple([0.03] * 21)) for i in range(64)]
    whole = shown(*made, reading=steps.Reading("self", 1, 0, rows(65)))
    assert len(pack(payload(steps.picture(whole, EN)))) < 250_000
    assert len(pack(payload(steps.picture(replace(whole, ended=False), EN)))) < 40_000
