"""The two kernels against each other and against torch's, in everything in which models differ."""

import inspect
import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tfviz.errors import UnknownChoice, UnsupportedHere
from tfviz.model import scaled_dot_product_attention
from tfviz.model.attention import ATTENTION_KERNELS, PLAIN, ScoreRule, attention_scores, attention_weights

KERNELS = sorted(ATTENTION_KERNELS)
SEEDS = st.integers(0, 2**31)


@dataclass(frozen=True)
class Case:
    """Sizes and the rule of one attention; mask "key": some keys blocked for all, "cell": cells of each head."""

    heads: int = 4
    kv_heads: int = 4
    n_query: int = 6
    n_key: int = 6
    value_dim: int = 8
    causal: bool = False
    scale: float | None = None
    mask: str = ""
    bias: bool = False

    def make(self, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor | None, ScoreRule]:
        torch.manual_seed(seed)
        query = torch.randn(2, self.heads, self.n_query, 8)
        key = torch.randn(2, self.kv_heads, self.n_key, 8)
        value = torch.randn(2, self.kv_heads, self.n_key, self.value_dim)
        shapes = {"key": (2, 1, 1, self.n_key), "cell": (2, self.heads, self.n_query, self.n_key)}
        mask = torch.rand(shapes[self.mask]) < 0.4 if self.mask else None
        if mask is not None:
            mask = mask.expand(-1, -1, self.n_query, -1).clone()
            mask[..., 0] = False  # every row keeps a key
        bias = 2 * torch.randn(1, self.heads, self.n_query, self.n_key) if self.bias else None
        return query, key, value, mask, ScoreRule(self.scale, self.causal, None, bias)


CASES = {
    "plain": Case(),
    "values of another width": Case(value_dim=5),
    "grouped heads": Case(kv_heads=2),
    "one key head": Case(kv_heads=1),
    "causal": Case(causal=True),
    "causal, grouped": Case(causal=True, kv_heads=2),
    "causal over a cache": Case(causal=True, n_query=2, n_key=5),
    "one query over a cache": Case(causal=True, n_query=1, n_key=5, kv_heads=2),
    "more keys": Case(n_query=3, n_key=7),
    "padding": Case(mask="key"),
    "a mask of each head, grouped": Case(mask="cell", kv_heads=2),
    "causal with padding": Case(causal=True, mask="key"),
    "bias": Case(bias=True),
    "bias, grouped and causal": Case(bias=True, kv_heads=2, causal=True),
    "bias and padding": Case(bias=True, mask="key", scale=1.0),
    "scale": Case(scale=0.7),
    "scale, causal over a cache with padding": Case(scale=0.2, causal=True, n_query=2, n_key=5, mask="key"),
}


def theirs(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, rule: ScoreRule) -> Tensor:
    """torch's attention with everything in one additive mask, written cell by cell."""
    (batch, heads, n_query, _), n_key = query.shape, key.shape[2]
    added = torch.zeros(batch, heads, n_query, n_key)
    for b in range(batch):
        for h in range(heads):
            for i in range(n_query):
                for j in range(n_key):
                    future = rule.causal and j > i + n_key - n_query
                    if future or (mask is not None and mask[b, h % mask.shape[1], i, j]):
                        added[b, h, i, j] = -math.inf
                    elif rule.bias is not None:
                        added[b, h, i, j] = rule.bias[0, h, i, j]
    groups = [h // (heads // key.shape[1]) for h in range(heads)]
    return F.scaled_dot_product_attention(query, key[:, groups], value[:, groups], attn_mask=added, scale=rule.scale)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_our_kernel_equals_theirs(case: Case, kernel: str) -> None:
    query, key, value, mask, rule = case.make()
    output, weights = scaled_dot_product_attention(query, key, value, mask, kernel=kernel, rule=rule)
    torch.testing.assert_close(output, theirs(query, key, value, mask, rule), rtol=0, atol=2e-6)
    assert (weights is None) == (kernel == "flash")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rows_sum_to_one_and_blocked_cells_are_exactly_zero(case: Case) -> None:
    query, key, value, mask, rule = case.make()
    _, weights = scaled_dot_product_attention(query, key, value, mask, rule=rule)
    assert weights is not None
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]), rtol=0, atol=1e-6)
    blocked = attention_scores(query, key, mask, rule).isneginf()
    assert (weights[blocked] == 0).all() and (weights[~blocked] > 0).all()
    assert blocked.any() == (case.causal and case.n_query > 1 or bool(case.mask))


