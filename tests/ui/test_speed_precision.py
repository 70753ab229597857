"""The precision section: exact figures from hand-made points, reasons that are told, badges that turn red."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.conftest import Loaded
from tests.introspection.test_precision_trial import getter
from tests.ui.test_cache_steps import failing, scene, traced
from tfviz.config import Settings
from tfviz.errors import UnsupportedHere
from tfviz.inference.measure import Latency
from tfviz.introspection import precision_trial
from tfviz.introspection.precision_point import PrecisionPoint, Trial
from tfviz.introspection.workbench import Workbench
from tfviz.messages import LANGUAGES
from tfviz.ui.components.picture import Picture, pack, payload
from tfviz.ui.components.speed_strip import PRECISIONS
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.speed import precision
from tfviz.ui.tabs.speed.precision import About, badges, picture, prose

EN = Translator("en")
MIB = 2**20
PLACE = {"kind": "self", "layer": 0, "head": 1}
ABOUT = About("m", "<tiny>", "decoder", "CPU", 2, "int4", PLACE)


def took(seconds: float) -> Latency:
    return Latency(seconds, 0.8 * seconds, 1.25 * seconds, 3)


def point(name: str = "int4", **changes: Any) -> PrecisionPoint:
    made = PrecisionPoint(
        name,
        weight_bytes=16 * MIB,
        peak_bytes=2 * MIB,
        prefill=took(0.2),
        decode=took(0.01),
        prefill_beside=took(0.1),
        decode_beside=took(0.03),
        perplexity=12.5,
        kl=0.004,
        top1=0.95,
        weight_error=0.07,
        maps={"self": np.array([[0.01, 0.03]], np.float32)},
        read=100,
    )
    return replace(made, **changes)


BASE = point(
    "fp32",
    weight_bytes=100 * MIB,
    prefill=took(0.1),
    decode=took(0.03),
    kl=0.0,
    top1=1.0,
    perplexity=12.0,
    weight_error=0.0,
    maps={"self": np.zeros((1, 2), np.float32)},
)


def found(*points: PrecisionPoint, **changes: Any) -> Trial:
    return Trial({one.precision: one for one in (BASE, *points)}, prefill_tokens=128, part=1.0, **changes)


def cells(html: str, name: str) -> list[str]:
    row = html.split(f'<th scope="row">{name}</th>')[1].split("</tr>")[0]
    return [cell.split("<")[0] for cell in row.split("<td>")[1:]]


@pytest.mark.parametrize("language", LANGUAGES)
def test_before_a_measurement_the_claims_and_the_reasons_are_shown(language: str) -> None:
    lacking = replace(ABOUT, lacks={"int4": "<none> here"})
    shown = picture(None, lacking, Translator(language))
    assert not shown.badges and "<tiny>" in shown.notes[0]
    claims, reasons = shown.panels
    assert cells(claims.html, "INT4") == ["\u221287.5 %", "3.00x"] and "&lt;none&gt; here" in reasons.html
    pack(payload(shown))


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_sentence_is_there_in_every_state(language: str) -> None:
    t = Translator(language)
    for part in (None, 0.5):
        for trial in (found(), found(point()), found(point(read=0, perplexity=None, kl=None, top1=None, maps={}))):
            pack(payload(picture(trial, ABOUT, t, part)))
    by_cosine = point(decode=None, decode_beside=None, perplexity=None, kl=None, top1=None, cosine=0.99)
    base = replace(by_cosine, precision="fp32", cosine=1.0, maps=BASE.maps, weight_error=0.0)
    pack(payload(picture(Trial({"fp32": base, "int4": by_cosine}, part=1.0), ABOUT, t)))


def test_the_figures_are_exact() -> None:
    shares, speed, loss, heads, costs, losses, _ = picture(found(point()), ABOUT, EN).panels
    assert list(shares.figure.data[0].y) == [100, 16]  # type: ignore[union-attr]
    prefill, decode = speed.figure.data[:2]  # type: ignore[union-attr]
    assert list(prefill.y) == [0.5] and list(decode.y) == [3.0]
    assert np.allclose(decode.error_y.array, 0.75) and np.allclose(decode.error_y.arrayminus, 0.6)  # 3 / 0.8, 3 / 1.25
    assert list(loss.figure.data[0].y) == [np.float32(0.004)] and loss.figure.data[0].text == ("95.0 %",)  # type: ignore[union-attr]
    assert np.allclose(heads.figure.data[0].z, [[1, 3]]) and "3.00 % in layer 0, head 1" in heads.note  # type: ignore[union-attr]
    assert heads.select == {"x": "head", "y": "layer"}
    expected = ["16.0 MiB", "16.0 %", "200 ms", "0.50x", "10.0 ms", "3.00x", "100", "2.00 MiB"]
    assert cells(costs.html, "INT4") == expected
    assert cells(losses.html, "INT4") == ["12.50", "0.00400", "95.0 %", "2.00 %", "7.00 %"]
    assert cells(costs.html, "BF16") == ["…"] * 8


def test_what_is_missing_is_greyed_with_its_reason() -> None:
    failed = {"int8": UnsupportedHere("speed.precision.failed", what="<boom>")}
    html = picture(found(failed=failed), replace(ABOUT, lacks={"bf16": "no BF16 here"}), EN).panels[-1].html
    assert html.count("tv-precision-lacks") == 2 and "&lt;boom&gt;" in html and "no BF16 here" in html


def test_every_badge_turns_red_when_its_array_is_tampered_with() -> None:
    good = badges(found(point()).points, EN)
    assert [badge.ok for badge in good] == [True, True, None, None]
    assert "INT4, 3.00x" in good[2].text and "INT4 prefill 0.50x" in good[3].text
    for bad in (
        {"kl": 0.1},
        {"top1": 0.9},
        {"maps": {"self": np.array([[0.0, 0.1]], np.float32)}},
    ):
        assert "FP32 read again differs" in failing(badges({"fp32": replace(BASE, **bad)}, EN))[0]
    for wrong in ({"kl": -1.0}, {"top1": 1.5}, {"perplexity": 0.5}, {"perplexity": np.inf}, {"cosine": 1.2}):
        assert failing(badges(found(point(**wrong)).points, EN)) == ["Not possible: the figures of INT4"]
    moved = {"self": np.array([[0.0, 1.2]], np.float32)}
    assert len(failing(badges(found(point(maps=moved)).points, EN))) == 1


def test_a_grid_of_four_bits_is_told_and_another_model_offered() -> None:
    panel = picture(found(point(weight_error=0.002)), ABOUT, EN).panels[-1]
    assert (
        "Not on &lt;tiny&gt;" in panel.html
        and "?model=minilm-l6&amp;tab=speed&amp;section=speed.precision" in panel.html
    )
    assert "Yes, for" in picture(found(point()), ABOUT, EN).panels[-1].html


def test_another_choice_shows_its_own_heads_or_says_that_it_has_none() -> None:
    shown = picture(found(point()), replace(ABOUT, chosen="bf16"), EN)
    assert "BF16 was not measured yet" in shown.panels[3].html


def test_the_prose_is_long_enough_to_judge_by() -> None:
    for kind in ("evaluation", "calibration"):
        assert len(prose(kind)) == 5 and all(len(text.split()) > 60 for text in prose(kind))


@pytest.fixture
def workbench(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    """A workbench whose one model is the tiny llama, in every precision."""
    bench, get = Workbench(Settings.from_environment()), getter(loaded("llama"))
    monkeypatch.setattr(bench.resident, "get", lambda model, precision, progress=None: get(precision))
    return bench


def pictures(drawn: Iterator[Picture]) -> list[Picture]:
    return list(drawn)


def test_a_measurement_is_kept_stopped_and_exported(
    workbench: Workbench, loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ROUNDS": 1, "STEPS": 1, "SHORT": 0.0, "PREFILL": 8, "TEXTS": 1, "TEXT_TOKENS": 12}.items():
        monkeypatch.setattr(precision_trial, name, value)
    trace_id, trace = traced(workbench, loaded)
    here = scene(workbench, trace_id, trace)
    assert "Not measured yet" in pictures(precision.draw(here))[-1].notes[0]
    steps = pictures(precision.draw(here, measure=True))
    assert [one.part is None for one in steps] == [False] * (len(steps) - 1) + [True]
    assert not failing(steps[-1].badges) and len(steps[-1].panels) == 7
    assert len(pictures(precision.draw(here))[-1].panels) == 7  # kept
    measured = {one.setting["precision"] for one in workbench.results.records("precision")}
    assert measured == set(PRECISIONS)
    workbench.results.clear()
    stopped = replace(here, stop=lambda: bool(workbench.results.records()))
    pictures(precision.draw(stopped, measure=True))
    assert {one.setting["precision"] for one in workbench.results.records("precision")} == {"fp32"}
