"""Label smoothing: torch's numbers where the definition is torch's, mass 1, padding without a say."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tfviz.errors import TfvizError
from tfviz.training import LabelSmoothingLoss, smoothed_targets
from tfviz.training.loss import SMOOTHINGS

OVERS = sorted(SMOOTHINGS)


def example(seed: int = 0, n: int = 12, vocab: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and targets of which some are padding (0)."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, vocab, (n,), generator=generator)
    targets[:3] = torch.tensor([0, 1, vocab - 1])
    return torch.randn(n, vocab, generator=generator) * 3, targets


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("pad", [0, 4])
def test_over_all_it_is_torchs_loss_and_gradient(smoothing: float, pad: int) -> None:
    logits, targets = example()
    ours, theirs = (logits.clone().requires_grad_() for _ in range(2))
    our_loss = LabelSmoothingLoss(9, pad, smoothing)(ours, targets)
    their_loss = nn.CrossEntropyLoss(label_smoothing=smoothing, ignore_index=pad)(theirs, targets)
    our_loss.backward()
    their_loss.backward()
    torch.testing.assert_close(our_loss, their_loss, atol=1e-6, rtol=0)
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=0)


@pytest.mark.parametrize("over", OVERS)
@pytest.mark.parametrize("pad", [0, 8])
def test_it_is_the_cross_entropy_with_the_distribution_that_is_shown(over: str, pad: int) -> None:
    logits, targets = example(1)
    q = smoothed_targets(targets, 9, 0.2, pad, over)
    expected = -(q * logits.log_softmax(-1)).sum() / (targets != pad).sum()
    torch.testing.assert_close(LabelSmoothingLoss(9, pad, 0.2, over)(logits, targets), expected)


@given(st.integers(3, 50), st.floats(0, 0.99), st.sampled_from(OVERS))
def test_the_target_has_mass_one_and_padding_has_none_of_it(vocab: int, smoothing: float, over: str) -> None:
    q = smoothed_targets(torch.arange(vocab), vocab, smoothing, 0, over)
    assert (q >= 0).all() and not q[0].any()
    torch.testing.assert_close(q[1:].sum(-1), torch.ones(vocab - 1))
    masses = SMOOTHINGS[over](vocab, smoothing)
    assert math.isclose(masses.right + (vocab - 2) * masses.other + masses.padding, 1, abs_tol=1e-12)


def test_the_two_ways_to_spread_are_those_of_the_articles_text_and_code() -> None:
    text = smoothed_targets(torch.tensor([3]), 6, 0.1, 0, "all")
    code = smoothed_targets(torch.tensor([3]), 6, 0.1, 0, "allowed")
    share = 0.1 / 6
    torch.testing.assert_close(text, torch.tensor([[share, share, share, 0.9 + share, share, share]]))
    torch.testing.assert_close(code, torch.tensor([[0, 0.025, 0.025, 0.9, 0.025, 0.025]]))


@pytest.mark.parametrize("over", OVERS)
def test_padding_targets_change_nothing_and_get_no_gradient(over: str) -> None:
    logits, targets = example(2)
    real = targets != 0
    leaf = logits.clone().requires_grad_()
    loss = LabelSmoothingLoss(over=over)(leaf, targets)
    loss.backward()
    torch.testing.assert_close(loss, LabelSmoothingLoss(over=over)(logits[real], targets[real]))
    assert not leaf.grad[~real].any() and leaf.grad[real].any()


@pytest.mark.parametrize("over", OVERS)
def test_a_batch_of_padding_alone_is_zero_not_nan(over: str) -> None:
    logits = torch.randn(4, 9, requires_grad=True)
    loss = LabelSmoothingLoss(over=over)(logits, torch.zeros(4, dtype=torch.long))
    loss.backward()
    assert loss == 0 and not logits.grad.any()


@pytest.mark.parametrize("over", OVERS)
def test_a_batch_of_sequences_is_their_tokens_in_a_row(over: str) -> None:
    logits, targets = example(3)
    loss = LabelSmoothingLoss(over=over)
    torch.testing.assert_close(loss(logits.view(3, 4, 9), targets.view(3, 4)), loss(logits, targets))


@pytest.mark.parametrize("over", OVERS)
def test_its_gradient_is_that_of_finite_differences(over: str) -> None:
    logits, targets = example(4, n=5, vocab=5)
    loss = LabelSmoothingLoss(5, 0, 0.3, over)
    assert torch.autograd.gradcheck(lambda x: loss(x, targets), logits.double().requires_grad_())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_widened_first(dtype: torch.dtype) -> None:
    logits, targets = example(5)
    narrow = logits.to(dtype)
    loss = LabelSmoothingLoss()
    with torch.autocast("cpu", torch.bfloat16):
        computed = loss(narrow, targets)
    assert computed.dtype == torch.float32
    torch.testing.assert_close(computed, loss(narrow.float(), targets))


def test_a_padding_logit_of_minus_infinity_does_no_harm_where_padding_has_no_mass() -> None:
    logits, targets = example(6)
    logits[:, 0] = float("-inf")
    assert LabelSmoothingLoss(over="allowed")(logits, targets).isfinite()
    assert LabelSmoothingLoss(smoothing=0.0)(logits, targets).isfinite()


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"smoothing": 1.0}, ("smoothing", "1.0")),
        ({"smoothing": -0.1}, ("smoothing", "-0.1")),
        ({"smoothing": math.nan}, ("smoothing", "nan")),
        ({"vocab_size": 2, "over": "allowed"}, ("vocab_size", "2", "3")),
        ({"vocab_size": 5, "padding_idx": 5}, ("vocab_size", "5", "6")),
        ({"over": "others"}, ("others", "all", "allowed")),
    ],
)
def test_what_makes_no_distribution_is_refused(wrong: dict, said: tuple[str, ...]) -> None:
    with pytest.raises(TfvizError) as refused:
        LabelSmoothingLoss(**wrong)
    assert all(word in str(refused.value) for word in said)


def test_logits_that_do_not_belong_to_the_targets_are_refused() -> None:
    with pytest.raises(TfvizError, match=r"\[4, 9\].*\[5\]"):
        LabelSmoothingLoss()(torch.randn(4, 9), torch.ones(5, dtype=torch.long))
    with pytest.raises(TfvizError, match="9 .* 10"):
        LabelSmoothingLoss(10)(torch.randn(4, 9), torch.ones(4, dtype=torch.long))


# ---- targets that are no tokens


IN_TWO_ROWS = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]).log()


@pytest.mark.parametrize("over, right", [("all", 1.572130), ("allowed", 1.748067)])
def test_a_target_of_minus_100_counts_for_nothing_as_in_torch(over: str, right: float) -> None:
    targets = torch.tensor([1, -100])
    logits = IN_TWO_ROWS.clone().requires_grad_()
    loss = LabelSmoothingLoss(3, 0, 0.2, over)(logits, targets)
    assert float(loss.detach()) == pytest.approx(right, rel=1e-6)
    loss.backward()
    assert not logits.grad[1].any()
    q = smoothed_targets(targets, 3, 0.2, 0, over)
    assert not q[1].any() and float(q[0].sum()) == pytest.approx(1)
    other = LabelSmoothingLoss(3, 0, 0.2, over, ignore_index=-1)
    assert float(other(IN_TWO_ROWS, torch.tensor([1, -1]))) == pytest.approx(right, rel=1e-6)
    assert float(LabelSmoothingLoss(3, 0, 0.2, over)(IN_TWO_ROWS, torch.tensor([-100, -100]))) == 0


@pytest.mark.parametrize("odd", [3, 100, -1, -99])
def test_other_targets_outside_the_vocabulary_are_refused_by_name(odd: int) -> None:
    targets = torch.tensor([1, odd])
    for refuse in (lambda: LabelSmoothingLoss(3)(IN_TWO_ROWS, targets), lambda: smoothed_targets(targets, 3)):
        with pytest.raises(TfvizError, match=rf"targets = {odd} .*0 to 2, or -100"):
            refuse()


@pytest.mark.parametrize("smoothing, vocab, pad", [(1.0, 3, 0), (-0.1, 3, 0), (0.1, 3, 3), (0.1, 0, 0)])
def test_the_distributions_refuse_what_the_loss_refuses(smoothing: float, vocab: int, pad: int) -> None:
    with pytest.raises(TfvizError):
        smoothed_targets(torch.tensor([0]), vocab, smoothing, pad)


@pytest.mark.parametrize("over, right", [("allowed", 1.447704), ("all", 1.456946)])
def test_the_mean_is_over_the_targets_that_count(over: str, right: float) -> None:
    logits = torch.tensor([0.1, 0.2, 0.4, 0.2, 0.1]).log().expand(3, 5)
    loss = LabelSmoothingLoss(5, 0, 0.4, over)(logits, torch.tensor([2, 1, 0]))
    assert float(loss) == pytest.approx(right, rel=1e-6)


@pytest.mark.parametrize("over", OVERS)
@pytest.mark.parametrize("smoothing", [0.4, 0.75, 0.9])
@pytest.mark.parametrize("right", [2, 4])
def test_a_probability_of_zero_under_some_mass_is_an_infinite_loss(over: str, smoothing: float, right: int) -> None:
    logits = torch.tensor([[0, 0.2, 0.7, 0.1, 0]]).log()
    assert float(LabelSmoothingLoss(5, 0, smoothing, over)(logits, torch.tensor([right]))) == math.inf
