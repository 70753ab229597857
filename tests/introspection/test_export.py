"""Results as files: what is written is read back exactly; whatever else stands in a file is refused in a sentence."""

import csv
import io
import json
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfviz.inference.records import Machine, Record
from tfviz.introspection.comparison import compare, more_is_better
from tfviz.introspection.export import (
    MOST_BYTES,
    MOST_RECORDS,
    BadFile,
    from_csv,
    from_json,
    read,
    sound,
    to_csv,
    to_json,
    to_markdown,
)
from tfviz.messages import LANGUAGES

HERE = Machine("CPU of <b>mine</b>", "cpu", 2, "AVX512", "Linux x86_64", "3.11.9", "2.13.0+cpu")
RECORD = Record(
    "kernels", {"kernel": "flash", "n": 1024}, "latency", 0.25, "s", 0.2, 0.3, 5, "2026-11-30T06:54:46+00:00"
)

texts = st.text(max_size=12) | st.sampled_from(
    [
        "=1+1",
        "+1",
        "-1",
        "-x",
        "@a",
        "'",
        "''",
        '"',
        '"a"',
        '""',
        "12",
        "-0.5",
        "1e5",
        "true",
        "false",
        "a,b",
        "a\r\nb",
        "\t",
        "|",
        "",
        " ",
    ]
)
names = st.text(min_size=1, max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
whole = st.integers(-(2**53), 2**53)
settings = st.dictionaries(names, texts | whole | numbers | st.booleans(), max_size=4)
counts = st.none() | st.integers(0, 2**53)
records = st.builds(
    Record, texts, settings, texts, numbers, texts, st.none() | numbers, st.none() | numbers, counts, texts
)
machines = st.builds(Machine, texts, texts, counts, texts, texts, texts, texts)


def kinds(found: list[Record]) -> list[list[type]]:
    return [[type(one.setting[name]) for name in sorted(one.setting)] for one in found]


@given(machines, st.lists(records, max_size=4))
def test_json_gives_back_what_was_written(machine: Machine, rows: list[Record]) -> None:
    assert from_json(to_json(machine, rows)) == (machine, rows)
    assert kinds(from_json(to_json(machine, rows))[1]) == kinds(rows)


@given(machines, st.lists(records, min_size=1, max_size=4))
def test_csv_gives_back_what_was_written(machine: Machine, rows: list[Record]) -> None:
    assert from_csv(to_csv(machine, rows)) == (machine, rows)
    assert kinds(from_csv(to_csv(machine, rows))[1]) == kinds(rows)


@given(machines, st.lists(records, min_size=1, max_size=4))
def test_no_cell_of_the_csv_is_a_formula(machine: Machine, rows: list[Record]) -> None:
    for row in csv.reader(io.StringIO(to_csv(machine, rows).removeprefix("\ufeff"), newline="")):
        for cell in row:
            assert not cell.startswith(("=", "+", "@", "\t", "\r"))
            assert not cell.startswith("-") or math.isfinite(float(cell))


@given(machines, st.lists(records, min_size=1, max_size=4))
def test_markdown_tables_keep_their_columns_and_hold_no_markup(machine: Machine, rows: list[Record]) -> None:
    text = to_markdown(machine, rows)
    tables = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| setting")]
    assert len(tables) == len(rows) and "<" not in text
    assert all(line.replace("\\\\", "").replace("\\|", "").count("|") == 9 for line in tables)


@given(st.text() | st.binary().map(lambda b: b.decode("latin-1")))
def test_any_other_text_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(BadFile):
        read(text)


def changed(**changes: Any) -> str:
    found = json.loads(to_json(HERE, [RECORD]))
    found["records"][0] |= changes
    return json.dumps(found)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "empty"),
        ("{", "not JSON: it breaks off at line 1, letter 2"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "not a results file"),
        ('{"a": 1}', "not a results file"),
        ("a,b\n1,2", "not a results file"),
        ('{"tfviz": 2}', "version 2"),
        ('{"tfviz": "1"}', 'version "1"'),
        ('{"tfviz": true}', "version true"),
        ('{"tfviz": null}', "version null"),
        ('{"tfviz": 1' + "9" * 5000 + "}", "too many digits"),
        ('{"tfviz": 1, "records": []}', "no “machine”"),
        ('{"tfviz": 1, "machine": {}, "records": {}}', "no list of “records”"),
        ('{"tfviz": 1, "machine": {}, "records": []}', "has no “device”"),
        (changed(value=math.nan), "holds NaN"),
        (changed(value="12"), "“value” is 12; it must be a number"),
        (changed(value=True), "“value” is true; it must be a number"),
        (changed(value=10**320), "“value” is 1000"),
        (
            changed(value=0).replace('"value": 0', '"value": 1e999'),
            "“value” is Infinity; it must be a number that is not infinite",
        ),
        (changed(unit=None), "Record 1 has no “unit”"),
        (changed(setting=[1]), "“setting” is .*; it must be at most 32 names"),
        (changed(setting={"n": [1]}), "“setting” is .*; it must be at most 32 names"),
        (changed(setting={f"n{i}": i for i in range(99)}), "“setting” is .*; it must be at most 32 names"),
        (changed(quantity="x" * 201), "“quantity” is xxx.*; it must be a text of at most 200 letters"),
        (changed(runs=-1), "“runs” is -1; it must be a whole number, 0 or more"),
        (changed(low="a"), "“low” is a; it must be a number"),
        (json.dumps({**json.loads(changed()), "records": [3]}), "Record 1 is not"),
        (json.dumps({**json.loads(changed()), "records": [{}] * (MOST_RECORDS + 1)}), "at most 5,000"),
        (" " * MOST_BYTES + changed(), "larger than 1 MB"),
        (to_csv(HERE, []), "no figures"),
        (to_csv(HERE, [RECORD]).replace("unit", "units", 1), "no column “unit”"),
        (to_csv(HERE, [RECORD]).replace("low", "unit", 1), "column “unit” more than once"),
        (to_csv(HERE, [RECORD]) + '"x', "quotation marks"),
        (to_csv(HERE, [RECORD]).replace("machine.torch", "torch"), "has no “torch”"),
        ("\x89PNG\r\n\x1a\n\x00\x00", "not a results file"),
        ("x" * 20_000_000, "larger than 1 MB"),
        (to_csv(HERE, [RECORD]) + "x\r\n", "the heading has 17 cells, row 3 has 1"),
        (to_csv(HERE, [RECORD]).replace("0.25", "fast"), "“value” is fast; it must be a number"),
        (to_csv(HERE, [RECORD]).replace("0.25", "nan"), "“value” is NaN; it must be a number"),
        (to_csv(HERE, [RECORD]).replace("0.25", ""), "Record 1 has no “value”"),
        (to_csv(HERE, [RECORD]) + to_csv(replace(HERE, threads=4), [RECORD]).splitlines()[1], "2 machines"),
        (to_csv(HERE, [RECORD]).replace("flash", '"""\\q"""'), "quotation marks"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text: str, sentence: str) -> None:
    with pytest.raises(BadFile, match=sentence) as caught:
        read(text)
    for language in LANGUAGES:  # none of Python's words
        assert not re.search(r"\b(None|True|False|inf|nan|NoneType|dict)\b", caught.value.in_language(language))