@given(SEEDS, st.integers(1, 5), st.integers(1, 6), st.floats(0, 1), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_mask_gives_rows_of_one_or_zero_and_no_nan(
    seed: int, n_query: int, n_key: int, share: float, grouped: bool
) -> None:
    query, key, value, _, _ = Case(kv_heads=2 if grouped else 4, n_query=n_query, n_key=n_key).make(seed)
    mask = torch.rand(2, 1, n_query, n_key) < share
    output, weights = scaled_dot_product_attention(query, key, value, mask)
    fast, _ = scaled_dot_product_attention(query, key, value, mask, kernel="flash")
    assert weights is not None
    allowed = (~mask.all(-1)).float().expand(weights.shape[:-1])
    torch.testing.assert_close(weights.sum(-1), allowed, rtol=0, atol=1e-6)
    assert (weights[mask.expand_as(weights)] == 0).all()
    torch.testing.assert_close(output, fast, rtol=0, atol=2e-6)
    assert (output[allowed == 0] == 0).all() and (fast[allowed == 0] == 0).all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bias", [False, True], ids=["mask", "mask and bias"])
def test_a_fully_blocked_row_gives_zeros(kernel: str, bias: bool) -> None:
    query, key, value, _, rule = Case(kv_heads=2, bias=bias).make()
    mask = torch.zeros(2, 1, 6, 6, dtype=torch.bool)
    mask[1] = True
    mask[0, 0, 2] = True
    output, _ = scaled_dot_product_attention(query, key, value, mask, kernel=kernel, rule=rule)
    assert (output[1] == 0).all() and (output[0, :, 2] == 0).all()
    assert output.isfinite().all() and (output[0, :, 3] != 0).any()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_row_blocked_by_the_bias_gives_zeros(kernel: str) -> None:
    query, key, value, _, _ = Case().make()
    bias = torch.zeros(1, 1, 6, 6)
    bias[..., 4, :] = -math.inf
    output, _ = scaled_dot_product_attention(query, key, value, kernel=kernel, rule=ScoreRule(bias=bias))
    assert (output[:, :, 4] == 0).all() and output.isfinite().all()


@given(SEEDS, st.integers(2, 7), st.integers(0, 3), st.sampled_from(KERNELS), st.data())
@settings(max_examples=60, deadline=None)
def test_causal_output_ignores_the_future(
    seed: int, n_query: int, cached: int, kernel: str, data: st.DataObject
) -> None:
    query, key, value, _, rule = Case(causal=True, kv_heads=2, n_query=n_query, n_key=n_query + cached).make(seed)
    last = data.draw(st.integers(0, n_query - 2))
    before, _ = scaled_dot_product_attention(query, key, value, kernel=kernel, rule=rule)
    key[:, :, cached + last + 1 :] = 50.0
    value[:, :, cached + last + 1 :] = -50.0
    after, _ = scaled_dot_product_attention(query, key, value, kernel=kernel, rule=rule)
    torch.testing.assert_close(after[:, :, : last + 1], before[:, :, : last + 1], rtol=0, atol=1e-6)
    assert not torch.allclose(after[:, :, -1], before[:, :, -1])


def test_causal_weights_of_two_queries_over_five_keys_are_11110_and_11111() -> None:
    query, key, _, _, rule = Case(causal=True, n_query=2, n_key=5).make()
    seen = attention_weights(query, key, None, rule) > 0
    assert (seen == torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]).bool()).all()


def test_one_key_gets_all_the_weight() -> None:
    query, key, value, _, _ = Case(n_query=1, n_key=1).make()
    output, weights = scaled_dot_product_attention(query, key, value)
    assert weights is not None and (weights == 1).all() and torch.equal(output, value)


