"""The encoder and what it reads: embeddings times sqrt(d_model), positions, a norm; the mask it hands on."""

import math

import pytest
import torch

from tests.closeness import difference
from tests.model.tiny import ENCODER, ENCODER_DECODER, KERNELS, PAD, build, ids, using
from tfviz.model.positions.sinusoidal import sinusoidal_encoding
from tfviz.model.probes import probes


@torch.no_grad()
@pytest.mark.parametrize("scaled", [True, False], ids=["times sqrt(d_model)", "as they are"])
def test_the_first_layer_reads_embeddings_and_positions(scaled: bool) -> None:
    model, tokens = build(ENCODER, scale_embedding=scaled), ids(2, 5)
    with probes(model, "embedded", "resid_pre") as seen:
        model(tokens)
    vectors = model.encoder.embedding.tokens.table.weight[tokens] * (math.sqrt(16) if scaled else 1)
    expected = vectors + sinusoidal_encoding(torch.arange(5)[None], 16)
    assert difference(seen["encoder.embedding.embedded"], expected) < 1e-5
    assert torch.equal(seen["encoder.layers.0.resid_pre"], seen["encoder.embedding.embedded"])


@torch.no_grad()
def test_an_embedding_norm_comes_after_the_positions() -> None:
    model, tokens = build(ENCODER, embedding_norm=True, positions="learned"), ids(2, 5)
    with probes(model, "embedded") as seen:
        model(tokens)
    embedding = model.encoder.embedding
    total = embedding.tokens(tokens) + embedding.positions.table.weight[:5]
    assert difference(seen["encoder.embedding.embedded"], embedding.norm(total)) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
def test_memory_comes_with_the_mask_of_its_padding_and_with_none_where_there_is_none(kernel: str) -> None:
    model, tokens = build(ENCODER_DECODER), ids(2, 5)
    with using(kernel):
        memory, mask = model.encode(tokens)
        assert memory.shape == (2, 5, 16) and mask is None
        tokens[1, 3:] = PAD
        padded_memory, mask = model.encode(tokens)
    assert mask is not None and mask.tolist() == [[[[False] * 5]], [[[False, False, False, True, True]]]]
    assert difference(padded_memory[0], memory[0]) < 1e-5
    assert difference(padded_memory[1, :3], model.encode(tokens[1:, :3])[0][0]) < 1e-5


@torch.no_grad()
def test_without_a_padding_id_token_zero_is_a_token_like_any_other() -> None:
    model, tokens = build(ENCODER, pad_id=None), ids(1, 5)
    tokens[0, 2] = 0
    with probes(model, "weights") as seen:
        model(tokens)
    assert (seen["encoder.layers.0.attention.weights"] > 0).all()
    assert model.encode(tokens)[1] is None


@torch.no_grad()
def test_memory_of_padding_is_never_read() -> None:
    """Whatever stands in the padded rows of memory, the logits are the same."""
    model, source, target = build(ENCODER_DECODER), ids(2, 6), ids(2, 4)
    source[1, 2:] = PAD
    memory, mask = model.encode(source)
    logits = model.decode(target, memory, mask)
    memory[1, 2:] = 1e4
    assert torch.equal(model.decode(target, memory, mask), logits)
