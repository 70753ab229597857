"""Speed, kernels: exact words and numbers from hand-made points, badges that turn red, and a small real sweep."""

import re
from dataclasses import replace
from typing import Any

import pytest

from tfviz.config import Settings
from tfviz.inference.measure import Latency
from tfviz.introspection.experiments import kernel_sweep
from tfviz.introspection.experiments.kernel_sweep import Refusal, Sweep
from tfviz.introspection.experiments.kernels import KernelPoint, KernelSetting, naive_bytes
from tfviz.introspection.workbench import Workbench
from tfviz.messages import LANGUAGES, sentences
from tfviz.ui.components.picture import Picture, pack, payload
from tfviz.ui.components.section import Scene
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.speed import kernels
from tfviz.ui.tabs.speed.kernels_checks import badges
from tfviz.ui.tabs.speed.kernels_picture import picture

EN = Translator("en")
BASE = KernelSetting(1024)
SIZES = (64, 128, 256, 512, 1024)
WHERE = {"device": "<cpu>", "threads": 2}


def took(seconds: float) -> Latency:
    return Latency(seconds, seconds * 0.9, seconds * 1.1, 5)


def point(n: int, slow: float = 2.0, **changes: Any) -> KernelPoint:
    """Naive n^2, flash n^2 with a constant that the naive form does not have: they meet at n = 128."""
    setting = replace(BASE, n=n)
    flash = 1e-8 * n * n + 128**2 * 1e-8
    latency = {"naive": took(slow * 1e-8 * n * n), "flash": took(flash)}
    peaks = {"naive": naive_bytes(setting), "flash": n * 3000}
    return replace(KernelPoint(setting, latency, peaks, {"flash": 5e-7}, {"flash": "flash"}), **changes)


POINTS = tuple(point(n) for n in SIZES)
WHOLE = Sweep(BASE, ("naive", "flash"), POINTS, (), 1.0, 2**33)


def drawn(found: Sweep, t: Translator = EN, part: float | None = None, base: KernelSetting = BASE) -> Picture:
    return picture(found, base, WHERE, t, part)


def red(found: Sweep) -> list[str]:
    return [badge.text for badge in badges(found, EN) if badge.ok is False]


def scene(bench: Workbench, stop: Any = lambda: False) -> Scene:
    return Scene(EN, bench, "", None, {}, stop)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Workbench:
    from tfviz.introspection.experiments import kernels as measured

    monkeypatch.setattr(measured, "ROUNDS", (1, 2))
    monkeypatch.setattr(kernels, "PAINTING", 0.0)
    return Workbench(Settings.from_environment({"TFVIZ_DEVICE": "cpu"}))


@pytest.mark.parametrize("language", LANGUAGES)
def test_before_a_measurement_the_formula_and_the_guards_answer_stand_alone(language: str) -> None:
    refused = Refusal("naive", 512, "memory", 2**34, 2**33)
    found = Sweep(BASE, ("naive", "flash"), (), (refused,), limit=2**33)
    shown = drawn(found, Translator(language))
    assert not shown.badges and "<cpu>" in shown.notes[0] and "1,024" in shown.notes[0]
    assert "16.0 GiB" in shown.notes[1] and "8.00 GiB" in shown.notes[1] and "512" in shown.notes[1]
    memory, numbers = shown.panels
    assert list(memory.figure.data[0].y) == pytest.approx([2 * 8 * n * n * 4 / 2**20 for n in SIZES])  # type: ignore[union-attr]
    assert numbers.html.count("<td>") == 1 + 2 * len(SIZES) and "64.0 MiB" in numbers.html
    pack(payload(shown))


