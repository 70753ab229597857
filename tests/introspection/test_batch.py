"""A batch through real architectures: rows equal the unpadded run, padding gets nothing, masks are as expected."""

from functools import partial

import numpy as np
import pytest
import torch

from tests.conftest import Loaded
from tests.model.tiny import DECODER, build
from tfviz.config import Settings
from tfviz.introspection.alignment import alignments
from tfviz.introspection.batch import BatchRun, masked_head, run_batch
from tfviz.introspection.capture import capture
from tfviz.introspection.mask_parts import MaskChoice, axes_of, mask_parts, packed_axes, together
from tfviz.introspection.mask_read import MaskKind, read_masks
from tfviz.introspection.packing import MAX_PACKED, run_packed
from tfviz.sources.base import LoadedModel
from tfviz.sources.resident import Resident
from tfviz.sources.scratch import ScratchModel

TEXT = ("The animal didn't cross the street", None)
LINES = ("the cat", "", "near the door")
TOLD = ["gpt2", "llama", "qwen3", "mistral", "gemma2", "opt", "bert", "roberta", "albert", "t5"]
FROM_THE_LEFT = ["bart", "marian"]  # these count positions from the row's left end, whatever stands there


@pytest.fixture(scope="module")
def dates() -> LoadedModel:
    return Resident(Settings.from_environment({"TFVIZ_DEVICE": "cpu"})).get("dates", "fp32")


def run(model: LoadedModel, side: str = "right", lines: tuple[str, ...] = LINES) -> BatchRun:
    kernel = "naive" if model.id == "gemma2" else "flash"  # its soft cap needs the scores
    return run_batch(model, model.prompt(*TEXT), TEXT, lines, side, kernel)


def causal(kind: str, model: LoadedModel) -> bool:
    return kind == "decoder" or (kind == "self" and model.family == "decoder")


def kinds_of(model: LoadedModel, found: BatchRun, kind: str) -> list[MaskKind]:
    axes = [axes_of(found.batch, kind, row) for row in range(len(found.batch.prompts))]
    return read_masks(found, kind, axes, causal(kind, model))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", TOLD)
def test_real_rows_equal_the_unpadded_run(loaded: Loaded, name: str, side: str) -> None:
    found = run(loaded(name), side)
    assert found.differences[2] is None and found.finite  # a row of nothing but padding
    assert max(one for one in found.differences if one is not None) <= found.tolerance


@pytest.mark.parametrize("side", ["right", "left"])
def test_so_do_those_of_our_dates_model(dates: LoadedModel, side: str) -> None:
    text = ("Tuesday, 5 March 2024", None)
    found = run_batch(dates, dates.prompt(*text), text, ("5.5.24", ""), side)
    assert found.finite and max(one for one in found.differences if one is not None) <= found.tolerance


@pytest.mark.parametrize("name", FROM_THE_LEFT)
def test_a_model_that_cannot_be_told_where_tokens_stand_is_found_out(loaded: Loaded, name: str) -> None:
    right, left = run(loaded(name)), run(loaded(name), "left")
    assert max(one for one in right.differences if one is not None) <= right.tolerance
    assert max(one for one in left.differences if one is not None) > 100 * left.tolerance


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", [*TOLD, *FROM_THE_LEFT])
def test_every_model_builds_the_mask_that_is_expected_of_it(loaded: Loaded, name: str, side: str) -> None:
    model = loaded(name)
    found = run(model, side)
    for kind in found.attentions:
        for one in kinds_of(model, found, kind):
            padding = np.stack([axes_of(found.batch, kind, row).query_padding for row in range(4)])
            assert one.differing(padding) == (0, 0)


def test_a_hybrid_model_has_a_mask_for_each_kind_of_layer(loaded: Loaded) -> None:
    sliding, full = kinds_of(loaded("gemma2"), run(loaded("gemma2")), "self")
    assert (sliding.layers, sliding.window, full.layers, full.window) == ((0, 2), 4, (1,), None)
    assert (sliding.read[0].sum(axis=1)[-1], full.read[0].sum(axis=1)[-1]) == (len(sliding.read[0]) - 4, 0)
    assert sliding.form == "mask" and sliding.shape == (4, 1, *sliding.read[0].shape)


