"""RoPE against a plain double loop, in both pair conventions, whole and partial; shifts change nothing."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.closeness import difference
from tests.model.tiny import LLAMA_LIKE, build, ids
from tfviz.config import RopeScaling, TransformerConfig
from tfviz.model.positions import Rotation
from tfviz.model.positions.rope import Rope, angles

PAIRS = ["halves", "interleaved"]
SEEDS = st.integers(0, 2**31)


def rope(width: int = 8, **changes: object) -> Rope:
    return Rope(replace(LLAMA_LIKE, head_dim=width, **changes))


def turned(scheme: Rope, x: Tensor, positions: list[int]) -> Tensor:
    rotation = scheme.rotation(torch.tensor([positions]))
    assert isinstance(rotation, Rotation)
    return rotation(x)


def by_hand(x: Tensor, positions: list[int], config: TransformerConfig) -> Tensor:
    """Pair by pair, in float64: (x1, x2) turned by m base^(-2i / d)."""
    d = config.rope_dims or config.width
    out = x.double().clone()
    for place, m in enumerate(positions):
        for i in range(d // 2):
            first, second = (i, i + d // 2) if config.rope_pairs == "halves" else (2 * i, 2 * i + 1)
            angle = m * config.rope_base ** (-2 * i / d)
            x1, x2 = x[..., place, first].double(), x[..., place, second].double()
            out[..., place, first] = x1 * math.cos(angle) - x2 * math.sin(angle)
            out[..., place, second] = x1 * math.sin(angle) + x2 * math.cos(angle)
    return out


@pytest.mark.parametrize("base", [10000.0, 500.0])
@pytest.mark.parametrize("dims", [None, 2, 6], ids=["all dimensions", "one pair", "most dimensions"])
@pytest.mark.parametrize("pairs", PAIRS)
def test_rope_is_the_double_loop(pairs: str, dims: int | None, base: float) -> None:
    scheme = rope(rope_pairs=pairs, rope_dims=dims, rope_base=base)
    x, positions = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0)), [0, 1, 2, 7, 40]
    found = turned(scheme, x, positions)
    assert difference(found.double(), by_hand(x, positions, scheme.config)) < 1e-5
    assert dims is None or torch.equal(found[..., dims:], x[..., dims:])


def test_a_quarter_of_a_head_turns_by_the_angles_of_its_own_width() -> None:
    """θ = base^(-2i / 8), not ^(-2i / 32); pairs (i, i + 4); the other dimensions stay bit by bit."""
    scheme = rope(32, rope_dims=8, rope_base=1e6, rope_pairs="halves")
    assert angles(8, 1e6)[0].tolist() == pytest.approx([1, 0.0316228, 0.001, 3.16228e-5], rel=1e-5)
    x = torch.randn(1, 2, 3, 32, generator=torch.Generator().manual_seed(0))
    found = turned(scheme, x, [0, 1, 9])
    assert torch.equal(found[..., 8:], x[..., 8:])
    assert difference(found.double(), by_hand(x, [0, 1, 9], scheme.config)) < 1e-5


@pytest.mark.parametrize("dims", [None, 4])
@pytest.mark.parametrize("pairs", PAIRS)
def test_position_zero_changes_nothing_and_no_position_changes_a_length(pairs: str, dims: int | None) -> None:
    scheme, x = rope(rope_pairs=pairs, rope_dims=dims), torch.randn(1, 2, 3, 8)
    found = turned(scheme, x, [0, 5, 300])
    assert torch.equal(found[:, :, 0], x[:, :, 0])
    assert not torch.allclose(found[:, :, 1], x[:, :, 1])
    assert difference(found.norm(dim=-1), x.norm(dim=-1)) < 1e-5


def test_the_two_conventions_are_one_after_the_dimensions_are_sorted() -> None:
    """Why a checkpoint of one convention can be read with the other: permute the rows of w_q and w_k."""
    x, order = torch.randn(1, 1, 4, 8), torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    positions = [0, 3, 4, 9]
    interleaved = turned(rope(rope_pairs="interleaved"), x, positions)
    halves = turned(rope(rope_pairs="halves"), x[..., order], positions)
    assert difference(interleaved[..., order], halves) < 1e-5
    assert difference(turned(rope(rope_pairs="halves"), x, positions), interleaved) > 0.1


@given(SEEDS, st.integers(0, 200), st.integers(0, 200), st.integers(0, 800), st.sampled_from(PAIRS), st.booleans())
@settings(deadline=None)
def test_rope_scores_depend_only_on_distance(seed: int, m: int, n: int, shift: int, pairs: str, part: bool) -> None:
    scheme = rope(rope_pairs=pairs, rope_dims=4 if part else None)
    generator = torch.Generator().manual_seed(seed)
    query, key = (torch.nn.functional.normalize(torch.randn(1, 1, 1, 8, generator=generator), dim=-1) for _ in "qk")
    scores = [(turned(scheme, query, [m + by]) * turned(scheme, key, [n + by])).sum().item() for by in (0, shift)]
    assert scores[1] == pytest.approx(scores[0], rel=1e-4, abs=1e-4)  # angles up to 1000 rad, to FP32's 6e-5
    if m + shift <= 100 and n + shift <= 100:
        assert scores[1] == pytest.approx(scores[0], rel=1e-5, abs=1e-5)


def test_yarn_sharpens_scores_and_the_other_scalings_do_not() -> None:
    x = torch.randn(1, 1, 1, 8)
    for kind, grown in (("linear", 1.0), ("ntk", 1.0), ("yarn", 0.1 * math.log(4) + 1)):
        found = turned(rope(rope_scaling=RopeScaling(kind, 4.0)), x, [5])
        assert (found.norm() / x.norm()).item() == pytest.approx(grown, rel=1e-5, abs=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, {"rope_pairs": "interleaved"}, {"rope_dims": 2}], ids=str)
def test_a_decoder_with_rope_sees_distances_only(changes: dict[str, object]) -> None:
    """Every position 37 further on gives the same logits."""
    model, text = build(LLAMA_LIKE, **changes), ids(1, 6)
    plain = model(text)
    theirs = model.decoder.embedding.positions.rotation
    model.decoder.embedding.positions.rotation = lambda positions: theirs(positions + 37)
    assert difference(model(text), plain) < 1e-5
