"""Speed, claims: each rule on both sides of its limit, from made-up numbers; the table says what the rules found."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tfviz.config import Settings
from tfviz.inference.contention import QUIET
from tfviz.inference.device import DeviceGate
from tfviz.inference.measure import Latency
from tfviz.introspection.precision_point import PrecisionPoint, Trial
from tfviz.introspection.results import Results
from tfviz.messages import LANGUAGES
from tfviz.ui.components.picture import payload
from tfviz.ui.components.section import Scene
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.speed import SECTIONS, claims, claims_bench, claims_list, claims_page, claims_verdict
from tfviz.ui.tabs.speed import claims_rules as rules
from tfviz.ui.tabs.speed import claims_timed as timed
from tfviz.ui.tabs.speed.claims_bench import Evidence
from tfviz.ui.tabs.speed.claims_timed import AtLength, StepAt
from tfviz.ui.tabs.speed.claims_verdict import Figure, Judgement

EN = Translator("en")
LABELS = {"fp32": "FP32", "fp16": "FP16", "int8": "INT8", "int8_weights": "INT8 w", "int4": "INT4"}
N = (512, 1024, 2048)


def took(median: float, spread: float = 0.0) -> Latency:
    return Latency(median, (1 - spread) * median, (1 + spread) * median, 5)


def lengths(
    gains: tuple[float, ...], power: float = 2, flash_bytes: float = 1, off: float | None = 1e-6, spread: float = 0.0
) -> list[AtLength]:
    naive = [(n / 512) ** power for n in N]
    return [
        AtLength(n, took(one, spread), took(one / gain, spread), 8 * n**2, int(64 * n**flash_bytes), off)
        for n, one, gain in zip(N, naive, gains, strict=True)
    ]


def said(judged: Judgement | None) -> tuple[str, str]:
    assert judged is not None
    return judged.verdict, judged.why


# ---- kernels


@pytest.mark.parametrize(
    ("gains", "outcome"),
    [
        ((2.0, 3.0, 3.9), ("holds", "full")),
        ((2.0, 3.0, 6.0), ("holds", "beyond")),
        ((1.99, 3.0, 6.0), ("part", "some")),
        ((1.2, 1.5, 1.9), ("fails", "none")),
        ((0.9, 1.5, 1.9), ("fails", "slower")),
    ],
)
def test_twice_as_fast_at_every_length_holds(gains: tuple[float, ...], outcome: tuple[str, str]) -> None:
    judged = timed.flash_speed(lengths(gains))
    assert said(judged) == outcome
    assert judged.figures["least"].value == pytest.approx(min(gains)) and judged.words["last"] == "2,048"


def test_the_spread_of_a_gain_is_what_the_quartiles_allow() -> None:
    assert claims_verdict.gain(took(2.0, 0.1), took(1.0, 0.1)).text == "2.00x (1.64–2.44)"  # 1.8 / 1.1 and 2.2 / 0.9
    assert Figure(0.12, "s", 0.119, 0.1213).text == "120 ms (119–121)"


@pytest.mark.parametrize(
    ("power", "outcome"),
    [(2.0, "full"), (2.19, "full"), (2.3, "above"), (1.7, "below"), (1.2, "none"), (3.0, "none")],
)
def test_the_exponent_of_time_decides(power: float, outcome: str) -> None:
    judged = timed.square_time(lengths((2, 2, 2), power=power))
    assert judged.why == outcome and judged.figures["naive"].value == pytest.approx(power)


@pytest.mark.parametrize(
    ("power", "spread", "outcome"),
    [
        (2.0, 0.1, ("holds", "full")),  # the range is power +- 2 artanh(spread) / ln 4 = 0.145
        (2.0, 0.2, ("noisy", "power")),
        (1.4, 0.2, ("noisy", "power")),
        (1.2, 0.2, ("fails", "none")),
        (2.5, 0.1, ("part", "above")),
    ],
)
def test_a_verdict_is_given_only_where_the_spread_allows_no_other(
    power: float, spread: float, outcome: tuple[str, str]
) -> None:
    judged = timed.square_time(lengths((2, 2, 2), power=power, spread=spread))
    assert said(judged) == outcome
    off = np.log((1 + spread) / (1 - spread)) / np.log(4)
    assert judged.figures["naive"].ends == pytest.approx((power - off, power + off))


def test_gains_and_shares_across_a_limit_are_too_noisy_to_tell() -> None:
    assert said(timed.flash_speed(lengths((3, 3, 3), spread=0.1))) == ("holds", "full")  # 2.45 to 3.67
    assert said(timed.flash_speed(lengths((3, 2.1, 3), spread=0.1))) == ("noisy", "range")
    assert said(timed.flash_speed(lengths((1.2, 1.5, 3), spread=0.1))) == ("part", "some")
    assert timed.bottleneck(took(0.45, 0.02), took(1.0, 0.02), 2048).verdict == "holds"
    judged = timed.bottleneck(took(0.45, 0.1), took(1.0, 0.1), 2048)
    assert said(judged) == ("noisy", "range") and judged.words["low"] == "36.8 %" and judged.words["high"] == "55.0 %"
    passes = {kind: took(2.0, 0.1) for kind in ("rnn", "gru", "lstm")}
    assert timed.parallel({**passes, "attention": took(1.0, 0.1)}, 1024).verdict == "holds"
    assert timed.parallel({**passes, "attention": took(1.9, 0.1)}, 1024).verdict == "noisy"
    once = {kind: replace(one, runs=2) for kind, one in passes.items()}
    judged = timed.parallel({**once, "attention": took(1.0)}, 1024)
    assert said(judged) == ("noisy", "few") and judged.words["runs"] == "2"


def test_memory_is_square_in_the_naive_form_only() -> None:
    assert said(timed.square_memory(lengths((2, 2, 2)))) == ("part", "some")
    assert said(timed.square_memory(lengths((2, 2, 2), flash_bytes=2))) == ("holds", "full")
    assert said(timed.flash_memory(lengths((2, 2, 2)))) == ("holds", "full")
    assert said(timed.flash_memory(lengths((2, 2, 2), flash_bytes=1.25)))[0] == "part"
    more = [replace(one, flash_bytes=one.naive_bytes) for one in lengths((2, 2, 2))]
    assert said(timed.flash_memory(more)) == ("fails", "none")


@pytest.mark.parametrize(("off", "verdict"), [(0.0, "holds"), (1e-5, "part"), (1.1e-5, "fails")])
def test_only_the_same_bits_are_exactly_equal(off: float, verdict: str) -> None:
    assert said(timed.flash_equal(lengths((2, 2, 2), off=off)))[0] == verdict
    assert timed.flash_equal(lengths((2, 2, 2), off=None)) is None


@pytest.mark.parametrize(("share", "verdict"), [(0.5, "holds"), (0.51, "part"), (0.81, "fails")])
def test_products_that_take_half_of_the_time_are_no_bottleneck(share: float, verdict: str) -> None:
    assert timed.bottleneck(took(share), took(1.0), 2048).verdict == verdict


# ---- KV cache


def steps(cached: float, uncached: float, at: tuple[int, ...] = N) -> list[StepAt]:
    return [StepAt(n, took((n / 512) ** cached), took(10 * (n / 512) ** uncached)) for n in at]


def test_attention_alone_and_whole_steps_are_told_apart() -> None:
    assert said(timed.kv_cache(steps(1, 2))) == ("holds", "full")
    assert said(timed.kv_cache(steps(1, 2), steps(1.1, 1.9))) == ("holds", "whole")
    judged = timed.kv_cache(steps(1, 2), steps(0.1, 1.0, (64, 128, 256)))
    assert said(judged) == ("part", "weights")
    assert (round(judged.figures["step_with"].value, 2), judged.fields["context"]) == (0.1, "256")
    assert said(timed.kv_cache(steps(1, 1.55)))[0] == "part"
    assert said(timed.kv_cache(steps(1, 1.4)))[0] == "fails"
    assert said(timed.kv_cache(steps(1.4, 2)))[0] == "part"


def test_noisy_steps_leave_the_cache_open() -> None:
    def noisy(cached: float, uncached: float, spread: float) -> list[StepAt]:
        return [StepAt(n, took(n**cached, spread), took(n**uncached, spread)) for n in N]

    assert timed.kv_cache(noisy(1, 2, 0.1)).verdict == "holds"  # 0.86 to 1.14 and 1.86 to 2.14
    judged = timed.kv_cache(noisy(1, 2, 0.3))
    assert said(judged) == ("noisy", "power") and (judged.words["low"], judged.words["high"]) == ("0.55", "1.45")


# ---- precisions


def precise(name: str, size: int, prefill: float, decode: float | None, kl: float | None = None) -> PrecisionPoint:
    one = None if decode is None else took(1 / decode)
    beside = None if decode is None else took(1.0)
    return PrecisionPoint(name, size, 0, took(1 / prefill), one, took(1.0), beside, kl=kl)


def trials(*points: PrecisionPoint) -> dict[str, PrecisionPoint]:
    return {one.precision: one for one in (precise("fp32", 1000, 1, 1), *points)}


@pytest.mark.parametrize(("size", "verdict"), [(270, "holds"), (271, "part"), (625, "part"), (626, "fails")])
def test_memory_saved_may_miss_two_points(size: int, verdict: str) -> None:
    judged = timed.memory(trials(precise("int8", size, 1, 1)), ("int8", "int8_weights"), 0.75, LABELS)
    assert judged is not None and judged.verdict == verdict and judged.words["form"] == "INT8"


@pytest.mark.parametrize(
    ("prefill", "decode", "outcome"),
    [
        (1.5, 1.5, ("holds", "full")),
        (1.6, 1.4, ("part", "reading")),
        (0.3, 1.6, ("part", "writing")),
        (1.4, 1.1, ("fails", "none")),
        (0.9, 1.1, ("fails", "slower")),
        (1.5, None, ("holds", "full_read")),
        (1.4, None, ("fails", "none_read")),
    ],
)
def test_speed_is_judged_in_both_phases(prefill: float, decode: float | None, outcome: tuple[str, str]) -> None:
    assert said(timed.speed(trials(precise("fp16", 500, prefill, decode)), ("fp16",), 1.5, LABELS)) == outcome


def test_a_speed_that_may_lie_on_either_side_of_what_is_claimed_is_left_open() -> None:
    def judged(prefill: Latency, decode: Latency | None) -> Judgement:
        one = replace(precise("fp16", 500, 1, None if decode is None else 1.0), prefill=prefill, decode=decode)
        found = timed.speed(trials(one), ("fp16",), 1.5, LABELS)
        assert found is not None
        return found

    assert said(judged(took(0.5, 0.1), took(0.5, 0.1))) == ("holds", "full")  # 1.82 to 2.22
    assert said(judged(took(0.5, 0.1), took(0.7, 0.1))) == ("noisy", "range")  # 1.30 to 1.59
    assert said(judged(took(0.7, 0.1), None)) == ("noisy", "range") and judged(took(0.7, 0.1), None).told == "read"


def test_of_two_int8_forms_the_better_one_counts_in_each_phase() -> None:
    found = trials(precise("int8", 300, 2.1, 1.0), precise("int8_weights", 250, 0.8, 2.2))
    judged = timed.speed(found, ("int8", "int8_weights"), 2.0, LABELS)
    assert said(judged) == ("holds", "full")
    assert judged is not None and judged.words == {"prefill_form": "INT8", "decode_form": "INT8 w"}
    assert timed.speed(trials(), ("int4",), 3.0, LABELS) is None


def test_losses_come_in_the_order_claimed() -> None:
    def judged(kl: tuple[float, ...], before: bool = False) -> tuple[str, str]:
        points = [precise(n, 1, 1, 1, one) for n, one in zip(("fp16", "int8", "int4"), kl, strict=True)]
        return said(timed.losses(trials(*points), before))

    assert judged((0.1, 0.2, 0.3)) == ("holds", "full")
    assert judged((0.1, 0.3, 0.2)) == ("part", "some")
    assert judged((0.1, 0.3, 0.2), before=True) == ("part", "grid")
    assert judged((0.3, 0.2, 0.1)) == ("fails", "none")
    assert timed.losses(trials(precise("fp16", 1, 1, 1, 0.1)), False) is None


def test_both_methods_must_err_less_than_rounding() -> None:
    def judged(gptq: float, awq: float, saved: float = 0.86) -> str:
        grids = [timed.Grid(8, name, 0.01, 0.742) for name in ("absmax", "gptq", "awq")]
        four = {"absmax": 0.05, "gptq": gptq, "awq": awq}
        return said(timed.after_training([*grids, *(timed.Grid(4, n, e, saved) for n, e in four.items())]))[0]

    assert (judged(0.04, 0.04), judged(0.04, 0.05), judged(0.06, 0.06)) == ("holds", "part", "fails")
    assert judged(0.04, 0.04, saved=0.9) == "part"


# ---- what is counted and drawn


def test_gradients_and_passes() -> None:
    far = {"rnn": 0.01, "gru": 0.001, "lstm": 0.001, "attention": 0.1}
    assert rules.path(far, 256).verdict == "holds"
    assert rules.path({**far, "attention": 0.09}, 256).verdict == "fails"
    assert rules.path({**far, "rnn": 0.02, "attention": 0.3}, 256).verdict == "part"
    passes = {"rnn": took(2), "gru": took(3), "lstm": took(4), "attention": took(1)}
    assert timed.parallel(passes, 1024).verdict == "holds"
    assert timed.parallel({**passes, "attention": took(2.5)}, 1024).verdict == "part"
    assert timed.parallel({**passes, "attention": took(5)}, 1024).verdict == "fails"


def test_drawn_numbers_may_be_three_standard_errors_off() -> None:
    drawn = {"d_k": 64, "variance": 64 * 1.029, "scaled": 1.029, "error": 0.01, "products": 9}
    assert rules.variance(drawn).verdict == "holds"
    assert rules.variance({**drawn, "variance": 64 * 1.031}).verdict == "part"
    assert rules.variance({**drawn, "variance": 80}).verdict == "fails"
    dropped = {"p": 0.1, "values": 10_000, "share": 0.1089, "mean": 1.0}  # 3 sqrt(0.09 / 10,000) = 0.009
    assert rules.dropout(dropped).verdict == "holds" and rules.dropout({**dropped, "share": 0.1091}).verdict == "fails"
    masked = {"tokens": 1000, "chosen": 0.15, "masked": 0.12, "random": 0.015, "kept": 0.015}
    assert rules.masking(masked).verdict == "part" and rules.masking({**masked, "masked": 0.15}).verdict == "holds"
    assert rules.masking({**masked, "chosen": 0.2}).verdict == "fails"


def test_counts_must_meet_their_formula() -> None:
    assert rules.heads({"many": 16, "one": 16, "formula": 16}).verdict == "holds"
    assert rules.heads({"many": 16, "one": 16, "formula": 12}).verdict == "part"
    assert rules.heads({"many": 16, "one": 12, "formula": 8}).verdict == "fails"
    assert rules.tying(300, 100, vocabulary=10, d_model=10).verdict == "holds"
    assert rules.tying(300, 200, vocabulary=10, d_model=10).verdict == "part"
    assert rules.feed_forward({"weights": 2e6, "biases": 2560, "all": 2_499_999}).verdict == "holds"
    assert rules.feed_forward({"weights": 2e6, "biases": 2560, "all": 2_600_000}).verdict == "part"
    assert rules.clipping([(3.0, 1.0), (0.5, 0.5)]).verdict == "holds"
    assert rules.clipping([(0.5, 0.5)]).verdict == "part" and rules.clipping([(3.0, 1.1)]).verdict == "fails"
    assert [rules.identity(one, 0.05).verdict for one in (0.1, 0.3, 0.31)] == ["holds", "part", "fails"]


def test_text_and_code_of_the_smoothing_must_agree() -> None:
    found = dict.fromkeys(("torch_off", "apart", "floor", "text_other", "code_other", "text_right", "code_right"), 0.0)
    found |= {"vocabulary": 10}
    assert rules.smoothing(found).verdict == "holds"
    assert rules.smoothing({**found, "apart": 0.01}).verdict == "part"
    assert rules.smoothing({**found, "torch_off": 0.01}).verdict == "fails"


def test_what_needs_no_machine_comes_out_on_this_one() -> None:
    counted = claims_bench.exact()
    assert {key: counted[key].verdict for key in claims.ALWAYS} == dict.fromkeys(claims.ALWAYS, "holds")
    assert counted["heads"].figures["many"].value == 4 * 512**2 == 1_048_576
    assert counted["feed_forward"].figures["all"].value == 2_099_712
    assert counted["tying"].figures["saved"].value == 2 * 37_000 * 512
    assert counted["noam"].figures["peak"].value == pytest.approx((512 * 4000) ** -0.5)
    assert (counted["smoothing"].fields["text_right"], counted["smoothing"].fields["code_other"]) == ("0.910", "0.0125")
    assert (counted["smoothing"].verdict, counted["embedding"].verdict, counted["masking"].verdict) == ("part",) * 3


# ---- the page


def every() -> dict[str, Judgement]:
    """A judgement of every claim, with everything that its sentences may name."""
    counted = claims_bench.exact()
    point = {name: precise(name, 250, 2, 2, 0.1) for name in LABELS}
    evidence = {
        "kernels": Evidence(lengths((2, 3, 5)), {"mask": "none"}),
        "start": Evidence({"attention": 0.8, "feed_forward": 0.5}),
        "products": Evidence({"products": took(0.1), "whole": took(0.3)}),
        "cache": Evidence(claims_bench.Steps(tuple(steps(1, 2)), tuple(steps(0.1, 1)))),
        "precision": Evidence(claims_bench.Trials(Trial(point), True), {"model": "<tiny>"}, "speed.precision"),
        "quantisation": Evidence([timed.Grid(b, n, 0.1, 0.8) for b in (8, 4) for n in ("absmax", "gptq", "awq")]),
        "gradients": Evidence({"rnn": 1e-9, "gru": 1e-9, "lstm": 1e-9, "attention": 1.0}),
        "times": Evidence({"rnn": took(2), "gru": took(2), "lstm": took(2), "attention": took(1)}),
    }
    return {**counted, **claims_bench.judge(evidence)}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_claim_has_its_row_its_link_and_its_sentences(language: str) -> None:
    t, judged = Translator(language), every()
    assert judged.keys() == claims_list.CLAIMS.keys()
    html = claims_page.markup(judged, {"fp16_memory": "<tiny>"}, t)
    assert "&lt;tiny&gt;" in html and "<tiny>" not in html and not re.search(r"speed\.claims\.\w", html)
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert html.count('id="claim-') > 3 * len(claims_list.CLAIMS)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_outcome_of_every_rule_has_a_sentence(language: str) -> None:
    t = Translator(language)
    source = "".join(open(one.__file__, encoding="utf-8").read() for one in (rules, timed))
    named = {"full", "some", "none", *re.findall(r'why = "(\w+)"', source)}
    for key in claims_list.CLAIMS:
        assert all(t.has(f"speed.claims.{key}{part}") for part in ("", ".result", ".rule"))
        own = {one for one in named if t.has(f"speed.claims.{key}.{one}")}
        assert {"full"} <= own or key == "flash_speed"
    assert all(t.has(f"speed.claims.noisy{part}") for part in ("", ".busy", ".few", ".power", ".range", ".ready"))
    for whys in (("above", "below"), ("beyond", "slower"), ("whole", "weights"), ("grid",)):
        assert any(all(t.has(f"speed.claims.{key}.{one}") for one in whys) for key in claims_list.CLAIMS)


def test_links_lead_to_sections_that_exist() -> None:
    from tfviz.ui.tabs import cache, generate, layers, masks, positions, step, training

    there = {one.key for tab in (cache, generate, layers, masks, positions, step, training) for one in tab.SECTIONS}
    there |= {one.key for one in SECTIONS}
    linked = {one.shown for one in claims_list.CLAIMS.values()} | {one[2] for one in claims_list.UNMEASURED if one[2]}
    assert linked <= there


def test_the_summary_counts_what_the_rows_say() -> None:
    judged = every()
    counts = claims_page.counts(judged)
    assert counts.keys() == set(claims_verdict.VERDICTS) == claims_page.MARKS.keys()
    assert sum(counts.values()) == len(claims_list.CLAIMS) and counts["open"] == 0
    assert counts["holds"] == sum(one.verdict == "holds" for one in judged.values())
    del judged["heads"]
    assert claims_page.counts(judged)["open"] == 1
    assert "of-open" in claims_page.markup(judged, {}, EN)


def test_a_wrong_count_turns_the_badge_red() -> None:
    judged = every()
    (fine,) = claims.badges(judged, EN)
    (red,) = claims.badges({**judged, "heads": rules.heads({"many": 16, "one": 12, "formula": 8})}, EN)
    assert fine.ok and red.ok is False and "4 d_model²" in red.text


# ---- measuring


class Bench:
    """Runs everything at once, and counts."""

    def __init__(self) -> None:
        self.results, self.measuring, self.jobs = Results(), DeviceGate(), 0
        self.settings = Settings.from_environment({})
        self.resident = SimpleNamespace(device=SimpleNamespace(type="cpu", __str__=lambda self: "cpu"))

    def compute(self, job: Any, *args: Any) -> Any:
        self.jobs += 1
        return job(*args)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    import torch

    monkeypatch.setattr("tfviz.inference.contention.waited", lambda: 0.0)  # whatever else this machine does
    bench: Any = Bench()
    bench.resident.device = torch.device("cpu")

    def fake(scene: Scene) -> Iterator[Evidence]:
        yield Evidence({"attention": 0.8, "feed_forward": 0.5}, part=0.5)
        yield Evidence({"attention": 0.05, "feed_forward": 0.05})

    benches = {name: claims_bench.BENCHES[name] for name in ("start", "gradients")}
    benches["start"] = replace(benches["start"], run=fake)
    monkeypatch.setattr(claims_bench, "BENCHES", benches)
    return Scene(EN, bench, "", None, {})


def html_of(picture: Any) -> str:
    return str(json.loads(json.dumps(payload(picture)))["panels"][0]["data"]["html"])


def test_a_row_measures_itself_once_and_the_button_all_that_is_open(scene: Scene) -> None:
    assert "claims wait" in list(claims.draw(scene, {}))[0].notes[0]
    pictures = list(claims.draw(scene, {"claim": "identity", "click": "1"}, measure=True))
    assert [one.part for one in pictures] == [0.5, None]
    assert 'class="of-fails" id="claim-identity"' in html_of(pictures[0])
    assert 'class="of-holds" id="claim-identity"' in html_of(pictures[-1])
    assert claims.wanted(scene, {"claim": "identity", "click": "1"}) == ["gradients"]  # the button, with the old wish
    assert claims.wanted(scene, {"claim": "identity", "click": "2"}) == ["start"]
    assert claims.wanted(scene, {"claim": "nonsense", "click": 3}) == ["gradients"]


def test_what_was_measured_stays_and_can_leave_the_machine(scene: Scene) -> None:
    list(claims.draw(scene, {"claim": "identity", "click": "1"}, measure=True))
    (again,) = claims.draw(scene, {})
    assert 'class="of-holds" id="claim-identity"' in html_of(again)
    rows = [one for one in scene.bench.results.records("claims") if one.setting["claim"] == "identity"]
    assert [(one.quantity, one.value, one.setting["verdict"]) for one in rows] == [
        ("attention", 0.05, "holds"),
        ("feed_forward", 0.05, "holds"),
    ]


def test_a_stop_leaves_what_was_found(scene: Scene) -> None:
    pictures = list(claims.draw(replace(scene, stop=lambda: True), {"claim": "identity", "click": "1"}, measure=True))
    assert [one.part for one in pictures] == [0.5]
    assert 'class="of-fails" id="claim-identity"' in html_of(list(claims.draw(scene, {}))[0])


def test_what_was_too_noisy_is_measured_again_by_one_press(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    spreads = [0.3, 0.3, 0.02]

    def fake(scene: Scene) -> Iterator[Evidence]:
        points = tuple(lengths((3, 3, 3), spread=spreads.pop(0)))
        yield Evidence(points[:1], {"mask": "none"}, part=0.3)
        yield Evidence(points, {"mask": "none"})

    bench = replace(claims_bench.BENCHES["start"], run=fake)
    monkeypatch.setattr(claims_bench, "BENCHES", {"kernels": bench})
    row = {"claim": "square_time", "click": "1"}
    html = html_of(list(claims.draw(scene, row, measure=True))[-1])
    assert 'class="of-noisy" id="claim-square_time"' in html and "Exponent between 1.55 and 2.45" in html
    assert "Measure again" in html and "Verdicts left open" in list(claims.draw(scene, {}))[0].notes[-1]
    assert claims.wanted(scene, row) == ["kernels"]  # the section's own button takes it up too
    list(claims.draw(replace(scene, stop=lambda: True), row, measure=True))  # stopped: the old figures stay
    assert 'class="of-noisy" id="claim-square_time"' in html_of(list(claims.draw(scene, {}))[0])
    list(claims.draw(scene, {"claim": "square_time", "click": "2"}, measure=True))
    (again,) = claims.draw(scene, {})
    assert 'class="of-holds" id="claim-square_time"' in html_of(again) and "1.55" not in html_of(again)


def test_times_measured_beside_much_other_work_give_no_verdict() -> None:
    def verdicts(held_up: float) -> dict[str, str]:
        one = Evidence(lengths((3, 3, 3)), {"mask": "none"}, held_up=held_up)
        return {key: judged.verdict for key, judged in claims_bench.judge({"kernels": one}).items()}

    quiet, busy = verdicts(QUIET), verdicts(0.4)
    assert "noisy" not in quiet.values()
    assert (
        {key for key in busy if busy[key] != quiet[key]}
        == {"square_time", "flash_speed"}
        == {key for key, verdict in busy.items() if verdict == "noisy"}
    )  # memory and outputs are the same on a busy machine
    judged = claims_bench.judge({"kernels": Evidence(lengths((3, 3, 3)), held_up=0.4)})
    assert "waiting for a processor 40.0 % of the time" in claims_page.markup(judged, {}, EN)
    assert timed.OF_TIME <= claims_list.CLAIMS.keys()


def test_what_another_section_measured_is_used_and_said_so(scene: Scene) -> None:
    from tfviz.introspection.experiments.recurrent import RecurrentSetting
    from tfviz.introspection.experiments.recurrent_sweep import Finding

    kinds = ("rnn", "gru", "lstm", "lstm_forget", "attention")
    norms = {kind: np.array([[1.0, 0.5 if kind == "attention" else 1e-9]]) for kind in kinds}
    scene.keep(("speed.recurrent", RecurrentSetting(), 256), Finding(RecurrentSetting(), norms))
    html = html_of(list(claims.draw(scene, {}))[0])
    assert 'class="of-holds" id="claim-path"' in html and "measured by the section “Path length”" in html


def test_two_lengths_allow_no_verdict_on_growth() -> None:
    assert claims_bench.judge({"kernels": Evidence(lengths((2, 3, 5))[:2])}) == {}
