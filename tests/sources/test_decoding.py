"""Decoding of any model: cached equals uncached equals transformers' own, padded rows equal the rows alone, a rewind
equals a fresh start, and what a step saw are the rows of the whole pass.
"""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

from tests.checkpoints import BART_LIKE, LLAMA_LIKE, VOCABULARY, byte_level_tokenizer, sentence_piece_like_tokenizer
from tests.closeness import difference
from tfviz.errors import BadText, TfvizError, UnsupportedHere
from tfviz.inference.generate import generate
from tfviz.introspection.batch import watched
from tfviz.messages import LANGUAGES
from tfviz.model.attention import attention_weights
from tfviz.model.attention_call import AttentionCall, AttentionRecord, attention_call
from tfviz.sources import scratch
from tfviz.sources.base import LoadedModel
from tfviz.sources.batch import make_batch
from tfviz.sources.catalog import CATALOG
from tfviz.sources.decoding import Decoding, StepSeen
from tfviz.sources.huggingface import load_folder

CPU = torch.device("cpu")
STEPS = 64
TEXTS = ["The animal didn't cross the street", "the cat"]
SIZES: dict[str, Any] = dict(vocab_size=VOCABULARY, max_position_embeddings=128)
WINDOW = LLAMA_LIKE | {"sliding_window": 4}
BUILDERS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**SIZES, n_embd=32, n_layer=2, n_head=4)),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA_LIKE)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**WINDOW)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**WINDOW, head_dim=8)),
    "opt": lambda: hf.OPTForCausalLM(
        hf.OPTConfig(
            **SIZES, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=32
        )
    ),
    "lfm2": lambda: hf.Lfm2ForCausalLM(
        hf.Lfm2Config(**LLAMA_LIKE, layer_types=["conv", "full_attention", "conv"])  # convolutions hold no keys
    ),
    "bloom": lambda: hf.BloomForCausalLM(  # computes its attention by itself
        hf.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)
    ),
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=VOCABULARY,
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=3,
            num_decoder_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_id=1,
        )
    ),
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**BART_LIKE | SIZES)),
    "marian": lambda: hf.MarianMTModel(hf.MarianConfig(**BART_LIKE | SIZES)),
}
WITH_ENCODER = ("t5", "bart", "marian")
THEIRS = [name for name in BUILDERS if name not in ("lfm2", "bloom")]
DECODERS = [name for name in THEIRS if name not in WITH_ENCODER]
MODELS = [*THEIRS, "dates"]
WAYS = [*((name, False) for name in MODELS), ("llama", True), ("dates", True)]  # those that have a written-out step
Models = Callable[[str], LoadedModel]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, quiet_transformers: None) -> Models:
    """Tiny checkpoints with places for 64 tokens more than a prompt has; and our own that reads dates."""
    home = tmp_path_factory.mktemp("decoding")

    def load(name: str) -> LoadedModel:
        if name == "dates":
            return scratch.load(CATALOG[name], CPU)
        torch.manual_seed(0)
        model = BUILDERS[name]()
        for parameter in model.parameters():
            parameter.data.mul_(1.0 if name == "t5" else 3.0)  # T5 draws large weights itself
        model.save_pretrained(home / name)
        tokenizer = sentence_piece_like_tokenizer() if name in WITH_ENCODER else byte_level_tokenizer()
        tokenizer.save_pretrained(home / name)
        return load_folder(home / name, model_id=name, revision="local", device=CPU)

    return cache(load)


def kernel_of(name: str) -> str:
    return "naive" if name == "gemma2" else "flash"  # a soft cap is not in the fused kernel


def start(model: LoadedModel, text: str = TEXTS[0]) -> dict[str, Tensor]:
    """The tensors of a prompt; an encoder-decoder starts at its start token."""
    inputs = model.prompt("5 March 2024" if model.id == "dates" else text).inputs
    return {name: tensor for name, tensor in inputs.items() if not name.startswith("decoder")}