def test_measured_points_stand_with_exponents_gains_and_their_crossing() -> None:
    shown = drawn(WHOLE)
    times, memory, gains, claims, numbers = shown.panels
    assert "naive as n^2.00" in times.note and "<cpu>, threads: 2" in times.note
    assert "naive as n^2.00, flash as n^1.00" in memory.note
    slow = times.figure.data[2]  # type: ignore[union-attr]  # after the two fits
    assert list(slow.y) == pytest.approx([2e-5 * n * n for n in SIZES])
    assert times.figure.layout.shapes[0].x0 == pytest.approx(128)  # type: ignore[union-attr]
    ratios = [2 * n * n / (n * n + 128**2) for n in SIZES]
    assert list(gains.figure.data[1].y) == pytest.approx(ratios)  # type: ignore[union-attr]
    assert "0.40x – 1.97x" in claims.html and "n^2.00 → n^1.00" in claims.html and "± 5.00e-7" in claims.html
    assert "<td>21.0 ms (18.9–23.1)</td><td>10.6 ms (9.58–11.7)</td><td>1.97x</td><td>64.0 MiB</td>" in numbers.html
    texts = [badge.text for badge in shown.badges]
    assert not red(WHOLE) and len(texts) == 6
    assert texts[0] == "outputs agree: at most 5.00e-7 apart (1.00e-5 allowed in FP32)"
    assert "PyTorch's kernel: flash" in texts and "flash wins from about n = 128 on" in texts
    assert "at n = 1,024 flash is 1.97x as fast" in texts


def test_badges_turn_red_when_a_figure_is_tampered_with() -> None:
    def with_last(**changes: Any) -> Sweep:
        return replace(WHOLE, points=(*POINTS[:-1], point(1024, **changes)))

    assert "outputs are 0.100 apart" in red(with_last(max_abs={"flash": 0.1}))[0]
    assert "outputs are nan" in red(with_last(max_abs={"flash": float("nan")}))[0]
    assert "gradients are 1.00 apart" in red(with_last(gradient_abs={"flash": 1.0}))[0]
    (off,) = red(with_last(peak_bytes={"naive": int(naive_bytes(BASE) * 1.03), "flash": 1024 * 3000}))
    assert "differs from the formula by 3.0 % at n = 1,024" in off
    square = [replace(one, peak_bytes=one.peak_bytes | {"flash": one.setting.n**2}) for one in (*POINTS, point(2048))]
    assert not red(replace(WHOLE, points=tuple(square[:-1])))  # its blocks still grow
    (grown,) = red(replace(WHOLE, points=tuple(square)))
    assert "n^2.00 flash" in grown


def test_slower_is_called_slower_and_always_faster_so() -> None:
    slow = replace(WHOLE, points=tuple(point(n, 0.5) for n in SIZES))
    texts = [badge.text for badge in badges(slow, EN)]
    assert any("at n = 1,024 flash is slower: it takes 2.03x the time" in text for text in texts)
    assert not any("wins" in text or "every size" in text for text in texts)
    fast = replace(WHOLE, points=tuple(point(n, 20) for n in SIZES))
    assert any("faster at every size measured, from n = 64" in badge.text for badge in badges(fast, EN))


def test_where_naive_drops_out_flash_goes_on() -> None:
    alone = replace(point(2048), latency={"flash": took(0.05)}, peak_bytes={"flash": 2048 * 3000})
    refused = Refusal("naive", 2048, "time", 60.0, 12.0)
    larger = Refusal("naive", 4096, "memory", 2**34, 2**33)
    found = replace(WHOLE, base=replace(BASE, n=2048), points=(*POINTS, alone), refused=(larger, refused))
    shown = drawn(found, base=replace(BASE, n=2048))
    assert len(shown.notes) == 1  # the other follows from it
    assert "take about 60.0 s, and 12.0 s of the sweep's time is left" in shown.notes[0]
    times, memory = shown.panels[:2]
    sizes = [len(one.x) for one in times.figure.data[2:]]  # type: ignore[union-attr]
    assert sizes == [5, 6] and len(memory.figure.data[0].x) == 6  # type: ignore[union-attr]
    assert not red(found) and "–" in shown.panels[-1].html


