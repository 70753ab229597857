"""Speed, roofline: exact words and numbers from hand-made times, and badges that turn red."""

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import Loaded
from tests.ui.test_cache_steps import failing, scene, traced
from tests.ui.test_cache_steps import workbench as workbench
from tfviz.inference.measure import Latency
from tfviz.inference.roofline import PASSED, READ, Operation, Probe, Roofs, Route, peak_probe
from tfviz.introspection.roofline_parts import Counted, Phase, Timed
from tfviz.introspection.roofline_run import Found
from tfviz.introspection.workbench import Workbench
from tfviz.messages import LANGUAGES, sentences
from tfviz.ui.components.picture import Picture, pack, payload
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.speed import roofline
from tfviz.ui.tabs.speed.roofline_picture import Where, picture, signed

EN = Translator("en")
WHERE = Where("<tiny>", "FP32", "CPU", 2, 128)
VIEW = Operation("view", Route(), 1, 0, 0, 1000, 2000)  # a call and nothing else: easy to predict


def took(seconds: float) -> Latency:
    return Latency(1.1 * seconds, seconds, 1.2 * seconds, 9)


def phase(name: str, n: int) -> Phase:
    places = (("self", "projections"), ("self", "feed_forward"), ("self", "other"))
    return Phase(name, n, places, (VIEW, VIEW, replace(VIEW, flops=7)))


COUNTED = Counted("tiny", "<tiny>", "fp32", (phase("prefill", 128), phase("decode", 129)), 4000, 2000)
ROOFS = Roofs(
    "cpu",
    2,
    {Probe("view", Route()): took(0.001)}
    | {Probe("view", Route(), passed=n, again=True): took(0.001) for n in PASSED[:-1]}
    | {Probe("read", inner=n): took(n / 1e10) for n in READ}
    | {peak_probe("fp32"): took(0.01)},
)
TIMES = {"projections": 0.001, "feed_forward": 0.00125, "other": 0.0008}  # predicted 1 ms each: 0, -20, +25 %


def found(**changes: float) -> Found:
    times = TIMES | changes
    parts = {part.key: took(times[part.name]) for part in COUNTED.parts}
    return Found(COUNTED, ROOFS, Timed(parts, {"prefill": took(0.003), "decode": took(0.0031)}, 1e-6), 1.0)


def drawn(one: Found | None, t: Translator = EN, part: float | None = None, where: Where = WHERE) -> Picture:
    return picture(COUNTED, one, None if one is None else one.roofs, where, t, part)


@pytest.mark.parametrize("language", LANGUAGES)
def test_before_a_measurement_work_and_bytes_are_shown(language: str) -> None:
    before = drawn(None, Translator(language))
    assert not before.badges and "<tiny>" in before.notes[0] and len(before.panels) == 2
    assert "–" not in before.panels[1].html and before.panels[1].html.count('scope="col"') == 3
    pack(payload(before))


@pytest.mark.parametrize("language", LANGUAGES)
def test_times_bring_the_roof_the_comparison_and_the_limits(language: str) -> None:
    shown = drawn(found(), Translator(language))
    assert len(shown.panels) == 4 and not shown.notes and not failing(shown.badges) and len(shown.badges) == 6
    assert len(pack(payload(shown))) < 200_000


def test_the_numbers_of_a_part_are_exact() -> None:
    rows = drawn(found()).panels[2].html.split("<tr>")
    ffn = next(row for row in rows if "Prefill: FFN" in row)
    cells = re.findall("<td>(.*?)</td>", ffn)
    assert cells == [
        "1.00 KFLOP", "1.95 KiB", "0.500", "1.00 ms", "1.25 ms (1.38–1.50)", "\u221220.0 %", "calls"
    ]  # fmt: skip
    assert "+25.0 %" in next(row for row in rows if "Decode: the rest" in row)


def test_the_median_error_is_that_of_the_times_shown() -> None:
    texts = [badge.text for badge in drawn(found()).badges]
    assert "median error of the prediction 20.0 % over 6 parts" in texts[0]
    assert "Prefill: the parts sum to 102 % of the whole pass (3.00 ms)" in texts[1]
    assert "whole pass predicted 3.00 ms, measured 3.10 ms (\u22123.23 %)" in texts[4]


def test_times_that_are_tampered_with_turn_the_badges_red() -> None:
    slow = failing(drawn(found(feed_forward=0.0025, other=0.002)).badges)
    assert "50.0 % over 6 parts: above 25 %" in slow[0] and len(slow) == 3 and "183 %" in slow[1]


