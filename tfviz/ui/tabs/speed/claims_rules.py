"""The rules by which a claim of the article is said to hold: numbers measured here in, a verdict with its figures out.

No verdict is written down anywhere: each follows from a limit that stands in this file and on the page beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tfviz.ui.i18n import megabytes, milliseconds, percent, ratio, significant

if TYPE_CHECKING:  # torch comes with it
    from tfviz.inference.measure import Latency
    from tfviz.introspection.precision_trial import PrecisionPoint

HOLDS, PART, FAILS, OPEN = "holds", "part", "fails", "open"
VERDICTS = (HOLDS, PART, FAILS, OPEN)
FITTED_FROM = 512  # tokens: below, the constant part of a call weighs too much for an exponent
SIGMAS = 3  # standard errors that a drawn number may be off
FULL, SOME = 0.02, 0.5  # memory saved: points that may be missing, and the share of the claim that is a part of it
NEAR_TWO = (1.8, 2.2)  # an exponent that counts as 2
NEAR_ONE = (0.8, 1.2)


@dataclass(frozen=True)
class Figure:
    """One number of a result, with its spread where it was measured more than once."""

    value: float
    unit: str  # x | s | B | share | n | power | 1
    low: float | None = None
    high: float | None = None
    runs: int | None = None

    @property
    def text(self) -> str:
        told = WRITTEN[self.unit]
        if self.low is None or self.high is None:
            return told(self.value)
        bare = BARE.get(self.unit, told)
        return f"{told(self.value)} ({bare(self.low)}–{bare(self.high)})"


WRITTEN = {
    "x": ratio,
    "s": milliseconds,
    "B": megabytes,
    "share": lambda value: percent(value) if 0 < value < 1 else f"{significant(100 * value)} %".replace("-", "−"),
    "n": lambda value: f"{round(value):,}",
    "power": lambda value: f"{round(value, 2) + 0.0:.2f}".replace("-", "−"),
    "1": significant,
}
BARE = {"x": lambda value: f"{value:.2f}", "s": lambda value: significant(1000 * value)}  # in brackets


@dataclass(frozen=True)
class Judgement:
    """`why`: the sentence about it, `speed.claims.<claim>.<why>`, whose fields are the figures and `words`."""

    verdict: str
    why: str
    figures: Mapping[str, Figure]
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, str]:
        return {**{name: one.text for name, one in self.figures.items()}, **self.words}


def _graded(full: bool, some: bool, whys: Sequence[str] = ("full", "some", "none")) -> tuple[str, str]:
    return (HOLDS, whys[0]) if full else (PART, whys[1]) if some else (FAILS, whys[2])


def _n(numbers: Mapping[str, float], unit: str = "n", names: Sequence[str] = ()) -> dict[str, Figure]:
    return {name: Figure(float(value), unit) for name, value in numbers.items() if not names or name in names}


def exponent(n: Sequence[int], values: Sequence[float]) -> float:
    """b of a n^b, least squares on logarithms; nan below two points."""
    points = [(size, value) for size, value in zip(n, values, strict=True) if size >= FITTED_FROM and value > 0]
    if len(points) < 2:
        return float("nan")
    x, y = np.log(np.array(points, dtype=np.float64)).T
    return float(np.polyfit(x, y, 1)[0])


def _within(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]


def gain(slow: "Latency", fast: "Latency") -> Figure:
    """slow / fast; the spread is what the quartiles allow."""
    return Figure(slow.median / fast.median, "x", slow.low / fast.high, slow.high / fast.low, slow.runs)


# ---- counted and drawn: sections 2 to 12


def base(found: Mapping[str, float]) -> Judgement:
    """The paper's base model as it is built here."""
    asked = {"d_model": 512, "d_ff": 2048, "heads": 8, "head_dim": 64, "encoder": 6, "decoder": 6}
    wrong = [name for name, value in asked.items() if found[name] != value]
    fits = found["heads"] * found["head_dim"] == found["d_model"] and found["d_ff"] == 4 * found["d_model"]
    full = not wrong and fits and found["dropout"] == 0.1
    return Judgement(HOLDS if full else FAILS, "full" if full else "none", _n(found, names=(*asked, "parameters")))


def tying(separate: int, tied: int, vocabulary: int, d_model: int) -> Judgement:
    saved = separate - tied
    figures = _n({"separate": separate, "tied": tied, "saved": saved})
    figures["share"] = Figure(saved / separate, "share")
    full = saved == 2 * vocabulary * d_model  # three tables become one
    return Judgement(*_graded(full, saved > 0), figures)


