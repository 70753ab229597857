"""The KV cache: the same logits as without, however the tokens come; its bytes, its rows, its growth."""

from dataclasses import replace

import pytest
import torch

from tests.closeness import difference
from tests.model.tiny import DECODER, ENCODER_DECODER, KERNELS, LLAMA_LIKE, PAD, build, ids, using
from tfviz.config import TransformerConfig
from tfviz.errors import TfvizError
from tfviz.model import Transformer
from tfviz.model.kv_cache import SMALLEST, AttentionCache
from tfviz.model.probes import probes

CONFIGS = {
    "encoder-decoder": ENCODER_DECODER,
    "decoder": DECODER,
    "grouped heads, rope": LLAMA_LIKE,
    "alibi": replace(DECODER, positions="alibi"),
    "window": replace(LLAMA_LIKE, window=3),
}
CUTS = {"token by token": [1] * 9, "chunks": [2, 3, 4], "a prompt, then steps": [6, 1, 1, 1], "at once": [9]}


def encoded(model: Transformer, rows: int = 2) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Memory and mask of a source with padding on the right; nothing for a decoder."""
    if model.encoder is None:
        return None, None
    source = ids(rows, 6, seed=5)
    source[-1, 4:] = PAD
    return model.encode(source)


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_cached_logits_equal_uncached(config: TransformerConfig, cut: list[int], kernel: str) -> None:
    model, tokens = build(config), ids(2, 9)
    memory = encoded(model)
    with using(kernel):
        whole, cache = model.decode(tokens, *memory), model.new_cache()
        steps = [model.decode(part, *memory, cache=cache) for part in tokens.split(cut, dim=1)]
    assert difference(torch.cat(steps, 1), whole) < 1e-5
    assert cache.length == 9


@torch.no_grad()
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_left_padded_prompts_and_the_steps_after_them_equal_the_rows_alone(config: TransformerConfig) -> None:
    model, long, short, after = build(config), ids(1, 5), ids(1, 2, seed=1), ids(2, 4, seed=2)
    prompts = torch.cat([long, torch.cat([torch.full((1, 3), PAD), short], 1)])
    memory, mask = encoded(model, rows=1)
    both = (None, None) if memory is None else (memory.expand(2, -1, -1), mask.expand(2, -1, -1, -1))
    cache = model.new_cache()
    steps = [model.decode(part, *both, cache=cache) for part in (prompts, *after.split(1, dim=1))]
    logits = torch.cat(steps, 1)
    for row, prompt in enumerate((long, short)):
        alone = model.decode(torch.cat([prompt, after[row : row + 1]], 1), memory, mask)
        assert difference(logits[row : row + 1, 5 - prompt.shape[1] :], alone) < 1e-4


@torch.no_grad()
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_steps_after_right_padded_prompts_equal_the_rows_alone(config: TransformerConfig) -> None:
    model, long, short, after = build(config), ids(1, 5), ids(1, 2, seed=1), ids(2, 4, seed=2)
    prompts = torch.cat([long, torch.cat([short, torch.full((1, 3), PAD)], 1)])
    memory, mask = encoded(model, rows=1)
    both = (None, None) if memory is None else (memory.expand(2, -1, -1), mask.expand(2, -1, -1, -1))
    cache = model.new_cache()
    model.decode(prompts, *both, cache=cache)
    logits = model.decode(after, *both, cache=cache)
    for row, prompt in enumerate((long, short)):
        alone = model.decode(torch.cat([prompt, after[row : row + 1]], 1), memory, mask)
        assert difference(logits[row : row + 1], alone[:, prompt.shape[1] :]) < 1e-4


@torch.no_grad()
def test_twenty_greedy_tokens_are_the_same_with_and_without_cache_and_maps_shrink_to_a_row() -> None:
    model, tokens, cache = build(LLAMA_LIKE), ids(1, 4), None
    cache, new = model.new_cache(), tokens
    for step in range(20):
        with probes(model, "weights", "key") as seen:
            logits = model.decode(new, cache=cache)[:, -1]
        whole = model.decode(tokens)[:, -1]
        assert difference(logits, whole) < 1e-4
        assert logits.argmax() == whole.argmax()
        maps = seen["decoder.layers.0.attention.weights"].shape[2:]
        assert maps == ((4, 4) if step == 0 else (1, 4 + step))
        assert (seen["decoder.layers.0.attention.key"] != 0).any(dim=-1).all(), "a cached position is zeros"
        new = logits.argmax(-1, keepdim=True).clamp(min=3)
        tokens = torch.cat([tokens, new], 1)


@torch.no_grad()
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_reordered_cache_goes_on_as_if_its_rows_had_always_stood_so(config: TransformerConfig) -> None:
    """Beams: a row may be kept twice, another dropped; left padding and memory go with their rows."""
    model, rows, prompts, after = build(config), torch.tensor([2, 0, 0, 1]), ids(3, 5), ids(4, 2, seed=3)
    prompts[0, :2] = PAD
    memory, mask = encoded(model, rows=3)
    kept = (None, None) if memory is None else (memory[rows], mask[rows])
    cache = model.new_cache()
    model.decode(prompts, memory, mask, cache=cache)
    cache.reorder(rows)
    stepped = torch.cat([model.decode(part, *kept, cache=cache) for part in after.split(1, dim=1)], 1)
    whole = model.decode(torch.cat([prompts[rows], after], 1), *kept)
    assert difference(stepped, whole[:, 5:]) < 1e-5


@torch.no_grad()
def test_after_the_first_step_the_memory_is_not_asked_for() -> None:
    model, target = build(), ids(2, 3)
    memory, mask = encoded(model)
    cache = model.new_cache()
    first = model.decode(target[:, :1], memory, mask, cache=cache)
    later = model.decode(target[:, 1:], None, mask, cache=cache)
    assert difference(torch.cat([first, later], 1), model.decode(target, memory, mask)) < 1e-5


@torch.no_grad()
def test_steps_without_the_memory_mask_still_ignore_the_padding_of_the_source() -> None:
    model, target = build(), ids(2, 3)
    memory, mask = encoded(model)
    assert mask is not None
    cache = model.new_cache()
    model.decode(target[:, :1], memory, mask, cache=cache)
    later = model.decode(target[:, 1:], cache=cache)
    assert difference(later, model.decode(target, memory, mask)[:, 1:]) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_bytes_of_a_cache_are_two_tensors_a_layer_of_the_key_heads(config: TransformerConfig) -> None:
    model, batch, source = build(config), 3, 6
    cache = model.new_cache()
    assert cache.nbytes == 0
    memory = encoded(model, rows=batch)
    a_token = 2 * config.n_decoder_layers * config.kv_heads * config.width * 4
    cross = batch * source * a_token if model.encoder is not None else 0
    for n in (4, 5, 40):
        model.decode(ids(batch, n - cache.length), *memory, cache=cache)
        assert cache.nbytes == batch * n * a_token + cross


def test_a_cache_grows_by_doubling_and_keeps_what_it_held() -> None:
    cache, key = AttentionCache(), torch.randn(1, 2, 200, 4)
    homes = set()
    for i in range(200):
        held, _ = cache.extend(key[:, :, i : i + 1], -key[:, :, i : i + 1])
        homes.add(held.data_ptr())
    assert torch.equal(cache.read()[0], key) and torch.equal(cache.read()[1], -key)
    assert len(homes) <= 4, f"moved {len(homes)} times from {SMALLEST} to 200 positions"


@torch.no_grad()
def test_two_caches_of_one_model_do_not_know_each_other() -> None:
    model, a, b = build(LLAMA_LIKE), ids(1, 6), ids(1, 6, seed=9)
    caches = model.new_cache(), model.new_cache()
    for i in range(6):
        last = [model.decode(x[:, i : i + 1], cache=cache) for x, cache in zip((a, b), caches, strict=True)]
    for x, logits in zip((a, b), last, strict=True):
        assert difference(logits, model(x)[:, -1:]) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("length", [0, 2, 5])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_cropped_cache_goes_on_another_way_as_if_it_had_never_seen_the_first(
    config: TransformerConfig, length: int
) -> None:
    model, tokens, other = build(config), ids(2, 9), ids(2, 4, seed=7)
    tokens[0, :1] = PAD
    memory, cache = encoded(model), model.new_cache()
    model.decode(tokens, *memory, cache=cache)
    full = cache.nbytes
    cache.crop(length)
    assert cache.length == length and cache.nbytes < full
    logits = model.decode(other, *memory, cache=cache)
    whole = model.decode(torch.cat([tokens[:, :length], other], 1), *memory)
    assert difference(logits, whole[:, length:]) < 1e-5
    assert cache.length == length + 4


def test_a_crop_never_makes_a_cache_longer_and_refuses_what_is_no_length() -> None:
    model, cache = build(LLAMA_LIKE), build(LLAMA_LIKE).new_cache()
    model.decode(ids(1, 3), cache=cache)
    cache.crop(8)
    assert cache.length == 3 == cache.self_attention[0].length
    with pytest.raises(TfvizError, match="length = -1"):
        cache.crop(-1)
