"""What a rule of the claims gives: a verdict with its figures, each with the range that its measurement allows.

A verdict is given where it is the same at both ends of those ranges. Elsewhere it is said that the measurement is too
noisy to tell: a burst of other work on the machine must not turn a claim round.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

from tfviz.ui.i18n import megabytes, milliseconds, percent, ratio, significant

if TYPE_CHECKING:  # torch comes with it
    from tfviz.inference.measure import Latency

HOLDS, PART, FAILS, NOISY, OPEN = "holds", "part", "fails", "noisy", "open"
VERDICTS = (HOLDS, PART, FAILS, NOISY, OPEN)
FEWEST = 3  # runs that have a spread
Outcome = tuple[str, str]  # verdict, why


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

    @property
    def ends(self) -> tuple[float, ...]:
        return (self.value,) if self.low is None or self.high is None else (self.low, self.high)


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
    """`why`: the sentence about it, `speed.claims.<claim>.<why>`, whose fields are the figures and `words`.

    `told`: the sentence of the result, `.result.<told>`, where it is another than `.result`.
    """

    verdict: str
    why: str
    figures: Mapping[str, Figure]
    words: Mapping[str, str] = field(default_factory=dict)
    told: str = ""

    @property
    def fields(self) -> dict[str, str]:
        return {**{name: one.text for name, one in self.figures.items()}, **self.words}


def graded(full: bool, some: bool, whys: Sequence[str] = ("full", "some", "none")) -> tuple[str, str]:
    return (HOLDS, whys[0]) if full else (PART, whys[1]) if some else (FAILS, whys[2])


def numbers(numbers: Mapping[str, float], unit: str = "n", names: Sequence[str] = ()) -> dict[str, Figure]:
    return {name: Figure(float(value), unit) for name, value in numbers.items() if not names or name in names}


def settled(
    rule: Callable[[Mapping[str, float]], Outcome], figures: Mapping[str, Figure]
) -> tuple[str, str, dict[str, str]]:
    """The outcome of `rule(value of each figure)`, if it is the same at all ends of the figures' ranges; else NOISY.

    With the words of why: the ends of the first figure that is enough by itself to change the outcome.
    """
    runs = min((one.runs for one in figures.values() if one.runs is not None), default=FEWEST)
    if runs < FEWEST:  # a slow machine ran out of time
        return NOISY, "few", {"runs": str(runs)}
    values = {name: one.value for name, one in figures.items()}

    def outcomes(ranges: Mapping[str, Sequence[float]]) -> set[Outcome]:
        return {
            rule(values),
            *(rule(values | dict(zip(ranges, ends, strict=True))) for ends in product(*ranges.values())),
        }

    if len(outcomes({name: one.ends for name, one in figures.items()})) == 1:
        return *rule(values), {}
    alone = (one for name, one in figures.items() if len(outcomes({name: one.ends})) > 1)
    doubt = next(alone, next(iter(figures.values())))
    low, high = (WRITTEN[doubt.unit](end) for end in (doubt.ends[0], doubt.ends[-1]))
    return NOISY, "power" if doubt.unit == "power" else "range", {"low": low, "high": high}


def gain(slow: "Latency", fast: "Latency", unit: str = "x") -> Figure:
    """slow / fast; the spread is what the quartiles allow."""
    return Figure(slow.median / fast.median, unit, slow.low / fast.high, slow.high / fast.low, slow.runs)


def seconds(took: "Latency") -> Figure:
    return Figure(took.median, "s", took.low, took.high, took.runs)
