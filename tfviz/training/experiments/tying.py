"""Weight tying: one matrix reads tokens, reads what was written, and gives the logits.

    logits = x E^T,  E the embedding table:  logit of token k = x . E[k]

Source: Press & Wolf 2017, https://arxiv.org/abs/1608.05859; Vaswani et al. 2017, section 3.4
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from tfviz.config import PRESETS, TransformerConfig
from tfviz.model.parameters import count_parts_of
from tfviz.model.transformer import Transformer
from tfviz.registry import choose
from tfviz.training.experiments.subjects import seeded

TOKENS = 29  # of the small copy


@dataclass(frozen=True)
class Counts:
    """Parameters by part (see tfviz.model.parameters), with one matrix and with one for each use."""

    tied: Mapping[str, int]
    separate: Mapping[str, int]


@dataclass(frozen=True)
class Shared:
    """A small copy of a preset, tied, beside one with the same numbers in matrices of their own, after one backward."""

    addresses: Mapping[str, int]  # use of the matrix -> where it lies in memory
    embedding: Float[np.ndarray, "token d_model"]
    output: Float[np.ndarray, "token d_model"]
    gradient: Float[np.ndarray, "token d_model"]  # of the one matrix
    by_use: Mapping[str, Float[np.ndarray, "token d_model"]]  # of the matrices of their own


@lru_cache
def count(preset: str) -> Counts:
    """Counted from the modules, without allocating their weights."""
    config = choose(PRESETS, preset, "preset")
    tied, separate = (
        {part.name: part.count for part in count_parts_of(replace(config, tie_embeddings=tied))}
        for tied in (True, False)
    )
    return Counts(tied, separate)


@lru_cache
def share(preset: str, seed: int = 0) -> Shared:
    """One batch of random tokens through both; the same loss, so the same gradients wherever they share."""
    config = narrow(choose(PRESETS, preset, "preset"))
    with seeded(seed):
        one, own = Transformer(config), Transformer(replace(config, tie_embeddings=False))
        ids = torch.randint(3, TOKENS, (4, 9))
    own.load_state_dict(one.state_dict())
    for model in (one, own):
        target = (ids[:, :-1],) if config.family == "encoder-decoder" else ()
        read = ids if target or config.family == "encoder" else ids[:, :-1]
        right = ids if config.family == "encoder" else ids[:, 1:]
        nn.functional.cross_entropy(model(read, *target).flatten(0, 1), right.flatten()).backward()
    tables = uses(one)
    return Shared(
        {use: table.data_ptr() for use, table in tables.items()},
        next(iter(tables.values())).detach().numpy(),
        one.output.weight.detach().numpy(),
        _gradient(one.output.weight),
        {use: _gradient(table) for use, table in uses(own).items()},
    )


def narrow(config: TransformerConfig) -> TransformerConfig:
    """The same kind of model, small enough to run between two frames; no dropout."""
    return replace(
        config,
        vocab_size=TOKENS,
        d_model=32,
        d_ff=64,
        n_heads=4,
        n_kv_heads=None,
        n_encoder_layers=min(1, config.n_encoder_layers),
        n_decoder_layers=min(1, config.n_decoder_layers),
        max_seq_len=32,
        dropout=0.0,
        tie_embeddings=True,
        pad_id=0,
        start_id=1,
        end_id=2,
    )


def uses(model: Transformer) -> dict[str, Tensor]:
    """Where vectors of tokens stand: "encoder", "decoder" (as far as there are), "output"."""
    found: dict[str, Tensor] = {}
    if model.encoder is not None:
        found["encoder"] = model.encoder.embedding.tokens.table.weight
    if model.decoder is not None:
        found["decoder"] = model.decoder.embedding.tokens.table.weight
    return {**found, "output": model.output.weight}


def _gradient(weight: Tensor) -> Float[np.ndarray, "token d_model"]:
    assert weight.grad is not None
    return weight.grad.numpy()
