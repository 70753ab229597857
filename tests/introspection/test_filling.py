"""Hidden words and spans: the draws are BERT's and T5's, and what is said of a place is what transformers computes."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoints import BERT_LIKE, sentence_piece_like_tokenizer, word_piece_tokenizer
from tests.conftest import Loaded
from tfviz.introspection.filling import Ability, ability, draw_fates, fill_chosen, fill_drawn, pair, sentinels
from tfviz.introspection.spans import corrupt, fill_spans, pieces, random_spans, restore, runs
from tfviz.sources.base import LoadedModel
from tfviz.sources.huggingface import load_folder

TEXT = "the cat saw the other cat near the door"
MARKS = 6
SENTINEL_VOCABULARY = 700


def save_pretraining(folder: Path, head: str = "BertForPreTraining") -> Path:
    """A tiny BERT with both heads of its pre-training (or with the next-sentence head alone)."""
    torch.manual_seed(0)
    model = getattr(hf, head)(hf.BertConfig(**BERT_LIKE))
    for parameter in model.parameters():
        parameter.data.mul_(3.0)
    model.save_pretrained(folder)
    word_piece_tokenizer().save_pretrained(folder)
    said = folder / "tokenizer_config.json"  # as BERT's own: with token_type_ids
    names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    said.write_text(json.dumps(json.loads(said.read_text()) | names))
    return folder


def save_sentinel_t5(folder: Path) -> Path:
    """A tiny T5 whose tokenizer has sentinels."""
    tokenizer = sentence_piece_like_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<extra_id_{n}>" for n in range(MARKS)]})
    torch.manual_seed(0)
    config = dict(d_model=32, d_kv=8, d_ff=48, num_layers=3, num_decoder_layers=2, num_heads=4)
    ids = dict(decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, vocab_size=SENTINEL_VOCABULARY)
    assert len(tokenizer) <= SENTINEL_VOCABULARY
    hf.T5ForConditionalGeneration(hf.T5Config(**config, **ids)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


MAKERS: dict[str, Callable[[Path], Path]] = {
    "bert-pretraining": save_pretraining,
    "bert-next": lambda folder: save_pretraining(folder, "BertForNextSentencePrediction"),
    "t5-sentinels": save_sentinel_t5,
}


@pytest.fixture(scope="session")
def fillable(tmp_path_factory: pytest.TempPathFactory, quiet_transformers: None) -> Loaded:
    """`fillable("t5-sentinels")`: a checkpoint of this file, loaded as a person's folder is."""

    def load(name: str) -> LoadedModel:
        folder = MAKERS[name](tmp_path_factory.mktemp("filling") / name)
        return load_folder(folder, model_id=name, revision="local", device=torch.device("cpu"))

    return cache(load)


def folder_of(model: LoadedModel) -> Path:
    return Path(model.tokenizer.name_or_path)


def label(model: LoadedModel, one: int) -> str:
    return model.describe([one])[0].label


# ---- what a model can do


@pytest.mark.parametrize(
    ("name", "kind", "follows"),
    [
        ("bert-mlm", "masks", False),
        ("roberta", "masks", False),
        ("bert", "no_head", False),
        ("gpt2", "decoder", False),
        ("t5", "answers", False),
        ("bart", "answers", False),
    ],
)
def test_what_a_model_can_do_is_read_off_what_it_has(name: str, kind: str, follows: bool, loaded: Loaded) -> None:
    model = loaded(name)
    found = ability(model, model.prompt(TEXT, TEXT if model.family == "encoder-decoder" else None))
    assert (found.kind, found.follows) == (kind, follows)


def test_pretraining_checkpoints_keep_both_heads(fillable: Loaded) -> None:
    both, one = fillable("bert-pretraining"), fillable("bert-next")
    assert ability(both, both.prompt(TEXT)) == Ability("masks", "bert-pretraining", True)
    assert ability(one, one.prompt(TEXT)) == Ability("no_head", "bert-next", True)


def test_only_a_tokenizer_with_sentinels_has_spans(fillable: Loaded, loaded: Loaded) -> None:
    model = fillable("t5-sentinels")
    assert len(sentinels(model.tokenizer)) == MARKS
    assert ability(model, model.prompt(TEXT, TEXT)).kind == "spans"
    assert sentinels(loaded("t5").tokenizer) == ()


# ---- BERT's draw