def test_a_cell_that_a_model_blocks_besides_is_found(loaded: Loaded) -> None:
    model = loaded("llama")
    found = run(model)
    mask = found.attentions["self"][1].mask
    assert mask is not None
    changed = mask.copy()
    changed[1, 0, 1, 0] = True  # "cat" may no longer look at "the"
    layers = list(found.attentions["self"])
    layers[1] = type(layers[1])(**{**vars(layers[1]), "mask": changed})
    found = type(found)(**{**vars(found), "attentions": {"self": tuple(layers)}})
    fine, tampered = kinds_of(model, found, "self")
    padding = np.stack([axes_of(found.batch, "self", row).query_padding for row in range(4)])
    assert fine.layers == (0, 2) and fine.differing(padding) == (0, 0)
    assert tampered.layers == (1,) and tampered.differing(padding) == (1, 0)


def test_one_sentence_alone_needs_no_mask_but_the_flag(loaded: Loaded) -> None:
    (one,) = kinds_of(loaded("llama"), run(loaded("llama"), lines=()), "self")
    assert (one.form, one.shape) == ("flag", ()) and np.array_equal(one.read[0], one.expected[0])
    (both_ways,) = kinds_of(loaded("bert"), run(loaded("bert"), lines=()), "self")
    assert both_ways.form == "none" and not both_ways.read[0].any()


@pytest.mark.parametrize("name", ["llama", "bert", "t5", "gemma2"])
def test_with_the_models_own_mask_its_own_weights_come_out(loaded: Loaded, name: str) -> None:
    model = loaded(name)
    kernel = "naive" if name == "gemma2" else "flash"
    trace = capture(model, model.prompt("the cat"), ("the cat", None), kernel=kernel)
    found = run_batch(model, model.prompt(*TEXT), TEXT, ("the cat",), "right", kernel)
    kind = next(iter(found.attentions))
    for layer, attention in enumerate(found.attentions[kind]):
        alone = trace.stacks[kind].layers[layer].weights(3)[0]
        n = len(alone)
        batched = masked_head(attention, 1, 3, attention.blocked(1)).weights
        assert np.abs(batched[:n, :n] - alone).max() < 1e-5
        assert (batched[:, n:] == 0).all(), "padded columns are exactly 0"


def test_softmax_gives_nan_where_nothing_is_allowed_and_ours_gives_zeros(loaded: Loaded) -> None:
    found = run(loaded("gpt2"), "left")
    axes = axes_of(found.batch, "self", 1)
    blocked = together(mask_parts(axes, "self", MaskChoice(causal=True)))
    head = masked_head(found.attentions["self"][0], 1, 0, blocked)
    assert np.array_equal(blocked.all(axis=1), axes.query_padding) and axes.query_padding.any()
    assert np.isnan(head.softmax[axes.query_padding]).all() and (head.weights[axes.query_padding] == 0).all()
    assert np.isneginf(head.after[blocked]).all() and np.array_equal(head.after[~blocked], head.before[~blocked])
    assert np.allclose(head.weights[~axes.query_padding].sum(axis=1), 1, atol=1e-6)


def test_parts_of_a_mask_in_their_order(loaded: Loaded) -> None:
    found = run(loaded("llama"), "left")
    axes = axes_of(found.batch, "self", 1)
    n, real = len(axes.keys), int((~axes.key_padding).sum())
    parts = mask_parts(axes, "self", MaskChoice(causal=True, window=2))
    assert list(parts) == ["padding", "causal", "window"]
    assert parts["padding"][0].sum() == n - real and together(parts).sum() == n * n - (2 * real - 1)
    prefix = mask_parts(axes, "self", MaskChoice(causal=True, prefix=2))["prefix"]
    assert list(mask_parts(axes, "self", MaskChoice(prefix=2))) == ["padding", "prefix"]
    assert not prefix[0, n - real : n - real + 2].any() and prefix[0, n - real + 2 :].all()  # counted after the padding
    assert list(mask_parts(axes, "cross", MaskChoice(causal=True, window=1))) == ["padding"]


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "mistral", "gemma2"])
def test_a_decoder_keeps_packed_texts_apart(loaded: Loaded, name: str) -> None:
    model = loaded(name)
    kernel = "naive" if name == "gemma2" else "flash"
    found = run_packed(model, model.prompt(*TEXT), TEXT, LINES, kernel)
    assert found.packed and len(found.batch.prompts) == 3  # an empty line leaves nothing to pack
    assert max(one for one in found.differences if one is not None) <= found.tolerance
    axes = [packed_axes(found.batch, "self")]
    for one in read_masks(found, "self", axes, causal=True):
        assert one.differing(axes[0].query_padding[None]) == (0, 0)