def step(decoding: Decoding, kernel: str = "flash") -> Tensor:
    with attention_call(AttentionCall(kernel)):
        return decoding.logits()


def greedy(decoding: Decoding, n: int, kernel: str = "flash") -> Tensor:
    """Logits [batch, n, vocab] of n greedy tokens, all of them appended."""
    found = []
    for _ in range(n):
        found.append(step(decoding, kernel))
        decoding.append(found[-1].argmax(-1))
    return torch.stack(found, 1)


# ---- the same tokens


@pytest.mark.parametrize("name, fast", WAYS)
def test_sixty_four_greedy_tokens_are_the_same_with_and_without_cache(name: str, fast: bool, models: Models) -> None:
    model = models(name)
    cached = model.decoding(start(model), fast=fast)
    whole = model.decoding(start(model), use_cache=False)
    ours, theirs = greedy(cached, STEPS, kernel_of(name)), greedy(whole, STEPS, kernel_of(name))
    assert torch.equal(cached.ids, whole.ids)
    assert difference(ours, theirs) < 1e-4
    assert cached.cache_bytes > 0 == whole.cache_bytes and not whole.held()


@pytest.mark.parametrize("name", [*THEIRS, "lfm2"])
def test_the_tokens_are_those_of_transformers_own_generate(name: str, models: Models) -> None:
    model = models(name)
    decoding = model.decoding(start(model))
    greedy(decoding, STEPS, kernel_of(name))
    with torch.inference_mode(), attention_call(AttentionCall(kernel_of(name))):
        limits = {"max_new_tokens": STEPS, "min_new_tokens": STEPS}
        config = hf.GenerationConfig(**limits, do_sample=False, suppress_tokens=[], forced_eos_token_id=None)
        theirs: Tensor = model.model.generate(**start(model), generation_config=config)  # type: ignore[operator]
    ends = model.tokenizer.eos_token_id
    first = next((i for i, one in enumerate(decoding.ids[0, 1:].tolist(), 1) if one == ends), None)
    assert torch.equal(theirs[:, :first], decoding.ids[:, :first])  # they may not end before the last one
    assert first is None or first > decoding.prompt_length + 8, "too few tokens to compare"


@pytest.mark.parametrize("kernel", ["flash", "naive"])
@pytest.mark.parametrize("fast", [True, False])
def test_ours_says_what_our_own_loop_says(fast: bool, kernel: str, models: Models) -> None:
    model = models("dates")
    decoding = model.decoding(start(model), fast=fast)
    logits = greedy(decoding, 12, kernel)
    with attention_call(AttentionCall(kernel)):
        steps = list(generate(model.model, start(model)["input_ids"], max_new_tokens=12, stop_at_end=False))  # type: ignore[arg-type]
    assert [int(step.ids[0]) for step in steps] == decoding.ids[0, 1:].tolist()
    assert difference(logits[0], torch.cat([step.logits for step in steps])) < 1e-5
    assert model.decode(decoding.ids[0].tolist()).startswith("2024-03-05")


# ---- batches


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("name", DECODERS)
def test_each_row_of_a_left_padded_batch_goes_on_as_it_does_alone(name: str, use_cache: bool, models: Models) -> None:
    model, kernel = models(name), kernel_of(name)
    batch = make_batch(model, [model.prompt(text) for text in TEXTS], "left")
    both = model.decoding(batch.inputs, use_cache=use_cache)
    assert both.padding is not None and both.padding[1, 0] and not both.padding[0].any()
    logits = greedy(both, STEPS, kernel)
    for row, text in enumerate(TEXTS):
        alone = model.decoding(start(model, text))
        assert difference(logits[row : row + 1], greedy(alone, STEPS, kernel)) < 1e-4
        assert both.ids[row, -STEPS:].tolist() == alone.ids[0, -STEPS:].tolist()
    assert both.padding.shape == both.ids.shape


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("name", ["t5", "bart", "marian", "dates"])
def test_sources_of_two_lengths_are_read_apart(name: str, use_cache: bool, models: Models) -> None:
    model = models(name)
    texts = ["5 March 2024", "2023-1-2"] if name == "dates" else TEXTS
    inputs = make_batch(model, [model.prompt(text) for text in texts], "right").inputs
    both = model.decoding({name: inputs[name] for name in ("input_ids", "attention_mask")}, use_cache=use_cache)
    logits = greedy(both, 16)
    for row, text in enumerate(texts):
        own = model.prompt(text).inputs
        alone = greedy(model.decoding({name: own[name] for name in ("input_ids", "attention_mask")}), 16)
        assert difference(logits[row : row + 1], alone) < 1e-4