def test_fifteen_percent_are_chosen_and_four_in_five_are_masked() -> None:
    places, given = list(range(1, 2001)), list(range(2002))
    fates = draw_fates(places, given, mask_id=9999, words=range(5000, 6000), seed=3)
    assert len(fates) == 300 and len({fate.position for fate in fates}) == 300
    kinds = [fate.kind for fate in fates]
    for kind, share in (("mask", 0.8), ("random", 0.1), ("kept", 0.1)):
        n, spread = 300 * share, (300 * share * (1 - share)) ** 0.5
        assert abs(kinds.count(kind) - n) < 4 * spread
    assert all(fate.id == 9999 for fate in fates if fate.kind == "mask")
    assert all(5000 <= fate.id < 6000 for fate in fates if fate.kind == "random")
    assert all(fate.id == fate.position for fate in fates if fate.kind == "kept")


@given(st.integers(1, 200), st.integers(0, 99))
def test_the_draw_is_the_same_for_a_seed_and_never_leaves_the_places(n: int, seed: int) -> None:
    places = list(range(2, 2 + n))
    fates = draw_fates(places, range(300), 999, [7, 8], seed)
    assert fates == draw_fates(places, range(300), 999, [7, 8], seed)
    assert len(fates) == max(1, round(0.15 * n))
    assert [fate.position for fate in fates] == sorted(fate.position for fate in fates)
    assert {fate.position for fate in fates} <= set(places)


# ---- masks


@pytest.mark.parametrize("name", ["bert-mlm", "roberta", "albert"])
def test_a_hidden_place_is_guessed_as_transformers_guesses_it(name: str, loaded: Loaded) -> None:
    model = loaded(name)
    prompt = model.prompt(TEXT)
    found = fill_chosen(model, prompt, (TEXT, None), (2, 5))
    ids = prompt.inputs["input_ids"].clone()
    truth = ids[0, [2, 5]]
    ids[0, [2, 5]] = model.tokenizer.mask_token_id
    theirs = hf.AutoModelForMaskedLM.from_pretrained(folder_of(model)).eval()
    with torch.inference_mode():
        logits = theirs(**prompt.inputs | {"input_ids": ids}).logits[0, [2, 5]]
    probs = logits.double().softmax(dim=-1)
    assert found.loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, truth)), rel=1e-4, abs=1e-4)
    for row, guess in enumerate(found.guesses):
        top = probs[row].topk(10)
        assert [name for name, _ in guess.top] == [label(model, one) for one in top.indices.tolist()]
        assert [chance for _, chance in guess.top] == pytest.approx(top.values.tolist(), rel=1e-5, abs=1e-5)
        assert guess.log_prob == pytest.approx(float(probs[row, truth[row]].log()), rel=1e-4, abs=1e-4)
        assert guess.rank == int((probs[row] > probs[row, truth[row]]).sum()) + 1
        assert guess.entropy == pytest.approx(float(-(probs[row] * probs[row].log()).sum()), rel=1e-4, abs=1e-4)
        assert guess.total == pytest.approx(1)
    assert found.read.tolist() == ids[0].tolist() and found.given.tolist() == prompt.source.ids


