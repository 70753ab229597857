"""What is no date, or not all of one: so that the model learns to be unsure exactly where it must be.

A day is drawn first, then something of it is hidden; the target stays that day. So a target is always a random one of
the days that fit what is shown, and the best a model can do is to spread its probability over them.
"""

import random
from calendar import monthrange
from collections.abc import Callable
from string import ascii_letters, digits, punctuation
from typing import TYPE_CHECKING

from tfviz.training.date_styles import Day, Style, plain_words, typed
from tfviz.training.tasks import Example

if TYPE_CHECKING:
    from tfviz.training.dates import DateTask

HIDDEN = "\ufffd"  # in no vocabulary: read as the unknown token
ODD_LETTERS = "àâçèêëïîôœùÿñãõčşžабвгдежзиклмнопрстあいうえおかきくけこ한국어时间你好世界"


def words(task: "DateTask", rng: random.Random, longest: int) -> Example:
    """Names of countries and languages, letters in any order, at most two numbers, signs. Nothing says which day."""
    length, text, numbers = rng.randint(1, longest), "", 0
    while len(text) < length:
        kind = rng.random()
        if kind < 0.5:
            text += rng.choice(plain_words())
        elif kind < 0.85:
            text += "".join(rng.choices(ascii_letters if rng.random() < 0.9 else ODD_LETTERS, k=rng.randint(1, 9)))
        elif numbers < 2:
            text += "".join(rng.choices(digits, k=rng.choice((1, 1, 2, 3, 5, 6, 7))))
            numbers += 1
        text += rng.choice(punctuation) if rng.random() < 0.1 else ""
        text += " " if rng.random() < 0.9 else ""
    text = text[:length].strip() or rng.choice(ascii_letters)
    return Example(text.lower() if rng.random() < 0.5 else text, task.draw(rng).iso())


def part(task: "DateTask", rng: random.Random, longest: int) -> Example:
    """A day without its year, a month without its day, a weekday; or a date whose year is not all typed yet."""
    day = task.draw(rng)
    if rng.random() < 0.7:
        return Example(typed(task.draw_style(rng, day, parts=True).write(day), rng), day.iso())
    while not ends_in_year(style := task.draw_style(rng, day)):
        pass
    return Example(style.write(day)[: -rng.choice((1, 3, 4))], day.iso())  # two digits of it would be a whole year


def blot(task: "DateTask", rng: random.Random, longest: int) -> Example:
    """A date of which some characters cannot be read, or whose month has a name in no language known here."""
    day = task.draw(rng)
    style = task.draw_style(rng, day)
    text = style.write(day)
    names = [style.names[field][day.month - 1] for field in style.fields if field[:3] in ("MMM", "LLL")]
    if names and rng.random() < 0.5:
        foreign = rng.choice((HIDDEN * rng.randint(3, 9), rng.choice(plain_words())[:12]))
        return Example(text.replace(names[0], foreign), day.iso())
    for i in rng.choices(range(len(text)), k=rng.randint(1, 3)):
        text = text[:i] + HIDDEN + text[i + 1 :]
    return Example(text, day.iso())


def impossible(task: "DateTask", rng: random.Random, longest: int) -> Example:
    """A day, month or year that does not exist or is out of range; what is possible of it is kept.

    29 February is let stand in every year: there are too few of them to learn leap years from.
    """
    wrong = rng.choice(("late day", "day", "month", "year"))
    day = task.draw(rng, (lambda day: days_in(day) < 31) if wrong == "late day" else (lambda day: True))
    while not writes(style := task.draw_style(rng, day), wrong):
        pass
    nothing = rng.random() < 0.15 and not style.month_before_day  # 00
    if wrong == "late day":
        shown = day._replace(day=rng.randint(days_in(day) + 1, 31))
    elif wrong == "day":
        shown = day._replace(day=0 if nothing else rng.randint(32, 99))
    elif wrong == "month":  # after a day of 12 or less, a month of 31 or less would itself be the day
        shown = day._replace(month=0 if nothing else rng.randint(13 if day.day > 12 else 32, 99))
    else:
        shown = day._replace(year=rng.choice((rng.randint(1000, 1899), rng.randint(2100, 2999))))
    return Example(typed(style.write(shown), rng), day.iso())


def days_in(day: Day) -> int:
    """Of its month: 28 to 31, with 29 in every February."""
    return 29 if day.month == 2 else monthrange(day.year, day.month)[1]


def writes(style: Style, wrong: str) -> bool:
    """Whether a wrong day, month or year can be written, and would be read as one."""
    if wrong == "month":
        return bool({"M", "MM"} & set(style.fields)) and not style.month_before_day
    return ("y" if wrong == "year" else "d") in {field[0] for field in style.fields if field != "yy"}


def ends_in_year(style: Style) -> bool:
    """A named month, and a year of four digits at the very end."""
    named = any(field in style.names and field[0] in "ML" for field in style.fields)
    return named and style.template.endswith("%(y)s")


# share of the training examples, and how they are made
NOISE: dict[str, tuple[float, Callable[["DateTask", random.Random, int], Example]]] = {
    "words": (0.02, words),
    "part": (0.03, part),
    "blot": (0.01, blot),
    "impossible": (0.04, impossible),
}
