"""Dates as people write them, in five languages, to ISO 8601: `Mittwoch, 5. März 2025` -> `2025-03-05`.

Patterns, month and weekday names come from CLDR by way of Babel (Unicode TR 35, part 4), with some usual ones besides.
What numbers alone mean is settled by one rule, RULE; a style is used only for the days where the rule reads it right.
"""

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache, cached_property
from importlib import import_module
from string import digits
from typing import Any, NamedTuple

from tfviz.errors import TfvizError

FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)
RULE = (
    "Numbers alone are read day, month, year; if the year stands first, year, month, day. Where the second of them is "
    "above 12 it must be the day, and the first is the month (12/25/2026). A year of two digits lies in 1969 to 2068. "
    "A weekday is not used."
)
LOCALES = {"en": ("en", "en_GB"), "zh": ("zh",), "de": ("de",), "fr": ("fr",), "es": ("es",)}
CLDR = ("short", "medium", "long", "full", "yMd", "yMEd", "yMMMd", "yMMMEd", "yMMMMd", "yMMMMEd", "yMMMMEEEEd")
CLDR_PARTS = ("y", "yM", "yMMM", "yMMMM", "Md", "MMMd", "MMMMd", "MMMMEd", "MMMMEEEEd")
NUMBERS = ("dd/MM/y", "d.M.y", "d-M-y", "y-MM-dd", "y/MM/dd", "y/M/d", "y.M.d", "yMMdd")
USUAL = {  # what is written besides; {th} is an ordinal's ending, {year} {month} {day} Chinese numerals
    "en": (
        *("d MMMM y", "d MMM y", "MMMM d, y", "MMMM d y", "MMM d y", "EEEE d MMMM y", "dd-MMM-y", "d MMM yy"),
        *("d'{th}' MMMM y", "d'{th}' 'of' MMMM y", "MMMM d'{th}', y", "EEEE, MMMM d'{th}', y", "y MMMM d"),
        *("dd/MM/yy", "d/M/y", "M/d/y", "MM/dd/y", "M-d-y", "MM.dd.y", *NUMBERS),
    ),
    "zh": (
        *("y年MM月dd日", "y年M月d号", "y年M月d日 EEEE", "y年M月d日（EEEE）", "y 年 M 月 d 日", "yy年M月d日"),
        *("'{year}年{month}月{day}日'", "'{year}年{month}月{day}日'EEEE", *NUMBERS),
    ),
    "de": ("d. LLL y", "d.MMMM y", "d MMMM y", "EEEE, 'den' d. MMMM y", "d. M. y", "E dd.MM.y", "d.M.yy", *NUMBERS),
    "fr": ("d'{er}' MMMM y", "EEEE d'{er}' MMMM y", "'le' d MMMM y", "EEEE, d MMMM y", "dd.MM.y", "d/M/yy", *NUMBERS),
    "es": ("d MMMM y", "d 'de' MMMM 'del' y", "d 'de' MMM 'de' y", "EEEE d 'de' MMMM 'de' y", "dd-MM-y", *NUMBERS),
}
USUAL_PARTS = ("d", "d.M.", "LLLL", "EEEE")
SPACES = ("\u00a0", "\u202f", "  ")  # what stands for a space in print: unbroken, narrow, and typed twice
SPACE_SHARE, WRONG_WEEKDAY_SHARE = 0.04, 0.1
CASES: tuple[tuple[float, Callable[[str], str]], ...] = ((0.1, str.lower), (0.04, str.upper), (0.04, str.title))


class Day(NamedTuple):
    """A day as numbers; a plain tuple, so that days that do not exist can be written as well. Monday is 0."""

    year: int
    month: int
    day: int
    weekday: int

    def iso(self) -> str:
        return f"{self.year:04}-{self.month:02}-{self.day:02}"


