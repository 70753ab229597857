"""Dates: Babel's own text, one rule for numbers, held-out days kept out, and what is no date drawn honestly."""

import random
import re
import sys
from calendar import monthrange
from collections import Counter
from datetime import date, timedelta
from time import process_time

import pytest
import torch
from babel.dates import format_date

from tfviz.errors import TfvizError
from tfviz.training.date_styles import FIRST, LAST, LOCALES, RULE, Day, Style, chinese_number, styles, typed
from tfviz.training.dates import DateTask
from tfviz.training.not_dates import NOISE, blot, impossible, part, words
from tfviz.training.tasks import UNKNOWN, Example

SOME_DAYS = [FIRST, LAST, *(date(1903, 1, 1) + timedelta(days=997 * i) for i in range(70)), date(2024, 2, 29)]


@pytest.fixture(scope="module")
def task() -> DateTask:
    return DateTask()


def as_day(day: date) -> Day:
    return Day(day.year, day.month, day.day, day.weekday())


def every_style(task: DateTask, parts: bool = False) -> list[Style]:
    return [style for ways in (task.parts if parts else task.styles).values() for style in ways]


@pytest.fixture(scope="module")
def learnt(task: DateTask) -> list[Example]:
    """20,000 training examples or a few more, in batches as the loop draws them."""
    rng = random.Random(0)
    return [example for _ in range(157) for example in task.examples(128, rng)]


# ---- the rule, read by a reader of the test's own


def by_rule(text: str) -> str | None:
    """What the rule makes of a text of numbers alone; None for any other text."""
    if re.fullmatch(r"\d{8}", text):
        text = f"{text[:4]}-{text[4:6]}-{text[6:]}"
    if not re.fullmatch(r"\d+([./-] ?)\d+\1\d+", text):
        return None
    first, second, third = re.findall(r"\d+", text)
    if len(first) == 4:
        year, month, day = first, second, third
    else:
        day, month = (second, first) if int(second) > 12 else (first, second)
        year = third if len(third) == 4 else str(int(third) + (1900 if int(third) >= 69 else 2000))
    return date(int(year), int(month), int(day)).isoformat()


@pytest.mark.parametrize(
    "text, iso",
    [
        ("03/04/2026", "2026-04-03"),
        ("12/25/2026", "2026-12-25"),
        ("25/12/2026", "2026-12-25"),
        ("2026/3/4", "2026-03-04"),
        ("1.2.69", "1969-02-01"),
        ("1.2.68", "2068-02-01"),
        ("20260304", "2026-03-04"),
    ],
)
def test_the_rules_cases(text: str, iso: str) -> None:
    assert by_rule(text) == iso


def test_numbers_alone_are_always_what_the_rule_says(task: DateTask) -> None:
    seen = Counter[bool]()
    for style in every_style(task):
        for day in SOME_DAYS:
            text = style.write(as_day(day))
            if style.fits(as_day(day)) and by_rule(text) is not None:
                assert by_rule(text) == day.isoformat(), style.pattern
                seen[style.month_before_day] += 1
    assert seen[True] > 100 and seen[False] > 1000
    assert "12/25/2026" in RULE


def test_the_american_order_is_used_only_where_it_cannot_be_misread(task: DateTask) -> None:
    american = {style.pattern for style in task.styles["en"] if style.month_before_day}
    assert {"M/d/yy", "M/d/y", "E, M/d/y", "MM/dd/y"} <= american
    for style in task.styles["en"]:
        if style.month_before_day:
            assert style.fits(Day(2026, 12, 25, 4)) and not style.fits(Day(2026, 12, 12, 5))
    assert not any(style.month_before_day for language in ("zh", "de", "fr", "es") for style in task.styles[language])


def test_two_digit_years_are_used_only_for_their_century(task: DateTask) -> None:
    short = [style for style in every_style(task) if "yy" in style.fields]
    assert {style.language for style in short} == set(LOCALES)
    for style in short:
        fits = [year for year in range(1900, 2100) if style.fits(Day(year, 12, 25, 0))]
        assert fits == list(range(1969, 2069))


# ---- the texts


def test_the_text_is_babels_own(task: DateTask) -> None:
    for language, ways in task.styles.items():
        for style in ways:
            if "{" in style.pattern:
                continue
            for day in SOME_DAYS[:12]:
                babels = {format_date(day, style.pattern, locale) for locale in LOCALES[language]}
                assert style.write(as_day(day)) in babels


def test_every_month_and_weekday_reads_in_its_language(task: DateTask) -> None:
    def full(language: str) -> str:
        longest = max(task.styles[language], key=lambda style: ("EEEE" in style.fields, "MMMM" in style.fields))
        return longest.write(as_day(date(2025, 3, 5)))

    assert full("en") == "Wednesday, March 5, 2025" and full("de") == "Mittwoch, 5. März 2025"
    assert full("fr") == "mercredi 5 mars 2025" and full("es") == "miércoles, 5 de marzo de 2025"
    assert "2025年3月5日星期三" in {style.write(as_day(date(2025, 3, 5))) for style in task.styles["zh"]}


