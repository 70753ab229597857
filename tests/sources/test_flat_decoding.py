"""The written-out step says what transformers' modules say, keeps their cache, and steps aside for other models."""

import gc
import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from tests.checkpoints import LLAMA_LIKE, VOCABULARY, byte_level_tokenizer
from tests.closeness import difference
from tfviz.inference.measure import peak_extra_bytes
from tfviz.inference.precision import PRECISIONS, weight_bytes
from tfviz.inference.precision.int4 import GROUP, Int4Linear, packed_block
from tfviz.model.attention_call import AttentionCall, AttentionRecord, attention_call
from tfviz.sources import flat_decoding as written
from tfviz.sources.base import LoadedModel
from tfviz.sources.flat_decoding import FlatDecoding, flat_decoding, flat_step, one_row_products
from tfviz.sources.fused_weights import joined, lay_side_by_side
from tfviz.sources.huggingface import load_folder
from tfviz.sources.transformers_decoding import TransformersDecoding

CPU = torch.device("cpu")
LONG = LLAMA_LIKE | {"max_position_embeddings": 256}
BUILDERS: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**LONG, tie_word_embeddings=True)),
    "llama with biases": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**LONG, attention_bias=True, mlp_bias=True)),
    "llama 3": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(
            **LONG,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        )
    ),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**LONG, sliding_window=None)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**LONG)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**LONG, head_dim=16)),
}
OTHERS: dict[str, Callable[[], Any]] = {
    "window": lambda: hf.MistralForCausalLM(hf.MistralConfig(**LONG, sliding_window=4)),
    "gemma": lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**LONG, head_dim=8)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**LONG, head_dim=8)),
    "granite": lambda: hf.GraniteForCausalLM(hf.GraniteConfig(**LONG, residual_multiplier=0.5)),
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=4)
    ),
    "rotation that follows the length": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(**LONG, rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0})
    ),
}
PACKED = LONG | {"hidden_size": 128, "intermediate_size": 192}  # whole blocks of 64 packed outputs
JOINED = {"self_attn": ("q_proj", "k_proj", "v_proj"), "mlp": ("gate_proj", "up_proj")}
Models = Callable[[str], LoadedModel]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, quiet_transformers: None) -> Models:
    home = tmp_path_factory.mktemp("flat")

    def load(name: str) -> LoadedModel:
        torch.manual_seed(0)
        model = (BUILDERS | OTHERS)[name]()
        for parameter in model.parameters():
            parameter.data.mul_(3.0)
            if parameter.dim() == 1:
                parameter.data.add_(torch.randn_like(parameter) * 0.2)  # biases and gains that are worth something
        model.save_pretrained(home / name)
        byte_level_tokenizer().save_pretrained(home / name)
        loaded = load_folder(home / name, model_id=name, revision="local", device=CPU)
        lay_side_by_side(loaded.model)
        return loaded

    return cache(load)


def start(model: LoadedModel, rows: int = 1) -> dict[str, Tensor]:
    inputs = model.prompt("The animal didn't cross the street").inputs
    return {name: tensor.repeat(rows, 1) for name, tensor in inputs.items()}


def flat(model: LoadedModel, rows: int = 1, record: bool = False) -> FlatDecoding:
    made = flat_decoding(model, start(model, rows), record)
    assert isinstance(made, FlatDecoding)
    return made


def generic(model: LoadedModel, rows: int = 1, record: bool = False) -> TransformersDecoding:
    return TransformersDecoding(model, start(model, rows), True, record)


def greedy(decoding: Any, n: int, kernel: str = "flash") -> Tensor:
    found = []
    for _ in range(n):
        with attention_call(AttentionCall(kernel)):
            found.append(decoding.logits())
        decoding.append(found[-1].argmax(-1))
    return torch.stack(found, 1)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kernel", ["flash", "naive"])
