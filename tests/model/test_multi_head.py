"""Multi-head attention: grouped heads, free widths, a cache, the shape of a mask. (Against torch's: reference/.)"""

import math

import pytest
import torch
from torch import Tensor

from tests.closeness import difference
from tests.model.tiny import KERNELS, shake, using
from tfviz.model import MultiHeadAttention, make_causal_mask
from tfviz.model.kv_cache import AttentionCache, MemoryCache
from tfviz.model.probes import probes

D, HEADS = 12, 4


def attention(**changes: object) -> MultiHeadAttention:
    torch.manual_seed(0)
    module = MultiHeadAttention(D, HEADS, **changes)
    shake(module)
    return module


def by_hand(module: MultiHeadAttention, x: Tensor, other: Tensor) -> Tensor:
    """Head by head, with the rows of the projections that are this head's."""
    heads, dim = [], module.head_dim
    for head in range(module.n_heads):
        group = head // (module.n_heads // module.n_kv_heads)
        mine, shared = slice(head * dim, (head + 1) * dim), slice(group * dim, (group + 1) * dim)
        q = x @ module.w_q.weight[mine].T
        k, v = other @ module.w_k.weight[shared].T, other @ module.w_v.weight[shared].T
        heads.append((q @ k.transpose(1, 2) / math.sqrt(dim)).softmax(-1) @ v)
    return torch.cat(heads, -1) @ module.w_o.weight.T


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("head_dim", [None, 5], ids=["d_model / heads", "five dimensions a head"])
@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
def test_heads_are_computed_one_by_one_and_share_their_groups_keys(
    n_kv_heads: int, head_dim: int | None, kernel: str
) -> None:
    module = attention(n_kv_heads=n_kv_heads, head_dim=head_dim)
    x, other = torch.randn(2, 3, D), torch.randn(2, 6, D)
    with using(kernel):
        assert difference(module(x, other), by_hand(module, x, other)) < 1e-5
        assert difference(module(x), by_hand(module, x, x)) < 1e-5


@torch.no_grad()
def test_grouped_heads_are_full_heads_whose_keys_and_values_are_repeated() -> None:
    grouped, full = attention(n_kv_heads=2), attention()
    full.w_q, full.w_o = grouped.w_q, grouped.w_o
    for name in ("w_k", "w_v"):
        rows = getattr(grouped, name).weight.unflatten(0, (2, 3)).repeat_interleave(2, 0).flatten(0, 1)
        getattr(full, name).weight.copy_(rows)
    x = torch.randn(2, 5, D)
    assert difference(grouped(x, causal=True), full(x, causal=True)) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
def test_causal_is_the_triangle_and_a_mask_may_come_without_batch_and_head(kernel: str) -> None:
    module, x = attention(n_kv_heads=2), torch.randn(2, 5, D)
    triangle = make_causal_mask(5)
    with using(kernel):
        expected = module(x, mask=triangle.expand(2, 4, 5, 5))
        assert difference(module(x, causal=True), expected) < 1e-5
        assert difference(module(x, mask=triangle), expected) < 1e-5


@torch.no_grad()
def test_values_may_come_from_elsewhere_than_keys() -> None:
    module = attention()
    x, key, value = torch.randn(2, 3, D), torch.randn(2, 6, D), torch.randn(2, 6, D)
    with probes(module, "weights") as seen:
        output = module(x, key, value)
    heads = module.w_v(value).unflatten(-1, (HEADS, 3)).transpose(1, 2)
    assert difference(output, module.w_o((seen["weights"] @ heads).transpose(1, 2).flatten(2))) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("n_kv_heads", [4, 2])
def test_queries_over_a_cache_see_what_it_holds_and_themselves(n_kv_heads: int, kernel: str) -> None:
    module, x, cache = attention(n_kv_heads=n_kv_heads), torch.randn(2, 9, D), AttentionCache()
    with using(kernel):
        steps = [module(part, causal=True, cache=cache) for part in x.split([3, 1, 4, 1], dim=1)]
        assert difference(torch.cat(steps, 1), module(x, causal=True)) < 1e-5
    assert cache.length == 9


@torch.no_grad()
def test_memory_is_projected_once_and_read_from_then_on() -> None:
    module, memory, cache = attention(bias=True), torch.randn(2, 6, D), MemoryCache()
    x = torch.randn(2, 3, D)
    steps = [module(part, memory if i == 0 else None, cache=cache) for i, part in enumerate(x.split(1, dim=1))]
    assert difference(torch.cat(steps, 1), module(x, memory)) < 1e-5


@pytest.mark.parametrize("n_heads", [1, 2, 6])
@pytest.mark.parametrize("bias", [False, True])
def test_the_number_of_heads_does_not_change_the_parameters(n_heads: int, bias: bool) -> None:
    module = MultiHeadAttention(D, n_heads, bias=bias)
    assert sum(parameter.numel() for parameter in module.parameters()) == 4 * D**2 + bias * 4 * D
