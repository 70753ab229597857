"""The tree of a beam search holds what the search did, and finds what other beam searches find."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from tests.checkpoints import byte_level_tokenizer
from tests.conftest import Loaded
from tests.model.tiny import DECODER, build
from tfviz.config import Settings
from tfviz.errors import TfvizError
from tfviz.inference.generate import beam_search
from tfviz.introspection.beams import Tree, beam_steps
from tfviz.sources.base import LoadedModel
from tfviz.sources.catalog import CATALOG
from tfviz.sources.huggingface import load_folder
from tfviz.sources.scratch import load

TEXT = "the cat saw the other cat"


def search(model: LoadedModel, text: str = TEXT, **options: Any) -> Tree:
    *_, tree = beam_steps(model, model.prompt(text), **options)
    return tree


@pytest.fixture(scope="module")
def dates() -> LoadedModel:
    return load(CATALOG["dates"], torch.device("cpu"))


@pytest.mark.parametrize("n_beams", [1, 2, 4, 8])
@pytest.mark.parametrize("penalty", [0.0, 1.0, -0.5])
@pytest.mark.parametrize("text", ["March 5, 2021", "5.3.2021", "hello"])
def test_dates_are_found_as_our_own_beam_search_finds_them(
    dates: LoadedModel, text: str, n_beams: int, penalty: float
) -> None:
    tree = search(dates, text, n_beams=n_beams, max_new_tokens=14, length_penalty=penalty)
    source = dates.prompt(text).inputs["input_ids"]
    ours = beam_search(dates.model, source, n_beams=n_beams, max_new_tokens=14, length_penalty=penalty)  # type: ignore[arg-type]
    assert [one.ids for one in tree.found] == [one.ids for one in ours]
    for one, other in zip(tree.found, ours, strict=True):
        assert one.log_prob == pytest.approx(other.log_prob, rel=1e-4, abs=1e-4)
        assert one.score == pytest.approx(other.score, rel=1e-4, abs=1e-4) and one.finished == other.finished


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5", "bart"])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_the_best_text_is_the_one_that_transformers_finds(loaded: Loaded, name: str, penalty: float) -> None:
    model = loaded(name)
    tree = search(model, n_beams=3, max_new_tokens=6, length_penalty=penalty)
    inputs = {k: v for k, v in model.prompt(TEXT).inputs.items() if k != "decoder_input_ids"}
    start = 1 if model.family == "encoder-decoder" else inputs["input_ids"].shape[1]
    theirs = model.model.generate(  # type: ignore[operator]
        **inputs,
        num_beams=3,
        max_new_tokens=6,
        eos_token_id=sorted(model.end_ids),
        length_penalty=penalty,
        early_stopping="never",
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    assert tuple(theirs.sequences[0, start:].tolist())[: len(tree.found[0].ids)] == tree.found[0].ids
    assert float(theirs.sequences_scores[0]) == pytest.approx(tree.found[0].score, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "t5", "marian"])
def test_what_is_found_has_the_probability_that_one_pass_gives_it(loaded: Loaded, name: str) -> None:
    tree = search(loaded(name), n_beams=3, max_new_tokens=5, kernel="naive")
    assert len(tree.forced) == len(tree.found) == 3
    for one, forced in zip(tree.found, tree.forced, strict=True):
        assert one.log_prob == pytest.approx(forced, abs=1e-3)


def test_one_beam_is_greedy(loaded: Loaded) -> None:
    tree = search(loaded("llama"), n_beams=1, max_new_tokens=8)
    assert tree.greedy is not None and tree.found[0].ids == tree.greedy.ids
    assert tree.found[0].log_prob == pytest.approx(tree.greedy.log_prob, rel=1e-4, abs=1e-4)


def test_every_node_adds_its_token_to_its_parent_and_ranks_follow_the_totals(loaded: Loaded) -> None:
    tree = search(loaded("llama"), n_beams=3, max_new_tokens=5)
    for node in tree.nodes[1:]:
        parent = tree.nodes[node.parent]
        assert node.step == parent.step + 1 and parent.state == "kept"
        assert node.total == pytest.approx(parent.total + node.log_prob, rel=1e-4, abs=1e-4)
    for step in range(1, tree.step + 1):
        made = [node for node in tree.nodes if node.step == step]
        assert [node.rank for node in made] == sorted(node.rank for node in made)
        totals = [node.total for node in made]
        assert totals == sorted(totals, reverse=True)
        assert sum(node.state == "kept" for node in made) == 3
        assert sum(node.state == "dropped" for node in made) == 5


def test_the_tree_grows_by_one_step_at_a_time_and_keeps_what_it_had(loaded: Loaded) -> None:
    model = loaded("gpt2")
    trees = list(beam_steps(model, model.prompt(TEXT), 2, 4))
    assert [tree.step for tree in trees] == [1, 2, 3, 4, 4]
    for before, after in zip(trees, trees[1:], strict=False):
        assert after.nodes[: len(before.nodes)] == before.nodes
    assert not any(tree.done for tree in trees[:-1]) and trees[-1].done
    assert trees[-1].stopped == "max_new_tokens"


def test_a_path_is_the_text_that_was_found(dates: LoadedModel) -> None:
    tree = search(dates, "March 5, 2021", n_beams=3, max_new_tokens=14)
    best = tree.found[0]
    assert best.text == "2021-03-05" and best.finished
    assert tuple(node.token for node in tree.path(best.node)) == best.ids
    assert tree.nodes[best.node].state == "ended" and tree.stopped in {"enough", "max_new_tokens"}


def test_the_models_last_position_ends_the_search(loaded: Loaded) -> None:
    model = loaded("gpt2")
    prompt = model.prompt("the cat " * 40, limit=62)
    *_, tree = beam_steps(model, prompt, 2, 20)
    assert tree.limit == tree.step == 3 and tree.stopped == "max_positions"


def test_numbers_out_of_range_and_models_that_write_nothing_are_refused(loaded: Loaded, settings: Settings) -> None:
    for options in ({"n_beams": 0}, {"max_new_tokens": 0}, {"length_penalty": math.inf}):
        with pytest.raises(TfvizError):
            search(loaded("llama"), **options)
    with pytest.raises(TfvizError):
        search(loaded("bert"))


def test_labels_are_those_of_a_text(loaded: Loaded) -> None:
    tree = search(loaded("llama"), n_beams=2, max_new_tokens=3)
    assert all(node.label for node in tree.nodes)
    assert replace(tree, forced=()).done is False


def test_a_score_is_divided_by_the_new_tokens_alone(tmp_path: Path) -> None:
    """With equal logits every text, long or short, has the mean log P of one token: -ln |V|."""
    model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=1000, n_positions=64, n_embd=32, n_layer=1, n_head=4))
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
    model.save_pretrained(tmp_path)
    byte_level_tokenizer().save_pretrained(tmp_path)
    loaded = load_folder(tmp_path, model_id="equal", revision="local", device=torch.device("cpu"))
    tree = search(loaded, n_beams=3, max_new_tokens=4, length_penalty=1.0)
    assert len({len(one.ids) for one in tree.found}) > 1
    assert [one.score for one in tree.found] == pytest.approx([-6.907755] * 3, rel=1e-6)
    ours = build(DECODER, vocab_size=1000)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    found = beam_search(ours, torch.tensor([[5, 6, 7]]), n_beams=3, max_new_tokens=4, length_penalty=1.0)
    assert [one.score for one in found] == pytest.approx([-6.907755] * 3, rel=1e-6)