@dataclass(frozen=True, eq=False)
class Style:
    """One way to write a day: a CLDR pattern in one locale, its names looked up once."""

    language: str
    pattern: str
    template: str  # the pattern as Babel parsed it: "%(d)s %(MMMM)s %(y)s"
    names: dict[str, tuple[str, ...]]  # field -> names, from January or Monday on

    def write(self, day: Day) -> str:
        fields = {field: names[day.weekday if field[0] == "E" else day.month - 1] for field, names in self._named}
        for field in self._numbers:
            value = {"y": day.year, "M": day.month, "d": day.day}[field[0]]
            fields[field] = f"{value % 100:02}" if field == "yy" else f"{value:02}" if len(field) == 2 else str(value)
        text = self.template % fields
        return text.format_map(spelled_out(day)) if "{" in text else text

    def fits(self, day: Day) -> bool:
        """Whether RULE reads this style's text of `day` as that day."""
        if self.month_before_day and day.day <= 12:
            return False
        return ("yy" not in self._numbers or 1969 <= day.year <= 2068) and ("{er}" not in self.pattern or day.day == 1)

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The fields in the order they are written: ("EEEE", "d", "MMMM", "y")."""
        return tuple(re.findall(r"%\((\w+)\)s", self.template))

    @cached_property
    def month_before_day(self) -> bool:
        """Numbers alone, month first: what RULE reads only where the day is above 12."""
        order = "".join(field[0] for field in self._numbers)
        return "Md" in order and not order.startswith("y") and "月" not in self.pattern

    @cached_property
    def _numbers(self) -> tuple[str, ...]:
        return tuple(field for field in self.fields if field not in self.names)

    @cached_property
    def _named(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return tuple((field, self.names[field]) for field in self.fields if field in self.names)


def spelled_out(day: Day) -> dict[str, str]:
    """What no CLDR field gives: ordinal endings and Chinese numerals."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    return {
        "th": "th" if day.day in (11, 12, 13) else endings.get(day.day % 10, "th"),
        "er": "er",
        "year": "".join("〇一二三四五六七八九"[int(digit)] for digit in str(day.year)),
        "month": chinese_number(day.month),
        "day": chinese_number(day.day),
    }


def chinese_number(n: int) -> str:
    """0 to 99: 十, 十一, 二十, 三十一."""
    tens, ones = divmod(n, 10)
    ten = "" if tens == 0 else "十" if tens == 1 else "一二三四五六七八九"[tens - 1] + "十"
    return ten + ("〇一二三四五六七八九"[ones] if ones or not tens else "")


NAMES = {  # field: where CLDR has its names, from January or Monday on
    "MMM": ("months", "format", "abbreviated"),
    "MMMM": ("months", "format", "wide"),
    "LLL": ("months", "stand-alone", "abbreviated"),
    "LLLL": ("months", "stand-alone", "wide"),
    "E": ("days", "format", "abbreviated"),
    "EEE": ("days", "format", "abbreviated"),
    "EEEE": ("days", "format", "wide"),
}


def babel(module: str) -> Any:
    """A module of Babel, which only the making of dates needs; `TfvizError` where it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        raise TfvizError("error.training.no_babel") from None


def styles(language: str, parts: bool = False) -> list[Style]:
    """Every style of a language, each once; with `parts` those that leave something of the day out."""
    parse = babel("babel.dates").parse_pattern
    found: dict[tuple[str, ...], Style] = {}
    for code in LOCALES[language]:
        locale = babel("babel").Locale.parse(code)
        known = {
            key: pattern for table in (locale.datetime_skeletons, locale.date_formats) for key, pattern in table.items()
        }
        names = {
            field: in_order(getattr(locale, table)[context][width]) for field, (table, context, width) in NAMES.items()
        }
        cldr = [known[key].pattern for key in (CLDR_PARTS if parts else CLDR) if key in known]
        for pattern in (*cldr, *(USUAL_PARTS if parts else USUAL[language])):
            style = Style(language, pattern, parse(pattern).format, names)
            found.setdefault((pattern, *(name for field in style.fields for name in names.get(field, ()))), style)
    return list(found.values())


def in_order(names: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(names[i] for i in sorted(names))


def every_day() -> Iterator[Day]:
    day = FIRST
    while day <= LAST:
        yield Day(day.year, day.month, day.day, day.weekday())
        day += timedelta(days=1)


def typed(text: str, rng: random.Random) -> str:
    """As somebody might have typed it: sometimes in another case, sometimes with other spaces."""
    at = rng.random()
    for share, change in CASES:
        if at < share:
            text = change(text)
            break
        at -= share
    return text.replace(" ", rng.choice(SPACES)) if rng.random() < SPACE_SHARE else text


@cache
def plain_words() -> tuple[str, ...]:
    """Names of countries and languages in the five languages, from CLDR; sorted, so that seeds mean the same."""
    found: set[str] = set()
    for code in LOCALES:
        locale = babel("babel").Locale.parse(code)
        found |= {*locale.territories.values(), *locale.languages.values()}
    return tuple(sorted(word for word in found if not set(word) & set(digits + "()")))
