"""The rules for claims that are timed or weighed on this machine: kernels, the KV cache, precisions, recurrent layers.

Limits stand in this file and on the page beside the verdict; times are judged with their spread (claims_verdict.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from tfviz.ui.i18n import percent
from tfviz.ui.tabs.speed.claims_verdict import (
    FAILS,
    HOLDS,
    NOISY,
    PART,
    Figure,
    Judgement,
    Outcome,
    gain,
    graded,
    numbers,
    seconds,
    settled,
)

if TYPE_CHECKING:  # torch comes with it
    from tfviz.inference.measure import Latency
    from tfviz.introspection.precision_point import PrecisionPoint

FITTED_FROM = 512  # tokens: below, the constant part of a call weighs too much for an exponent
FULL, SOME = 0.02, 0.5  # memory saved: points that may be missing, and the share of the claim that is a part of it
NEAR_TWO = (1.8, 2.2)  # an exponent that counts as 2
FAIRLY_TWO = (1.5, 2.8)
OF_TIME = {"square_time", "bottleneck", "flash_speed", "kv_cache", "fp16_speed", "int8_speed", "int4_speed", "parallel"}
LINEAR, GROWING, SQUARE = 1.2, 1.3, 1.6  # exponents at most: memory, a cached step; at least: a step without the cache


def undisturbed(claim: str, judged: Judgement, held_up: float) -> Judgement:
    """No verdict on times beside much other work: it slows short calls down by more than long ones."""
    from tfviz.inference.contention import QUIET

    if held_up <= QUIET or claim not in OF_TIME:
        return judged
    return replace(judged, verdict=NOISY, why="busy", words={**judged.words, "busy": percent(held_up)})


# ---- attention kernels: sections 4 and 13.2


@dataclass(frozen=True)
class AtLength:
    """Both kernels at one length."""

    n: int
    naive: "Latency"
    flash: "Latency"
    naive_bytes: int
    flash_bytes: int
    max_abs: float | None  # largest difference between their outputs; None: it is not known here


def growth(n: Sequence[int], values: Sequence[float], spread: Sequence[tuple[float, float]] | None = None) -> Figure:
    """The exponent over the larger half of the sizes, three at least; nan where there are fewer."""
    from tfviz.introspection.growth import fit

    line = fit(n, values, spread)
    if line is None:
        return Figure(float("nan"), "power")
    ends = (None, None) if spread is None else (line.low, line.high)
    return Figure(line.exponent, "power", *ends)


def growth_of_time(n: Sequence[int], took: Sequence["Latency"]) -> Figure:
    found = growth(n, [one.median for one in took], [(one.low, one.high) for one in took])
    return replace(found, runs=min((one.runs for one in took), default=None))


def _within(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]


def _long(points: Sequence[AtLength]) -> tuple[list[AtLength], list[int], dict[str, str]]:
    """Those from which exponents are taken, their lengths, and the words for these."""
    points = [one for one in points if one.n >= FITTED_FROM]
    n = [one.n for one in points]
    return points, n, {"first": f"{min(n):,}", "last": f"{max(n):,}"} if n else {"first": "–", "last": "–"}


def square_time(points: Sequence[AtLength]) -> Judgement:
    """The naive form's time: its exponent counts as 2 from 1.8 to 2.2."""

    def rule(found: Mapping[str, float]) -> Outcome:
        power = found["naive"]
        if _within(power, NEAR_TWO):
            return HOLDS, "full"
        return (PART, "above" if power > 2 else "below") if _within(power, FAIRLY_TWO) else (FAILS, "none")

    points, n, words = _long(points)
    figures = {name: growth_of_time(n, [getattr(one, name) for one in points]) for name in ("naive", "flash")}
    verdict, why, range_ = settled(rule, {"naive": figures["naive"]})
    return Judgement(verdict, why, figures, words | range_)


def _memory_growth(points: Sequence[AtLength]) -> tuple[dict[str, Figure], dict[str, str]]:
    points, n, words = _long(points)
    return {name: growth(n, [getattr(one, f"{name}_bytes") for one in points]) for name in ("naive", "flash")}, words


def square_memory(points: Sequence[AtLength]) -> Judgement:
    """n^2 in the naive form; of attention itself only if the other kernel needs as much."""
    figures, words = _memory_growth(points)
    square, needed = (_within(figures[name].value, NEAR_TWO) for name in ("naive", "flash"))
    return Judgement(*graded(square and needed, square), figures, words)


