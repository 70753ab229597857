"""The task of the dates: a day written in any style of five languages, to be read as ISO 8601.

Numbers alone are read by `date_styles.RULE`; what is no date is made in `not_dates`.
"""

import random
from collections.abc import Callable
from string import digits

from tfviz.checks import from_to
from tfviz.training.date_styles import (
    CASES,
    FIRST,
    LAST,
    LOCALES,
    RULE,
    SPACES,
    WRONG_WEEKDAY_SHARE,
    Day,
    Style,
    every_day,
    styles,
    typed,
)
from tfviz.training.not_dates import NOISE
from tfviz.training.tasks import SPECIAL, Example, Task

HELD_OUT_DAYS, HELD_OUT_SEED = 5_000, 20170612


class DateTask(Task):
    """Days of 1900 to 2099 in every style of the five languages; 5,000 days are held out of all of them.

    A share of the training examples (`not_dates.NOISE`) is no date or only part of one; see there.
    """

    name = "dates"

    def __init__(self) -> None:
        days = list(every_day())
        chosen = set(random.Random(HELD_OUT_SEED).sample(range(len(days)), HELD_OUT_DAYS))
        self.days = [day for i, day in enumerate(days) if i not in chosen]
        self.held_out_days = [days[i] for i in sorted(chosen)]
        self.styles = {language: styles(language) for language in LOCALES}
        self.parts = {language: styles(language, parts=True) for language in LOCALES}
        self.vocabulary = (*SPECIAL, *sorted(self._characters()))

    def examples(self, n: int, rng: random.Random) -> list[Example]:
        longest = 72 if rng.random() < 0.125 else 40  # long texts come together, so that most batches stay narrow
        return [self._example(rng, longest) for _ in range(n)]

    def held_out(self, n: int, seed: int = 0) -> list[Example]:
        """Days in the order of `seed`, the languages in turn, and within each its styles in turn. At most 5,000."""
        from_to("n", n, 0, HELD_OUT_DAYS)
        rng = random.Random(seed)
        found = []
        for i, day in enumerate(rng.sample(self.held_out_days, n)):
            language = list(LOCALES)[i % len(LOCALES)]
            ways = self.styles[language]
            turn = i // len(LOCALES)
            style = next(style for k in range(len(ways)) if (style := ways[(turn + k) % len(ways)]).fits(day))
            found.append(Example(typed(style.write(day), rng), day.iso(), language))
        return found

    def draw(self, rng: random.Random, fits: Callable[[Day], bool] = lambda day: True) -> Day:
        """A training day that `fits`, all of them equally likely."""
        while not fits(day := rng.choice(self.days)):
            pass
        return day

    def draw_style(self, rng: random.Random, day: Day, parts: bool = False) -> Style:
        ways = (self.parts if parts else self.styles)[rng.choice(list(LOCALES))]
        while not (style := rng.choice(ways)).fits(day):
            pass
        return style

    def describe(self) -> dict[str, object]:
        """What a checkpoint says about its data; JSON-able."""
        return {
            "task": self.name,
            "languages": list(LOCALES),
            "styles": {language: [style.pattern for style in ways] for language, ways in self.styles.items()},
            "range": [FIRST.isoformat(), LAST.isoformat()],
            "rule": RULE,
            "held_out": {"days": HELD_OUT_DAYS, "seed": HELD_OUT_SEED},
            "noise": {kind: share for kind, (share, _) in NOISE.items()},
        }

    def _example(self, rng: random.Random, longest: int) -> Example:
        at = rng.random()
        for share, make in NOISE.values():
            if at < share:
                return make(self, rng, longest)
            at -= share
        day = self.draw(rng)
        style = self.draw_style(rng, day)
        shown = day._replace(weekday=rng.randrange(7)) if rng.random() < WRONG_WEEKDAY_SHARE else day
        return Example(typed(style.write(shown), rng), day.iso(), style.language)

    def _characters(self) -> set[str]:
        """Everything that the styles can write, and what a keyboard has."""
        found = {chr(i) for i in range(32, 127)} | {space for space in SPACES if len(space) == 1}
        year = [day for day in every_day() if day.year == 2024]
        for ways in (*self.styles.values(), *self.parts.values()):
            text = "".join(style.write(day) for style in ways for day in year)
            found |= set(text + digits).union(*(change(text) for _, change in CASES))
        return found | set("〇")
