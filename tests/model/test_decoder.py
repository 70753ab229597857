"""The decoder: causal without being asked, cross maps of target x source, stacks of unequal depth."""

import pytest
import torch

from tests.closeness import difference
from tests.model.tiny import DECODER, ENCODER_DECODER, KERNELS, PAD, build, ids, using
from tfviz.model.decoder import DecoderLayer
from tfviz.model.probes import probes


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_layer_is_causal_without_a_mask_and_adds_the_one_it_is_given(kernel: str) -> None:
    layer, x = DecoderLayer(DECODER).eval(), torch.randn(1, 5, 16)
    blocked = torch.tensor([[[[False, True, False, False, False]]]])
    with using(kernel), probes(layer, "weights") as seen:
        layer(x, mask=blocked)
    allowed = (seen["attention.weights"] > 0).all(1)[0].int().tolist()
    assert allowed == [[1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 0, 1, 0, 0], [1, 0, 1, 1, 0], [1, 0, 1, 1, 1]]


@torch.no_grad()
def test_two_new_tokens_over_three_cached_ones_see_four_and_five() -> None:
    model, tokens = build(DECODER), ids(1, 5)
    cache = model.new_cache()
    model.decode(tokens[:, :3], cache=cache)
    with probes(model, "weights") as seen:
        model.decode(tokens[:, 3:], cache=cache)
    allowed = (seen["decoder.layers.0.attention.weights"] > 0).all(1)[0].int().tolist()
    assert allowed == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
def test_stacks_of_unequal_depth_have_maps_of_their_own_shapes(kernel: str) -> None:
    model = build(ENCODER_DECODER, n_encoder_layers=3, n_decoder_layers=2)
    with using(kernel), probes(model, "weights") as seen:
        assert model(ids(2, 6), ids(2, 4)).shape == (2, 4, 23)
    expected = {f"encoder.layers.{i}.attention.weights": (2, 4, 6, 6) for i in range(3)}
    expected |= {f"decoder.layers.{i}.attention.weights": (2, 4, 4, 4) for i in range(2)}
    expected |= {f"decoder.layers.{i}.cross_attention.weights": (2, 4, 4, 6) for i in range(2)}
    assert {name: tuple(weights.shape) for name, weights in seen.items()} == expected


@torch.no_grad()
@pytest.mark.parametrize("positions", ["rope", "alibi"])
def test_cross_attention_knows_no_positions(positions: str) -> None:
    """Rotation and bias belong to self-attention: a shuffled memory gives the same logits."""
    model, target = build(ENCODER_DECODER, positions=positions), ids(2, 4)
    memory, mask = model.encode(ids(2, 6))
    assert (
        difference(model.decode(target, memory[:, [3, 1, 5, 0, 2, 4]], mask), model.decode(target, memory, mask)) < 1e-5
    )


@torch.no_grad()
def test_an_all_padded_source_gives_cross_attention_of_zeros() -> None:
    model, source = build(ENCODER_DECODER), ids(2, 5)
    source[1] = PAD
    with probes(model, "weights", "cross_out") as seen:
        model(source, ids(2, 4))
    weights = seen["decoder.layers.1.cross_attention.weights"]
    assert (weights[1] == 0).all() and difference(weights[0].sum(-1), torch.ones(4, 4)) < 1e-5
    bias = model.decoder.layers[1].cross_attention.w_o.bias
    assert difference(seen["decoder.layers.1.cross_out"][1], bias.expand(4, -1)) < 1e-5