@pytest.mark.parametrize("name", BUILDERS)
def test_sixty_four_greedy_tokens_are_those_of_the_modules(name: str, kernel: str, rows: int, models: Models) -> None:
    model = models(name)
    ours, theirs = flat(model, rows), generic(model, rows)
    assert difference(greedy(ours, 64, kernel), greedy(theirs, 64, kernel)) < 1e-4
    assert torch.equal(ours.ids, theirs.ids)
    for mine, other in zip(ours.held(), theirs.held(), strict=True):
        assert difference(mine.key, other.key) < 1e-4 and difference(mine.value, other.value) < 1e-4
        assert (mine.kind, mine.layer, mine.first, mine.window) == (other.kind, other.layer, 0, None)
    assert ours.cache_bytes == theirs.cache_bytes


@pytest.mark.parametrize("name", OTHERS)
def test_models_that_compute_something_else_are_left_to_the_modules(name: str, models: Models) -> None:
    model = models(name)
    assert flat_decoding(model, start(model), False) is None
    assert isinstance(model.decoding(start(model)), TransformersDecoding)


def test_a_model_that_looks_alike_and_is_not_is_found_by_its_numbers(models: Models) -> None:
    model = replace(models("llama"), model=PRECISIONS["fp32"].convert(models("llama").model))
    assert flat_step(replace(model, model=PRECISIONS["fp32"].convert(model.model))) is not None
    model.model.model.norm.forward = lambda x: 1.001 * models("llama").model.model.norm(x)  # type: ignore[union-attr]
    assert flat_step(model) is None


def test_padding_goes_through_the_modules(models: Models) -> None:
    model, inputs = models("llama"), start(models("llama"), 2)
    inputs["attention_mask"][1, :2] = 0
    assert flat_decoding(model, inputs, False) is None


def test_another_way_after_a_rewind_equals_a_fresh_start(models: Models) -> None:
    model = models("qwen3")
    decoding, fresh = flat(model), flat(model)
    first = greedy(decoding, 12)
    length = decoding.prompt_length + 5
    decoding.rewind(length)
    assert decoding.held()[0].key.shape[2] == length
    for one in (*decoding.ids[0, fresh.prompt_length :], torch.tensor(9)):
        fresh.append(one[None])
    decoding.append(torch.tensor([9]))
    assert difference(greedy(decoding, 6), greedy(fresh, 6)) < 1e-4
    decoding.rewind(decoding.prompt_length)
    assert difference(greedy(decoding, 12), first) < 1e-4


def test_rows_that_are_kept_go_on_alone_and_twice(models: Models) -> None:
    model, rows = models("llama"), torch.tensor([1, 0, 1])
    ours, theirs = flat(model, 2), generic(model, 2)
    for one in (ours, theirs):
        one.logits()
        one.append(torch.tensor([5, 7]))
        greedy(one, 3)
        one.keep(rows)
        one.append(torch.tensor([8, 9, 11]))
    assert difference(greedy(ours, 4), greedy(theirs, 4)) < 1e-4
    assert ours.held()[0].key.shape[0] == 3


@pytest.mark.parametrize("together", [1, 3])
def test_what_a_step_saw_is_what_the_modules_step_saw(together: int, models: Models) -> None:
    model = models("qwen3")
    ours, theirs = flat(model, 2, record=True), generic(model, 2, record=True)
    for one in (ours, theirs):
        for i in range(5):
            one.logits()
            for j in range(together):
                one.append(torch.tensor([7 + i + j, 3]))
    assert len(ours.seen) == len(theirs.seen) == 5
    for mine, other in zip(ours.seen, theirs.seen, strict=True):
        assert mine.keys() == other.keys() == {("self", i) for i in range(3)}
        for of in mine:
            assert mine[of].held == other[of].held and mine[of].rule.scale == other[of].rule.scale
            for what in ("query", "key", "value"):
                assert difference(getattr(mine[of], what), getattr(other[of], what)) < 1e-4
                one = getattr(mine[of], what)
                assert one.untyped_storage().nbytes() == one.numel() * one.element_size(), "it keeps the cache alive"


def test_a_caller_who_watches_sees_every_layer(models: Models) -> None:
    found: list[AttentionRecord] = []
    decoding = flat(models("llama"))
    greedy(decoding, 1)
    with attention_call(AttentionCall("flash", found.append)):
        decoding.logits()
    assert [record.module.layer_idx for record in found] == [0, 1, 2]
    assert found[0].key.shape == (1, 2, decoding.ids.shape[1], 8)