def test_a_csv_is_what_a_spreadsheet_expects() -> None:
    text = to_csv(HERE, [RECORD])
    assert text.startswith(
        "\ufeffexperiment,setting.kernel,setting.n,quantity,value,unit,low,high,runs,at,machine.device"
    )
    assert "kernels,flash,1024,latency,0.25,s,0.2,0.3,5,2026" in text and text.endswith("\r\n")


def test_entries_of_a_later_version_that_are_not_known_are_passed_over() -> None:
    assert from_json(changed(note="x"))[1] == [RECORD]


def test_numpys_numbers_become_pythons_and_what_is_no_number_is_left_out() -> None:
    rows: list[Any] = [
        replace(RECORD, value=np.float32(0.5), setting={"n": np.int64(3)}),
        replace(RECORD, value=math.nan),
    ]
    (kept,) = sound(rows)
    assert type(kept.value) is float and type(kept.setting["n"]) is int
    assert from_json(to_json(HERE, [kept]))[1] == [kept]


def test_rows_are_matched_by_experiment_setting_quantity_and_unit() -> None:
    others = [replace(RECORD, value=0.5), replace(RECORD, setting={"n": 1024, "kernel": "naive"})]
    found = compare([RECORD, replace(RECORD, quantity="peak_bytes", unit="B")], others)
    (match,) = found.matched
    assert (match.ratio, match.gain) == (0.5, 2.0)
    assert [one.quantity for one in found.only_here] == ["peak_bytes"]
    assert [one.setting["kernel"] for one in found.only_there] == ["naive"]


def test_settings_match_in_any_order_and_true_is_not_one() -> None:
    ours = replace(RECORD, setting={"a": 1, "b": 2})
    assert compare([ours], [replace(RECORD, setting={"b": 2, "a": 1})]).matched
    assert not compare([ours], [replace(RECORD, setting={"b": 2, "a": True})]).matched


def test_of_rows_that_are_alike_the_last_one_counts() -> None:
    (match,) = compare([RECORD, replace(RECORD, value=1.0)], [RECORD]).matched
    assert match.here.value == 1.0


@pytest.mark.parametrize(
    ("quantity", "unit", "gain"),
    [
        ("latency", "s", 0.5),
        ("rate", "token/s", 2.0),
        ("decode_speedup", "1", 2.0),
        ("top1", "1", 2.0),
        ("exponent", "1", None),
    ],
)
def test_which_is_better_depends_on_the_quantity(quantity: str, unit: str, gain: float | None) -> None:
    there = replace(RECORD, quantity=quantity, unit=unit, value=1.0)
    (match,) = compare([replace(there, value=2.0)], [there]).matched
    assert match.gain == gain and match.ratio == 2.0
    assert (more_is_better(quantity, unit) is None) == (gain is None)


@given(numbers, numbers)
def test_a_ratio_is_a_positive_number_or_nothing(a: float, b: float) -> None:
    (match,) = compare([replace(RECORD, value=a)], [replace(RECORD, value=b)]).matched
    for one in (match.ratio, match.gain):
        assert one is None or 0 < one < math.inf


def test_what_a_machine_answered_does_not_keep_two_rows_apart() -> None:
    here, there = (replace(RECORD, setting={**RECORD.setting, "backend": name}) for name in ("flash", "cudnn"))
    (match,) = compare([here], [there]).matched
    assert (match.here.setting["backend"], match.there.setting["backend"]) == ("flash", "cudnn")
