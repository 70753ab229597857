"""Numbers on the page: three significant digits, always a unit, nothing that breaks a page."""

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tfviz.messages import LANGUAGES
from tfviz.ui.i18n import Translator, megabytes, milliseconds, percent, percent_of_log, ratio, significant

KIB, MIB, GIB = 1024, 1024**2, 1024**3


def value_of(shown: str) -> float:
    return float(shown.replace(",", ""))


@pytest.mark.parametrize(
    "value, shown",
    [
        (0, "0"),
        (84.13, "84.1"),
        (1.234, "1.23"),
        (1234, "1,234"),
        (123456, "123,456"),
        (512, "512"),
        (0.00012, "1.20e-4"),
    ],
)
def test_everyday_numbers_have_three_significant_digits(value: float, shown: str) -> None:
    assert significant(value) == shown


@given(st.floats(1e-12, 1e9))
@example(0.00512)
@example(0.0123)
@example(0.0999)
@example(1e-10)
def test_what_is_shown_is_the_value_to_three_digits(value: float) -> None:
    assert value_of(significant(value)) == pytest.approx(value, rel=0.0051)


@given(st.floats(1e-9, 999))
def test_no_more_digits_are_shown_than_were_asked_for(value: float) -> None:
    digits = re.sub(r"e.*|[.,]", "", significant(value)).lstrip("0")
    assert len(digits) <= 4  # 9.999 rounds up to 10.00


@given(st.floats(1e-6, 1e6))
def test_a_negative_number_is_the_positive_one_with_a_sign(value: float) -> None:
    assert significant(-value) == "-" + significant(value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_an_overflow_is_shown_and_breaks_nothing(value: float) -> None:
    assert significant(value) in {"inf", "-inf", "nan", "∞", "-∞", "−∞"}


@pytest.mark.parametrize(
    "n_bytes, shown",
    [
        (0, "0 B"),
        (12, "12.0 B"),
        (640 * KIB, "640 KiB"),
        (87.4 * MIB, "87.4 MiB"),
        (1.13 * GIB, "1.13 GiB"),
        (538 * MIB, "538 MiB"),
    ],
)
def test_bytes_have_a_binary_unit(n_bytes: float, shown: str) -> None:
    assert megabytes(n_bytes) == shown


@given(st.integers(1, 2**43))
def test_bytes_are_true_to_three_digits(n_bytes: int) -> None:
    number, unit = megabytes(n_bytes).split(" ")
    scale = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}[unit]
    assert value_of(number) * scale == pytest.approx(n_bytes, rel=0.0051)
    assert value_of(number) <= 1000 or unit == "GiB"


def test_times_are_in_milliseconds_and_ratios_have_an_x() -> None:
    assert milliseconds(0.0841) == "84.1 ms"
    assert milliseconds(2.5) == "2,500 ms"
    assert (ratio(1.8349), ratio(1), ratio(0.834)) == ("1.83x", "1.00x", "0.83x")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_translator_fills_its_values_in(language: str) -> None:
    assert "17" in Translator(language)("page.cpu", n=17)
    with pytest.raises(KeyError):
        Translator(language)("no.such.sentence")


@pytest.mark.parametrize(
    "probability, shown",
    [
        (1, "100 %"),
        (0.99999, ">99.9 %"),
        (0.9994, "99.9 %"),
        (0.5, "50.0 %"),
        (0.0123, "1.23 %"),
        (4e-5, "0.00400 %"),
        (1.2e-7, "1.20e-5 %"),
        (9.9996e-7, "1.00e-4 %"),
        (0, "<1e-43 %"),
    ],
)
def test_probabilities_are_percent_with_three_digits(probability: float, shown: str) -> None:
    assert percent(probability) == shown


@given(st.floats(-5000, -1e-6))
@example(math.log(0.9995))
@example(math.log(1e-5))
def test_no_probability_is_shown_as_nothing_or_as_certain(log_prob: float) -> None:
    shown = percent_of_log(log_prob)
    assert shown.endswith(" %") and shown not in {"0 %", "100 %"}
    mantissa, _, exponent = shown.removesuffix(" %").removeprefix(">").partition("e")
    assert math.log(float(mantissa)) + (int(exponent or 0) - 2) * math.log(10) == pytest.approx(log_prob, abs=0.006)
