"""Where the norm stands: post normalises the sum, pre the branch only."""

from dataclasses import replace

import pytest
import torch

from tests.closeness import difference
from tests.model.tiny import ENCODER, ENCODER_DECODER, FAMILIES, build, ids, shake
from tfviz.config import TransformerConfig
from tfviz.model.norm import NORMS
from tfviz.model.probes import probes
from tfviz.model.residual import PLACEMENTS


@torch.no_grad()
@pytest.mark.parametrize("norm", NORMS)
def test_post_is_the_norm_of_the_sum_and_pre_the_sum_with_the_norm_on_the_branch(norm: str) -> None:
    x, given = torch.randn(2, 3, 16), []

    def sublayer(y: torch.Tensor) -> torch.Tensor:
        given.append(y)
        return y.sin()

    for placement in ("post", "pre"):
        residual = PLACEMENTS[placement](replace(ENCODER, norm=norm))
        shake(residual)
        out = residual(x, sublayer)
        expected = residual.norm(x + x.sin()) if placement == "post" else x + residual.norm(x).sin()
        assert difference(out, expected) < 1e-5
    assert torch.equal(given[0], x) and not torch.allclose(given[1], x)


@torch.no_grad()
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_the_stream_of_a_layer_is_the_written_sum(config: TransformerConfig, placement: str) -> None:
    """With post-norm what leaves a place is normalised; with pre-norm the parts simply add up."""
    model = build(config, placement=placement)
    with probes(model) as seen:
        model(ids(2, 5), *([ids(2, 4)] if config.family == "encoder-decoder" else []))
    for stack in (stack for stack in ("encoder", "decoder") if getattr(model, stack) is not None):
        for i, layer in enumerate(getattr(model, stack).layers):
            at = f"{stack}.layers.{i}."
            steps = [("resid_pre", "attention_out", "attention_residual", "resid_mid")]
            last = "resid_mid"
            if stack == "decoder" and config.family == "encoder-decoder":
                steps.append(("resid_mid", "cross_out", "cross_residual", "resid_cross"))
                last = "resid_cross"
            steps.append((last, "feed_forward_out", "feed_forward_residual", "resid_post"))
            for before, branch, place, after in steps:
                total = seen[at + before] + seen[at + branch]
                expected = getattr(layer, place).norm(total) if placement == "post" else total
                assert difference(seen[at + after], expected) < 1e-5, at + after


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_only_pre_norm_ends_its_stacks_with_one_more_norm(placement: str) -> None:
    model = build(ENCODER_DECODER, placement=placement)
    for stack in (model.encoder, model.decoder):
        assert isinstance(stack.norm, torch.nn.Identity) == (placement == "post")


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_dropout_is_on_the_branch_and_not_on_the_stream(placement: str) -> None:
    torch.manual_seed(0)
    residual, x = PLACEMENTS[placement](replace(ENCODER, dropout=0.5)).train(), torch.full((1, 50, 16), 7.0)
    residual.norm = torch.nn.Identity()
    out = residual(x, lambda y: torch.ones_like(y))
    assert set(out.unique().tolist()) == {7.0, 9.0}  # dropped, or kept and doubled
