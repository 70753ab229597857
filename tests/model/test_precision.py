"""The page's precisions on our Transformer: every kernel and position scheme, tied weights still one, outputs close."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tests.closeness import difference
from tests.model.tiny import ENCODER_DECODER, KERNELS, LLAMA_LIKE, PAD, build, ids, using
from tfviz.config import TransformerConfig
from tfviz.inference.precision import PRECISIONS, weight_bytes
from tfviz.model import Transformer
from tfviz.model.positions import POSITIONS

LARGER = {"d_model": 64, "d_ff": 96}  # rows long enough for a scale of 8 bits to mean something
CONFIGS = {"encoder-decoder": replace(ENCODER_DECODER, **LARGER), "decoder": replace(LLAMA_LIKE, **LARGER, window=4)}
# of the norm of all logits; INT4: .254 was measured, nearly all of it the weights' own rounding, and these are random
RELATIVE = {"fp32": 1e-6, "fp16": 0.01, "bf16": 0.05, "int8_weights": 0.05, "int8": 0.1, "int4": 0.3}


def run(model: torch.nn.Module, config: TransformerConfig) -> Tensor:
    source, target = ids(2, 6), ids(2, 5)
    source[1, 4:], target[0, :2] = PAD, PAD
    logits = model(source, target) if config.n_encoder_layers else model(target)
    return logits[target != PAD].float()


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("key", PRECISIONS)
def test_a_converted_model_is_close_to_the_full_one(
    key: str, config: TransformerConfig, positions: str, kernel: str
) -> None:
    model = build(config, positions=positions)
    before = {name: p.clone() for name, p in model.named_parameters()}
    converted = PRECISIONS[key].convert(model)
    with using(kernel):
        exact, found = run(model, config), run(converted, config)
    assert found.isfinite().all()
    assert (found - exact).norm() / exact.norm() < RELATIVE[key]
    assert key == "fp32" or difference(found, exact) > 0, "nothing was converted"
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_int4_computes_what_its_rounded_weights_say(config: TransformerConfig, kernel: str) -> None:
    """Without the weights' rounding what is left is that of BF16, .017 measured."""
    rounded = build(config)
    converted = PRECISIONS["int4"].convert(rounded)
    n_rounded = 0
    for module, int4 in zip(rounded.modules(), converted.modules(), strict=True):
        if hasattr(int4, "dequantised"):
            module.weight = nn.Parameter(int4.dequantised())  # FP32
            n_rounded += 1
    assert n_rounded > 10
    with using(kernel):
        expected, found = run(rounded, config), run(converted, config)
    assert (found - expected).norm() / expected.norm() < RELATIVE["bf16"]


@torch.no_grad()
@pytest.mark.parametrize("key", PRECISIONS)
def test_tied_weights_stay_one(key: str) -> None:
    model = build(CONFIGS["encoder-decoder"])
    converted = PRECISIONS[key].convert(model)
    assert isinstance(converted, Transformer)
    places = [converted.encoder.embedding.tokens.table, converted.decoder.embedding.tokens.table, converted.output]
    held = "levels" if key.startswith("int") else "weight"
    assert len({getattr(place, held).data_ptr() for place in places}) == 1
    shares = {"fp32": 1.0, "int8_weights": 0.35, "int8": 0.35, "int4": 0.2}  # with scales and what stays as it was
    share = shares.get(key, 0.5)
    assert weight_bytes(converted) <= share * weight_bytes(model)


@torch.no_grad()
@pytest.mark.parametrize("key", PRECISIONS)
def test_a_converted_model_steps_over_a_cache_of_its_own_precision(key: str) -> None:
    config = CONFIGS["decoder"]
    model, tokens = PRECISIONS[key].convert(build(config)), ids(2, 6)
    assert isinstance(model, Transformer)
    cache, whole = model.new_cache(), model.decode(tokens)
    steps = torch.cat([model.decode(part, cache=cache) for part in tokens.split([4, 1, 1], dim=1)], 1)
    bound = RELATIVE["bf16" if key == "int4" else key]  # here INT4 is compared with itself, and adds in BF16
    assert (steps.float() - whole.float()).norm() / whole.float().norm() < bound
    a_number = {"fp16": 2, "bf16": 2, "int8_weights": 2, "int4": 2}.get(key, 4)
    assert cache.nbytes == 2 * config.n_decoder_layers * 2 * 6 * config.kv_heads * config.width * a_number