def test_the_cache_grows_by_doubling(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "SPARE", 1)
    ours, theirs, rooms = flat(models("llama")), generic(models("llama")), set()
    expected = greedy(theirs, 40)
    found = []
    for _ in range(40):
        found.append(ours.logits())
        ours.append(found[-1].argmax(-1))
        assert ours.flat is not None
        rooms.add(ours.flat.room)
    assert difference(torch.stack(found, 1), expected) < 1e-4
    assert len(rooms) <= 4 and max(rooms) >= ours.ids.shape[1] - 1


@pytest.mark.parametrize("precision", [key for key in PRECISIONS if key != "fp32"])
def test_other_precisions_stay_close_to_their_own_modules(precision: str, models: Models) -> None:
    base = models("llama")
    converted = lay_side_by_side(PRECISIONS[precision].convert(base.model))
    model = replace(base, precision=precision, model=converted)
    ours, theirs = flat(model), generic(model)
    for decoding in (ours, theirs):
        decoding.logits()
        for token in (5, 9, 11):
            decoding.append(torch.tensor([token]))
    mine, other = ours.logits().float(), theirs.logits().float()
    assert float((mine - other).norm() / other.norm()) < 0.03


# ---- weights side by side


def test_laying_weights_side_by_side_changes_no_value_and_takes_no_memory(quiet_transformers: None) -> None:
    torch.manual_seed(0)
    model = BUILDERS["llama"]().eval()
    before, size = {name: one.clone() for name, one in model.state_dict().items()}, weight_bytes(model)
    lay_side_by_side(model)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert weight_bytes(model) == size
    assert model.lm_head.weight is model.model.embed_tokens.weight
    attention = model.model.layers[0].self_attn
    parts = [getattr(attention, name).weight for name in ("q_proj", "k_proj", "v_proj")]
    whole = joined(parts)
    assert whole is not None and torch.equal(whole, torch.cat(parts))
    assert whole.untyped_storage().data_ptr() == parts[0].untyped_storage().data_ptr()
    assert joined(parts[::-1]) is None and joined([parts[0], attention.o_proj.weight]) is None


packs_in_blocks = pytest.mark.skipif(
    packed_block() is None, reason="this processor packs in another order: nothing is laid"
)


@pytest.fixture
def int4(quiet_transformers: None) -> Any:
    """A model whose projections fill blocks, in INT4; its weights lie apart."""
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**PACKED, tie_word_embeddings=True)).eval().requires_grad_(False)
    return PRECISIONS["int4"].convert(model)


def projections(model: Any, part: str) -> list[Int4Linear]:
    found = [getattr(getattr(model.model.layers[1], part), name) for name in JOINED[part]]
    assert all(type(one) is Int4Linear for one in found)
    return found


def kept_by(product: Any) -> dict[str, Tensor]:
    """Every tensor that a product made by `_together` holds on to."""
    found = inspect.getclosurevars(product).nonlocals
    return {name: one for name, one in found.items() if isinstance(one, Tensor)}