def embedding(found: Mapping[str, float]) -> Judgement:
    """Root mean squares: of the positions, and of embeddings times sqrt(d_model) under two ways to draw them."""
    figures = _n(found, "1", ("positions", "paper", "xavier", "plain"))
    figures["off"] = Figure(found["positions"] / found["xavier"], "x")
    near = {name: 0.5 <= found[name] / found["positions"] <= 2 for name in ("paper", "xavier")}
    return Judgement(*_graded(near["xavier"], near["paper"]), figures)


def unique(found: Mapping[str, float]) -> Judgement:
    figures = {"distance": Figure(found["distance"], "1"), **_n(found, names=("offset", "positions"))}
    return Judgement(*_graded(found["distance"] > 0.01, found["distance"] > 0), figures)


def shift(found: Mapping[str, float]) -> Judgement:
    """PE(pos + k) against the rotated PE(pos); FP32 knows an angle of 5,000 radians to 2.4e-4."""
    full = found["error"] <= 1e-3
    return Judgement(*_graded(full, found["error"] <= 0.1), _n(found, "1"))


def variance(found: Mapping[str, float]) -> Judgement:
    """Both variances within three standard errors of d_k and of 1."""
    off = max(abs(found["variance"] / found["d_k"] - 1), abs(found["scaled"] - 1))
    figures = _n(found, "1", ("variance", "scaled")) | {"error": Figure(SIGMAS * found["error"], "share")}
    figures |= _n(found, names=("d_k", "products"))
    return Judgement(*_graded(off <= SIGMAS * found["error"], off <= 0.1), figures)


def rows(found: Mapping[str, float]) -> Judgement:
    full = found["sum_off"] <= 1e-5
    return Judgement(*_graded(full, found["sum_off"] <= 1e-2), {"off": Figure(found["sum_off"], "1")})


def causal(found: Mapping[str, float]) -> Judgement:
    """Row i sees i + 1 keys, and every later one gets exactly 0."""
    full = found["future"] == 0 and found["wrong_rows"] == 0
    figures = {"future": Figure(found["future"], "1"), **_n(found, names=("wrong_rows", "rows"))}
    return Judgement(*_graded(full, found["wrong_rows"] == 0), figures)


def heads(found: Mapping[str, float]) -> Judgement:
    figures = _n(found, names=("many", "one", "formula"))
    same, formula = found["many"] == found["one"], found["many"] == found["formula"]
    return Judgement(*_graded(same and formula, same or formula), figures)


def feed_forward(found: Mapping[str, float]) -> Judgement:
    """About 2 M: what rounds to 2 M."""
    figures = _n(found, names=("weights", "biases", "all"))
    return Judgement(*_graded(round(found["all"] / 1e6) == 2, round(found["weights"] / 1e6) == 2), figures)


def identity(attention: float, feed_forward: float) -> Judgement:
    """||sublayer(x)|| / ||x|| of a model that nobody has trained: at most 0.1 is near 0."""
    most = max(attention, feed_forward)
    figures = _n({"attention": attention, "feed_forward": feed_forward}, "1")
    return Judgement(*_graded(most <= 0.1, most <= 0.3), figures)


def noam(found: Mapping[str, float]) -> Judgement:
    """Peak at the end of the warm-up with (d_model x warm-up)^-1/2; slopes 1 and -1/2 on logarithmic axes."""
    peak = abs(found["peak"] / found["formula"] - 1) <= 1e-6 and found["step"] == found["warmup"]
    slopes = abs(found["rise"] - 1) <= 1e-3 and abs(found["fall"] + 0.5) <= 1e-3
    figures = _n(found, names=("step",)) | _n(found, "1", ("peak",)) | _n(found, "power", ("rise", "fall"))
    return Judgement(*_graded(peak and slopes, peak or slopes), figures)


def smoothing(found: Mapping[str, float]) -> Judgement:
    """The text is right if it gives torch's loss; text and code agree if they ask for the same distribution."""
    text = found["torch_off"] <= 1e-5
    figures = _n(found, "1", ("torch_off", "apart", "floor", "text_other", "code_other"))
    figures |= _n(found, "1", ("text_right", "code_right")) | _n(found, names=("vocabulary",))
    return Judgement(*_graded(text and found["apart"] <= 1e-9, text), figures)


def clipping(norms: Sequence[tuple[float, float]], limit: float = 1.0) -> Judgement:
    """(before, after) of each step."""
    before, after = (max(one) for one in zip(*norms, strict=True))
    cut = sum(one > limit for one, _ in norms)
    figures = _n({"before": before, "after": after}, "1") | _n({"cut": cut, "steps": len(norms)})
    if not cut and after <= limit:
        return Judgement(PART, "some", figures)
    full = after <= limit * (1 + 1e-4)
    return Judgement(HOLDS if full else FAILS, "full" if full else "none", figures)