@pytest.mark.parametrize("name", ["t5", "dates"])
def test_targets_of_two_lengths_go_on_as_they_do_alone(name: str, models: Models) -> None:
    model = models(name)
    pairs = [("5 March 2024", "2024-0"), ("5 March 2024", "20")]
    prompts = [model.prompt(*pair) for pair in pairs]
    both = model.decoding(make_batch(model, prompts, "left").inputs)
    logits = greedy(both, 16)
    assert both.padding is not None
    for row, prompt in enumerate(prompts):
        assert difference(logits[row : row + 1], greedy(model.decoding(prompt.inputs), 16)) < 1e-4


def test_a_model_that_would_shift_a_padded_target_says_so(models: Models) -> None:
    model = models("bart")
    prompts = [model.prompt("the cat", target) for target in ("the other cat", "cat")]
    with pytest.raises(TfvizError, match="same number of tokens"):
        model.decoding(make_batch(model, prompts, "left").inputs)


@pytest.mark.parametrize("name", ["llama", "dates"])
def test_padding_at_the_end_is_refused(name: str, models: Models) -> None:
    model = models(name)
    texts = [("5 March 2024", "2024-0"), ("5", "20")] if name == "dates" else [(text,) for text in TEXTS]
    with pytest.raises(TfvizError, match="Row 1 ends in padding"):
        model.decoding(make_batch(model, [model.prompt(*text) for text in texts], "right").inputs)


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("name, fast", WAYS)
def test_rows_that_are_kept_go_on_as_if_there_had_been_no_others(
    name: str, fast: bool, use_cache: bool, models: Models
) -> None:
    """Two different texts, padded; a row is kept twice and the order changes."""
    model, kernel, rows = models(name), kernel_of(name), torch.tensor([1, 0, 1])
    texts = ["5 March 2024", "2023-1-2"] if name == "dates" else TEXTS
    side = "left" if model.family == "decoder" else "right"
    inputs = make_batch(model, [model.prompt(text) for text in texts], side).inputs
    inputs = {key: tensor for key, tensor in inputs.items() if not key.startswith("decoder")}
    decoding = model.decoding(inputs, fast=fast, use_cache=use_cache)
    greedy(decoding, 4, kernel)
    decoding.keep(rows)
    decoding.append(torch.tensor([8, 9, 11]))
    said = decoding.ids[:, decoding.prompt_length :]
    logits = greedy(decoding, 4, kernel)
    fresh = model.decoding({key: tensor[rows] for key, tensor in inputs.items()}, use_cache=False)
    for column in said.T:
        fresh.append(column)
    assert difference(logits, greedy(fresh, 4, kernel)) < 1e-4