def test_grouped_heads_read_the_key_head_of_their_group() -> None:
    query, key, _, _, _ = Case(heads=6, kv_heads=2).make()
    weights = attention_weights(query, key)
    for head in range(6):
        alone = attention_weights(query[:, head : head + 1], key[:, head // 3 : head // 3 + 1])
        torch.testing.assert_close(weights[:, head : head + 1], alone, rtol=0, atol=1e-7)


def test_softcap_is_the_scaled_tanh_of_the_scores() -> None:
    query, key, value, _, _ = Case(kv_heads=2).make()
    query = 20 * query
    output, weights = scaled_dot_product_attention(query, key, value, rule=ScoreRule(softcap=5.0, causal=True))
    assert weights is not None
    for i in range(6):
        scores = query[0, 3, i] @ key[0, 1, : i + 1].T / math.sqrt(8)
        expected = (5 * torch.tanh(scores / 5)).softmax(-1)
        torch.testing.assert_close(weights[0, 3, i, : i + 1], expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(output[0, 3, i], expected @ value[0, 1, : i + 1], rtol=0, atol=1e-5)


def test_flash_refuses_a_softcap_in_a_sentence() -> None:
    query, key, value, _, _ = Case().make()
    with pytest.raises(UnsupportedHere, match="Choose naive") as refused:
        scaled_dot_product_attention(query, key, value, kernel="flash", rule=ScoreRule(softcap=5.0))
    assert refused.value.key == "error.flash_softcap"


def test_heads_that_do_not_divide_are_refused_with_both_numbers() -> None:
    query, key, value, _, _ = Case(heads=4, kv_heads=3).make()
    with pytest.raises(ValueError, match="4 query heads cannot share 3 key/value heads"):
        scaled_dot_product_attention(query, key, value)


def test_an_unknown_kernel_is_answered_with_the_known_ones() -> None:
    query, key, value, _, _ = Case().make()
    with pytest.raises(UnknownChoice, match="“quick”.*naive, flash"):
        scaled_dot_product_attention(query, key, value, kernel="quick")


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 0.04), (torch.float16, 0.005)], ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_half_precision_stays_half_and_near_full(case: Case, kernel: str, dtype: torch.dtype, tolerance: float) -> None:
    query, key, value, mask, rule = case.make()
    exact, _ = scaled_dot_product_attention(query, key, value, mask, rule=rule)
    half = ScoreRule(rule.scale, rule.causal, None, None if rule.bias is None else rule.bias.to(dtype))
    output, _ = scaled_dot_product_attention(
        query.to(dtype), key.to(dtype), value.to(dtype), mask, kernel=kernel, rule=half
    )
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), exact, rtol=0, atol=tolerance)


def test_dropout_reaches_the_output_but_not_the_weights_shown() -> None:
    query, key, value, _, _ = Case().make()
    whole, weights = scaled_dot_product_attention(query, key, value)
    dropped, shown = scaled_dot_product_attention(query, key, value, dropout_p=0.5)
    assert weights is not None and shown is not None
    assert torch.equal(shown, weights) and not torch.allclose(dropped, whole)


def test_inputs_are_not_changed() -> None:
    query, key, value, mask, rule = Case(bias=True, mask="key", kv_heads=2, causal=True).make()
    tensors = [x for x in (query, key, value, mask, rule.bias) if x is not None]
    before = [x.clone() for x in tensors]
    for kernel in KERNELS:
        scaled_dot_product_attention(query, key, value, mask, kernel=kernel, rule=rule)
    assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True))
    assert PLAIN == ScoreRule()


@pytest.mark.parametrize("kernel", ["naive", "flash"])
def test_as_many_values_as_keys_are_needed(kernel: str) -> None:
    """torch's fused kernel takes others without a word; unwrapped, since only tests check shapes by annotation."""
    x = torch.ones(1, 2, 3, 4)
    with pytest.raises(ValueError, match="3 keys cannot weigh 5 values"):
        inspect.unwrap(scaled_dot_product_attention)(x, x, torch.ones(1, 2, 5, 4), kernel=kernel)


@pytest.mark.parametrize("numbers", [{"scale": float("nan")}, {"softcap": 0.0}, {"softcap": float("nan")}])
def test_a_rule_that_makes_no_scores_is_refused(numbers: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="is not possible"):
        ScoreRule(**numbers)  # type: ignore[arg-type]