def test_nothing_is_red_because_the_machine_was_busy() -> None:
    busy = drawn(replace(found(feed_forward=0.0025, other=0.002), moved={"bandwidth": 0.1, "throughput": 0.4}))
    texts = [badge.text for badge in busy.badges]
    assert not failing(busy.badges) and "50.0 % over 6 parts: on a busy machine" in texts[0]
    assert "bandwidth moved by 10.0 %, matrix throughput by 40.0 %" in texts[1] and "was busy" in texts[2]
    steady = replace(found(), moved={"bandwidth": 0.25, "throughput": 0.0})
    assert len(drawn(steady).badges) == 6 and len(drawn(replace(steady, held_up=0.4)).badges) == 7


def test_parts_that_sum_to_less_leave_the_rest_to_python() -> None:
    less = drawn(found(projections=0.0002, feed_forward=0.0002)).badges
    assert less[1].ok is None and "the rest is Python" in less[1].text
    waited = drawn(replace(found(feed_forward=0.0025), roofs=replace(ROOFS, device="cuda"))).badges
    assert waited[1].ok is None and "waited for" in waited[1].text


def test_counts_that_differ_from_the_formula_are_red() -> None:
    counted = replace(COUNTED, formula=2001)
    (red,) = failing(picture(counted, replace(found(), counted=counted), ROOFS, WHERE, EN).badges)
    assert "2,000 FLOPs counted from the operators, the formula says 2,001" in red


def test_a_limit_has_its_spread() -> None:
    html = drawn(found()).panels[3].html
    assert "reading, working set 256 MiB" in html and "10.0 GB/s</td><td>8.33 GB/s – 9.09 GB/s" in html
    assert "FP32 product" in html and "107 GFLOP/s" in html and "INT8 product" not in html


def test_what_the_model_has_no_positions_for_is_said() -> None:
    assert "n = 128 here, not for 512" in drawn(None, where=replace(WHERE, n=512)).notes[-1]


def test_while_probes_run_there_are_no_badges() -> None:
    growing = drawn(replace(found(), timed=None), part=0.2)
    assert growing.part == 0.2 and not growing.badges and "random operands" in growing.notes[0]
    assert drawn(found(), part=0.5).badges == []


def test_signs_are_written_out() -> None:
    assert signed(0.123) == "+12.3 %" and signed(-0.5) == "\u221250.0 %"


def test_a_measurement_is_kept_and_shown_again(workbench: Workbench, loaded: Loaded, monkeypatch: Any) -> None:
    def run(model: Any, prompt: Any, counted: Counted) -> Any:
        parts = {part.key: took(0.001) for part in counted.parts}
        yield Found(counted, ROOFS_OF(counted), None, 0.3)
        whole = {one.name: took(0.001 * len(one.parts)) for one in counted.phases}
        yield Found(counted, ROOFS_OF(counted), Timed(parts, whole, 1e-6), 1.0)

    monkeypatch.setattr("tfviz.introspection.roofline_run.run", run)
    trace_id, trace = traced(workbench, loaded)
    view = scene(workbench, trace_id, trace)
    counting, before = roofline.draw(view, 16)
    assert "being counted" in counting.notes[-1] and not counting.panels and len(before.panels) == 2
    growing, last = roofline.draw(view, 16, measure=True)
    assert growing.part == 0.3 and last.part is None and last.badges
    (again,) = roofline.draw(view, 16)
    assert [one.text for one in again.badges] == [one.text for one in last.badges]
    assert workbench.results.records("roofline")
    counting, other = roofline.draw(view, 32)
    assert len(counting.panels) == 1 and not other.badges and len(other.panels) == 3  # the limits are the machine's


def ROOFS_OF(counted: Counted) -> Roofs:
    from tfviz.inference.roofline import machine_probes, probes

    wanted = [*machine_probes(), *probes(one for part in counted.parts for one in part.operations)]
    return Roofs("cpu", 2, {probe: took(1e-5) for probe in wanted})


def test_the_sentences_have_the_same_fields() -> None:
    def fields(language: str) -> dict[str, set[str]]:
        own = {key: text for key, text in sentences(language).items() if key.startswith("speed.roofline.")}
        return {key: set(re.findall(r"{(\w+)}", text)) for key, text in own.items()}

    assert fields("en") == fields("zh")


def test_the_code_shown_is_code() -> None:
    assert all(one.__doc__ for one in roofline.SECTION.code())
