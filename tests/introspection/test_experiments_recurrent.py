"""Path length: gradients against explicit Jacobians, the formula against the measurement, every step of the sweep."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from tfviz.introspection.experiments import recurrent, recurrent_sweep
from tfviz.introspection.experiments.recall import SYMBOLS, Student, accuracy, texts, train
from tfviz.introspection.experiments.recurrent import (
    KINDS,
    Layer,
    RecurrentSetting,
    decay,
    gradient_by_distance,
    gradient_to_first,
    gradients,
    hidden_of,
    parameters_of,
    path_lengths,
    powers,
    predicted_decay,
    relative_quartiles,
    sequential_steps,
    times,
    work,
)
from tfviz.introspection.experiments.recurrent_sweep import Finding, records_of, sweep

SMALL = RecurrentSetting(8)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_the_norm_of_the_jacobian(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "ROWS", 1)
    norms = []  # over directions v: their mean square is the Jacobian's square
    layer, x = recurrent._prepared(kind, SMALL, 5, 0)
    jacobian = torch.autograd.functional.jacobian(lambda one: layer(one)[0, -1], x)  # [h, 1, n, d]
    exact = jacobian[:, 0].square().sum((0, 2)).sqrt().flip(0)[1:].numpy()
    identity = torch.eye(hidden_of(kind, SMALL), dtype=torch.float64)
    for v in identity:
        monkeypatch.setattr(torch, "randn", _fixed(x.detach(), v[None]))
        norms.append(gradient_by_distance(kind, SMALL, 4, 0))
    assert np.sqrt(np.square(norms).sum(0)) == pytest.approx(exact, rel=1e-9)


def _fixed(*tensors: torch.Tensor) -> Any:
    left = list(tensors)
    return lambda *args, **kwargs: left.pop(0).clone()


def test_an_rnns_gradient_falls_as_mean_field_says() -> None:
    for setting in (RecurrentSetting(64), RecurrentSetting(64, "parameters")):
        norms = np.array([gradient_by_distance("rnn", setting, 48, seed) for seed in range(4)])
        found = decay(relative_quartiles(norms)[1])
        assert found is not None and found.per_step == pytest.approx(predicted_decay(setting), rel=0.08)


def test_attention_is_flat_and_its_share_of_the_first_token_falls_as_one_over_n() -> None:
    norms = np.array([gradient_by_distance("attention", RecurrentSetting(32), 64, seed) for seed in range(5)])
    middle = relative_quartiles(norms)[1]
    assert 0.5 < middle.min() and middle.max() < 2
    first = np.mean([gradient_to_first("attention", RecurrentSetting(32), (8, 64), seed) for seed in range(5)], axis=0)
    assert first[0] / first[1] == pytest.approx(65 / 9, rel=0.35)


def test_an_open_forget_gate_keeps_more() -> None:
    closed, opened = (gradient_by_distance(kind, RecurrentSetting(32), 32)[-1] for kind in ("lstm", "lstm_forget"))
    assert opened > 100 * closed


def test_a_layer_is_the_same_for_the_same_seed_and_leaves_the_callers_numbers() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    ours, again = Layer("gru", SMALL, 1), Layer("gru", SMALL, 1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), again.parameters(), strict=True))


def test_attention_does_not_look_ahead() -> None:
    x = torch.randn(1, 6, 8)
    later = torch.cat([x[:, :4], torch.randn(1, 2, 8)], dim=1)
    layer = Layer("attention", SMALL, 0)
    assert torch.allclose(layer(x)[:, :4], layer(later)[:, :4], atol=1e-6)


@pytest.mark.parametrize("width", [32, 64, 128])
def test_with_equal_parameters_they_are_within_two_percent(width: int) -> None:
    counts = {kind: parameters_of(kind, RecurrentSetting(width, "parameters")) for kind in KINDS}
    assert all(abs(n / counts["attention"] - 1) < 0.04 for n in counts.values()), counts
    same = {kind: parameters_of(kind, RecurrentSetting(width)) for kind in KINDS}
    pairs = 2 * width**2 + 2 * width
    assert (same["rnn"], same["gru"], same["lstm"], same["attention"]) == (pairs, 3 * pairs, 4 * pairs, 2 * pairs)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="transformer"):
        Layer("transformer", SMALL, 0)
    with pytest.raises(ValueError, match="depth"):
        hidden_of("rnn", RecurrentSetting(8, "depth"))


def test_paths_and_work_are_those_of_the_table() -> None:
    assert dict(path_lengths(16_384)) == {"attention": 1, "recurrent": 16_383, "dilated": 9, "convolution": 8_192}
    assert dict(path_lengths(9)) == {"attention": 1, "recurrent": 8, "dilated": 2, "convolution": 4}
    assert (sequential_steps("attention", 9), sequential_steps("gru", 9)) == (1, 9)
    assert work("lstm", SMALL, 10) == 10 * 4 * 8 * 16 and work("attention", SMALL, 10) == 10 * 4 * 64 + 10 * 11 * 8
    assert powers(100) == (1, 2, 4, 8, 16, 32, 64, 100) and powers(64)[-2:] == (32, 64)


def test_a_decay_needs_three_distances_and_no_zero() -> None:
    assert decay(np.array([1.0, 0.5])) is None and decay(np.array([1.0, 0.5, 0.2, 0.1, 0.0, 0.0])) is None
    found = decay(0.5 ** np.arange(8.0))
    assert found is not None and found.per_step == pytest.approx(0.5) and found.start == pytest.approx(2.0)


def test_the_threads_stay_as_they_were() -> None:
    before = torch.get_num_threads()
    gradients(SMALL, 4, 0)
    assert torch.get_num_threads() == before


def test_times_are_of_every_kind_in_turn() -> None:
    for backward in (False, True):
        took = times(16, SMALL, backward, seconds=0.01)
        assert set(took) == {"rnn", "gru", "lstm", "attention"}
        assert all(one.median > 0 and one.runs >= 1 for one in took.values())


# ---- learning


def test_the_texts_hold_the_answer_in_the_first_place_only() -> None:
    ids = texts(5, 64, 0)
    assert ids.shape == (64, 6) and int(ids[:, 0].max()) < SYMBOLS <= int(ids[:, 1:].min())
    assert torch.equal(ids, texts(5, 64, 0)) and not torch.equal(ids, texts(5, 64, 1))


def test_attention_learns_it_and_an_rnn_does_not_reach_back() -> None:
    near, far = Student("attention", RecurrentSetting(32), 16), Student("rnn", RecurrentSetting(32), 16)
    assert accuracy(train(near, 120)) > 0.95 and accuracy(train(far, 120)) < 0.5
    assert near.steps == 120


# ---- the sweep


def run(stop: Any = lambda: False, **sizes: Any) -> list[Finding]:
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(recurrent_sweep, "STEPS", 20)
    small = {"seeds": 2, "lengths": (8, 16, 32), "taught": (2,), **sizes}
    try:
        return list(sweep(SMALL, 8, "cpu", lambda job, *args: job(*args), stop, **small))
    finally:
        monkeypatch.undo()


def test_the_sweep_grows_by_steps_to_its_end() -> None:
    found = run()
    parts = [one.part for one in found]
    assert parts == sorted(parts) and parts[-1] == 1.0 and len(found) == 2 + 2 * 3 + len(KINDS)
    last = found[-1]
    assert last.seeds == 2 and last.lengths("backward") == [8, 16, 32] and len(last.accuracy) == len(KINDS)
    assert set(last.exponents("forward")) == {"rnn", "gru", "lstm", "attention"}


def test_a_stop_is_heard_after_a_step() -> None:
    assert len(run(stop=lambda: True)) == 1


def test_a_lesson_that_is_stopped_says_nothing() -> None:
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 2 + 6  # all seeds and lengths

    assert not run(stop)[-1].accuracy


def test_what_was_found_becomes_records_that_can_leave() -> None:
    from tfviz.inference.records import Machine
    from tfviz.introspection.export import from_json, to_json

    rows = records_of(run()[-1])
    machine = Machine("a", "cpu", 1, "b", "c", "d", "e")
    assert from_json(to_json(machine, rows)) == (machine, rows)
    quantities = [one.quantity for one in rows]
    assert quantities.count("relative_gradient") == len(KINDS) * 4 and quantities.count("latency") == 2 * 3 * 4
    assert quantities.count("accuracy") == len(KINDS) and quantities.count("decay_per_step") == len(KINDS)
    assert len({(one.quantity, tuple(sorted(one.setting.items()))) for one in rows}) == len(rows)
    assert all(math.isfinite(one.value) for one in rows)
