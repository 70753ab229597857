"""The whole Transformer: padding, the future, tying, first weights, dropout, and what it refuses."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.closeness import MODEL, SUM, difference
from tests.model.tiny import (
    DECODER,
    ENCODER,
    ENCODER_DECODER,
    FAMILIES,
    KERNELS,
    LLAMA_LIKE,
    PAD,
    VOCABULARY,
    build,
    ids,
    using,
)
from tfviz.config import PRESETS, TransformerConfig
from tfviz.errors import TfvizError
from tfviz.messages import LANGUAGES
from tfviz.model import Transformer
from tfviz.model.positions import POSITIONS
from tfviz.model.probes import probes

SIDES = ["left", "right"]
N = 7
SHAPES = FAMILIES | {"grouped heads, window": replace(LLAMA_LIKE, window=3)}


def pad(tokens: Tensor, n: int, side: str) -> Tensor:
    """[1, n] with `tokens` [1, k] on the other side."""
    filler = torch.full((1, n - tokens.shape[1]), PAD)
    return torch.cat([filler, tokens] if side == "left" else [tokens, filler], 1)


def run(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Both for an encoder-decoder, `target` for the others."""
    return model(source, target) if model.config.family == "encoder-decoder" else model(target)


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_a_padded_batch_equals_its_rows_alone(
    config: TransformerConfig, positions: str, side: str, kernel: str
) -> None:
    model = build(config, positions=positions)
    sources, targets = [ids(1, N), ids(1, 3, seed=1)], [ids(1, 4, seed=2), ids(1, N, seed=3)]
    source, target = (torch.cat([pad(row, N, side) for row in rows]) for rows in (sources, targets))
    with using(kernel):
        with probes(model, "embedded", "weights") as batch:
            logits = run(model, source, target)
        for row in range(2):
            with probes(model, "embedded") as alone:
                expected = run(model, sources[row], targets[row])
            real = target[row] != PAD
            assert difference(logits[row, real], expected[0]) < MODEL
            for name, embedded in alone.items():
                mine = (source if name.startswith("encoder.") and config.family == "encoder-decoder" else target)[row]
                assert difference(batch[name][row, mine != PAD], embedded[0]) < SUM, "positions follow the mask"
    for name, weights in ((name, seen) for name, seen in batch.items() if name.endswith("weights")):
        of_source = config.family == "encoder-decoder" and (name.startswith("encoder.") or "cross" in name)
        blocked = (source if of_source else target) == PAD
        assert (weights.transpose(1, 3)[blocked] == 0).all(), f"{name}: a padded column has weight"


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("empty", ["source", "target", "both"])
@pytest.mark.parametrize(
    "config", [*SHAPES.values(), replace(ENCODER_DECODER, positions="alibi")], ids=[*SHAPES, "alibi"]
)
def test_a_row_of_padding_gives_no_nan_anywhere_and_changes_no_other_row(
    config: TransformerConfig, empty: str, kernel: str
) -> None:
    model, source, target = build(config), ids(2, 5), ids(2, 4, seed=1)
    with torch.no_grad():
        alone = run(model, source[:1], target[:1])
    if empty != "target":
        source[1] = PAD
    if empty != "source":
        target[1] = PAD
    with using(kernel), probes(model) as seen:
        logits = run(model, source, target)
    assert not [name for name, value in seen.items() if value.isnan().any()]
    assert logits.isfinite().all() and difference(logits[:1], alone) < MODEL
    padded_key = (seen[name][1] for name in seen if name.endswith("weights") and seen[name].shape[-1] == 4)
    assert empty == "source" or all((weights[..., -1, :] == 0).all() for weights in padded_key)
    logits.square().mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters()), "a gradient is no number"