# ---- back


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("name, fast", [*WAYS, ("lfm2", False)])
def test_another_token_after_a_rewind_equals_a_fresh_start(name: str, fast: bool, record: bool, models: Models) -> None:
    model, kernel = models(name), kernel_of(name)
    decoding = model.decoding(start(model), fast=fast, record=record)
    first = greedy(decoding, 12, kernel)
    place = decoding.prompt_length + 5
    said = decoding.ids[:, :place]
    decoding.rewind(place)
    decoding.append(torch.tensor([9]))
    after = greedy(decoding, 6, kernel)
    fresh = model.decoding(start(model), use_cache=False)
    for one in [*said[0, fresh.prompt_length :], torch.tensor(9)]:
        fresh.append(one[None])
    assert difference(after, greedy(fresh, 6, kernel)) < 1e-4
    decoding.rewind(decoding.prompt_length)  # and all the way: the same beginning again, with nothing appended
    assert difference(step(decoding, kernel), first[:, 0]) < 1e-4
    assert len(decoding.seen) == (1 if record else 0)


@pytest.mark.parametrize("length", [3, 100])
def test_a_rewind_goes_no_further_than_the_prompt_and_never_ahead(length: int, models: Models) -> None:
    decoding = models("llama").decoding(start(models("llama")))
    greedy(decoding, 2)
    with pytest.raises(TfvizError, match=f"length = {length}"):
        decoding.rewind(length)


def test_the_same_place_can_be_asked_twice_and_is_seen_once(models: Models) -> None:
    model = models("gpt2")
    decoding = model.decoding(start(model), record=True, fast=False)
    greedy(decoding, 3)
    once = step(decoding)
    assert difference(step(decoding), once) < 1e-5
    assert len(decoding.seen) == 4 and decoding.held()[0].key.shape[2] == decoding.ids.shape[1]


def test_a_step_that_fails_leaves_no_half_read_cache(models: Models) -> None:
    model = models("gemma2")
    decoding, whole = model.decoding(start(model), record=True, fast=False), model.decoding(start(model))
    greedy(decoding, 3, "naive")
    with pytest.raises(TfvizError, match="naive"):
        step(decoding, "flash")
    again = greedy(decoding, 3, "naive")
    assert difference(again, greedy(whole, 6, "naive")[:, 3:]) < 1e-4
    assert [one["self", 0].query.shape[1] for one in decoding.seen] == [whole.prompt_length, 1, 1, 1, 1, 1]


# ---- what a step saw


def joined(seen: list[StepSeen], of: tuple[str, int], what: str) -> Tensor:
    """[head, position, dim] of all steps one after another."""
    return torch.cat([getattr(rows[of], what) for rows in seen], dim=1)


def weights_of(seen: list[StepSeen], of: tuple[str, int], n_keys: int) -> Tensor:
    """The whole matrix [head, query, key], row by row from what each step read."""
    keys, rows, known = joined(seen, of, "key"), [], 0
    for one in (step[of] for step in seen):
        known = keys.shape[1] if of[0] == "cross" else known + one.key.shape[1]
        read = keys[None, :, known - one.held : known]
        mask = None if one.mask is None else one.mask[None]
        weights = attention_weights(one.query[None], read, mask, one.rule)[0]
        rows.append(torch.nn.functional.pad(weights, (known - one.held, n_keys - known)))
    return torch.cat(rows, dim=1)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    "name, fast, padded", [*((*way, False) for way in WAYS), *((name, False, True) for name in DECODERS)]
)
def test_the_rows_that_were_seen_are_those_of_one_whole_pass(
    name: str, fast: bool, padded: bool, together: bool, models: Models
) -> None:
    """Also with two rows in the batch, the first one padded, and with tokens that are read two at a time."""
    model, kernel = models(name), kernel_of(name)
    inputs = start(model)
    if padded:
        inputs = make_batch(model, [model.prompt(text) for text in TEXTS[::-1]], "left").inputs
    decoding = model.decoding(inputs, record=True, fast=fast)
    for _ in range(5):
        ids = step(decoding, kernel).argmax(-1)
        for one in (ids, ids.roll(1)) if together else (ids,):
            decoding.append(one)
    step(decoding, kernel)
    whole = {**inputs, "decoder_input_ids": decoding.ids} if model.family == "encoder-decoder" else whole_of(decoding)
    whole |= {} if decoding.padding is None else model.place(((~decoding.padding).cumsum(1) - 1).clamp(min=0))
    _, attentions = watched(model, whole, kernel)
    first = 0 if decoding.padding is None else int(decoding.padding[0].sum())
    for kind, layers in attentions.items():
        for layer, theirs in enumerate(layers if kind != "encoder" else ()):
            of = (kind, layer)
            query, key = torch.from_numpy(theirs.query[0]), torch.from_numpy(theirs.key[0])
            assert difference(joined(decoding.seen, of, "query")[:, first:], query[:, first:]) < 1e-4
            assert difference(joined(decoding.seen, of, "key"), key) < 1e-4 or first
            bias = None if theirs.bias is None else torch.from_numpy(theirs.bias[:1])
            rule = decoding.seen[0][of].rule.__class__(theirs.scale, False, theirs.softcap, bias)
            blocked = torch.from_numpy(theirs.blocked(0))[None, None]
            expected = attention_weights(query[None], key[None], blocked, rule)[0]
            ours = weights_of(decoding.seen, of, key.shape[1])
            assert difference(ours[:, first:], expected[:, first:]) < 1e-4