def test_each_language_has_many_styles_each_once(task: DateTask) -> None:
    day = as_day(date(2024, 9, 5))
    for ways in task.styles.values():
        assert len(ways) >= 20
        keys = [(style.pattern, style.write(day)) for style in ways]
        assert len(set(keys)) >= len(keys) - 1, "two English locales differ only in the name of September"


@pytest.mark.parametrize("day, text", [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (13, "13th")])
def test_english_ordinals(task: DateTask, day: int, text: str) -> None:
    style = next(style for style in task.styles["en"] if style.pattern == "d'{th}' MMMM y")
    assert style.write(Day(2024, 3, day, 0)) == f"{text} March 2024"
    assert style.write(Day(2024, 3, day + 20, 0)).startswith(f"{day + 20}") or day > 4


def test_chinese_numerals() -> None:
    written = [chinese_number(n) for n in (1, 9, 10, 11, 19, 20, 21, 30, 31)]
    assert written == ["一", "九", "十", "十一", "十九", "二十", "二十一", "三十", "三十一"]


def test_only_the_first_of_a_month_is_an_ordinal_in_french(task: DateTask) -> None:
    style = next(style for style in task.styles["fr"] if style.pattern == "d'{er}' MMMM y")
    assert style.write(Day(2024, 3, 1, 4)) == "1er mars 2024"
    assert style.fits(Day(2024, 3, 1, 4)) and not style.fits(Day(2024, 3, 2, 5))


def test_case_and_spaces_vary_and_nothing_else() -> None:
    rng = random.Random(0)
    seen = Counter(typed("Do., 5 März 2024", rng) for _ in range(3000))
    assert {" ".join(text.lower().split()) for text in seen} == {"do., 5 märz 2024"}
    assert 0.07 < sum(n for text, n in seen.items() if text.islower()) / 3000 < 0.13
    assert any("\u00a0" in text for text in seen) and any("\u202f" in text for text in seen)


# ---- the task


def test_no_character_of_a_date_is_unknown(task: DateTask) -> None:
    rng = random.Random(3)
    for style in every_style(task) + every_style(task, parts=True):
        for day in SOME_DAYS[:40]:
            text = style.write(as_day(day))
            for variant in (text, text.lower(), text.upper(), text.title(), typed(text, rng)):
                assert UNKNOWN not in task.encode(variant), variant
    assert UNKNOWN not in task.encode("abcXYZ 0123456789 .,:;!?'\"()-/+*&%$#@[]{}<>=_|~^`\\")


def test_the_vocabulary_does_not_depend_on_the_run(task: DateTask) -> None:
    assert DateTask().vocabulary == task.vocabulary and len(task.vocabulary) < 200


def test_held_out_days_are_5000_and_never_a_training_target(task: DateTask, learnt: list[Example]) -> None:
    kept = {day.iso() for day in task.held_out_days}
    assert len(kept) == 5000 and len(kept) + len(task.days) == (LAST - FIRST).days + 1
    targets = {example.target for example in learnt}
    assert len(targets) > 15_000 and not targets & kept
    for make in (words, part, blot, impossible):
        rng = random.Random(4)
        assert not {make(task, rng, 40).target for _ in range(500)} & kept


def test_the_score_is_over_every_held_out_day_language_and_style(task: DateTask) -> None:
    examples = task.held_out(5000)
    assert {example.target for example in examples} == {day.iso() for day in task.held_out_days}
    assert Counter(example.group for example in examples) == dict.fromkeys(LOCALES, 1000)
    read = {example.source: example.target for example in examples}
    numbers = {text: by_rule(text) for text in read if by_rule(text)}
    assert len(numbers) > 1000 and all(read[text] == iso for text, iso in numbers.items())


def test_more_than_the_held_out_days_are_refused(task: DateTask) -> None:
    with pytest.raises(TfvizError, match="5001.*5000"):
        task.held_out(5001)


def test_every_target_is_a_day_in_range(learnt: list[Example]) -> None:
    for example in learnt[:5000]:
        assert FIRST <= date.fromisoformat(example.target) <= LAST and 0 < len(example.source) <= 80


def test_training_dates_of_numbers_alone_follow_the_rule(learnt: list[Example]) -> None:
    found = 0
    for example in learnt:
        try:
            read = by_rule(example.source)
        except ValueError:
            assert not example.group, "only what is meant to be impossible is"
            continue
        if read is not None and FIRST <= date.fromisoformat(read) <= LAST:
            assert read == example.target, example
            found += 1
    assert found > 5000


