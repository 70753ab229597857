"""What a model does with positions: watched, and compared with what is said of it."""

from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from tests.conftest import Loaded
from tests.sources.test_positions import ours, theirs
from tfviz.introspection import position_curves as curves
from tfviz.introspection.anatomy import examine
from tfviz.introspection.capture import capture
from tfviz.introspection.position_checks import (
    bucket_bias,
    linear_bias,
    relative_bucket,
    sinusoid_layout,
    turn,
    which_turn,
)
from tfviz.introspection.positions import _outputs_of, find_rows, look
from tfviz.introspection.word_order import LONGEST, put_back, shuffle, shuffled_places
from tfviz.model.positions.alibi import slopes
from tfviz.sources.base import LoadedModel
from tfviz.sources.positions import Table

TEXT = "the cat saw the other cat near the door"
DISTANCES = np.arange(64)


def projected(model: LoadedModel, kind: str, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """(query before, query after) of one layer, by head."""
    prompt = model.prompt(TEXT)
    after = capture(model, prompt, (TEXT, None), kernel="naive").stacks[kind].layers[layer].query
    n_heads, n, dim = after.shape
    normed = look(model, prompt).normed.get((kind, layer))
    if normed is not None:
        return normed, after
    before = examine(model, prompt).attentions[kind, layer].query.reshape(n, n_heads, dim).transpose(1, 0, 2)
    return before, after


# ---- rows that are added


@pytest.mark.parametrize(
    "name, side, first",
    [("gpt2", "self", 0), ("bert", "self", 0), ("roberta", "self", 2), ("opt", "self", 2), ("bart", "decoder", 2)],
)
def test_the_rows_of_the_table_are_what_the_model_added(loaded: Loaded, name: str, side: str, first: int) -> None:
    seen = look(loaded(name), loaded(name).prompt(TEXT))
    added = seen.added[side]
    assert (added.first, added.difference) == (first, 0) and added.largest > 0
    assert seen.nbytes >= seen.facts.tables[side].rows.nbytes


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_our_embeddings_add_the_rows_as_well(positions: str) -> None:
    for more in ({}, {"embedding_norm": True}, {"n_encoder_layers": 1}):
        model = ours(positions=positions, **more)
        for added in look(model, model.prompt(TEXT)).added.values():
            assert added.difference <= 1e-6 * added.largest


def test_rows_that_were_not_added_are_noticed() -> None:
    rows = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    assert find_rows(rows[2:5], rows).difference == 0 and find_rows(rows[2:5], rows).first == 2
    assert find_rows(rows[2:5] + 0.1, rows).difference == pytest.approx(0.1, abs=1e-6)


def test_only_this_threads_outputs_are_kept() -> None:
    module, outputs = torch.nn.Identity(), dict[torch.nn.Module, torch.Tensor]()
    with _outputs_of([module], outputs):
        other = Thread(target=module, args=(torch.ones(1),))
        other.start()
        other.join()
        assert not outputs
        module(torch.zeros(1))
    assert outputs[module] == 0 and not module._forward_hooks


def test_sinusoids_are_told_from_learned_rows(loaded: Loaded) -> None:
    paper = curves.sinusoids(50, 16, 10_000.0)
    assert sinusoid_layout(Table("", paper, 50)) == ("alternating", 0)
    marian = look(loaded("marian"), loaded("marian").prompt(TEXT)).facts.tables["encoder"]
    layout = sinusoid_layout(marian)
    assert layout is not None and layout[0] == "halves"
    padded = np.concatenate([np.zeros((1, 16), np.float32), paper[1:]])
    assert sinusoid_layout(Table("", padded, 50)) is not None
    tampered = paper.copy()
    tampered[7, 3] += 0.1
    assert sinusoid_layout(Table("", tampered, 50)) is None
    assert sinusoid_layout(Table("", curves.fresh_table(50, 16), 50)) is None


# ---- queries that are turned


@pytest.mark.parametrize(
    "name, layer, pairs",
    [
        ("llama", 1, "halves"),
        ("qwen3", 2, "halves"),  # a norm between projection and rotation
        ("neox", 1, "halves"),  # a quarter of each head
        ("gptj", 1, "interleaved"),
        ("cohere", 0, "interleaved"),
        ("gemma3", 0, "halves"),
        ("llama3", 0, "halves"),
        ("yarn", 0, "halves"),
        ("longrope", 0, "halves"),
        ("gemma4", 0, "halves"),
        ("gemma4", 5, "halves"),
    ],
)
def test_what_is_said_of_the_rotation_gives_the_models_queries(
    loaded: Loaded, tmp_path: Path, name: str, layer: int, pairs: str
) -> None:
    model = loaded(name) if name in {"llama", "qwen3"} else theirs(name, tmp_path)
    before, after = projected(model, "self", layer)
    said = look(model, model.prompt(TEXT)).facts.angles_of(layer, after.shape[-1])
    found = which_turn(before, after, said)
    assert found.pairs == pairs and found.difference < 1e-5 * found.largest
    assert found.other > 100 * found.difference
    after = after.copy()
    after[0, 3, 0] += 0.01 * found.largest
    assert which_turn(before, after, said).difference > 1e-3 * found.largest


def test_a_layer_that_turns_nothing_is_found(tmp_path: Path) -> None:
    model = theirs("nope", tmp_path)
    said = look(model, model.prompt(TEXT)).facts.angles
    turned = [which_turn(*projected(model, "self", layer), said).angles is not None for layer in range(4)]
    assert turned == [True, True, True, False]  # every fourth


@pytest.mark.parametrize("pairs", ["halves", "interleaved"])
def test_our_rotation_is_found_with_its_pairing(pairs: str) -> None:
    model = ours(positions="rope", rope_pairs=pairs, rope_dims=4)
    before, after = projected(model, "self", 0)
    assert which_turn(before, after, look(model, model.prompt(TEXT)).facts.angles).pairs == pairs


# ---- biases


def test_buckets_are_those_of_t5() -> None:
    distances = np.arange(-300, 301)
    for both in (True, False):
        theirs_ = T5Attention._relative_position_bucket(torch.from_numpy(distances), both, 32, 128)
        assert relative_bucket(distances, 32, 128, both).tolist() == theirs_.tolist()


def test_the_table_gives_the_bias_that_t5_added(loaded: Loaded) -> None:
    model = loaded("t5")
    prompt = model.prompt(TEXT)
    trace, facts = capture(model, prompt, (TEXT, None)), look(model, prompt).facts
    for side in ("encoder", "decoder"):
        bias, buckets = trace.stacks[side].layers[1].bias, facts.buckets_of(side, 1)
        assert bias is not None and buckets is not None
        assert np.array_equal(bucket_bias(buckets, *bias.shape[1:]), bias)


@pytest.mark.parametrize("n_heads", [8, 12])
def test_alibi_is_linear_in_the_distance(n_heads: int) -> None:
    model = ours(positions="alibi", n_heads=n_heads, d_model=2 * n_heads)
    bias = capture(model, model.prompt(TEXT), (TEXT, None)).stacks["self"].layers[0].bias
    assert bias is not None
    m = slopes(n_heads).numpy()
    assert np.array_equal(linear_bias(m, *bias.shape[1:]), bias) and (np.diagonal(bias, axis1=1, axis2=2) == 0).all()
    assert m[:8].tolist() == [2.0**-power for power in range(1, 9)]


# ---- curves


def test_a_score_depends_on_the_distance_only_and_position_0_turns_nothing() -> None:
    q, k = np.random.default_rng(0).normal(size=(2, 16)).astype(np.float32)
    said = curves.rope_angles(16, 10_000.0)
    for pairs in ("halves", "interleaved"):
        at = lambda x, place, pairs=pairs: turn(x[None, None], said, pairs, np.array([place]))[0, 0]  # noqa: E731
        assert at(q, 7) @ at(k, 3) == pytest.approx(at(q, 107) @ at(k, 103), rel=1e-4, abs=1e-4)
        assert np.array_equal(at(q, 0), q)
    scores = curves.scores_of(q, k, said, DISTANCES)
    assert scores[0] == pytest.approx(q @ k, rel=1e-5, abs=1e-5) and len(scores) == 64


def test_rope_and_sinusoids_share_one_curve_over_distance() -> None:
    said, rows = curves.rope_angles(32, 10_000.0), curves.sinusoids(64, 32, 10_000.0)
    assert curves.unit_scores(said, DISTANCES) == pytest.approx(rows @ rows[0] / 16, rel=1e-5, abs=1e-5)
    assert curves.likeness(rows)[0] == pytest.approx(rows @ rows[0] / 16, rel=1e-5, abs=1e-5)
    alike = curves.likeness(curves.turned_units(64, 32, 10_000.0))
    assert alike[5] == pytest.approx(curves.unit_scores(said, np.abs(DISTANCES - 5)), rel=1e-5, abs=1e-5)


def test_the_trend_is_the_mean_of_the_scores_around() -> None:
    said = curves.rope_angles(16, 100.0)
    scores = curves.unit_scores(said, np.arange(200))
    for distance in (1, 10, 100):
        low, high = int(np.ceil(distance / 1.25)), int(np.floor(distance * 1.25))
        mean = scores[low : high + 1].mean()
        assert curves.mean_scores(said, np.array([distance]))[0] == pytest.approx(mean, rel=1e-5, abs=1e-5)


def test_an_encoding_k_further_is_the_same_rotation_everywhere() -> None:
    for k in (1, 10, 100):
        fits, other = curves.rotation_residual(64, 10_000.0, k, 256)
        assert fits < 1e-4 and other > 0.5


def test_a_wavelength_is_one_turn() -> None:
    waves = curves.wavelengths(curves.pair_angles(512, 10_000.0))
    assert waves[0] == pytest.approx(2 * np.pi) and waves[-1] == pytest.approx(2 * np.pi * 10_000 ** (510 / 512))
    assert np.array_equal(curves.fresh_table(8, 4), curves.fresh_table(8, 4))


# ---- word order

MODELS = ["gpt2", "llama", "qwen3", "gemma2", "opt", "bert", "roberta", "albert", "t5", "bart", "marian"]


def apart(found: Any, reading: str, head: int = 0, causal: bool = False) -> float:
    plain, shuffled = found.plain[reading].weights(head, causal), found.shuffled[reading].weights(head, causal)
    return float(np.abs(plain - put_back(shuffled, found.order)).max())


@pytest.mark.parametrize("name", MODELS)
def test_without_positions_shuffled_words_give_the_same_matrix(loaded: Loaded, name: str) -> None:
    model = loaded(name)
    found = shuffle(model, model.prompt(TEXT))
    assert apart(found, "without") < 1e-5 < 1e-3 < apart(found, "with")
    assert apart(found, "without", causal=True) > 1e-3  # the mask tells early from late
    tokens = model.prompt(TEXT).source.tokens
    assert [i for i, place in enumerate(found.order) if i == place] == [i for i, t in enumerate(tokens) if t.special]
    assert found.nbytes > 0


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rope", "alibi", "none"])
@pytest.mark.parametrize("layers", [(0, 2), (2, 0), (1, 1)])
def test_our_schemes_do_the_same(positions: str, layers: tuple[int, int]) -> None:
    model = ours(positions=positions, n_encoder_layers=layers[0], n_decoder_layers=layers[1])
    found = shuffle(model, model.prompt(TEXT))
    assert apart(found, "without") < 1e-5
    assert (apart(found, "with") > 1e-3) == (positions != "none")


def test_segments_go_with_their_words(loaded: Loaded) -> None:
    model = loaded("bert")
    assert apart(shuffle(model, model.prompt("the cat saw", "the other cat")), "without") < 1e-5


def test_a_long_text_is_cut(loaded: Loaded) -> None:
    model = loaded("bart")
    found = shuffle(model, model.prompt("cat " * 60))
    assert len(found.order) == LONGEST and found.plain["with"].query.shape[1] == LONGEST


def test_the_matrix_with_positions_is_the_traces_own(loaded: Loaded) -> None:
    model = loaded("bert")
    prompt = model.prompt(TEXT)
    stack = capture(model, prompt, (TEXT, None)).stacks["self"]
    assert np.allclose(shuffle(model, prompt).plain["with"].weights(1), stack.layers[0].weights(1)[0], atol=1e-6)


def test_no_word_stays_where_it_was_and_one_word_cannot_move() -> None:
    for n in range(2, 40):
        places = shuffled_places(list(range(n)))
        assert sorted(places) == list(range(n)) and all(i != place for i, place in enumerate(places))
    assert shuffled_places([3]) == [3] and shuffled_places([]) == []


def test_a_model_is_left_as_it_was_and_other_threads_see_nothing(loaded: Loaded) -> None:
    model = loaded("bart")
    prompt = model.prompt(TEXT)
    before = capture(model, prompt, (TEXT, None)).stacks["encoder"].layers[0].query
    during: list[np.ndarray] = []
    started: list[Thread] = []

    def other(*_: object) -> None:
        """While the table gives the first row to everybody, another thread reads the text."""
        if started:
            return
        started.append(Thread(target=lambda: during.append(read_now())))
        started[0].start()
        started[0].join(30)

    def read_now() -> np.ndarray:
        return capture(model, prompt, (TEXT, None)).stacks["encoder"].layers[0].query

    attention = model.model.get_submodule("model.encoder.layers.0.self_attn.k_proj")  # type: ignore[operator]
    handle = attention.register_forward_pre_hook(other)
    try:
        shuffle(model, prompt)
    finally:
        handle.remove()
    assert np.array_equal(during[0], before)
    assert np.array_equal(capture(model, prompt, (TEXT, None)).stacks["encoder"].layers[0].query, before)
    assert not any(module._forward_hooks for module in model.model.modules())