def dropout(found: Mapping[str, float]) -> Judgement:
    """Share of the values that become 0 within three standard errors of p, and the mean kept."""
    error = SIGMAS * (found["p"] * (1 - found["p"]) / found["values"]) ** 0.5
    share = abs(found["share"] - found["p"]) <= error
    figures = {"share": Figure(found["share"], "share"), "error": Figure(error, "share")}
    figures |= _n(found, names=("values",)) | _n(found, "power", ("mean",))
    return Judgement(*_graded(share and abs(found["mean"] - 1) <= 0.01, share), figures)


def masking(found: Mapping[str, float]) -> Judgement:
    """15 % chosen within three standard errors; all of them replaced by [MASK]?"""
    error = SIGMAS * (0.15 * 0.85 / found["tokens"]) ** 0.5
    chosen = abs(found["chosen"] - 0.15) <= error
    figures = _n(found, "share", ("chosen", "masked", "random", "kept")) | _n(found, names=("tokens",))
    return Judgement(*_graded(chosen and found["masked"] == found["chosen"], chosen), figures)


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


def _fits(points: Sequence[AtLength], names: Sequence[str]) -> dict[str, Figure]:
    n = [one.n for one in points]
    values = {"naive": [one.naive.median for one in points], "flash": [one.flash.median for one in points]}
    values |= {"naive_bytes": [one.naive_bytes for one in points], "flash_bytes": [one.flash_bytes for one in points]}
    return {name.removesuffix("_bytes"): Figure(exponent(n, values[name]), "power") for name in names}


def _span(points: Sequence[AtLength]) -> dict[str, str]:
    n = [one.n for one in points if one.n >= FITTED_FROM]
    return {"first": f"{min(n):,}", "last": f"{max(n):,}"} if n else {"first": "–", "last": "–"}


def square_time(points: Sequence[AtLength]) -> Judgement:
    """The naive form's time: its exponent counts as 2 from 1.8 to 2.2."""
    figures = _fits(points, ("naive", "flash"))
    power = figures["naive"].value
    if _within(power, NEAR_TWO):
        return Judgement(HOLDS, "full", figures, _span(points))
    whys = {True: "above", False: "below"}
    near = 1.5 <= power <= 2.8
    return Judgement(PART if near else FAILS, whys[power > 2] if near else "none", figures, _span(points))


def square_memory(points: Sequence[AtLength]) -> Judgement:
    """n^2 in the naive form; of attention itself only if the other kernel needs as much."""
    figures = _fits(points, ("naive_bytes", "flash_bytes"))
    square = _within(figures["naive"].value, NEAR_TWO)
    needed = square and _within(figures["flash"].value, NEAR_TWO)
    return Judgement(*_graded(needed, square), figures, _span(points))


def bottleneck(products: "Latency", whole: "Latency", n: int) -> Judgement:
    """Multiplications take less than half of the naive form's time: then it is not they that limit it."""
    share = products.median / whole.median
    figures = {"share": Figure(share, "share"), "products": _time(products), "whole": _time(whole)}
    return Judgement(*_graded(share <= 0.5, share <= 0.8), figures, {"n": f"{n:,}"})


def _time(took: "Latency") -> Figure:
    return Figure(took.median, "s", took.low, took.high, took.runs)


def flash_speed(points: Sequence[AtLength], least: float = 2, most: float = 4) -> Judgement:
    """Twice as fast at least at every length from 512 on; at some of them; at none."""
    gains = {one.n: gain(one.naive, one.flash) for one in points if one.n >= FITTED_FROM}
    slowest, fastest = (pick(gains, key=lambda n: gains[n].value) for pick in (min, max))
    low, high = gains[slowest], gains[fastest]
    words = {**_span(points), "slowest": f"{slowest:,}", "fastest": f"{fastest:,}"}
    verdict, why = _graded(low.value >= least, high.value >= least)
    if verdict == HOLDS and high.value > most:
        why = "beyond"
    elif verdict == FAILS and low.value < 1:
        why = "slower"
    return Judgement(verdict, why, {"least": low, "most": high}, words)


def flash_memory(points: Sequence[AtLength]) -> Judgement:
    """n^2 of the naive form, n of flash."""
    figures = _fits(points, ("naive_bytes", "flash_bytes"))
    last = max(points, key=lambda one: one.n)
    figures |= {"much": Figure(last.naive_bytes, "B"), "little": Figure(last.flash_bytes, "B")}
    linear = figures["flash"].value <= NEAR_ONE[1] and _within(figures["naive"].value, NEAR_TWO)
    words = {**_span(points), "n": f"{last.n:,}"}
    return Judgement(*_graded(linear, last.flash_bytes < last.naive_bytes), figures, words)


