"""The page is one function of the language: `Translator("zh")("key", n=3)` is the sentence in Chinese."""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, floor, inf, isfinite, log, log10

from tfviz.errors import TfvizError
from tfviz.messages import sentences, text


@dataclass(frozen=True)
class Translator:
    language: str

    def __call__(self, key: str, **values: object) -> str:
        return text(key, self.language, **values)

    def has(self, key: str) -> bool:
        return key in sentences(self.language)

    def error(self, error: TfvizError) -> str:
        return error.in_language(self.language)


Translate = Callable[..., str]


def megabytes(n_bytes: float) -> str:
    """Three significant digits with their unit: 87.4 MiB, 1.13 GiB, 640 KiB."""
    for unit in ("B", "KiB", "MiB"):
        if n_bytes < 1000:
            return f"{significant(n_bytes)} {unit}"
        n_bytes /= 1024
    return f"{significant(n_bytes)} GiB"


def milliseconds(seconds: float) -> str:
    return f"{significant(seconds * 1000)} ms"


def ratio(value: float) -> str:
    return f"{value:.2f}x"


def percent(probability: float) -> str:
    """A probability as percent: 98.2 %, 0.00400 %, 1.20e-5 %."""
    return percent_of_log(log(probability) if probability > 0 else -inf)


def percent_of_log(log_prob: float) -> str:
    """The same from a natural logarithm, however small; only what is certain is 100 %, and nothing is 0 %."""
    if log_prob >= 0:
        return "100 %"
    if log_prob == -inf:
        return "<1e-43 %"  # below what FP32 holds
    value = 100 * exp(log_prob)
    if value >= 99.95:
        return ">99.9 %"
    if value >= 1e-3:
        return f"{significant(value)} %"
    tens = log_prob / log(10) + 2
    mantissa = round(10 ** (tens % 1), 2)
    return f"{mantissa:.2f}e{floor(tens)} %" if mantissa < 10 else f"1.00e{floor(tens) + 1} %"


def significant(value: float, digits: int = 3) -> str:
    """Three significant digits, no exponent for everyday sizes: 0.00012 -> 1.20e-4, 84.13 -> 84.1, 1234 -> 1,234."""
    if value == 0:
        return "0"
    if not isfinite(value):
        return {"inf": "∞", "-inf": "-∞"}.get(str(value), "nan")
    if abs(value) < 1:
        value = float(f"{value:.{digits - 1}e}")  # 0.0099999 is 0.0100
    if abs(value) < 1e-3:
        return f"{value:.{digits - 1}e}".replace("e-0", "e-")
    return f"{value:,.{max(0, digits - 1 - floor(log10(abs(value))))}f}"
