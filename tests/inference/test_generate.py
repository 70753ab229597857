"""Generation: the cache changes the price and nothing else, beams are exact where that can be counted out."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch

from tfviz.errors import TfvizError
from tfviz.inference.generate import Hypothesis, Step, beam_search, generate, log_prob_of
from tfviz.inference.sampling import GREEDY, Sampling, next_probabilities
from tfviz.messages import text
from tfviz.model import Transformer, TransformerConfig
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.model.probes import probes

TINY = TransformerConfig(vocab_size=37, d_model=32, d_ff=48, n_heads=4, n_encoder_layers=2, n_decoder_layers=2)
DECODER = replace(TINY, n_encoder_layers=0, placement="pre", max_seq_len=128)
CONFIGS = {
    "encoder-decoder": TINY,
    "gpt": replace(DECODER, positions="learned", feed_forward="gelu_tanh", attention_bias=True),
    "llama": replace(DECODER, positions="rope", norm="rms_norm", feed_forward="swiglu", n_kv_heads=2),
    "window": replace(DECODER, positions="rope", window=7, n_kv_heads=1),
    "alibi": replace(DECODER, positions="alibi", n_heads=4),
    "no padding id": replace(DECODER, positions="learned", pad_id=None),
    "encoder-decoder rope": replace(TINY, positions="rope", placement="pre", target_vocab_size=29),
}
every_model = pytest.mark.parametrize("name", CONFIGS)


def build(config: TransformerConfig, seed: int = 0, sharpness: float = 8.0) -> Transformer:
    """Random weights; sharper logits, so that the next token is no toss-up."""
    torch.manual_seed(seed)
    model = Transformer(replace(config, tie_embeddings=False)).eval()
    with torch.no_grad():
        model.output.weight.mul_(sharpness)
    return model


def random_ids(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, 29, (batch, length), generator=torch.Generator().manual_seed(seed))


def ids_of(steps: list[Step]) -> list[list[int]]:
    return torch.stack([step.ids for step in steps], dim=1).tolist()


@every_model
def test_cached_tokens_and_logits_equal_uncached_over_64_steps(name: str) -> None:
    model, prompt = build(CONFIGS[name]), random_ids(2, 5)
    cached, uncached = (
        list(generate(model, prompt, max_new_tokens=64, stop_at_end=False, use_cache=use)) for use in (True, False)
    )
    assert len(cached) == 64 and ids_of(cached) == ids_of(uncached)
    apart = max(float((a.logits - b.logits).abs().max()) for a, b in zip(cached, uncached, strict=True))
    assert apart < 1e-4
    assert len({tuple(step.ids.tolist()) for step in cached}) > 1


@every_model
def test_each_steps_logits_are_those_of_one_pass_over_everything(name: str) -> None:
    model, prompt = build(CONFIGS[name]), random_ids(2, 5)
    steps = list(generate(model, prompt, max_new_tokens=12, stop_at_end=False))
    said = torch.tensor(ids_of(steps))[:, :-1]
    with torch.inference_mode():
        if model.encoder is None:
            logits = model(torch.cat([prompt, said], dim=1))[:, prompt.shape[1] - 1 :]
        else:
            logits = model(prompt, torch.cat([torch.full((2, 1), model.config.start_id), said], dim=1))
    assert torch.allclose(torch.stack([step.logits for step in steps], dim=1), logits, atol=1e-4)


@pytest.mark.parametrize("name", ["encoder-decoder", "gpt", "llama", "window", "alibi"])
def test_rows_of_a_padded_batch_equal_single_rows(name: str) -> None:
    model = build(CONFIGS[name])
    lengths, longest = (9, 4, 1), 9
    singles = [random_ids(1, n, seed=n) for n in lengths]
    left = model.encoder is None
    batch = torch.zeros(3, longest, dtype=torch.long)
    for row, single in zip(batch, singles, strict=True):
        row[slice(longest - single.shape[1], None) if left else slice(single.shape[1])] = single[0]
    together = list(generate(model, batch, max_new_tokens=16, stop_at_end=False))
    for row, single in enumerate(singles):
        alone = list(generate(model, single, max_new_tokens=16, stop_at_end=False))
        assert ids_of(together)[row] == ids_of(alone)[0]
        for a, b in zip(together, alone, strict=True):
            assert torch.allclose(a.logits[row], b.logits[0], atol=1e-4)


def test_a_step_shows_the_distribution_before_and_after() -> None:
    sampling = Sampling(temperature=0.8, top_k=9, top_p=0.9)
    for step in generate(build(CONFIGS["gpt"]), random_ids(3, 4), max_new_tokens=8, sampling=sampling, seed=5):
        assert torch.allclose(step.probs, next_probabilities(step.logits, sampling))
        assert torch.allclose(step.probs.sum(-1), torch.ones(3), atol=1e-5)
        going_on = ~step.finished
        assert bool((step.probs.gather(-1, step.ids[:, None])[going_on] > 0).all())


def test_greedy_takes_the_most_probable_token() -> None:
    for step in generate(build(CONFIGS["llama"]), random_ids(2, 4), max_new_tokens=6, stop_at_end=False):
        assert torch.equal(step.ids, step.logits.argmax(-1))


def test_the_first_of_a_thousand_streams_follows_the_shown_probabilities() -> None:
    """One prompt as 2,000 rows: chi-square of the tokens drawn, 7 degrees of freedom, 99.9 % quantile 24.3."""
    model = build(CONFIGS["gpt"], sharpness=2.0)
    prompt, n = random_ids(1, 4).expand(2000, -1), 2000
    step = next(generate(model, prompt, max_new_tokens=1, sampling=Sampling(top_k=8), seed=11))
    expected, drawn = n * step.probs[0], step.ids.bincount(minlength=37)
    there = expected > 0
    assert int(there.sum()) == 8 and not bool(drawn[~there].any())
    assert float(((drawn - expected)[there].square() / expected[there]).sum()) < 24.3


def test_the_same_seed_says_the_same_and_another_something_else() -> None:
    model, prompt = build(CONFIGS["gpt"], sharpness=1.0), random_ids(2, 4)

    def said(seed: int | None, use_cache: bool = True) -> list[list[int]]:
        warm = Sampling(temperature=1.5)
        return ids_of(list(generate(model, prompt, max_new_tokens=20, sampling=warm, seed=seed, use_cache=use_cache)))

    assert said(4) == said(4) == said(4, use_cache=False)
    assert said(4) != said(5) and said(None) != said(None)


def ending(model: Transformer, after: int) -> Transformer:
    """The same model, made to say its end token once `after` tokens are read (`Learned` positions, others zero)."""
    assert model.decoder is not None and model.config.positions == "learned"
    position = model.decoder.embedding.positions.table.weight
    with torch.no_grad():
        position.zero_()
        position[after - 1 :] = 50 * model.output.weight[model.config.end_id]
    return model


@pytest.mark.parametrize(("name", "filler"), [("gpt", 0), ("no padding id", 2)])
def test_rows_that_ended_are_filled_until_all_have(name: str, filler: int) -> None:
    model = ending(build(CONFIGS[name]), after=6)
    if name == "gpt":
        prompt = torch.tensor([[0, 0, 0, 7, 8], [3, 4, 5, 6, 7]])  # the second row is two tokens ahead
        steps = list(generate(model, prompt, max_new_tokens=20))
        first, second = ids_of(steps)
        assert second.index(2) < first.index(2) == len(first) - 1
        assert second[second.index(2) :] == [2] + [filler] * (len(second) - 1 - second.index(2))
        assert [step.finished.tolist() for step in steps][-1] == [True, True]
        assert steps[second.index(2)].finished.tolist() == [False, True]
    else:
        steps = list(generate(model, random_ids(2, 5), max_new_tokens=20))
        assert ids_of(steps)[0][-1] == filler and len(steps) == 2
    assert [step.stopped for step in steps] == [None] * (len(steps) - 1) + ["end"]
    unstopped = list(generate(model, random_ids(2, 5), max_new_tokens=20, stop_at_end=False))
    assert len(unstopped) == 20 and not any(bool(step.finished.any()) for step in unstopped)


def test_a_row_goes_on_as_if_alone_when_its_neighbour_has_ended() -> None:
    model = ending(build(CONFIGS["gpt"]), after=12)
    batch = torch.tensor([[0] * 6 + [9, 8], [3, 4, 5, 6, 7, 8, 9, 10]])
    together, alone = (ids_of(list(generate(model, ids, max_new_tokens=30))) for ids in (batch, batch[:1, 6:]))
    assert together[0] == alone[0] and len(alone[0]) == 11


def test_what_was_learned_is_the_end_of_it_with_a_sentence() -> None:
    model = build(replace(CONFIGS["gpt"], max_seq_len=10))
    steps = list(generate(model, random_ids(1, 6), max_new_tokens=50, stop_at_end=False))
    assert len(steps) == 5 and steps[-1].stopped == "max_positions"  # the fifth token is said, and cannot be read
    full = list(generate(model, random_ids(1, 6), max_new_tokens=5, stop_at_end=False))
    assert full[-1].stopped == "max_new_tokens"
    with pytest.raises(TfvizError, match="11 tokens are more than the 10 positions"):
        generate(model, random_ids(1, 11), max_new_tokens=1)
    assert all(len(found.ids) <= 5 for found in beam_search(model, random_ids(1, 6), n_beams=2, max_new_tokens=50))
    for reason in ("end", "max_new_tokens", "max_positions"):
        assert len({text(f"generation.stopped.{reason}", language, limit=10) for language in ("en", "zh")}) == 2


def test_asking_for_any_number_of_tokens_starts_at_once() -> None:
    for name in ("gpt", "llama"):
        stream = generate(build(CONFIGS[name]), random_ids(1, 4), max_new_tokens=10**12, stop_at_end=False)
        assert next(stream).index == 0
    hypotheses = beam_search(build(CONFIGS["gpt"]), random_ids(1, 4), n_beams=2, max_new_tokens=10**12)
    assert all(len(found.ids) <= 125 for found in hypotheses)


def test_a_source_beyond_what_the_encoder_learned_is_refused() -> None:
    model = build(replace(TINY, positions="learned", max_seq_len=8))
    with pytest.raises(TfvizError, match="9 tokens are more than the 8 positions"):
        generate(model, random_ids(1, 9), max_new_tokens=2)
    assert len(list(generate(model, random_ids(1, 8), max_new_tokens=20, stop_at_end=False))) == 8


def test_steps_come_one_by_one_and_the_stream_can_be_closed() -> None:
    model = build(CONFIGS["gpt"])
    decoded = []
    model.output.register_forward_pre_hook(lambda module, inputs: decoded.append(inputs[0].numel() // TINY.d_model))
    stream = generate(model, random_ids(1, 4), max_new_tokens=9, stop_at_end=False)
    assert isinstance(stream, Iterator) and decoded == []
    assert next(stream).index == 0 and decoded == [4]
    assert next(stream).index == 1 and decoded == [4, 1]
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
    stream.close()  # type: ignore[attr-defined]
    assert list(stream) == [] and decoded == [4, 1] and not torch.is_inference_mode_enabled()


def test_the_stream_leaves_training_modes_alone_between_steps() -> None:
    model, weight = build(CONFIGS["gpt"]), torch.ones(3, requires_grad=True)
    with torch.no_grad():
        for _ in generate(model, random_ids(1, 4), max_new_tokens=2, stop_at_end=False):
            assert not torch.is_inference_mode_enabled() and not torch.is_grad_enabled()
    for _ in generate(model, random_ids(1, 4), max_new_tokens=2, stop_at_end=False):
        weight.sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [2, 2, 2]


def test_the_source_is_encoded_once_with_or_without_a_cache() -> None:
    for use_cache in (True, False):
        model, encoded = build(TINY), []
        model.encoder.register_forward_hook(lambda *_, seen=encoded: seen.append(1))  # type: ignore[union-attr]
        list(generate(model, random_ids(1, 4), max_new_tokens=5, stop_at_end=False, use_cache=use_cache))
        assert encoded == [1]


def test_cache_bytes_grow_by_two_keys_and_values_a_layer() -> None:
    config = CONFIGS["llama"]
    steps = list(generate(build(config), random_ids(1, 4), max_new_tokens=5, stop_at_end=False))
    a_token = 2 * config.n_decoder_layers * config.kv_heads * config.width * 4
    assert [step.cache_bytes for step in steps] == [a_token * n for n in (4, 5, 6, 7, 8)]
    without = generate(build(config), random_ids(1, 4), max_new_tokens=2, use_cache=False)
    assert [step.cache_bytes for step in without] == [0, 0]


def test_kernel_and_probes_of_the_caller_apply_to_each_step() -> None:
    model, prompt = build(TINY), random_ids(1, 4)
    flash = list(generate(model, prompt, max_new_tokens=6, stop_at_end=False))
    with attention_call(AttentionCall(kernel="naive")):
        naive = list(generate(model, prompt, max_new_tokens=6, stop_at_end=False))
    assert ids_of(flash) == ids_of(naive)
    assert torch.allclose(flash[-1].logits, naive[-1].logits, atol=1e-4)
    with probes(model, "weights") as seen:
        list(generate(model, prompt, max_new_tokens=6, stop_at_end=False))
    assert seen["decoder.layers.0.attention.weights"].shape == (1, 4, 1, 6)
    assert seen["decoder.layers.1.cross_attention.weights"].shape == (1, 4, 1, 4)


# Beams


def exhaustive(model: Transformer, prompt: torch.Tensor, steps: int, penalty: float) -> list[Hypothesis]:
    """Every continuation of at most `steps` tokens that ends, and every one of `steps` tokens that does not."""
    end_id, found = model.config.end_id, []
    for length in range(1, steps + 1):
        every = torch.tensor(list(product(range(model.config.target_vocabulary), repeat=length)))
        log_probs = log_prob_of(model, prompt.expand(len(every), -1), every).sum(dim=1).tolist()
        for ids, log_prob in zip(every.tolist(), log_probs, strict=True):
            finished = ids[-1] == end_id
            if end_id not in ids[:-1] and (finished or length == steps):
                found.append(Hypothesis(tuple(ids), log_prob, log_prob / length**penalty, finished))
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


SMALL = {
    "encoder-decoder": replace(TINY, vocab_size=4, pad_id=None, start_id=1, end_id=2),
    "encoder-decoder with padding": replace(TINY, vocab_size=4),
    "decoder": replace(DECODER, vocab_size=4, positions="rope", pad_id=None),
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("penalty", [0.0, 0.7, -0.5])
def test_with_beams_enough_it_is_exhaustive_search(name: str, penalty: float) -> None:
    model, prompt, steps = build(SMALL[name], sharpness=2.0), torch.tensor([[3, 1, 3]]), 4
    every = exhaustive(model, prompt, steps, penalty)
    found = beam_search(model, prompt, n_beams=4**steps, max_new_tokens=steps, length_penalty=penalty)
    assert {hypothesis.ids for hypothesis in found} == {hypothesis.ids for hypothesis in every}
    for ours, theirs in zip(found, every, strict=True):
        assert ours.score == pytest.approx(theirs.score, rel=1e-4, abs=1e-4)
    by_ids = {hypothesis.ids: hypothesis for hypothesis in every}
    for ours in found:
        assert ours.finished == by_ids[ours.ids].finished
        assert ours.log_prob == pytest.approx(by_ids[ours.ids].log_prob, rel=1e-4, abs=1e-4)


@every_model
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_beam_is_greedy(name: str, seed: int) -> None:
    model, prompt = build(CONFIGS[name], seed=seed), random_ids(1, 5)
    (found,) = beam_search(model, prompt, n_beams=1, max_new_tokens=20)
    steps = list(generate(model, prompt, max_new_tokens=20, sampling=GREEDY))
    assert [list(found.ids)] == ids_of(steps)
    assert found.finished == bool(steps[-1].finished[0])


@every_model
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_hypothesis_has_the_log_probability_of_its_tokens(name: str, penalty: float) -> None:
    model, prompt = build(CONFIGS[name], sharpness=3.0), random_ids(1, 5)
    found = beam_search(model, prompt, n_beams=5, max_new_tokens=12, length_penalty=penalty)
    assert len(found) == 5 and len({hypothesis.ids for hypothesis in found}) == 5
    for hypothesis in found:
        log_prob = float(log_prob_of(model, prompt, torch.tensor([hypothesis.ids])).sum())
        assert hypothesis.log_prob == pytest.approx(log_prob, rel=1e-4, abs=1e-4)
        assert hypothesis.score == pytest.approx(hypothesis.log_prob / len(hypothesis.ids) ** penalty)
        assert hypothesis.finished == (model.config.end_id in hypothesis.ids)
        assert model.config.end_id not in hypothesis.ids[:-1]
    scores = [hypothesis.score for hypothesis in found]
    assert scores == sorted(scores, reverse=True)
    assert found == beam_search(model, prompt, n_beams=5, max_new_tokens=12, length_penalty=penalty)


def test_beams_beyond_the_vocabulary_are_filled_as_they_branch() -> None:
    model = build(SMALL["decoder"], sharpness=1.0)
    found = beam_search(model, torch.tensor([[3, 1]]), n_beams=10, max_new_tokens=3)
    assert len(found) == 10


def test_a_padded_source_gives_the_beams_of_the_bare_one() -> None:
    model, source = build(TINY, sharpness=3.0), random_ids(1, 5)
    padded = torch.cat([source, torch.zeros(1, 3, dtype=torch.long)], dim=1)
    bare, same = (beam_search(model, ids, n_beams=4, max_new_tokens=10) for ids in (source, padded))
    assert [a.ids for a in bare] == [b.ids for b in same]
    assert [a.log_prob for a in bare] == pytest.approx([b.log_prob for b in same], rel=1e-4, abs=1e-4)


def test_the_search_is_over_when_no_open_beam_can_win() -> None:
    """The end token is all but certain after six: the few beams that go on lose more than the worst kept one has."""
    model, decoded = ending(build(CONFIGS["gpt"]), after=6), []
    model.decoder.register_forward_hook(lambda *_: decoded.append(1))  # type: ignore[union-attr]
    found = beam_search(model, random_ids(1, 5), n_beams=3, max_new_tokens=60)
    assert all(hypothesis.finished for hypothesis in found) and len(decoded) < 6


def test_equal_tokens_rank_by_id() -> None:
    model = build(SMALL["decoder"], sharpness=0.0)
    found = beam_search(model, torch.tensor([[3]]), n_beams=3, max_new_tokens=2)
    assert [hypothesis.ids for hypothesis in found] == [(2,), (0, 2), (0, 0)]  # what has ended first
    assert next(generate(model, torch.tensor([[3]]), max_new_tokens=1)).ids.tolist() == [0]


def test_log_probabilities_of_a_batch_are_those_of_its_rows() -> None:
    model, source, target = build(TINY), random_ids(3, 5), random_ids(3, 6, seed=2)
    together = log_prob_of(model, source, target)
    assert together.shape == (3, 6)
    for row in range(3):
        assert torch.allclose(
            together[row : row + 1], log_prob_of(model, source[row : row + 1], target[row : row + 1]), atol=1e-4
        )  # noqa: E501


# Refusals

IDS = torch.tensor([[5, 6, 7]])


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"max_new_tokens": 0}, ["max_new_tokens", "0", "1"]),
        ({"max_new_tokens": 2.5}, ["max_new_tokens", "2.5", "1"]),
        ({"seed": -1}, ["seed", "-1", "0"]),
        ({"prompt_ids": torch.tensor([5, 6])}, ["prompt_ids", "[2]", "[batch, length]"]),
        ({"prompt_ids": torch.zeros(1, 0, dtype=torch.long)}, ["prompt_ids", "[1, 0]", "[batch, length]"]),
        ({"prompt_ids": torch.zeros(0, 3, dtype=torch.long)}, ["prompt_ids", "[0, 3]", "[batch, length]"]),
        ({"prompt_ids": torch.ones(1, 3)}, ["prompt_ids", "float32", "[batch, length]"]),
        ({"prompt_ids": torch.tensor([[5, 37]])}, ["prompt_ids", "37", "36"]),
        ({"prompt_ids": torch.tensor([[-1, 5]])}, ["prompt_ids", "-1", "36"]),
        ({"prompt_ids": torch.tensor([[5, 6], [5, 0]])}, ["prompt_ids", "1", "0"]),
    ],
)
def test_what_cannot_be_generated_is_refused_before_any_step(changed: dict, named: list[str]) -> None:
    with pytest.raises(TfvizError) as refused:
        generate(**{"model": build(CONFIGS["gpt"]), "prompt_ids": IDS, "max_new_tokens": 3, **changed})
    for language in ("en", "zh"):
        assert all(part in refused.value.in_language(language) for part in named)
    assert refused.value.in_language("zh") != str(refused.value)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"n_beams": 0}, ["n_beams", "0", "1"]),
        ({"n_beams": 1.5}, ["n_beams", "1.5", "1"]),
        ({"length_penalty": float("nan")}, ["length_penalty", "nan", "10"]),
        ({"prompt_ids": IDS.expand(2, -1)}, ["prompt_ids", "2", "1"]),
        ({"max_new_tokens": 0}, ["max_new_tokens", "0", "1"]),
    ],
)
def test_what_cannot_be_searched_is_refused(changed: dict, named: list[str]) -> None:
    with pytest.raises(TfvizError) as refused:
        beam_search(**{"model": build(TINY), "prompt_ids": IDS, "n_beams": 2, "max_new_tokens": 3, **changed})
    for language in ("en", "zh"):
        assert all(part in refused.value.in_language(language) for part in named)


def test_an_encoder_and_a_model_in_training_mode_do_not_generate() -> None:
    with pytest.raises(TfvizError, match="encoder only"):
        generate(Transformer(replace(TINY, n_decoder_layers=0)).eval(), IDS, max_new_tokens=1)
    with pytest.raises(TfvizError, match="eval"):
        generate(Transformer(TINY), IDS, max_new_tokens=1)
    assert len(list(generate(Transformer(replace(TINY, dropout=0.0)), IDS, max_new_tokens=1))) == 1
