"""Gradients: what autograd computes is the derivative, it reaches every parameter, and by both kernels alike."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.closeness import SUM, difference
from tests.model.tiny import ENCODER_DECODER, KERNELS, LLAMA_LIKE, PAD, build, ids, using
from tfviz.config import RopeScaling, TransformerConfig
from tfviz.model import Transformer
from tfviz.model.positions import POSITIONS

SMALL = {"d_model": 4, "d_ff": 4, "n_heads": 2, "n_decoder_layers": 1, "dropout": 0.0}
CHECKED = {
    "the paper's": replace(ENCODER_DECODER, **SMALL, n_encoder_layers=1, feed_forward="gelu"),
    "LLaMA's": replace(LLAMA_LIKE, **(SMALL | {"n_kv_heads": 1, "d_model": 8})),
    "alibi, window": replace(
        LLAMA_LIKE, **(SMALL | {"n_kv_heads": 1, "positions": "alibi", "window": 2, "norm": "layer_norm"})
    ),
    "yarn, interleaved": replace(
        LLAMA_LIKE,
        **(SMALL | {"n_kv_heads": 1, "d_model": 8}),
        rope_pairs="interleaved",
        rope_dims=2,
        rope_scaling=RopeScaling("yarn", 2.0, original=8),
    ),
}


def run(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    return model(source, target) if model.encoder is not None else model(target)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("config", CHECKED.values(), ids=CHECKED)
def test_gradients_are_the_derivative_of_every_parameter(config: TransformerConfig, kernel: str) -> None:
    """In double, against finite differences; a padded source, so the mask is differentiated through as well."""
    model = build(replace(config, vocab_size=5)).double()
    source, target = ids(1, 4).clamp(max=4), ids(1, 3, seed=1).clamp(max=4)
    source[0, 3] = PAD

    def logits(*parameters: Tensor) -> Tensor:
        """Of the model whose parameters these are: gradcheck shifts them in place."""
        return run(model, source, target)

    with using(kernel):
        assert torch.autograd.gradcheck(logits, tuple(model.parameters()), fast_mode=True)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("config", [ENCODER_DECODER, LLAMA_LIKE], ids=["encoder-decoder", "grouped heads, pre-norm"])
def test_a_training_step_reaches_every_parameter(config: TransformerConfig, positions: str, kernel: str) -> None:
    model = build(config, positions=positions, tie_embeddings=False, max_seq_len=6).train()
    torch.manual_seed(0)
    source, target = ids(4, 6), ids(4, 6, seed=1)
    with using(kernel):
        logits = run(model, source, target)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids(4, 6, seed=2).flatten()).backward()
    unreached = {name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-7}
    # a bias of the keys adds one number to a whole row of scores, which softmax takes away, unless RoPE turns it
    cancelled = {
        name
        for name, _ in model.named_parameters()
        if name.endswith("w_k.bias") and (positions != "rope" or "cross_attention" in name)
    }
    assert unreached == cancelled


@pytest.mark.parametrize("padded", [False, True], ids=["no padding", "padding"])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("config", [ENCODER_DECODER, LLAMA_LIKE], ids=["encoder-decoder", "grouped heads, pre-norm"])
def test_both_kernels_have_the_same_gradients(config: TransformerConfig, positions: str, padded: bool) -> None:
    model, source, target = build(config, positions=positions), ids(2, 6), ids(2, 5, seed=1)
    if padded:
        source[0, 4:], target[1, :2] = PAD, PAD
    found: list[Tensor] = []
    for kernel in KERNELS:
        model.zero_grad()
        with using(kernel):
            run(model, source, target)[target != PAD].square().mean().backward()
        assert all(p.grad is not None for p in model.parameters())
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert difference(*found) < SUM
