"""What the next token is drawn from: every stage is a distribution, and the draws follow the one that is shown."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tfviz.errors import TfvizError
from tfviz.inference.sampling import (
    GREEDY,
    STAGES,
    Sampling,
    draw,
    largest,
    next_probabilities,
    stage_probabilities,
    staged,
)

LOGITS = torch.tensor([[2.0, 1.0, 0.5, -1.0, 3.0], [0.0, 0.0, 5.0, 4.9, -3.0]])
HALVES = torch.tensor([[0.5, 0.25, 0.125, 0.0625, 0.0625]]).log()

SEEN = torch.tensor([[4, 1, 4], [2, 2, 0]])

samplings = st.builds(
    Sampling,
    temperature=st.one_of(st.just(0), st.floats(1e-6, 100)),
    top_k=st.one_of(st.none(), st.integers(1, 12)),
    top_p=st.one_of(st.none(), st.floats(1e-3, 1)),
    min_p=st.one_of(st.none(), st.floats(0, 1)),
    repetition_penalty=st.one_of(st.just(1), st.floats(0.1, 10)),
)
rows = st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=9).map(lambda row: torch.tensor([row]))


def kept(sampling: Sampling, logits: torch.Tensor = HALVES) -> list[int]:
    return next_probabilities(logits, sampling)[0].nonzero()[:, 0].tolist()


@given(rows, samplings, st.lists(st.integers(0, 8), min_size=1))
def test_every_stage_sums_to_one_and_cuts_only(logits: torch.Tensor, sampling: Sampling, ids: list[int]) -> None:
    seen = torch.tensor([ids]) % logits.shape[-1]
    stages = stage_probabilities(logits, sampling, seen)
    assert list(stages) == ["model", *STAGES] == list(dict(staged(logits, sampling, seen)))
    for probs in stages.values():
        assert probs.sum() == pytest.approx(1, rel=1e-5, abs=1e-5) and bool((probs >= 0).all())
    for before, after in pairwise(["temperature", "top_k", "top_p", "min_p"]):
        assert not bool(((stages[before] == 0) & (stages[after] > 0)).any()), "a token that was cut came back"
    assert torch.equal(stages["min_p"], next_probabilities(logits, sampling, seen))


@given(rows, st.integers(1, 12), st.floats(1e-3, 1), st.floats(0, 1))
def test_the_most_probable_token_is_never_cut(logits: torch.Tensor, k: int, p: float, least: float) -> None:
    assert next_probabilities(logits, Sampling(top_k=k, top_p=p, min_p=least))[0, logits[0].argmax()] > 0


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0, top_k=3, top_p=0.5), Sampling(top_k=1)])
def test_temperature_zero_and_top_k_one_put_all_mass_on_the_argmax(sampling: Sampling) -> None:
    probs = next_probabilities(LOGITS, sampling)
    assert torch.equal(probs, torch.nn.functional.one_hot(LOGITS.argmax(-1), 5).float())


def test_without_any_cut_it_is_the_softmax_of_the_model() -> None:
    cuts_nothing: list[dict[str, Any]] = [{}, {"top_k": 5}, {"top_k": 1000}, {"top_p": 1.0}, {"top_p": 1}, {"min_p": 0}]
    for settings in (*cuts_nothing, {"repetition_penalty": 1}):
        assert torch.allclose(next_probabilities(LOGITS, Sampling(**settings), SEEN), LOGITS.softmax(-1), atol=1e-7)
    assert torch.equal(next_probabilities(LOGITS, Sampling(repetition_penalty=2)), LOGITS.softmax(-1))  # nothing seen


@pytest.mark.parametrize("temperature", [0.25, 1.0, 3.0])
def test_temperature_divides_the_logits(temperature: float) -> None:
    ours = next_probabilities(LOGITS, Sampling(temperature=temperature))
    assert torch.allclose(ours, (LOGITS / temperature).softmax(-1), atol=1e-6)


@pytest.mark.parametrize("temperature", [5e-324, 1e-40, 1e-30])
def test_a_temperature_next_to_zero_is_greedy_and_no_nan(temperature: float) -> None:
    assert torch.equal(next_probabilities(LOGITS, Sampling(temperature)), next_probabilities(LOGITS, GREEDY))


def test_a_huge_temperature_is_uniform() -> None:
    assert torch.allclose(next_probabilities(LOGITS, Sampling(1e300)), torch.full((2, 5), 0.2))


@pytest.mark.parametrize(("p", "size"), [(0.01, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.8, 3), (0.875, 3), (0.99, 5)])
def test_top_p_keeps_the_smallest_set_that_reaches_p(p: float, size: int) -> None:
    assert kept(Sampling(top_p=p)) == list(range(size))


@pytest.mark.parametrize(("least", "size"), [(0.0, 5), (0.1, 5), (0.125, 5), (0.126, 3), (0.5, 2), (0.51, 1), (1, 1)])
def test_min_p_keeps_what_has_its_share_of_the_best_probability(least: float, size: int) -> None:
    assert kept(Sampling(min_p=least)) == list(range(size))


def test_min_p_looks_at_what_temperature_left() -> None:
    assert kept(Sampling(temperature=0.5, min_p=0.26)) == [0]  # the second has (1/2)^2 of the best at T = 1/2
    assert kept(Sampling(temperature=2.0, min_p=0.5)) == [0, 1, 2]  # sqrt(1/4) = 1/2


def test_the_repetition_penalty_divides_positive_and_multiplies_negative_logits_once() -> None:
    sampling = Sampling(repetition_penalty=2)
    _, (name, z), *_ = staged(LOGITS, sampling, torch.tensor([[4, 3, 4, 4], [2, 4, 0, 0]]))
    assert name == "repetition"
    assert z.tolist() == [[2.0, 1.0, 0.5, -2.0, 1.5], [0.0, 0.0, 2.5, pytest.approx(4.9), -6.0]]
    assert LOGITS[0, 4] == 3, "the model's own logits were changed"


def test_greedy_takes_the_most_probable_after_the_penalty() -> None:
    sampling = Sampling(temperature=0, repetition_penalty=2)
    assert next_probabilities(LOGITS, sampling, SEEN).argmax(-1).tolist() == [0, 3]
    assert torch.equal(next_probabilities(LOGITS, sampling, SEEN), stage_probabilities(LOGITS, sampling, SEEN)["min_p"])


def test_an_id_that_the_head_does_not_have_is_no_error() -> None:
    probs = next_probabilities(LOGITS, Sampling(repetition_penalty=2), torch.tensor([[1, 9], [1, 9]]))
    assert torch.allclose(probs.sum(-1), torch.ones(2))
    assert torch.equal(probs, next_probabilities(LOGITS, Sampling(repetition_penalty=2), torch.tensor([[1], [1]])))


@pytest.mark.parametrize("n", [9, 3000])
@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.7, "temperature": 0.5},
        {"temperature": 1.7, "top_k": 7},
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 3.0, "top_p": 0.97},
        {"min_p": 0.05},
        {"repetition_penalty": 1.2, "temperature": 1.4, "top_k": 400, "top_p": 0.95, "min_p": 0.02},
    ],
)
def test_every_stage_is_that_of_transformers(settings: dict[str, float], n: int) -> None:
    """Their processors, in the order in which their `generate` builds them from the same settings."""
    import transformers

    torch.manual_seed(n)
    logits, seen = torch.randn(4, n) * 3, torch.randint(n, (4, 20))
    config = transformers.LlamaConfig(
        vocab_size=n, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    model: Any = transformers.LlamaForCausalLM(config)
    asked = transformers.GenerationConfig(do_sample=True, **{"top_k": 0} | settings)
    processors = model._get_logits_processor(asked, input_ids_seq_length=20, encoder_input_ids=seen)
    theirs = processors(seen, logits.clone()).softmax(-1)
    assert len(processors) == len(settings)
    ours = next_probabilities(logits, Sampling(**settings), seen)  # type: ignore[arg-type]
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert torch.equal(ours > 0, theirs > 0)


@pytest.mark.parametrize("flatness", [0.001, 1.0, 8.0])
def test_top_p_of_a_large_vocabulary_is_that_of_a_full_sort(flatness: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 20_000) * flatness  # nearly all, thousands, and a few tokens of it
    probs = logits.double().softmax(-1)
    for row, alive in zip(probs, next_probabilities(logits, Sampling(top_p=0.9)) > 0, strict=True):
        ranked = row.sort(descending=True).values
        n = int((ranked.cumsum(-1) - ranked < 0.9).sum())
        assert abs(int(alive.sum()) - n) <= 2  # FP32 sums end within two tokens of FP64's
        assert row[alive].min() >= row[~alive].max()


def test_top_p_counts_what_top_k_and_temperature_left() -> None:
    assert kept(Sampling(top_k=2, top_p=0.6)) == [0]  # 2/3 of the mass that is left; without the cut it is 0.5
    assert kept(Sampling(temperature=0.5, top_p=0.74)) == [0]  # 3/4 at T = 1/2


def test_what_is_kept_keeps_its_proportions() -> None:
    probs = next_probabilities(LOGITS, Sampling(top_k=3, top_p=0.95))
    full = LOGITS.softmax(-1)
    left = torch.where(probs > 0, full, 0)
    assert torch.allclose(probs, left / left.sum(-1, keepdim=True), atol=1e-6)


def test_equal_logits_rank_by_id() -> None:
    same = torch.zeros(1, 6)
    assert kept(GREEDY, same) == [0]
    assert kept(Sampling(top_k=2), same) == [0, 1]
    assert kept(Sampling(top_p=0.45), same) == [0, 1, 2]
    assert largest(torch.tensor([[1.0, 3.0, 1.0, 3.0, 1.0]]), 3)[0].tolist() == [True, True, False, True, False]


def test_half_precision_logits_are_cut_in_single_precision() -> None:
    probs = next_probabilities(LOGITS.bfloat16(), Sampling(temperature=0.7))
    assert probs.dtype == torch.float32 and torch.allclose(probs.sum(-1), torch.ones(2))


@pytest.mark.parametrize("n", [1_000, 20_000])
def test_draws_follow_the_shown_probabilities(n: int) -> None:
    """Chi-square, 99.9 % quantile; tokens that were cut never come."""
    torch.manual_seed(3)
    logits = torch.randn(1, 12) * 2
    sampling = Sampling(1.3, top_k=10, top_p=0.98, min_p=0.01, repetition_penalty=1.1)
    probs = next_probabilities(logits, sampling, torch.tensor([[0, 5]]))
    drawn = draw(probs.expand(n, -1), torch.Generator().manual_seed(0)).bincount(minlength=12)
    expected = n * probs[0]
    assert not bool(drawn[expected == 0].any())
    there = expected > 0
    chi_square = float(((drawn - expected)[there].square() / expected[there]).sum())
    freedom = int(there.sum()) - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 3.090 * math.sqrt(2 / (9 * freedom))) ** 3  # Wilson and Hilferty 1931
    assert chi_square < limit


@pytest.mark.parametrize("u", [0.0, 0.25, 0.5, 0.75, 0.9999999])
def test_a_draw_is_where_the_sum_of_the_probabilities_passes_u(u: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: torch.full(shape, u, dtype=torch.float64))
    token = int(draw(torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]])))
    assert token == (1 if u < 0.25 else 3 if u < 0.75 else 4)


def test_the_same_seed_draws_the_same_tokens_and_leaves_the_global_one_alone() -> None:
    probs = LOGITS.softmax(-1).repeat(50, 1)
    before = torch.get_rng_state()
    first, again, other = (draw(probs, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("temperature", value) for value in (-0.1, math.nan, math.inf, "1", None, True)],
        *[("top_k", value) for value in (0, -3, 2.0, math.nan, "5", True)],
        *[("top_p", value) for value in (0, 0.0, -0.5, 1.01, math.nan, math.inf, "0.9", True)],
        *[("min_p", value) for value in (-0.1, 1.01, math.nan, math.inf, "0.9", True)],
        *[("repetition_penalty", value) for value in (0, -1, math.nan, math.inf, "1", None, True)],
    ],
)
def test_values_that_make_no_sense_are_refused_in_both_languages(name: str, value: object) -> None:
    with pytest.raises(TfvizError) as refused:
        Sampling(**{name: value})  # type: ignore[arg-type]
    for language in ("en", "zh"):
        sentence = refused.value.in_language(language)
        assert name in sentence and str(value) in sentence and ("1" in sentence or "0" in sentence)
    assert refused.value.in_language("zh") != str(refused.value)


# ---- settings at the end of what a number can be


SMALLEST, LARGEST = 5e-324, 1.7e308  # of a Python number
EXTREME = [
    *({"top_p": p} for p in (SMALLEST, 1e-50, 1 - 1e-16)),
    *({"min_p": p} for p in (SMALLEST, 1e-50, 1.0)),
    *({"temperature": t} for t in (SMALLEST, 1e-50, 1e50, LARGEST, 10**300)),
    *({"repetition_penalty": r} for r in (SMALLEST, 1e-300, 1e-50, 1e50, 1e300, LARGEST)),
    {"temperature": 1e-300, "repetition_penalty": 1e-300, "top_p": 1e-300, "min_p": 1e-300, "top_k": 10**30},
    {"temperature": 1e300, "repetition_penalty": 1e300},
]
WIDE = torch.tensor([[2.0, 1.0, 0.0, -1.0, 30.0], [-math.inf, 0.0, 500.0, -500.0, 1e30]])


@pytest.mark.parametrize("settings", EXTREME, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_no_setting_that_is_allowed_leads_to_a_nan(settings: dict[str, float], dtype: torch.dtype) -> None:
    logits = WIDE[: 1 if dtype == torch.float16 else 2].to(dtype)  # 1e30 is beyond FP16
    for name, probs in stage_probabilities(logits, Sampling(**settings), SEEN[: len(logits)]).items():
        torch.testing.assert_close(probs.sum(-1), torch.ones(len(logits)), msg=name)
    drawn = draw(next_probabilities(logits, Sampling(**settings), SEEN[: len(logits)]))
    assert all(0 <= one < 5 for one in drawn.tolist())


def test_a_tiny_top_p_keeps_the_best_token_alone() -> None:
    assert kept(Sampling(top_p=1e-50)) == [0]


@pytest.mark.parametrize("penalty", [1e-300, 1e300])
def test_an_extreme_penalty_is_carried_out_as_it_stands(penalty: float) -> None:
    logits, seen = torch.tensor([[2.0, 1.0, -1.0, 0.5]]), torch.tensor([[0, 1, 2]])
    probs = next_probabilities(logits, Sampling(repetition_penalty=penalty), seen)
    # 2 / r alone is left; or 2 and 1 become 0, -1 falls out, 0.5 was not seen
    right = torch.tensor([1.0, 0, 0, 0]) if penalty < 1 else torch.tensor([0.0, 0.0, -math.inf, 0.5]).softmax(-1)
    torch.testing.assert_close(probs[0], right)


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty"])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 10**400, -(10**5000)], ids=list("abcde"))
def test_what_no_float_can_hold_is_refused(name: str, value: float) -> None:
    with pytest.raises(TfvizError, match=rf"^{name} = "):
        Sampling(**{name: value})


def test_a_token_that_is_improbable_only_is_not_cut() -> None:
    z = dict(staged(WIDE, Sampling(temperature=1e-50, repetition_penalty=1e300), SEEN))
    for name in ("repetition", "temperature"):
        assert torch.equal(z[name].isneginf(), WIDE.isneginf()), name
