"""What the next token is drawn from: every stage is a distribution, and the draws follow the one that is shown."""

import math

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
)

LOGITS = torch.tensor([[2.0, 1.0, 0.5, -1.0, 3.0], [0.0, 0.0, 5.0, 4.9, -3.0]])
HALVES = torch.tensor([[0.5, 0.25, 0.125, 0.0625, 0.0625]]).log()

samplings = st.builds(
    Sampling,
    temperature=st.one_of(st.just(0), st.floats(1e-6, 100)),
    top_k=st.one_of(st.none(), st.integers(1, 12)),
    top_p=st.one_of(st.none(), st.floats(1e-3, 1)),
)
rows = st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=9).map(lambda row: torch.tensor([row]))


def kept(sampling: Sampling, logits: torch.Tensor = HALVES) -> list[int]:
    return next_probabilities(logits, sampling)[0].nonzero()[:, 0].tolist()


@given(rows, samplings)
def test_every_stage_sums_to_one_and_cuts_only(logits: torch.Tensor, sampling: Sampling) -> None:
    stages = stage_probabilities(logits, sampling)
    assert list(stages) == ["model", *STAGES]
    before = None
    for probs in stages.values():
        assert probs.sum() == pytest.approx(1, abs=1e-5) and bool((probs >= 0).all())
        if before is not None:
            assert not bool(((before == 0) & (probs > 0)).any()), "a token that was cut came back"
        before = probs
    assert torch.equal(stages["top_p"], next_probabilities(logits, sampling))


@given(rows, st.integers(1, 12), st.floats(1e-3, 1))
def test_the_most_probable_token_is_never_cut(logits: torch.Tensor, k: int, p: float) -> None:
    assert next_probabilities(logits, Sampling(top_k=k, top_p=p))[0, logits[0].argmax()] > 0


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0, top_k=3, top_p=0.5), Sampling(top_k=1)])
def test_temperature_zero_and_top_k_one_put_all_mass_on_the_argmax(sampling: Sampling) -> None:
    probs = next_probabilities(LOGITS, sampling)
    assert torch.equal(probs, torch.nn.functional.one_hot(LOGITS.argmax(-1), 5).float())


def test_without_any_cut_it_is_the_softmax_of_the_model() -> None:
    for sampling in (Sampling(), Sampling(top_k=5), Sampling(top_k=1000), Sampling(top_p=1.0), Sampling(top_p=1)):
        assert torch.allclose(next_probabilities(LOGITS, sampling), LOGITS.softmax(-1), atol=1e-7)


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


def test_draws_follow_the_shown_probabilities() -> None:
    """Chi-square over 20,000 draws, 99.9 % quantile; tokens that were cut never come."""
    torch.manual_seed(3)
    logits = torch.randn(1, 12) * 2
    probs = next_probabilities(logits, Sampling(temperature=1.3, top_k=10, top_p=0.98))
    n = 20_000
    drawn = draw(probs.expand(n, -1), torch.Generator().manual_seed(0)).bincount(minlength=12)
    expected = n * probs[0]
    assert not bool(drawn[expected == 0].any())
    there = expected > 0
    chi_square = float(((drawn - expected)[there].square() / expected[there]).sum())
    freedom = int(there.sum()) - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 3.090 * math.sqrt(2 / (9 * freedom))) ** 3  # Wilson and Hilferty 1931
    assert chi_square < limit


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
    ],
)
def test_values_that_make_no_sense_are_refused_in_both_languages(name: str, value: object) -> None:
    with pytest.raises(TfvizError) as refused:
        Sampling(**{name: value})  # type: ignore[arg-type]
    for language in ("en", "zh"):
        sentence = refused.value.in_language(language)
        assert name in sentence and str(value) in sentence and ("1" in sentence or "0" in sentence)
    assert refused.value.in_language("zh") != str(refused.value)