@pytest.mark.parametrize("why", ["failed", "compiler", "instructions", "triton", "backward", "device"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_reason_why_flex_is_left_out_is_a_sentence(language: str, why: str) -> None:
    refused = Refusal("flex", 64, why, words="<no compiler>")
    shown = drawn(replace(WHOLE, refused=(refused,)), Translator(language))
    assert "flex_attention" in shown.notes[0] and ("<no compiler>" in shown.notes[0]) == (why == "failed")


def test_flex_has_its_own_columns_and_line() -> None:
    points = tuple(
        replace(one, latency=one.latency | {"flex": took(1e-3)}, peak_bytes=one.peak_bytes | {"flex": 5000})
        for one in POINTS
    )
    shown = drawn(replace(WHOLE, kernels=("naive", "flash", "flex"), points=points))
    heads = re.findall(r'scope="col">(.*?)<', shown.panels[-1].html)
    assert "flex time" in heads and "flex peak" in heads and len(set(heads)) == len(heads)
    assert len(shown.panels[0].figure.data) == 6  # type: ignore[union-attr]


def test_while_it_goes_on_there_are_no_badges_and_a_stop_is_told() -> None:
    growing = drawn(replace(WHOLE, points=POINTS[:1], part=0.2), part=0.2)
    assert growing.part == 0.2 and not growing.badges and not growing.notes and len(growing.panels) == 3
    stopped = drawn(replace(WHOLE, points=POINTS[:2], part=0.3))
    assert "measured up to n = 128" in stopped.notes[0] and stopped.badges
    assert "largest n of 1,024" in drawn(WHOLE, base=replace(BASE, n=4096)).notes[0]


def test_a_sweep_is_measured_kept_and_shown_again(bench: Workbench) -> None:
    small = {"largest": 256, "heads": 2, "head_dim": 16}
    (before,) = kernels.draw(scene(bench), **small)  # type: ignore[arg-type]
    assert before.notes and not bench.results.records()
    pictures = list(kernels.draw(scene(bench), **small, measure=True))  # type: ignore[arg-type]
    assert pictures[-1].part is None and not [badge for badge in pictures[-1].badges if badge.ok is False]
    assert {one.setting["n"] for one in bench.results.records("kernels")} == {64, 128, 256}
    (again,) = kernels.draw(scene(bench), **small | {"largest": 128})  # type: ignore[arg-type]
    assert again.panels[-1].html == pictures[-1].panels[-1].html
    (other,) = kernels.draw(scene(bench), **small, causal=False)  # type: ignore[arg-type]
    assert not other.badges


def test_flex_is_greyed_before_the_press_or_its_compiling_announced(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfviz.introspection.experiments import flex

    def last_note(**controls: Any) -> str:
        (shown,) = kernels.draw(scene(bench), flex=True, **controls)
        assert not shown.lacks[kernels.FLEX]
        return str(shown.notes[-1])

    monkeypatch.setattr(flex.shutil, "which", lambda name: "/usr/bin/g++")
    monkeypatch.setattr(flex.torch.cpu, "_is_avx2_supported", lambda: True)
    monkeypatch.setattr(flex, "_took", {})
    assert "has not been done here yet" in last_note()
    flex._took["cpu", "bf16", True] = {64: 17.0, 128: 0.3}
    assert "another one took 17 s here" in last_note()
    assert "compiled already" in last_note(dtype="bf16")
    (shown,) = kernels.draw(scene(bench), backward=True)  # not even chosen
    assert "forward only" in shown.lacks[kernels.FLEX][""]
    monkeypatch.setattr(flex.torch.cpu, "_is_avx2_supported", lambda: False)
    (shown,) = kernels.draw(scene(bench), flex=True)
    assert "AVX2" in shown.lacks[kernels.FLEX][""] and any("AVX2" in note for note in shown.notes)
    assert kernels.controls(EN)["flex"].elem_id == kernels.FLEX and payload(shown)["lacks"] == shown.lacks


def test_a_stopped_sweep_keeps_its_points(bench: Workbench) -> None:
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 4

    small: dict[str, Any] = {"largest": 512, "heads": 2, "head_dim": 16}
    pictures = list(kernels.draw(scene(bench, stop), **small, measure=True))
    assert all(one.part is not None for one in pictures)
    (kept,) = kernels.draw(scene(bench), **small)
    assert "Stopped" in kept.notes[0] and kept.badges


def test_the_sentences_have_the_same_fields_and_all_are_used() -> None:
    def fields(language: str) -> dict[str, set[str]]:
        own = ((key, text) for key, text in sentences(language).items() if key.startswith("speed.kernels"))
        return {key: set(re.findall(r"\{(\w+)[^}]*\}", text)) for key, text in own}

    assert fields("en") == fields("zh")
    section = kernels.SECTION
    assert all(EN(f"{section.key}.try.{one.key}") for one in section.tries) and EN(section.button)
    assert all(callable(one) and one.__doc__ for one in section.code())


def test_the_default_sweep_is_bounded() -> None:
    assert kernel_sweep.BUDGET <= 45 and max(kernels.LARGEST) == kernel_sweep.LONGEST
