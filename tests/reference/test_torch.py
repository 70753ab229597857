"""Ours against torch's own layers, weights copied over: attention, encoder and decoder layer, norms."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.closeness import difference
from tests.model.tiny import KERNELS, shake, using
from tfviz.config import TransformerConfig
from tfviz.model import MultiHeadAttention
from tfviz.model.decoder import DecoderLayer
from tfviz.model.encoder import EncoderLayer
from tfviz.model.norm import LayerNorm, RMSNorm, layer_norm, rms_norm
from tfviz.model.probes import probes

D, HEADS, BATCH, N, M = 24, 4, 3, 5, 7
PLACEMENTS = ["post", "pre"]
ACTIVATIONS = ["relu", "gelu"]


def attention_weights_of(theirs: nn.MultiheadAttention, prefix: str = "") -> dict[str, Tensor]:
    """Their packed q, k, v under our names."""
    state = {"w_o.weight": theirs.out_proj.weight}
    packed = zip(("w_q", "w_k", "w_v"), theirs.in_proj_weight.chunk(3), strict=True)
    state |= {f"{name}.weight": weight for name, weight in packed}
    if theirs.in_proj_bias is not None:
        biases = zip(("w_q", "w_k", "w_v"), theirs.in_proj_bias.chunk(3), strict=True)
        state |= {f"{name}.bias": bias for name, bias in biases} | {"w_o.bias": theirs.out_proj.bias}
    return {prefix + name: tensor for name, tensor in state.items()}


def norm_of(theirs: nn.LayerNorm, residual: str) -> dict[str, Tensor]:
    return {f"{residual}.norm.weight": theirs.weight, f"{residual}.norm.bias": theirs.bias}


def feed_forward_of(theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> dict[str, Tensor]:
    return {
        "feed_forward.w_1.weight": theirs.linear1.weight,
        "feed_forward.w_1.bias": theirs.linear1.bias,
        "feed_forward.w_2.weight": theirs.linear2.weight,
        "feed_forward.w_2.bias": theirs.linear2.bias,
    }


def masks_of(name: str, n_key: int) -> tuple[Tensor | None, Tensor | None]:
    """(key padding [batch, key], blocked cells [query, key]); every query keeps its first key."""
    generator = torch.Generator().manual_seed(1)
    padding = torch.rand(BATCH, n_key, generator=generator) < 0.4
    cells = torch.rand(N, n_key, generator=generator) < 0.4
    padding[:, 0], cells[:, 0] = False, False
    return padding if "padding" in name else None, cells if "cells" in name else None


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("masked", ["no mask", "padding", "cells", "padding and cells"])
@pytest.mark.parametrize("bias", [False, True], ids=["without bias", "with bias"])
@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
def test_multi_head_attention_equals_torch_and_so_do_its_weights(
    cross: bool, bias: bool, masked: str, kernel: str
) -> None:
    torch.manual_seed(0)
    theirs = shake(nn.MultiheadAttention(D, HEADS, bias=bias, batch_first=True))
    ours = MultiHeadAttention(D, HEADS, bias=bias).eval()
    ours.load_state_dict(attention_weights_of(theirs))
    x = torch.randn(BATCH, N, D)
    other = torch.randn(BATCH, M, D) if cross else x
    padding, cells = masks_of(masked, other.shape[1])
    expected, expected_weights = theirs(
        x, other, other, key_padding_mask=padding, attn_mask=cells, average_attn_weights=False
    )
    mask = cells if padding is None else padding[:, None, None] | (False if cells is None else cells)
    with using(kernel), probes(ours, "weights") as seen:
        output = ours(x, other if cross else None, mask=mask)
    assert difference(output, expected) < 1e-5
    assert difference(seen["weights"], expected_weights) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("masked", ["no mask", "padding", "padding and cells"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_encoder_layer_equals_torch(placement: str, activation: str, masked: str, kernel: str) -> None:
    torch.manual_seed(0)
    theirs = shake(
        nn.TransformerEncoderLayer(
            D, HEADS, 40, dropout=0.0, activation=activation, batch_first=True, norm_first=placement == "pre"
        )
    )
    ours = EncoderLayer(config_of(placement, activation)).eval()
    ours.load_state_dict(
        attention_weights_of(theirs.self_attn, "attention.")
        | norm_of(theirs.norm1, "attention_residual")
        | feed_forward_of(theirs)
        | norm_of(theirs.norm2, "feed_forward_residual")
    )
    x = torch.randn(BATCH, N, D)
    padding, cells = masks_of(masked, N)
    mask = None if padding is None else padding[:, None, None] | (False if cells is None else cells)
    expected = theirs(x, src_mask=cells, src_key_padding_mask=padding)
    with using(kernel):
        output = ours(x, mask)
    assert difference(output, expected) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("masked", ["no mask", "padding"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_decoder_layer_equals_torch(placement: str, activation: str, masked: str, kernel: str) -> None:
    torch.manual_seed(0)
    theirs = shake(
        nn.TransformerDecoderLayer(
            D, HEADS, 40, dropout=0.0, activation=activation, batch_first=True, norm_first=placement == "pre"
        )
    )
    ours = DecoderLayer(config_of(placement, activation)).eval()
    ours.load_state_dict(
        attention_weights_of(theirs.self_attn, "attention.")
        | norm_of(theirs.norm1, "attention_residual")
        | attention_weights_of(theirs.multihead_attn, "cross_attention.")
        | norm_of(theirs.norm2, "cross_residual")
        | feed_forward_of(theirs)
        | norm_of(theirs.norm3, "feed_forward_residual")
    )
    x, memory = torch.randn(BATCH, N, D), torch.randn(BATCH, M, D)
    target_padding, source_padding = masks_of(masked, N)[0], masks_of(masked, M)[0]
    expected = theirs(
        x,
        memory,
        tgt_mask=torch.ones(N, N, dtype=torch.bool).triu(1),
        tgt_key_padding_mask=target_padding,
        memory_key_padding_mask=source_padding,
    )
    with using(kernel):
        output = ours(x, memory, *(None if p is None else p[:, None, None] for p in (target_padding, source_padding)))
    assert difference(output, expected) < 1e-5


def config_of(placement: str, activation: str) -> TransformerConfig:
    return TransformerConfig(
        vocab_size=10,
        d_model=D,
        d_ff=40,
        n_heads=HEADS,
        dropout=0.0,
        placement=placement,
        feed_forward=activation,
        attention_bias=True,
    )


@torch.no_grad()
@pytest.mark.parametrize("eps", [1e-5, 1e-12, 0.3])
def test_layer_norm_equals_torch_as_module_and_as_formula(eps: float) -> None:
    torch.manual_seed(0)
    theirs = shake(nn.LayerNorm(D, eps=eps), size=1)
    ours = LayerNorm(D, eps)
    ours.load_state_dict(theirs.state_dict())
    x = 3 * torch.randn(BATCH, N, D) + 2
    assert difference(ours(x), theirs(x)) < 1e-5
    assert difference(layer_norm(x, theirs.weight, theirs.bias, eps), theirs(x)) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("eps", [1e-5, 1e-6, 0.3])
def test_rms_norm_equals_torch_as_module_and_as_formula(eps: float) -> None:
    torch.manual_seed(0)
    theirs = shake(nn.RMSNorm(D, eps=eps), size=1)
    ours = RMSNorm(D, eps)
    ours.load_state_dict(theirs.state_dict())
    x = 3 * torch.randn(BATCH, N, D) + 2
    assert difference(ours(x), theirs(x)) < 1e-5
    assert difference(rms_norm(x, theirs.weight, eps), theirs(x)) < 1e-5


def test_eps_beside_sigma_is_another_number_than_eps_under_the_root() -> None:
    """(x - mean) / (sigma + eps), as the article has it, is no LayerNorm of torch's, whichever sigma is meant."""
    x = torch.tensor([[1.0, 2.0, 3.0, 6.0]])
    gain, bias, eps = torch.ones(4), torch.zeros(4), 0.1
    ours = layer_norm(x, gain, bias, eps)
    assert difference(ours, F.layer_norm(x, (4,), gain, bias, eps)) < 1e-5
    for unbiased in (False, True):
        article = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True, unbiased=unbiased) + eps)
        assert difference(article, ours) > 0.01, unbiased
