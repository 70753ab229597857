"""Tiny Transformers for tests: one of each family, 23 tokens, random weights (gains and biases too), eval mode."""

from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor, nn

from tfviz.config import TransformerConfig
from tfviz.model import Transformer
from tfviz.model.attention import ATTENTION_KERNELS
from tfviz.model.attention_call import AttentionCall, attention_call

KERNELS = sorted(ATTENTION_KERNELS)
VOCABULARY = 23
PAD, START, END = 0, 1, 2

ENCODER_DECODER = TransformerConfig(
    vocab_size=VOCABULARY,
    d_model=16,
    d_ff=24,
    n_heads=4,
    n_encoder_layers=2,
    n_decoder_layers=2,
    max_seq_len=32,
    attention_bias=True,
)
ENCODER = replace(ENCODER_DECODER, n_decoder_layers=0)
DECODER = replace(ENCODER_DECODER, n_encoder_layers=0)
LLAMA_LIKE = replace(
    DECODER,
    n_kv_heads=2,
    positions="rope",
    norm="rms_norm",
    placement="pre",
    feed_forward="swiglu",
    attention_bias=False,
)
FAMILIES = {"encoder-decoder": ENCODER_DECODER, "encoder": ENCODER, "decoder": DECODER}


def shake(model: nn.Module, seed: int = 0, size: float = 0.1) -> nn.Module:
    """Noise on every parameter, so that no gain is 1 and no bias 0 where a test could miss that it is not used."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
    return model.eval()


def build(config: TransformerConfig = ENCODER_DECODER, seed: int = 0, **changes: object) -> Transformer:
    torch.manual_seed(seed)
    model = Transformer(replace(config, **changes))
    shake(model, seed)
    return model


def ids(rows: int, n: int, seed: int = 0) -> Tensor:
    """[rows, n] of ordinary tokens: none is padding, start or end."""
    return torch.randint(3, VOCABULARY, (rows, n), generator=torch.Generator().manual_seed(seed))


def using(kernel: str) -> AbstractContextManager[None]:
    return attention_call(AttentionCall(kernel=kernel))
