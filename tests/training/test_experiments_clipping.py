"""Gradient clipping: the norm is the smaller of two, the direction stays, the same seed gives the same steps."""

import numpy as np
import pytest
import torch

from tfviz.errors import TfvizError
from tfviz.training.experiments.clipping import ClippedRun, advance


@pytest.mark.parametrize("max_norm", [0.1, 1.0, 50.0])
def test_the_norm_after_is_the_smaller_of_norm_and_limit(max_norm: float) -> None:
    _, steps = advance(ClippedRun(max_norm), 3)
    for step in steps:
        before, after = step.norms
        assert after == pytest.approx(min(before, max_norm), rel=1e-5)
        assert step.after == pytest.approx(step.before * after / before, rel=1e-5)  # each parameter by the same factor
        assert step.cosine == pytest.approx(1, abs=1e-12)


def test_the_first_norms_are_those_of_the_untouched_gradient() -> None:
    run = ClippedRun(0.1)
    _, (step,) = advance(run, 1)
    assert len(step.before) == len(run.names) == len(list(run.model.parameters()))
    _, (unclipped,) = advance(ClippedRun(1e9), 1)
    np.testing.assert_array_equal(step.before, unclipped.before)
    np.testing.assert_array_equal(unclipped.before, unclipped.after)


def test_a_run_is_decided_by_its_arguments_and_disturbs_nobody() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    losses = [[step.loss for step in advance(ClippedRun(1.0), 4)[1]] for _ in range(2)]
    assert losses[0] == losses[1] and torch.equal(torch.rand(3), expected)
    assert losses[0] != [step.loss for step in advance(ClippedRun(0.1, seed=1), 4)[1]]


def test_it_learns() -> None:
    _, steps = advance(ClippedRun(1.0), 30)
    assert np.mean([step.loss for step in steps[-5:]]) < steps[0].loss - 1


def test_no_length_at_all_is_refused() -> None:
    with pytest.raises(TfvizError, match="max_norm"):
        ClippedRun(0.0)