def place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@packs_in_blocks
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 5), (1, 600)])
@pytest.mark.parametrize("part", JOINED)
@torch.inference_mode()
def test_packed_int4_side_by_side_gives_exactly_what_each_projection_gives(
    part: str, shape: tuple[int, int], int4: Any
) -> None:
    wide = torch.randn(*shape, 2 * 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    x = wide.narrow(-1, 0, 128)  # as the step's norm gives it: a part of wider rows
    packed = [one._product(x.flatten(0, -2)).unflatten(0, shape) for one in projections(int4, part)]
    assert written._together(*projections(int4, part)) is None, "they lie side by side before they are laid so"
    lay_side_by_side(int4)
    parts = projections(int4, part)
    product = written._together(*parts)
    assert product is not None
    assert torch.equal(product(x), torch.cat(packed, dim=-1))
    assert torch.equal(torch.cat([one._product(x.flatten(0, -2)) for one in parts], -1), product(x).flatten(0, -2))
    for one, mine in zip(written._apart(*parts)(x), packed, strict=True):
        assert torch.equal(one, mine)


@packs_in_blocks
@pytest.mark.parametrize("part", JOINED)
def test_of_packed_int4_nothing_is_held_twice_but_the_scales_of_its_groups(part: str, int4: Any) -> None:
    before, size = {name: one.clone() for name, one in int4.state_dict().items()}, weight_bytes(int4)
    lay_side_by_side(int4)
    assert all(torch.equal(one, before[name]) for name, one in int4.state_dict().items())
    assert weight_bytes(int4) == size
    parts = projections(int4, part)
    n_levels = sum(one.out_features * one.in_features for one in parts)
    assert {place(one.packed) for one in parts} == {place(parts[0].packed)}
    assert parts[0].packed.untyped_storage().nbytes() == n_levels // 2  # the old ones are not in it as well
    kept = kept_by(written._together(*parts))
    assert kept.keys() == {"packed", "groups"}
    assert place(kept["packed"]) == place(parts[0].packed)
    assert kept["groups"].untyped_storage().nbytes() == n_levels // GROUP * 2 * 2  # scale and middle, BF16


def test_packed_int4_that_does_not_fill_its_blocks_stays_apart(int4: Any) -> None:
    attention = int4.model.layers[1].self_attn
    attention.v_proj = Int4Linear(torch.randn(16, 128), None)
    lay_side_by_side(int4)
    parts = projections(int4, "self_attn")
    assert len({place(one.packed) for one in parts}) == 3 and written._together(*parts) is None
    x = torch.randn(3, 1, 128).bfloat16()
    assert torch.equal(written._joined(*parts)(x), torch.cat([one(x) for one in parts], dim=-1))


@pytest.mark.parametrize("rows", [1, 3])
def test_a_step_over_packed_int4_says_what_the_modules_say(rows: int, int4: Any, models: Models) -> None:
    int4.set_attn_implementation("tfviz")
    model = replace(models("llama"), precision="int4", model=lay_side_by_side(int4))
    ours, theirs = flat(model, rows), generic(model, rows)
    for token in (5, 9, 11):
        mine, other = ours.logits().float(), theirs.logits().float()
        assert float((mine - other).norm() / other.norm()) < 0.03
        for decoding in (ours, theirs):
            decoding.append(torch.full((rows,), token))


def test_weights_that_lie_apart_are_multiplied_apart(models: Models) -> None:
    model = replace(models("qwen2"), model=hf.Qwen2ForCausalLM(hf.Qwen2Config(**LONG)).eval().requires_grad_(False))
    model.model.set_attn_implementation("tfviz")  # type: ignore[operator]
    assert difference(greedy(flat(model), 8), greedy(generic(model), 8)) < 1e-4


# ---- around the step


def test_a_model_that_nobody_holds_any_more_is_forgotten(models: Models) -> None:
    gc.collect()
    known = len(written._steps)
    model = replace(models("llama"), model=PRECISIONS["fp32"].convert(models("llama").model))
    assert flat_step(model) is flat_step(model) is not None
    assert len(written._steps) == known + 1
    del model
    gc.collect()
    assert len(written._steps) == known


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_head_reads_its_weight_where_it_lies(precision: str) -> None:
    torch.manual_seed(0)
    head = nn.Linear(64, 4096, bias=False).to(PRECISIONS[precision].dtype)

    class Model(nn.Sequential):
        def get_output_embeddings(self) -> nn.Module:
            return head

    hidden = torch.randn(1, 16, 64, dtype=head.weight.dtype)
    last, before = hidden[:, -1:], head(hidden[:, -1:].clone(memory_format=torch.contiguous_format))
    lay_side_by_side(Model(head))
    assert torch.equal(head(last), before) and head(hidden).shape == (1, 16, 4096)
    nbytes = head.weight.numel() * head.weight.element_size()
    assert peak_extra_bytes(lambda: head(last), torch.device("cpu")) < nbytes / 2


def test_onednn_is_on_again_after_two_that_wanted_it_off() -> None:
    before = torch._C._get_mkldnn_enabled()
    first, second = one_row_products(True), one_row_products(True)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not torch._C._get_mkldnn_enabled()
    second.__exit__(None, None, None)
    assert torch._C._get_mkldnn_enabled() == before
