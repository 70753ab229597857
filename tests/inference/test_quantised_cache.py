"""INT8 and INT4 keys and values: what comes back, how far off it may be, and the bytes that it takes."""

import pytest
import torch

from tfviz.inference.cache_size import CACHE_PRECISIONS
from tfviz.inference.quantised_cache import BITS, quantise

AXES = ("token", "channel")


def made(heads: int = 2, tokens: int = 37, dim: int = 40) -> torch.Tensor:
    return torch.randn(heads, tokens, dim, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("bits", BITS)
def test_no_number_is_off_by_more_than_half_a_step(bits: int, axis: str) -> None:
    x = made()
    packed = quantise(x, bits, axis)  # type: ignore[arg-type]
    step = float(packed.scale.float().max())
    assert (packed.dequantise() - x).abs().max() <= 0.5 * step * 1.02 + 0.004  # FP16 of scale and zero point


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("bits", BITS)
def test_what_lies_on_the_grid_comes_back_exactly(bits: int, axis: str) -> None:
    x = torch.arange(2**bits, dtype=torch.float32)[:16].repeat(2, 3, 2)
    x[..., -1] = x[..., 0] = 0
    x[..., 1] = 2**bits - 1
    if axis == "channel":
        x = x.transpose(1, 2).contiguous()
    torch.testing.assert_close(quantise(x, bits, axis).dequantise(), x, rtol=0, atol=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", BITS)
def test_constant_lines_survive(bits: int) -> None:
    x = torch.full((1, 4, 32), 0.5)
    torch.testing.assert_close(quantise(x, bits).dequantise(), x)


@pytest.mark.parametrize("tokens, dim", [(1, 8), (37, 40), (64, 64), (5, 33)])
@pytest.mark.parametrize("bits", BITS)
def test_bytes_per_token_are_those_that_the_planner_counts(bits: int, tokens: int, dim: int) -> None:
    packed = quantise(made(3, tokens, dim), bits)
    assert packed.nbytes == 3 * tokens * CACHE_PRECISIONS[f"int{bits}"].vector_bytes(dim)


def test_int4_packs_two_numbers_in_a_byte() -> None:
    eight, four = (quantise(made(1, 4, 64), bits) for bits in (8, 4))
    assert eight.codes.shape[-1] == 64 and four.codes.shape[-1] == 32 and four.codes.dtype == torch.uint8


def test_a_large_channel_spoils_its_neighbours_per_token_but_not_per_channel() -> None:
    x = made(1, 64, 64)
    x[..., 7] += 100
    others = [i for i in range(64) if i != 7]
    per_token, per_channel = ((quantise(x, 4, axis).dequantise() - x)[..., others].abs().mean() for axis in AXES)  # type: ignore[arg-type]
    assert per_token > 5 * per_channel


def test_other_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="4 or 8 bits here, not 3"):
        quantise(made(), 3)