def whole_of(decoding: Decoding) -> dict[str, Tensor]:
    mask = torch.ones_like(decoding.ids) if decoding.padding is None else (~decoding.padding).long()
    return {"input_ids": decoding.ids, "attention_mask": mask}


@pytest.mark.parametrize("name", ["llama", "t5", "dates"])
def test_what_is_seen_is_copied_and_keeps_no_cache_alive(name: str, models: Models) -> None:
    model = models(name)
    decoding = model.decoding(start(model), record=True, fast=False)
    greedy(decoding, 8)
    for rows in decoding.seen[1:]:
        for row in rows.values():
            for one in (row.query, row.key, row.value):
                assert one.untyped_storage().nbytes() == one.numel() * one.element_size()


def test_a_caller_who_watches_sees_every_attention_as_well(models: Models) -> None:
    model, found = models("t5"), list[AttentionRecord]()
    call = AttentionCall("naive", found.append)
    decoding = model.decoding(start(model), record=True)
    with attention_call(call):
        decoding.logits()
    assert len(found) == 3 + 2 * 2 and len(decoding.seen[0]) == 4  # the encoder's three layers as well


@pytest.mark.parametrize("record", [True, False])
def test_masks_of_the_steps_do_not_pile_up_in_the_callers_call(record: bool, models: Models) -> None:
    model, call = models("llama"), AttentionCall("naive")
    decoding = model.decoding(make_batch(model, [model.prompt(text) for text in TEXTS], "left").inputs, record=record)
    for _ in range(3):
        with attention_call(call):
            decoding.append(decoding.logits().argmax(-1))
    assert not call.turned


def test_without_a_cache_nothing_is_recorded(models: Models) -> None:
    decoding = models("llama").decoding(start(models("llama")), use_cache=False, record=True)
    greedy(decoding, 2)
    assert decoding.seen == []


@pytest.mark.parametrize("name", ["llama", "mistral", "dates"])
def test_a_rewind_into_a_step_of_several_tokens_sees_what_is_left_of_it_again(name: str, models: Models) -> None:
    model = models(name)
    decoding = model.decoding(start(model), record=True)
    step(decoding)
    for token in (5, 6, 7, 8):
        decoding.append(torch.tensor([token]))
    step(decoding)
    decoding.rewind(decoding.prompt_length + 2)
    decoding.append(torch.tensor([9]))
    logits = step(decoding)
    kind = "decoder" if name == "dates" else "self"
    assert [rows[kind, 0].key.shape[1] for rows in decoding.seen] == [decoding.prompt_length, 3]
    fresh = model.decoding(start(model), record=True)
    step(fresh)
    for token in (5, 6, 9):
        fresh.append(torch.tensor([token]))
    assert difference(logits, step(fresh)) < 1e-4
    for what in ("query", "key", "value"):
        assert difference(joined(decoding.seen, (kind, 1), what), joined(fresh.seen, (kind, 1), what)) < 1e-4


