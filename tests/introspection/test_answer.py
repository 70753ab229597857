"""What the page says of a decoder's answer: probabilities from the traced pass itself, and whole answers beside it."""

import math

import numpy as np
import pytest
import torch

from tests.conftest import Loaded
from tfviz.config import Settings
from tfviz.introspection.answer import ALTERNATIVES, BEAMS
from tfviz.introspection.capture import capture
from tfviz.introspection.trace import Answer
from tfviz.introspection.workbench import Request, Workbench
from tfviz.model.attention_call import AttentionCall

ENCODER_DECODERS = ["t5", "bart", "marian"]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    return Workbench(Settings.from_environment({"TFVIZ_CACHE": str(tmp_path_factory.mktemp("cache"))}))


def answer_to(bench: Workbench, text: str, target: str | None = None, model: str = "dates") -> Answer:
    answer = bench.trace(Request(text, target, model))[1].answer
    assert answer is not None
    return answer


@pytest.mark.parametrize("target", [None, "the cat"])
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_probabilities_are_those_of_the_traced_pass(name: str, target: str | None, loaded: Loaded) -> None:
    model = loaded(name)
    prompt = model.prompt("the cat saw the door", target)
    answer = capture(model, prompt, ("the cat saw the door", target), kernel="naive").answer
    assert answer is not None and answer.written == (target is None)
    probs = model.forward(prompt, AttentionCall("naive"))[0].softmax(-1)
    assert len(answer.tokens) == len(answer.probs) == len(prompt.target) == len(answer.alternatives)
    for step, (token, prob, others) in enumerate(zip(answer.tokens, answer.probs, answer.alternatives, strict=True)):
        assert prob == pytest.approx(float(probs[step, token.id]), rel=1e-4)
        values = [value for _, value in others]
        assert len(values) == ALTERNATIVES and values == sorted(values, reverse=True)
        assert values[0] == pytest.approx(float(probs[step].max()), rel=1e-4)
    assert [token.id for token in answer.tokens[:-1]] == [token.id for token in prompt.target[1:]]
    assert answer.confidence == pytest.approx(float(np.prod(answer.probs)), rel=1e-4)
    assert answer.candidates == ()


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_other_families_give_no_answer(name: str, loaded: Loaded) -> None:
    model = loaded(name)
    assert capture(model, model.prompt("the cat"), ("the cat", None)).answer is None


def test_a_model_that_nobody_trained_gives_none(bench: Workbench) -> None:
    assert bench.trace(Request("the cat", None, "paper-base"))[1].answer is None


@pytest.mark.parametrize(
    "text, iso",
    [
        ("Tuesday, 5 March 2024", "2024-03-05"),
        ("2024年3月5日", "2024-03-05"),
        ("5. März 2024", "2024-03-05"),
        ("mardi 5 mars 2024", "2024-03-05"),
        ("5 de marzo de 2024", "2024-03-05"),
        ("03/04/2026", "2026-04-03"),  # numbers alone are read day first
    ],
)
def test_dates_are_read_and_the_model_is_sure(text: str, iso: str, bench: Workbench) -> None:
    answer = answer_to(bench, text)
    assert answer.text == iso
    assert answer.confidence > 0.9
    assert answer.tokens[-1].special and len(answer.tokens) == len(iso) + 1


@pytest.mark.parametrize(
    "text", ["hello world", "The animal didn't cross the street because it was too tired", "今天天气很好", "???", " "]
)
def test_what_is_no_date_runs_and_shows_low_confidence(text: str, bench: Workbench) -> None:
    answer = answer_to(bench, text)
    assert answer.confidence < 0.01
    assert np.isfinite(answer.probs).all()


def test_candidates_come_best_first_with_the_greedy_one_marked(bench: Workbench) -> None:
    answer = answer_to(bench, "March 2024")  # no day: many are possible
    log_probs = [candidate.log_prob for candidate in answer.candidates]
    assert len(log_probs) == BEAMS and log_probs == sorted(log_probs, reverse=True)
    assert sum(candidate.greedy for candidate in answer.candidates) <= 1
    for candidate in answer.candidates:
        if candidate.greedy:
            assert candidate.text == answer.text
            assert math.exp(candidate.log_prob) == pytest.approx(answer.confidence, rel=1e-3)


def test_a_typed_target_is_judged_and_the_candidates_stay(bench: Workbench) -> None:
    free = answer_to(bench, "5 March 2024")
    typed = answer_to(bench, "5 March 2024", "2024-05-03")
    assert typed.text == "2024-05-03" and not typed.written and typed.confidence < 0.1
    assert [c.text for c in typed.candidates] == [c.text for c in free.candidates]
    assert [c.greedy for c in typed.candidates] == [c.greedy for c in free.candidates]
    second = free.candidates[1]
    judged = answer_to(bench, "5 March 2024", second.text)
    assert math.log(judged.confidence) == pytest.approx(second.log_prob, abs=1e-3)


def test_the_answer_is_the_same_under_both_kernels(bench: Workbench) -> None:
    naive, flash = (
        bench.trace(Request("5 mars 2024", None, "dates", kernel))[1].answer for kernel in ("naive", "flash")
    )
    assert naive is not None and flash is not None
    assert torch.allclose(torch.from_numpy(naive.probs), torch.from_numpy(flash.probs), atol=1e-5)