def bottleneck(products: "Latency", whole: "Latency", n: int) -> Judgement:
    """Multiplications take less than half of the naive form's time: then it is not they that limit it."""
    share = gain(products, whole, "share")
    verdict, why, range_ = settled(lambda found: graded(found["share"] <= 0.5, found["share"] <= 0.8), {"share": share})
    figures = {"share": share, "products": seconds(products), "whole": seconds(whole)}
    return Judgement(verdict, why, figures, {"n": f"{n:,}"} | range_)


def flash_speed(points: Sequence[AtLength], least: float = 2, most: float = 4) -> Judgement:
    """Twice as fast at least at every length from 512 on; at some of them; at none."""
    points, _, words = _long(points)
    gains = {f"{one.n:,}": gain(one.naive, one.flash) for one in points}
    slowest, fastest = (pick(gains, key=lambda n: gains[n].value) for pick in (min, max))
    low, high = gains[slowest], gains[fastest]
    verdict, why, range_ = settled(lambda at: graded(min(at.values()) >= least, max(at.values()) >= least), gains)
    if verdict == HOLDS and high.value > most:
        why = "beyond"
    elif verdict == FAILS and low.value < 1:
        why = "slower"
    return Judgement(
        verdict, why, {"least": low, "most": high}, words | range_ | {"slowest": slowest, "fastest": fastest}
    )


def flash_memory(points: Sequence[AtLength]) -> Judgement:
    """n^2 of the naive form, n of flash."""
    figures, words = _memory_growth(points)
    last = max(points, key=lambda one: one.n)
    figures |= {"much": Figure(last.naive_bytes, "B"), "little": Figure(last.flash_bytes, "B")}
    linear = figures["flash"].value <= LINEAR and _within(figures["naive"].value, NEAR_TWO)
    return Judgement(*graded(linear, last.flash_bytes < last.naive_bytes), figures, words | {"n": f"{last.n:,}"})


def flash_equal(points: Sequence[AtLength], rounding: float = 1e-5) -> Judgement | None:
    """Bit by bit the same; the same to rounding; neither."""
    known = [one.max_abs for one in points if one.max_abs is not None]
    if not known:
        return None
    off = max(known)
    return Judgement(*graded(off == 0, off <= rounding), {"off": Figure(off, "1"), "limit": Figure(rounding, "1")})


# ---- KV cache: section 13.1


@dataclass(frozen=True)
class StepAt:
    """A step at one context, with and without the cache."""

    n: int
    cached: "Latency"
    uncached: "Latency"


def kv_cache(attention: Sequence[StepAt], steps: Sequence[StepAt] = ()) -> Judgement:
    """Attention alone: n with the cache, n^2 without. `steps`: those of a whole model, where its weights come too."""

    def rule(found: Mapping[str, float]) -> Outcome:
        if not (found["with"] <= GROWING and found["without"] >= SQUARE):
            return graded(False, found["without"] - found["with"] >= 0.5)
        if "step_with" not in found:
            return HOLDS, "full"
        whole = found["step_with"] <= GROWING and found["step_without"] >= SQUARE
        return (HOLDS, "whole") if whole else (PART, "weights")

    powers = _step_growth(attention, "") | (_step_growth(steps[-3:], "step_") if len(steps) >= 3 else {})
    verdict, why, range_ = settled(rule, powers)
    figures = powers | {"gain": gain(attention[-1].uncached, attention[-1].cached)}
    words = {"first": f"{attention[0].n:,}", "last": f"{attention[-1].n:,}"} | range_
    if steps:
        figures["step_gain"] = gain(steps[-1].uncached, steps[-1].cached)
        words["context"] = f"{steps[-1].n:,}"
    return Judgement(verdict, why, figures, words)


def _step_growth(steps: Sequence[StepAt], of: str) -> dict[str, Figure]:
    ways = {f"{of}with": "cached", f"{of}without": "uncached"}
    n = [one.n for one in steps]
    return {name: growth_of_time(n, [getattr(one, way) for one in steps]) for name, way in ways.items()}


# ---- quantisation: section 13.3


Trials = Mapping[str, "PrecisionPoint"]