# ---- what is held


@pytest.mark.parametrize("name, fast", [*WAYS, ("lfm2", False)])
def test_the_cache_holds_the_keys_that_the_steps_computed(name: str, fast: bool, models: Models) -> None:
    model = models(name)
    decoding = model.decoding(start(model), record=True, fast=fast)
    greedy(decoding, 10, kernel_of(name))
    held = decoding.held()
    assert {(layer.kind, layer.layer) for layer in held} == set(decoding.seen[0])
    for layer in held:
        keys = joined(decoding.seen, (layer.kind, layer.layer), "key")
        assert torch.equal(layer.key[0], keys[:, layer.first :])
        assert layer.window == model.window(layer.kind, layer.layer)
        dropped = max(0, keys.shape[1] - layer.window + 1) if layer.window else 0
        assert layer.first == dropped
    assert decoding.cache_bytes == sum(2 * layer.key.nbytes for layer in held)


@pytest.mark.parametrize("name", ["t5", "bart", "dates"])
def test_the_memory_is_read_once_and_its_keys_stay_where_they_are(name: str, models: Models) -> None:
    model, found = models(name), list[AttentionRecord]()
    decoding = model.decoding(start(model), record=True)
    places = []
    for _ in range(4):
        with attention_call(AttentionCall("flash", found.append)):
            decoding.append(decoding.logits().argmax(-1))
        places.append([layer.key.data_ptr() for layer in decoding.held() if layer.kind == "cross"])
    assert places[0] == places[1] == places[2] == places[3]
    by_encoder = [record.module in model.encoder_modules() for record in found]
    assert sum(by_encoder) == len({id(one.module) for one, inside in zip(found, by_encoder, strict=True) if inside})
    assert [row["cross", 0].key.shape[1] for row in decoding.seen] == [start(model)["input_ids"].shape[1], 0, 0, 0]


# ---- the end of the positions


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "bart", "dates"])
def test_a_token_beyond_the_last_position_is_refused_with_a_sentence(
    name: str, use_cache: bool, models: Models
) -> None:
    model = models(name)
    decoding = model.decoding(start(model), use_cache=use_cache)
    assert decoding.last_position == model.token_limit
    room = decoding.room
    assert room == model.token_limit - decoding.prompt_length + 1
    decoding.ids = torch.cat([decoding.ids, decoding.ids.new_full((1, room - 2), 5)], dim=1)
    assert decoding.room == 2
    greedy(decoding, 2)  # the token at the last position is read, and what follows it is said
    assert decoding.room == 0
    with pytest.raises(TfvizError) as refused:
        step(decoding)
    for language in LANGUAGES:
        assert str(model.token_limit) in refused.value.in_language(language)


# ---- who does not generate


def test_an_encoder_and_a_decoder_without_a_head_write_no_text(loaded: Models, tmp_path: Path, models: Models) -> None:
    models("llama").model.model.save_pretrained(tmp_path)  # type: ignore[union-attr, operator]
    byte_level_tokenizer().save_pretrained(tmp_path)
    headless = load_folder(tmp_path, model_id="headless", revision="local", device=CPU)
    for model in (loaded("bert"), loaded("bert-mlm"), headless):
        inputs: Mapping[str, Tensor] = model.prompt("the cat").inputs
        with pytest.raises(BadText) as refused:
            model.decoding(dict(inputs))
        assert refused.value.key == "error.no_generation"


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_model_whose_attention_cannot_be_seen_is_refused_for_it_would_write_nonsense(
    use_cache: bool, models: Models
) -> None:
    decoding = models("bloom").decoding(start(models("bloom")), use_cache=use_cache)
    with pytest.raises(UnsupportedHere) as refused:
        step(decoding)
    assert refused.value.key == "error.no_attention"
