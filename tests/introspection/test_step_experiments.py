"""The experiments of the Step by step tab: closed forms against plain definitions, measurements against formulas."""

import numpy as np
import pytest

from tfviz.introspection.experiments import cost, heads, scaling


@pytest.mark.parametrize("d_k", scaling.D_KS)
def test_the_variance_of_dot_products_is_d_k_and_scaled_it_is_1(d_k: int) -> None:
    drawn, allowed = scaling.sample(d_k, 64, 0), 4 * scaling.standard_error(d_k, 64)
    assert drawn.dots.var() == pytest.approx(d_k, rel=allowed) and drawn.scaled.var() == pytest.approx(1, rel=allowed)
    assert drawn.dots.var() == pytest.approx(d_k * drawn.variance_part, rel=5 * allowed)


def test_the_standard_error_is_what_many_draws_show() -> None:
    found = [scaling.sample(64, 64, seed).dots.var() / 64 for seed in range(60)]
    assert np.std(found) == pytest.approx(scaling.standard_error(64, 64), rel=0.35)


def test_the_norm_of_the_derivative_is_that_of_the_whole_matrix() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(9), 5)
    whole = [np.linalg.norm(np.diag(row) - np.outer(row, row)) for row in p]
    assert scaling.jacobian_norm(p) == pytest.approx(np.array(whole), rel=1e-12)
    sure = np.array([[1.0, 1e-20]])
    assert scaling.jacobian_norm(sure)[0] == pytest.approx(2e-20)  # diag - outer would say 0


def test_equal_scores_have_all_the_entropy_and_a_large_one_has_none() -> None:
    even, sure = scaling.soften(np.zeros((2, 8))), scaling.soften(np.array([[800.0, 0.0]]))
    assert (even.entropy, even.largest) == (pytest.approx(1), pytest.approx(1 / 8))
    assert (sure.entropy, sure.largest) == (pytest.approx(0), pytest.approx(1))


def test_only_the_scale_keeps_softmax_soft_as_vectors_grow_wider() -> None:
    narrow, wide = (scaling.softness(d_k, 64, 0, True) for d_k in (4, 4096))
    assert wide.entropy == pytest.approx(narrow.entropy, abs=0.05)
    assert wide.gradient == pytest.approx(narrow.gradient, rel=0.2)
    lost = scaling.softness(4096, 64, 0, False)
    assert lost.entropy < 0.05 and lost.gradient < 1e-6


# ---- heads

WEIGHTS = np.array([[[0.5, 0.5, 0.0]], [[0.5, 0.5, 0.0]], [[0.0, 0.0, 1.0]], [[0.5, 0.25, 0.25]]])


def test_equal_rows_are_alike_and_rows_without_a_common_key_are_not() -> None:
    found = heads.similarity(WEIGHTS)
    assert found[0, 1] == 1 and found[0, 2] == 0 and found.diagonal().tolist() == [1, 1, 1, 1]
    p, q = WEIGHTS[0, 0], WEIGHTS[3, 0]
    mixed = (p + q) / 2
    divergence = sum(a * np.log2(a / m) / 2 for row in (p, q) for a, m in zip(row, mixed, strict=True) if a)
    assert found[0, 3] == found[3, 0] == pytest.approx(1 - divergence)


def test_pairs_name_the_ends_and_the_groups() -> None:
    matrix = heads.similarity(WEIGHTS)
    found = heads.pairs(matrix, 2)
    assert found.alike == (0, 1) and found.different in {(0, 2), (1, 2)}
    assert found.mean_inside == pytest.approx((matrix[0, 1] + matrix[2, 3]) / 2)
    assert heads.pairs(matrix, 4).mean_inside is heads.pairs(matrix, 1).mean_across is None


def test_queries_without_a_choice_are_left_out_and_long_texts_are_thinned() -> None:
    triangle = ~np.tri(4, dtype=bool)[None]
    assert heads.compared_queries(triangle, 8) == [1, 2, 3]
    many = heads.compared_queries(np.zeros((1, 2000, 2000), dtype=bool), 32)
    assert 8 <= len(many) < 10 and many[0] == 0 and many[-1] == 1999


def test_many_heads_cost_what_one_of_the_same_width_costs() -> None:
    many = heads.projections(512, 8, 8, 64, 64)
    assert (
        sum(one.size for one in many) == sum(one.size for one in heads.projections(512, 1, 1, 512, 512)) == 4 * 512**2
    )
    grouped = heads.projections(576, 9, 3, 64, 64)
    assert [one.columns for one in grouped] == [576, 192, 192, 576]


# ---- cost


def test_the_peak_of_the_naive_form_is_the_formulas() -> None:
    found = cost.measure(256, 2, 16, "cpu")
    assert found.peak_bytes["naive"] == pytest.approx(cost.score_bytes(256, 2), rel=0.05)
    assert found.peak_bytes["flash"] < found.peak_bytes["naive"]
    assert all(took.median > 0 and took.runs >= 1 for took in found.latency.values())


def test_the_exponent_is_that_of_the_large_sizes() -> None:
    assert cost.exponent([64, 512, 1024, 2048], [99, 3 * 512**2, 3 * 1024**2, 3 * 2048**2]) == pytest.approx(2)
    assert cost.exponent([64, 128, 512], [1, 2, 3]) is None