def test_textual_dates_hold_the_year_and_day_of_their_target(learnt: list[Example]) -> None:
    for example in learnt[:5000]:
        if example.group in {"en", "de", "fr", "es"} and re.search(r"[a-z]{3}", example.source.lower()):
            year, _, day = example.target.split("-")
            numbers = set(re.findall(r"\d+", example.source))
            assert {year, year[2:]} & numbers and {day, day.lstrip("0")} & numbers, example


def test_a_wrong_weekday_changes_nothing(task: DateTask, learnt: list[Example]) -> None:
    style = next(style for style in task.styles["de"] if style.pattern == "EEEE, d. MMMM y")
    german = [style.write(as_day(date(2024, 1, 1 + i))).split(",")[0] for i in range(7)]
    off = total = 0
    for example in learnt:
        name = example.source.split(",")[0]
        if example.group == "de" and name in german:
            total += 1
            off += german[date.fromisoformat(example.target).weekday()] != name
    assert 0.03 < off / total < 0.16


def test_a_batch_is_made_in_a_small_part_of_a_step(task: DateTask) -> None:
    generator = torch.Generator().manual_seed(0)
    task.batch(128, generator)
    times = []
    for _ in range(9):
        start = process_time()
        task.batch(128, generator)
        times.append(process_time() - start)
    assert sorted(times)[4] < 0.05  # CPU seconds; 0.002 without the type checks of the tests


# ---- what is no date


def test_a_few_percent_are_no_date(learnt: list[Example]) -> None:
    share = sum(not example.group for example in learnt[:10_000]) / 10_000
    assert share == pytest.approx(sum(share for share, _ in NOISE.values()), abs=0.01) and 0.02 < share < 0.15


def test_a_part_of_a_date_is_completed_at_random(task: DateTask) -> None:
    rng, days, years = random.Random(0), set(), set()
    for _ in range(20_000):
        example = part(task, rng, 40)
        if example.source == "March":
            assert example.target[5:7] == "03"
            years.add(example.target[:4])
        if match := re.fullmatch(r"\w+ (\d{4})", example.source):
            assert example.target[:4] == match[1]
            days.add(example.target[8:])
    assert len(days) > 25 and len(years) > 3


def test_a_half_typed_year_is_continued_but_two_digits_are_a_year(task: DateTask) -> None:
    rng = random.Random(1)
    for _ in range(5000):
        example = part(task, rng, 40)
        if match := re.fullmatch(r"\d{1,2} \w{3,} (\d*)", example.source):
            assert len(match[1]) != 2 and example.target.startswith(match[1])


def test_words_say_nothing_about_the_day(task: DateTask) -> None:
    rng = random.Random(2)
    examples = [words(task, rng, 40) for _ in range(2000)]
    assert all(0 < len(example.source) <= 40 and len(re.findall(r"\d+", example.source)) <= 2 for example in examples)
    assert len({example.target[:4] for example in examples}) > 190
    assert any(UNKNOWN in task.encode(example.source) for example in examples)


def test_a_blotted_date_fits_what_can_still_be_read(task: DateTask) -> None:
    rng, blotted = random.Random(3), 0
    for _ in range(3000):
        example = blot(task, rng, 40)
        blotted += "\ufffd" in example.source
        if re.fullmatch(r"[\d\ufffd]{4}-[\d\ufffd]{2}-[\d\ufffd]{2}", example.source):
            assert re.fullmatch(example.source.replace("\ufffd", "."), example.target)
    assert blotted > 1500


def test_an_impossible_date_keeps_what_is_possible_of_it(task: DateTask) -> None:
    rng, kinds = random.Random(4), Counter[str]()
    for _ in range(8000):
        example = impossible(task, rng, 40)
        if match := re.fullmatch(r"(\d{4})-(\d{2})-(\d{2})", example.source):
            year, month, day = map(int, match.groups())
            target = date.fromisoformat(example.target)
            if not FIRST.year <= year <= LAST.year:
                kinds["year"] += 1
                assert (target.month, target.day) == (month, day)
            elif not 1 <= month <= 12:
                kinds["month"] += 1
                assert (target.year, target.day) == (year, day)
            else:
                kinds["day"] += 1
                assert not 1 <= day <= monthrange(year, month)[1] and (target.year, target.month) == (year, month)
                assert (month, day) != (2, 29), "leap years are not asked for"
    assert min(kinds[kind] for kind in ("day", "month", "year")) > 20


def test_without_babel_the_task_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "babel", None)
    with pytest.raises(TfvizError, match="pip install Babel"):
        styles("en")


def test_what_a_checkpoint_says_of_its_data(task: DateTask) -> None:
    said = task.describe()
    assert said["languages"] == ["en", "zh", "de", "fr", "es"] and said["rule"] == RULE
    assert said["range"] == ["1900-01-01", "2099-12-31"] and said["held_out"]["days"] == 5000