def test_nobody_chose_so_the_middle_is_hidden_unless_a_mask_was_typed(loaded: Loaded) -> None:
    model = loaded("bert-mlm")
    found = fill_chosen(model, model.prompt(TEXT), (TEXT, None), None)
    assert [guess.position for guess in found.guesses] == [found.places[len(found.places) // 2]]
    typed = "the [MASK] saw the cat"
    found = fill_chosen(model, model.prompt(typed), (typed, None), None)
    assert [(guess.kind, guess.truth, guess.rank) for guess in found.guesses] == [("typed", None, None)]
    assert found.loss is None
    assert fill_chosen(model, model.prompt(TEXT), (TEXT, None), ()).guesses == ()


def test_special_tokens_and_far_positions_are_never_hidden(loaded: Loaded) -> None:
    model = loaded("bert-mlm")
    prompt = model.prompt(TEXT)
    found = fill_chosen(model, prompt, (TEXT, None), (0, prompt.n_tokens - 1, 300))
    assert found.guesses == () and found.read.tolist() == found.given.tolist()


def test_a_typed_mask_is_read_by_whatever_name_the_tokenizer_has(loaded: Loaded) -> None:
    from dataclasses import replace

    tokenizer = word_piece_tokenizer()
    tokenizer.add_special_tokens({"mask_token": "[PAD]"})  # a name of its own, as RoBERTa's <mask>
    model, text = replace(loaded("bert-mlm"), tokenizer=tokenizer), "the [MASK] saw"
    found = fill_chosen(model, model.prompt(text), (text, None), None)
    assert found.renamed and [guess.kind for guess in found.guesses] == ["typed"]


def test_the_draw_is_what_the_model_reads(loaded: Loaded) -> None:
    model, text = loaded("bert-mlm"), " ".join([TEXT] * 5)
    prompt = model.prompt(text)
    kinds = set()
    for seed in range(12):
        found = fill_drawn(model, prompt, (text, None), seed)
        assert len(found.guesses) == round(0.15 * len(found.places))
        changed = np.flatnonzero(found.read != found.given)
        assert set(changed.tolist()) <= {guess.position for guess in found.guesses}
        for guess in found.guesses:
            kinds.add(guess.kind)
            if guess.kind == "mask":
                assert found.read[guess.position] == found.mask_id
            if guess.kind == "kept":
                assert found.read[guess.position] == found.given[guess.position]
            assert found.read[guess.position] not in {0, 1, 2, 3}
    assert kinds == {"mask", "random", "kept"}


def test_a_text_without_tokens_of_its_own_hides_nothing(loaded: Loaded) -> None:
    model = loaded("bert-mlm")
    assert fill_drawn(model, model.prompt(""), ("", None), 0).guesses == ()
    assert fill_chosen(model, model.prompt(""), ("", None), None).guesses == ()


# ---- does B follow A?


@pytest.mark.parametrize("name", ["bert-pretraining", "bert-next"])
def test_both_orders_equal_transformers_next_sentence_head(name: str, fillable: Loaded) -> None:
    model, first, second = fillable(name), "the cat saw the door", "it was too tired"
    found = pair(model, model.prompt(first, second))
    theirs = hf.BertForNextSentencePrediction.from_pretrained(folder_of(model)).eval()
    assert found is not None
    for one, other, ours in ((first, second, found.as_typed), (second, first, found.swapped)):
        with torch.inference_mode():
            logits = theirs(**model.tokenizer(one, other, return_tensors="pt")).logits[0]
        assert ours == pytest.approx(logits.softmax(dim=-1).tolist(), rel=1e-5, abs=1e-5)
    assert found.as_typed != found.swapped


def test_one_sentence_or_no_head_has_no_answer(fillable: Loaded, loaded: Loaded) -> None:
    model = fillable("bert-pretraining")
    assert pair(model, model.prompt(TEXT)) is None
    assert pair(loaded("bert-mlm"), loaded("bert-mlm").prompt(TEXT, TEXT)) is None


# ---- T5's draw and its two texts


def test_t5s_draw_hides_fifteen_percent_in_spans_of_three() -> None:
    for seed in range(20):
        spans = random_spans(200, seed)
        hidden = sum(stop - start for start, stop in spans)
        assert hidden == 30 and len(spans) in {10, 11}  # one more where the turn cut a span in two
        assert random_spans(200, seed) == spans
    assert random_spans(1, 0) == ()


@given(st.lists(st.integers(0, 40), min_size=2, max_size=40), st.integers(0, 500))
def test_input_and_target_together_give_back_the_sentence(ids: list[int], seed: int) -> None:
    marks = tuple(range(1000, 1030))
    gaps = random_spans(len(ids), seed)
    source, target = corrupt(ids, gaps, marks, end=1001_000)
    assert restore(source, pieces(target[:-1], marks), marks) == ids
    assert len(source) + len(target) == len(ids) + 2 * len(gaps) + 2


def test_the_example_of_the_paper() -> None:
    words = "Thank you for inviting me to your party last week .".split()
    ids, x, y, z = list(range(len(words))), 100, 101, 102
    source, target = corrupt(ids, [(2, 4), (8, 9)], (x, y, z), end=1)
    assert source == [0, 1, x, 4, 5, 6, 7, y, 9, 10]
    assert target == [x, 2, 3, y, 8, z, 1]
    assert restore(source, {1: (8,)}, (x, y, z)) == [0, 1, x, 4, 5, 6, 7, 8, 9, 10]


def test_neighbours_make_one_span() -> None:
    assert runs([6, 2, 3]) == ((2, 4), (6, 7)) and runs([]) == ()


# ---- T5 fills


def test_the_spans_are_scored_and_written_as_transformers_does(fillable: Loaded) -> None:
    model = fillable("t5-sentinels")
    prompt = model.prompt(TEXT, TEXT)
    found = fill_spans(model, prompt, (TEXT, TEXT), hidden=(1, 2, 5))
    marks = sentinels(model.tokenizer)
    assert found.gaps == ((1, 3), (5, 6)) and found.sentinels == marks[:3]
    theirs = hf.T5ForConditionalGeneration.from_pretrained(folder_of(model)).eval()
    source, target = torch.tensor([found.source]), torch.tensor([found.target])
    with torch.inference_mode():
        out = theirs(input_ids=source, labels=target)
        written = theirs.generate(source, max_new_tokens=64, do_sample=False, num_beams=1)[0, 1:].tolist()
    assert found.loss == pytest.approx(float(out.loss), rel=1e-4, abs=1e-4)
    chances = out.logits[0].softmax(dim=-1).gather(1, target[0, :, None])[:, 0].tolist()
    assert found.target_probs == pytest.approx(chances, rel=1e-5, abs=1e-5)
    stop = written.index(marks[2]) + 1 if marks[2] in written else len(written)
    assert list(found.written) == written[:stop]
    assert found.given == tuple(prompt.source.ids)


def test_a_typed_gap_has_no_truth_and_no_loss(fillable: Loaded) -> None:
    model = fillable("t5-sentinels")
    for text, renamed in (("the <extra_id_0> saw the door", False), ("the [MASK] saw the door", True)):
        found = fill_spans(model, model.prompt(text, TEXT), (text, None))
        assert found.typed == {0} and found.loss is None and found.target == () and found.renamed is renamed
        assert found.source.count(found.sentinels[0]) == 1 and len(found.written) >= 1


def test_gaps_are_numbered_in_the_order_of_the_sentence(fillable: Loaded) -> None:
    model, text = fillable("t5-sentinels"), "the <extra_id_3> saw the other cat near the door"
    prompt = model.prompt(text, TEXT)
    found = fill_spans(model, prompt, (text, None), hidden=(0, 6))
    assert [one for one in found.source if one in sentinels(model.tokenizer)] == list(found.sentinels[:-1])
    assert len(found.gaps) == 3 and len(found.typed) == 1


def test_there_are_never_more_gaps_than_sentinels(fillable: Loaded) -> None:
    model, text = fillable("t5-sentinels"), " ".join([TEXT] * 4)
    prompt = model.prompt(text, TEXT)
    found = fill_spans(model, prompt, (text, None), hidden=tuple(range(0, prompt.n_tokens, 2)))
    assert len(found.gaps) == MARKS - 1


def test_nothing_hidden_is_nothing_written(fillable: Loaded) -> None:
    model = fillable("t5-sentinels")
    found = fill_spans(model, model.prompt(TEXT, TEXT), (TEXT, None), hidden=())
    assert found.written == () and found.loss is None and found.source == found.given


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_other_precisions_fill_in_too(precision: str, fillable: Loaded) -> None:
    from dataclasses import replace

    from tfviz.inference.precision import PRECISIONS

    bert, t5 = (
        replace(model, model=PRECISIONS[precision].convert(model.model), precision=precision)
        for model in (fillable("bert-pretraining"), fillable("t5-sentinels"))
    )
    near, there = (
        fill_chosen(one, one.prompt(TEXT), (TEXT, None), (2, 5)) for one in (bert, fillable("bert-pretraining"))
    )
    assert near.loss == pytest.approx(there.loss, rel=0.1)
    found, exact = (pair(one, one.prompt(TEXT, "it was tired")) for one in (bert, fillable("bert-pretraining")))
    assert found is not None and exact is not None and found.as_typed == pytest.approx(exact.as_typed, abs=0.05)
    loss = fill_spans(fillable("t5-sentinels"), t5.prompt(TEXT, TEXT), (TEXT, None), hidden=(1, 2)).loss
    assert fill_spans(t5, t5.prompt(TEXT, TEXT), (TEXT, None), hidden=(1, 2)).loss == pytest.approx(loss, rel=0.1)


def test_found_things_travel_between_processes(fillable: Loaded) -> None:
    import pickle

    model = fillable("bert-pretraining")
    found: Any = fill_chosen(model, model.prompt(TEXT), (TEXT, None), (3,))
    assert pickle.loads(pickle.dumps(found)).loss == found.loss
    assert json.dumps([guess.top for guess in found.guesses])
