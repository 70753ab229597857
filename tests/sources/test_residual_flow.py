"""Additions are found by their numbers alone, and a changed number is noticed."""

import pytest
import torch
from torch import Tensor

from tfviz.sources.residual_flow import INPUT, find_flow


def tensors(n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(5, 8, generator=generator) for _ in range(n)]


def test_a_pre_norm_layer_is_a_branch_and_an_addition_twice() -> None:
    x, normed, attended, again, fed = tensors(5)
    middle = x + attended
    parts = [(x, normed), (normed, attended), (middle, again), (again, fed)]
    flow = find_flow(x, parts, middle + fed)
    assert flow.reads == (INPUT, 0, 4, 2, 5)
    assert [(joint.before, joint.of) for joint in flow.joints] == [(2, (INPUT, 1)), (4, (4, 3))]
    assert flow.gap == 0


def test_in_a_post_norm_layer_the_norm_reads_the_sum() -> None:
    x, attended, normed, fed, out = tensors(5)
    flow = find_flow(x, [(x, attended), (x + attended, normed), (normed, fed), (normed + fed, out)], out)
    assert [(joint.before, joint.of) for joint in flow.joints] == [(1, (INPUT, 0)), (3, (1, 2))]
    assert flow.reads == (INPUT, 4, 1, 5, 3)


def test_a_parallel_layer_adds_three() -> None:
    x, normed, attended, fed = tensors(4)
    flow = find_flow(x, [(x, normed), (normed, attended), (normed, fed)], x + attended + fed)
    assert [joint.of for joint in flow.joints] == [(INPUT, 1, 2)]
    assert flow.gap is not None and flow.gap < 1e-6


def test_a_scaled_branch_is_found_with_its_factor() -> None:
    x, fed = tensors(2)
    flow = find_flow(x, [(x, fed)], x + 0.22 * fed)
    assert flow.joints[0].of == (INPUT, 0)
    assert flow.joints[0].factor == pytest.approx(0.22, rel=1e-5)


def test_a_huge_value_does_not_hide_a_missing_summand() -> None:
    """Trained models have features of 1e4 and more, beside which a whole branch is small."""
    x, fed = tensors(2)
    x[0, 0] = 1e7
    assert find_flow(x, [(x, fed)], x + fed).joints[0].of == (INPUT, 0)


def test_what_is_no_sum_is_not_called_one() -> None:
    x, fed = tensors(2)
    changed = x + fed
    changed[0, 0] += 0.1
    flow = find_flow(x, [(x, fed)], changed)
    assert flow.joints == () and flow.reads == (INPUT, None) and flow.gap is None


def test_tensors_that_were_not_kept_are_unknown() -> None:
    x, fed = tensors(2)
    assert find_flow(None, [(None, fed)], x).gap is None