@torch.no_grad()
@given(st.integers(0, 2**31), st.integers(2, 9), st.sampled_from(KERNELS), st.data())
@settings(max_examples=40, deadline=None)
def test_logits_ignore_the_future(seed: int, n: int, kernel: str, data: st.DataObject) -> None:
    config = data.draw(st.sampled_from([DECODER, LLAMA_LIKE, ENCODER_DECODER]))
    model, source, target = build(config, seed % 3), ids(1, 5), ids(2, n, seed)
    last = data.draw(st.integers(0, n - 2))
    target[1, : last + 1] = target[0, : last + 1]
    target[1, last + 1 :] = (target[0, last + 1 :] - 2) % (VOCABULARY - 3) + 3  # every later token is another
    with using(kernel):
        logits = run(model, source.expand(2, -1), target)
    assert difference(logits[0, : last + 1], logits[1, : last + 1]) < MODEL
    assert difference(logits[0, last + 1 :], logits[1, last + 1 :]) > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
def test_an_encoder_sees_the_future_and_a_target_every_token_of_its_source(kernel: str) -> None:
    with using(kernel):
        for model, changed in ((build(ENCODER), "target"), (build(ENCODER_DECODER), "source")):
            before = run(model, ids(1, 5), ids(1, 5))
            source, target = ids(1, 5), ids(1, 5)
            (source if changed == "source" else target)[0, -1] = 3 if ids(1, 5)[0, -1] != 3 else 4
            assert (run(model, source, target) - before).abs().amax(-1).min() > 1e-4


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_a_window_blocks_direct_sight_and_layers_reach_as_far_as_they_sum_up_to(
    config: TransformerConfig, kernel: str
) -> None:
    """Two layers of window 2 (itself and one neighbour) carry a token two places, three never."""
    model = build(config, window=2)
    changed = ids(1, 8)
    changed[0, 4] = 3 if changed[0, 4] != 3 else 5
    with using(kernel):
        moved = (run(model, ids(1, 5), changed) - run(model, ids(1, 5), ids(1, 8))).abs().amax(-1)[0]
    reached = [place for place, by in enumerate(moved.tolist()) if by > 1e-6]
    assert reached == ([2, 3, 4, 5, 6] if config.family == "encoder" else [4, 5, 6])


@torch.no_grad()
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_one_token_and_a_batch_of_none(config: TransformerConfig, kernel: str) -> None:
    model = build(config)
    with using(kernel):
        with probes(model, "weights") as seen:
            assert run(model, ids(1, 1), ids(1, 1)).shape == (1, 1, VOCABULARY)
        assert all(weights.shape[2:] == (1, 1) and (weights == 1).all() for weights in seen.values())
        assert run(model, ids(0, 3), ids(0, 4)).shape == (0, 4, VOCABULARY)


def matrices(model: Transformer) -> list[int]:
    """Which of the embeddings (source, target) and the output are one tensor: equal numbers."""
    stacks = [stack.embedding.tokens.table for stack in (model.encoder, model.decoder) if stack is not None]
    return [id(module.weight) for module in (*stacks, model.output)]


@pytest.mark.parametrize("config", [ENCODER_DECODER, ENCODER, DECODER], ids=lambda config: config.family)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_tying_makes_embeddings_and_output_one_matrix_and_not_tying_as_many_as_there_are(
    tied: bool, config: TransformerConfig
) -> None:
    model, other = build(config, tie_embeddings=tied), build(config, tie_embeddings=not tied)
    found, size = matrices(model), VOCABULARY * config.d_model
    assert len(set(found)) == (1 if tied else len(found))
    n, n_other = (sum(p.numel() for p in m.parameters()) for m in (model, other))
    assert abs(n - n_other) == (len(found) - 1) * size


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_target_vocabulary_of_its_own_is_tied_to_the_output_only(tied: bool) -> None:
    model = build(ENCODER_DECODER, target_vocab_size=11, tie_embeddings=tied)
    source, target, output = matrices(model)
    assert source != target and (target == output) == tied
    assert model(ids(1, 4), ids(1, 3).clamp(max=10)).shape == (1, 3, 11)


def test_a_training_step_moves_every_place_of_a_tied_matrix_together() -> None:
    model = build(ENCODER_DECODER).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(ids(2, 4), ids(2, 3)).square().mean().backward()
    optimizer.step()
    assert len(set(matrices(model))) == 1


