"""Scores that leave the range of their format: the two kernels agree, or it is said in a sentence."""

import pytest
import torch
from torch import Tensor

from tfviz.errors import UnsupportedHere
from tfviz.introspection.steps import head_steps
from tfviz.introspection.trace import LayerAttention
from tfviz.messages import LANGUAGES
from tfviz.model.attention import ATTENTION_KERNELS, ScoreRule, attention_weights, scaled_dot_product_attention
from tfviz.model.tiling import tiled_attention

KERNELS = sorted(ATTENTION_KERNELS)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ONE = ScoreRule(scale=1.0)
FAR = (-110208.0547, -110189.8125, -110206.5234, -110208.4531, -110192.6016, 5.0, 5.0, 5.0)
Inputs = tuple[Tensor, Tensor, Tensor]


def rows(dtype: torch.dtype, query: float, *keys: float) -> Inputs:
    """One query of one number over these keys; values are identity rows, so that the output is the weights."""
    n = len(keys)
    q, k, v = torch.tensor([query]), torch.tensor(keys), torch.eye(n)
    return q.view(1, 1, 1, 1).to(dtype), k.view(1, 1, n, 1).to(dtype), v.view(1, 1, n, n).to(dtype)


def last_three() -> Tensor:
    return (torch.arange(8) > 4).view(1, 1, 1, 8)


def every_way(inputs: Inputs, mask: Tensor | None = None) -> dict[str, Tensor]:
    """The weights by each kernel, as weights, tile by tile and step by step."""
    found = {name: scaled_dot_product_attention(*inputs, mask, kernel=name, rule=ONE)[0] for name in KERNELS}
    found["weights"] = attention_weights(*inputs[:2], mask, ONE)
    found["tiles"], _ = tiled_attention(*inputs, mask, ONE, query_block=1, key_block=2)
    arrays = [one[0].float().numpy() for one in inputs]
    layer = LayerAttention(*arrays, None if mask is None else mask[0].numpy(), None, 1.0, False, None)
    found["steps"] = torch.from_numpy(head_steps(layer, 0, [0]).output)
    return {name: one.flatten().float() for name, one in found.items()}


def test_scores_beyond_100_000_have_the_right_weights_in_fp32() -> None:
    right = torch.tensor([1.1262e-8, 0.942082, 5.2074e-8, 7.5608e-9, 0.0579181, 0, 0, 0])
    for name, found in every_way(rows(torch.float32, 1.0, *FAR), last_three()).items():
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-9, msg=name)
        assert (found[5:] == 0).all(), name


def test_bf16_rounds_such_scores_to_one_another_and_stays_in_range() -> None:
    """BF16 holds 8 bits: all five keys are -110,080 there, and each gets a fifth."""
    for name, found in every_way(rows(torch.bfloat16, 1.0, *FAR), last_three()).items():
        torch.testing.assert_close(found[:5], torch.full((5,), 0.2), rtol=2**-8, atol=0, msg=name)
        assert (found[5:] == 0).all(), name


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("mask", [None, last_three()], ids=["open", "masked"])
def test_keys_beyond_fp16_are_refused_by_every_kernel(kernel: str, mask: Tensor | None) -> None:
    query, key, value = rows(torch.float16, 1.0, *FAR[:5], *[-7e4] * 3)
    assert key.isneginf().all()
    with pytest.raises(UnsupportedHere, match="overflow") as refused:
        scaled_dot_product_attention(query, key, value, mask, kernel=kernel, rule=ONE)
    assert all("nan" not in refused.value.in_language(language) for language in LANGUAGES)
    with pytest.raises(UnsupportedHere):
        tiled_attention(query, key, value, mask, ONE)


@pytest.mark.parametrize("mask", [None, torch.zeros(1, 1, 1, 5, dtype=torch.bool)], ids=["open", "masked"])
def test_scores_beyond_fp16_are_refused_by_naive_and_right_in_what_holds_them_in_fp32(mask: Tensor | None) -> None:
    inputs = rows(torch.float16, -400.0, 300, 299, 298, 250, 200)
    with pytest.raises(UnsupportedHere, match="FP16 ends at ±65504"):
        scaled_dot_product_attention(*inputs, mask, kernel="naive", rule=ONE)
    with pytest.raises(UnsupportedHere, match="FP16 ends at ±65504"):
        attention_weights(*inputs[:2], mask, ONE)
    flash, _ = scaled_dot_product_attention(*inputs, mask, kernel="flash", rule=ONE)
    tiled, _ = tiled_attention(*inputs, mask, ONE)
    for output in (flash, tiled):
        assert output.flatten().tolist() == [0, 0, 0, 0, 1]
    for dtype in (torch.float32, torch.bfloat16):
        for name, found in every_way(rows(dtype, -400.0, 300, 299, 298, 250, 200), mask).items():
            assert found.tolist() == [0, 0, 0, 0, 1], (dtype, name)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("kernel", [*KERNELS, "tiles", "steps"])
@pytest.mark.parametrize("sign", [1, -1])
def test_scores_beyond_fp32_are_no_quiet_zeros(kernel: str, dtype: torch.dtype, sign: int) -> None:
    """torch's fused kernel takes a row of -inf for a row with nothing allowed."""
    query, key, value = rows(dtype, 1e30, *[sign * 1e30] * 5)
    with pytest.raises(UnsupportedHere, match="overflow"):
        if kernel == "tiles":
            tiled_attention(query, key, value, None, ONE)
        elif kernel == "steps":
            arrays = [one[0].float().numpy() for one in (query, key, value)]
            head_steps(LayerAttention(*arrays, None, None, 1.0, False, None), 0, [0])
        else:
            scaled_dot_product_attention(query, key, value, kernel=kernel, rule=ONE)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_that_are_no_numbers_are_refused_and_blocked_rows_are_zeros(kernel: str, dtype: torch.dtype) -> None:
    query, key, value = rows(dtype, 1.0, 1, 2, 3)
    nothing = torch.ones(1, 1, 1, 3, dtype=torch.bool)
    output, _ = scaled_dot_product_attention(query, key, value, nothing, kernel=kernel)
    assert output.dtype == dtype and (output == 0).all()
    with pytest.raises(UnsupportedHere, match="values"):
        scaled_dot_product_attention(query, key, torch.full_like(value, torch.nan), kernel=kernel)