def memory(trials: Trials, forms: Sequence[str], claimed: float, labels: Mapping[str, str]) -> Judgement | None:
    """The best of the forms: as much as claimed (2 points may be missing), half of it at least, or less."""
    there = [trials[form] for form in forms if form in trials]
    if not there or "fp32" not in trials:
        return None
    whole = trials["fp32"].weight_bytes
    best = min(there, key=lambda one: one.weight_bytes)
    saved = 1 - best.weight_bytes / whole
    figures = {"saved": Figure(saved, "share"), "before": Figure(whole, "B"), "after": Figure(best.weight_bytes, "B")}
    words = {"form": labels[best.precision]}
    return Judgement(*graded(saved >= claimed - FULL, saved >= SOME * claimed), figures, words)


def speed(trials: Trials, forms: Sequence[str], claimed: float, labels: Mapping[str, str]) -> Judgement | None:
    """As fast as claimed in both phases, reading and writing; in one of them; in none. The best form counts."""
    there = [trials[form] for form in forms if form in trials]
    if not there:
        return None
    gains: dict[str, tuple[str, Figure]] = {}
    for phase in ("prefill", "decode"):
        pairs = {one.precision: (getattr(one, f"{phase}_beside"), getattr(one, phase)) for one in there}
        made = {form: gain(*pair) for form, pair in pairs.items() if None not in pair}
        if made:
            best = max(made, key=lambda form: made[form].value)
            gains[phase] = best, made[best]
    figures = {phase: figure for phase, (_, figure) in gains.items()}
    words = {f"{phase}_form": labels[form] for phase, (form, _) in gains.items()}
    read_only = "decode" not in figures

    def rule(found: Mapping[str, float]) -> Outcome:
        reached = [found[phase] >= claimed for phase in figures]
        verdict, why = graded(all(reached), any(reached))
        return verdict, ("writing" if reached[-1] else "reading") if verdict == PART else why

    verdict, why, range_ = settled(rule, figures)
    if read_only and verdict != NOISY:
        why += "_read"
    elif verdict == FAILS and min(figure.value for figure in figures.values()) < 1:
        why = "slower"
    return Judgement(verdict, why, figures, words | range_, "read" if read_only else "")


def losses(trials: Trials, rounded_before: bool) -> Judgement | None:
    """FP16 loses least, then INT8, then INT4: KL against FP32, the better INT8 form.

    `rounded_before`: the weights come from a 4-bit file, so that INT4 finds its own grid again.
    """
    forms = {"fp16": ("fp16",), "int8": ("int8", "int8_weights"), "int4": ("int4",)}
    kl = {}
    for name, ways in forms.items():
        known = [found for way in ways if way in trials and (found := trials[way].kl) is not None]
        if known:
            kl[name] = min(known)
    if len(kl) < len(forms):
        return None
    figures = numbers(kl, "1")
    order = [kl[name] for name in forms]
    full = all(a <= b for a, b in pairwise(order))
    verdict, why = graded(full, order[0] == min(order))
    if verdict == PART and rounded_before and kl["int4"] < kl["int8"]:
        why = "grid"
    return Judgement(verdict, why, figures)


@dataclass(frozen=True)
class Grid:
    """One way to round a matrix: relative error of its output, and bytes beside the FP32 ones."""

    bits: int
    method: str  # absmax | gptq | awq
    error: float
    saved: float


def after_training(grids: Sequence[Grid]) -> Judgement | None:
    """GPTQ and AWQ: they save 75 to 87 % and lose less than plain rounding to as many bits."""
    four = {one.method: one for one in grids if one.bits == 4}
    if not {"absmax", "gptq", "awq"} <= four.keys():
        return None
    saved = {one.bits: one.saved for one in grids if one.method == "gptq"}
    figures = {f"saved_{bits}": Figure(share, "share") for bits, share in saved.items()}
    figures |= {name: Figure(one.error, "share") for name, one in four.items()}
    better = [four[name].error < four["absmax"].error for name in ("gptq", "awq")]
    ends = min(saved.values()) >= 0.75 - FULL and max(saved.values()) <= 0.875 + 1e-9
    if all(better) and ends:
        return Judgement(HOLDS, "full", figures)
    return Judgement(PART if any(better) else FAILS, "some" if any(better) else "none", figures)


# ---- what the last section says


def parallel(took: Mapping[str, "Latency"], n: int) -> Judgement:
    """A training step's pass over one text: faster than every recurrent layer, than some, than none."""
    attention = took["attention"]
    gains = {kind: gain(one, attention) for kind, one in took.items() if kind != "attention"}
    verdict, why, range_ = settled(lambda at: graded(min(at.values()) > 1, max(at.values()) > 1), gains)
    return Judgement(verdict, why, gains | {"attention": seconds(attention)}, {"n": f"{n:,}"} | range_)