def test_a_decoder_that_mixes_packed_texts_is_found_out(loaded: Loaded) -> None:
    model = loaded("opt")
    found = run_packed(model, model.prompt(*TEXT), TEXT, LINES)
    assert max(one for one in found.differences if one is not None) > 0.1


@pytest.mark.parametrize("name", ["bert", "t5", "bart"])
def test_elsewhere_each_texts_own_q_and_k_stand_side_by_side(loaded: Loaded, name: str) -> None:
    model = loaded(name)
    found = run_packed(model, model.prompt(*TEXT), TEXT, ("the cat",))
    assert not found.packed and set(found.differences) == {None}
    alone = run_batch(model, model.prompt("the cat"), ("the cat", None))
    for kind, stack in found.attentions.items():
        axes = packed_axes(found.batch, kind)
        n_query, n_key = axes.lengths[1]
        assert [sum(side) for side in zip(*axes.lengths, strict=True)] == [len(axes.queries), len(axes.keys)]
        blocked = together(mask_parts(axes, kind, MaskChoice(causal=causal(kind, model))))
        packed = masked_head(stack[0], 0, 1, blocked).weights
        own = masked_head(alone.attentions[kind][0], 0, 1, alone.attentions[kind][0].blocked(0)).weights
        assert np.abs(packed[-n_query:, -n_key:] - own).max() < 1e-5
        assert (packed[-n_query:, :-n_key] == 0).all() and (packed[:-n_query, -n_key:] == 0).all()


def test_texts_that_do_not_fit_into_the_packed_row_are_left_out(loaded: Loaded) -> None:
    model = loaded("gpt2")
    found = run_packed(model, model.prompt(*TEXT), TEXT, ("the cat saw the other cat " * 20,) * 5)
    assert len(found.batch.source.tokens[0]) <= MAX_PACKED and len(found.batch.prompts) < 6


def test_a_window_of_ours_is_expected_where_the_config_says_so() -> None:
    model = scratch(partial(build, DECODER, window=2))
    found = run_batch(model, model.prompt("abcdef"), ("abcdef", None), ("ab",))
    assert found.windows["self"] == (2, 2)
    (one,) = kinds_of(model, found, "self")
    padding = np.stack([axes_of(found.batch, "self", row).query_padding for row in range(2)])
    assert one.form == "mask+flag" and one.differing(padding)[0] == 0


def scratch(make: partial) -> LoadedModel:
    """A tiny decoder of ours that reads letters."""
    from tfviz.sources.scratch import SPECIAL, character_tokenizer

    return ScratchModel(
        id="tiny",
        label="tiny",
        revision="",
        family="decoder",
        precision="fp32",
        device=torch.device("cpu"),
        model=make(),
        tokenizer=character_tokenizer([*SPECIAL.values(), *"abcdefghijklmno"]),
        token_limit=32,
        has_logits=True,
        n_parameters=0,
        weight_bytes=0,
    )


@pytest.fixture(scope="module")
def layer(loaded: Loaded):  # type: ignore[no-untyped-def]
    model = loaded("llama")
    return capture(model, model.prompt(*TEXT), TEXT).stacks["self"].layers[0]


def test_two_queries_over_five_keys_in_both_corners(layer) -> None:  # type: ignore[no-untyped-def]
    found = alignments(layer, 1, 2, 5)
    assert (~found.bottom_right).astype(int).tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert (~found.top_left).astype(int).tolist() == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]
    assert not alignments(layer, 1, 1, 5).bottom_right.any()  # a single query sees every key


@pytest.mark.parametrize("n_query, n_key", [(1, 5), (2, 5), (4, 6)])
def test_only_bottom_right_gives_the_rows_of_the_whole_text(layer, n_query: int, n_key: int) -> None:  # type: ignore[no-untyped-def]
    found = alignments(layer, 3, n_query, n_key)
    assert np.abs(found.out_bottom_right - found.out_whole).max() < 1e-5
    assert np.abs(found.out_top_left - found.out_whole).max() > 1e-3
    assert np.abs(found.out_flag - found.out_top_left).max() < 1e-5, "torch's flag is aligned top left"


def test_as_many_queries_as_keys_make_no_difference(layer) -> None:  # type: ignore[no-untyped-def]
    found = alignments(layer, 0, 4, 4)
    assert np.array_equal(found.top_left, found.bottom_right)
    assert np.abs(found.out_flag - found.out_bottom_right).max() < 1e-5
    with pytest.raises(ValueError, match="n_query=3, n_key=2"):
        alignments(layer, 0, 3, 2)
