"""Speed, path length: exact words and numbers from hand-made arrays, badges that turn red, a sweep that is kept."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tfviz.config import Settings
from tfviz.inference.measure import Latency
from tfviz.introspection.experiments import recurrent, recurrent_sweep
from tfviz.introspection.experiments.recurrent import KINDS, RecurrentSetting, powers, predicted_decay
from tfviz.introspection.experiments.recurrent_sweep import Finding
from tfviz.introspection.workbench import Workbench
from tfviz.messages import LANGUAGES
from tfviz.ui.components.picture import Picture, pack, payload
from tfviz.ui.components.section import Scene
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.speed import recurrent as section

EN, SETTING, LONGEST = Translator("en"), RecurrentSetting(64), 8
WHERE = {"device": "CPU", "threads": 2}
RHO = predicted_decay(SETTING)
RATES = {"rnn": RHO, "gru": 0.6, "lstm": 0.61, "lstm_forget": 0.8, "attention": 1.0}


def took(seconds: float) -> Latency:
    return Latency.of([seconds * 0.9, seconds, seconds * 1.1])


def found(**changes: Any) -> Finding:
    k = np.arange(LONGEST)
    gradients = {kind: np.array([2 * rate**k, 3 * rate**k]) for kind, rate in RATES.items()}
    gradients["first"] = np.ones((2, len(powers(LONGEST))))
    powers_of = {"rnn": (1e-4, 1), "gru": (2e-4, 1), "lstm": (4e-5, 1), "attention": (1e-6, 1.75)}
    of_way = {n: {kind: took(a * n**p) for kind, (a, p) in powers_of.items()} for n in (64, 256, 1024, 2048)}
    accuracy = {(kind, 4): 1.0 for kind in KINDS}
    whole = Finding(SETTING, gradients, {"forward": of_way, "backward": of_way}, accuracy, 1.0)
    return replace(whole, **changes)


def drawn(finding: Finding | None, t: Translator = EN, forget: bool = True, part: float | None = None) -> Picture:
    return section.picture(finding, SETTING, LONGEST, forget, WHERE, t, part)


def failing(picture: Picture) -> list[str]:
    return [badge.text for badge in picture.badges if badge.ok is False]


@pytest.mark.parametrize("language", LANGUAGES)
def test_before_a_measurement_the_formulas_are_shown(language: str) -> None:
    picture = drawn(None, Translator(language))
    gradient, layers, paths = picture.panels
    assert not picture.badges and len(picture.notes) == 1 and "0.455" in gradient.note
    assert gradient.figure is not None and gradient.figure.data[0].line.dash == "dash"
    assert "16,640" in layers.html and "µs" not in layers.html and "16,383" in paths.html
    pack(payload(picture))


@pytest.mark.parametrize("language", LANGUAGES)
def test_everything_that_was_measured_is_drawn(language: str) -> None:
    picture = drawn(found(), Translator(language))
    assert len(picture.panels) == 6 and not failing(picture) and [one.ok for one in picture.badges[:2]] == [True] * 2
    pack(payload(picture))


def test_the_numbers_are_exact() -> None:
    gradient, _, forward, _, layers, _ = drawn(found()).panels
    assert "medians of 2 random starts" in gradient.note and "RNN 0.455 (formula 0.455), GRU 0.600" in gradient.note
    assert "RNN n^1.00, GRU n^1.00, LSTM n^1.00, attention n^1.75" in forward.note
    assert forward.figure is not None and "LSTM faster from n = 137" in forward.figure.layout.annotations[0].text
    row = layers.html.split(">LSTM<")[1].split("</tr>")[0]
    assert "<td>33,280</td><td>× 0.610</td><td>0.0314</td><td>40.0 µs</td><td>2,048</td><td>67 M</td>" in row
    texts = [badge.text for badge in drawn(found()).badges]
    assert "at n = 2,048 attention is 3.04x slower than the RNN (623 ms against 205 ms)" in texts[2]


def test_a_gradient_that_does_not_fall_as_the_formula_says_is_red() -> None:
    gradients = dict(found().gradients)
    gradients["rnn"] = np.array([0.7 ** np.arange(LONGEST)] * 2)
    (red,) = failing(drawn(found(gradients=gradients)))
    assert "falls by 0.700 a step, the formula says 0.455" in red


def test_an_attention_that_is_not_flat_is_red() -> None:
    gradients = dict(found().gradients)
    gradients["attention"] = np.array([[1, 1, 1, 1, 1, 1, 1, 0.1]] * 2)
    (red,) = failing(drawn(found(gradients=gradients)))
    assert "between 0.100 and 1.00" in red


def test_slower_is_called_slower() -> None:
    fast = {n: {kind: took(1e-3 if kind == "attention" else 2e-3) for kind in recurrent.TIMED} for n in (8, 16)}
    texts = [badge.text for badge in drawn(found(times={"forward": fast})).badges]
    assert "attention is 2.00x as fast as the RNN (1.00 ms against 2.00 ms)" in texts[2]
    slow = {n: {kind: took(3e-3 if kind == "attention" else 2e-3) for kind in recurrent.TIMED} for n in (8, 16)}
    texts = [badge.text for badge in drawn(found(times={"forward": slow})).badges]
    assert "attention is 1.50x slower than the LSTM" in texts[3]


def test_without_the_forget_bias_it_is_in_no_figure() -> None:
    gradient, recall, *_, layers, _ = drawn(found(), forget=False).panels
    for panel in (gradient, recall):
        assert panel.figure is not None and not any("forget" in str(one.name) for one in panel.figure.data)
    assert "forget" not in layers.html


def test_while_it_grows_and_when_it_was_stopped() -> None:
    growing = drawn(found(times={}, accuracy={}, part=0.2), part=0.2)
    assert growing.part == 0.2 and not growing.badges and len(growing.panels) == 3
    stopped = drawn(found(times={}, accuracy={}, part=0.2))
    assert "20.0 %" in stopped.notes[0] and len(stopped.badges) == 2


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    for name, value in {"STEPS": 4, "SEEDS": 2}.items():
        monkeypatch.setattr(recurrent_sweep, name, value)
    small = recurrent_sweep.sweep

    def sweep(*args: Any) -> Any:
        return small(*args, seeds=2, lengths=(8, 16, 32), taught=(2,))

    monkeypatch.setattr(recurrent_sweep, "sweep", sweep)
    return Scene(EN, Workbench(Settings.from_environment()), "", None, {})


def test_the_sweep_is_drawn_step_by_step_kept_and_exported(scene: Scene) -> None:
    (before,) = section.draw(scene, 32, "width", 64)
    assert before.notes
    pictures = list(section.draw(scene, 32, "width", 64, measure=True))
    parts = [one.part for one in pictures[:-1]]
    assert parts == sorted(parts) and pictures[-1].part is None and not pictures[-1].notes  # type: ignore[type-var]
    (again,) = section.draw(scene, 32, "width", 64)
    assert [panel.note for panel in again.panels] == [panel.note for panel in pictures[-1].panels]
    assert scene.bench.results.records("recurrent")
    (other,) = section.draw(scene, 32, "parameters", 64)
    assert "Nothing has been measured" in other.notes[0]


def test_what_was_found_before_a_stop_stays(scene: Scene) -> None:
    pictures = list(section.draw(replace(scene, stop=lambda: True), 32, "width", 64, measure=True))
    assert len(pictures) == 1
    (kept,) = section.draw(scene, 32, "width", 64)
    assert "was stopped" in kept.notes[0] and kept.panels[0].figure is not None


def test_the_code_shown_is_code() -> None:
    assert all(isinstance(one, Callable) and one.__doc__ for one in section.SECTION.code())  # type: ignore[arg-type]