def test_projections_start_within_xaviers_bounds_biases_at_zero_and_embeddings_at_the_size_of_a_vector() -> None:
    torch.manual_seed(0)
    model = Transformer(replace(ENCODER_DECODER, d_model=64, d_ff=96, vocab_size=500, tie_embeddings=False))
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            bound = (6 / (module.in_features + module.out_features)) ** 0.5
            assert module.weight.abs().max() <= bound, name
            assert module.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05), name  # uniform
            assert module.bias is None or (module.bias == 0).all(), name
        elif isinstance(module, nn.Embedding):
            assert module.weight.std().item() == pytest.approx(64**-0.5, rel=0.05), name


def test_a_tied_output_keeps_the_size_of_the_embedding() -> None:
    torch.manual_seed(0)
    model = Transformer(replace(ENCODER_DECODER, d_model=64, vocab_size=500))
    assert model.output.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)


@torch.no_grad()
@pytest.mark.parametrize("config", [*SHAPES.values(), PRESETS["dates"]], ids=[*SHAPES, "dates"])
def test_logits_of_a_fresh_model_are_of_order_one_and_a_seed_repeats_them(config: TransformerConfig) -> None:
    def fresh(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return run(Transformer(config).eval(), ids(4, 6), ids(4, 8, seed=1))

    logits = fresh(0)
    assert 0.3 < logits.std() < 3
    assert torch.equal(fresh(0), logits) and not torch.allclose(fresh(1), logits)


@pytest.mark.parametrize("kernel", KERNELS)
def test_dropout_draws_anew_while_training_and_not_at_all_in_eval(kernel: str) -> None:
    model, source, target = build(ENCODER_DECODER, dropout=0.3), ids(2, 5), ids(2, 4)
    with using(kernel):
        still = model(source, target)
        assert torch.equal(model(source, target), still)
        model.train()
        torch.manual_seed(1)
        first, second = model(source, target), model(source, target)
        torch.manual_seed(1)
        again = model(source, target)
    assert not torch.allclose(first, second) and not torch.allclose(first, still)
    assert torch.equal(first, again)


@pytest.mark.parametrize("kernel", KERNELS)
def test_without_dropout_training_computes_what_eval_does(kernel: str) -> None:
    model, source, target = build(ENCODER_DECODER, dropout=0.0), ids(2, 5), ids(2, 4)
    with using(kernel):
        still = model(source, target)
        assert difference(model.train()(source, target), still) < MODEL


@pytest.mark.parametrize(
    "config, call, sentence",
    [
        (ENCODER_DECODER, lambda model: model(ids(1, 3)), "needs target_ids"),
        (ENCODER_DECODER, lambda model: model.decode(ids(1, 3)), "needs the encoder's memory"),
        (ENCODER_DECODER, lambda model: model.decode(ids(1, 3), cache=model.new_cache()), "needs the encoder's memory"),
        (DECODER, lambda model: model.encode(ids(1, 3)), "n_encoder_layers = 0"),
        (ENCODER, lambda model: model.decode(ids(1, 3)), "n_decoder_layers = 0"),
    ],
    ids=["no target", "no memory", "no memory, empty cache", "no encoder", "no decoder"],
)
def test_a_call_that_a_family_cannot_answer_is_refused_in_a_sentence(config, call, sentence) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TfvizError, match=sentence) as refused:
        call(build(config))
    assert all(refused.value.in_language(language) for language in LANGUAGES)


def test_a_state_dict_comes_back_into_a_model_of_the_same_config() -> None:
    model, other = build(ENCODER_DECODER), build(ENCODER_DECODER, seed=1)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(ids(1, 4), ids(1, 3)), model(ids(1, 4), ids(1, 3)))


def test_python_m_prints_the_exact_count_of_a_preset() -> None:
    command = [sys.executable, "-m", "tfviz.model", "paper-base"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert printed.startswith("paper-base: 63,045,632 parameters")
    assert "18,944,000" in printed