def flash_equal(points: Sequence[AtLength], rounding: float = 1e-5) -> Judgement | None:
    """Bit by bit the same; the same to rounding; neither."""
    known = [one.max_abs for one in points if one.max_abs is not None]
    if not known:
        return None
    off = max(known)
    return Judgement(*_graded(off == 0, off <= rounding), {"off": Figure(off, "1"), "limit": Figure(rounding, "1")})


# ---- KV cache: section 13.1


@dataclass(frozen=True)
class StepAt:
    """A step at one context, with and without the cache."""

    n: int
    cached: "Latency"
    uncached: "Latency"


def kv_cache(attention: Sequence[StepAt], steps: Sequence[StepAt] = ()) -> Judgement:
    """Attention alone: n with the cache, n^2 without. `steps`: those of a whole model, where its weights come too."""
    n = [one.n for one in attention]
    cached, uncached = (exponent(n, [getattr(one, way).median for one in attention]) for way in ("cached", "uncached"))
    figures = {"with": Figure(cached, "power"), "without": Figure(uncached, "power")}
    last = attention[-1]
    figures["gain"] = gain(last.uncached, last.cached)
    words = {"first": f"{n[0]:,}", "last": f"{n[-1]:,}"}
    ends = steps[-1] if steps else None
    if ends is not None:
        figures |= {"step_gain": gain(ends.uncached, ends.cached)}
        words["context"] = f"{ends.n:,}"
    square, linear = uncached >= 1.6, cached <= 1.3
    if not (square and linear):
        return Judgement(*_graded(False, uncached - cached >= 0.5), figures, words)
    growth = _growth(steps)
    if growth is None:
        return Judgement(HOLDS, "full", figures, words)
    figures |= {"step_with": Figure(growth[0], "power"), "step_without": Figure(growth[1], "power")}
    whole = growth[1] >= 1.6 and growth[0] <= 1.3
    return Judgement(HOLDS if whole else PART, "whole" if whole else "weights", figures, words)


def _growth(steps: Sequence[StepAt]) -> tuple[float, float] | None:
    """Exponents of whole steps over the three longest contexts."""
    last = steps[-3:]
    if len(last) < 3:
        return None
    x = np.log([one.n for one in last])
    fits = [np.polyfit(x, np.log([getattr(one, way).median for one in last]), 1) for way in ("cached", "uncached")]
    return float(fits[0][0]), float(fits[1][0])


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
    return Judgement(*_graded(saved >= claimed - FULL, saved >= SOME * claimed), figures, words)


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
    reached = {phase: figure.value >= claimed for phase, (_, figure) in gains.items()}
    verdict, why = _graded(all(reached.values()), any(reached.values()))
    if "decode" not in gains:
        why += "_read"  # it only reads
    elif verdict == PART:
        why = "writing" if reached["decode"] else "reading"
    elif verdict == FAILS and min(figure.value for _, figure in gains.values()) < 1:
        why = "slower"
    words = {f"{phase}_form": labels[form] for phase, (form, _) in gains.items()}
    return Judgement(verdict, why, {phase: figure for phase, (_, figure) in gains.items()}, words)


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
    figures = _n(kl, "1")
    order = [kl[name] for name in forms]
    full = all(a <= b for a, b in pairwise(order))
    verdict, why = _graded(full, order[0] == min(order))
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


def path(relative: Mapping[str, float], distance: int) -> Judgement:
    """The gradient `distance` tokens back, beside that one token back: attention keeps a tenth, the others 1 %."""
    figures = {kind: Figure(value, "1") for kind, value in relative.items()}
    attention = relative["attention"]
    others = [value for kind, value in relative.items() if kind != "attention"]
    full = attention >= 0.1 and max(others) <= 0.01
    return Judgement(*_graded(full, attention >= 10 * max(others)), figures, {"distance": f"{distance:,}"})


def parallel(took: Mapping[str, "Latency"], n: int) -> Judgement:
    """A training step's pass over one text: faster than every recurrent layer, than some, than none."""
    attention = took["attention"]
    figures = {kind: gain(one, attention) for kind, one in took.items() if kind != "attention"}
    figures["attention"] = _time(attention)
    ahead = [one.median > attention.median for kind, one in took.items() if kind != "attention"]
    return Judgement(*_graded(all(ahead), any(ahead)), figures, {"n": f"{n:,}"})
