"""Measured figures as files, and back: JSON, CSV and Markdown, each with the description of the machine.

    {"tfviz": 1, "machine": {...}, "records": [{"experiment": ..., "setting": {...}, "quantity": ..., ...}, ...]}

CSV has a column for each name of a setting and of the machine, so that files of several machines can be put below each
other. What comes from a file is checked entry by entry: whatever is not as written here is refused in a sentence.
"""

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from tfviz.errors import Phrase, TfvizError
from tfviz.inference.records import Machine, Record, Setting

VERSION = 1
MOST_BYTES, MOST_RECORDS, MOST_SETTINGS, LONGEST_TEXT = 1_000_000, 5_000, 32, 200
LARGEST = 2**53  # whole numbers beyond it differ from one JSON reader to the next
COLUMNS = ("experiment", "quantity", "value", "unit", "low", "high", "runs", "at")
NUMBERS = ("value", "low", "high", "runs")
TEXTS = ("experiment", "quantity", "unit", "at")
NEEDED = ("experiment", "quantity", "value", "unit")
SETTING, MACHINE = "setting.", "machine."  # before a column's name
FORMULA = tuple("=+-@\t\r'")  # what a spreadsheet would compute; an apostrophe before it says that it is text


class BadFile(TfvizError):
    """A file that is not one of tfviz's results, or is damaged."""


# ---- JSON


def to_json(machine: Machine, records: Sequence[Record]) -> str:
    """A record a line; `None` is left out."""
    rows = [json.dumps({k: v for k, v in asdict(one).items() if v is not None}, ensure_ascii=False) for one in records]
    head = json.dumps(asdict(machine), ensure_ascii=False)
    body = ",\n  ".join(rows)
    return f'{{"tfviz": {VERSION},\n "machine": {head},\n "records": [\n  {body}\n ]}}\n'


def from_json(text: str) -> tuple[Machine, list[Record]]:
    """The inverse of `to_json`. `BadFile` for anything else."""
    _fits(text)
    found = _parsed(text)
    if not isinstance(found, dict) or "tfviz" not in found:
        raise BadFile("speed.results.error.other")
    if found["tfviz"] is True or found["tfviz"] != VERSION:
        raise BadFile("speed.results.error.version", version=_short(json.dumps(found["tfviz"])), known=VERSION)
    for name, kind in (("machine", dict), ("records", list)):
        if not isinstance(found.get(name), kind):
            raise BadFile(f"speed.results.error.{name}")
    rows = found["records"]
    if len(rows) > MOST_RECORDS:
        raise BadFile("speed.results.error.many", n=f"{len(rows):,}", most=f"{MOST_RECORDS:,}")
    return _machine(found["machine"]), [_record(row, i) for i, row in enumerate(rows, start=1)]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text.removeprefix("\ufeff"), parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise BadFile("speed.results.error.json", line=f"{error.lineno:,}", column=f"{error.colno:,}") from None
    except (ValueError, RecursionError) as error:  # also whole numbers of more than 4,300 digits
        if isinstance(error, BadFile):
            raise
        raise BadFile("speed.results.error.deep") from None


def _no_number(name: str) -> float:
    raise BadFile("speed.results.error.constant", name=name)


# ---- CSV


def to_csv(machine: Machine, records: Sequence[Record]) -> str:
    """Begins with a byte order mark, which tells spreadsheets that it is UTF-8; lines end with CR LF."""
    settings = sorted({name for one in records for name in one.setting})
    about = {f"{MACHINE}{name}": _cell(value) for name, value in asdict(machine).items()}
    sheet = io.StringIO(newline="")
    lines = csv.writer(sheet, lineterminator="\r\n")
    lines.writerow([*COLUMNS[:1], *(_cell(SETTING + name) for name in settings), *COLUMNS[1:], *about])
    for one in records:
        setting = [_typed(one.setting[name]) if name in one.setting else "" for name in settings]
        own = [_cell(getattr(one, name)) for name in COLUMNS]
        lines.writerow([*own[:1], *setting, *own[1:], *about.values()])
    return "\ufeff" + sheet.getvalue()


def _cell(value: str | float | None) -> str:
    """Text that a spreadsheet would take for a formula gets an apostrophe; a number does not."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return repr(value)
    return f"'{value}" if value.startswith(FORMULA) else value


def _typed(value: Setting) -> str:
    """A setting's value; a text that would be read as something else stands in quotation marks, as in JSON."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and (value == "" or value[0] == '"' or not isinstance(_meant(value), str)):
        return json.dumps(value, ensure_ascii=False)
    return _cell(value)


def _meant(cell: str) -> Setting:
    """What a cell stands for: a number, true or false, or text."""
    if cell in ("true", "false"):
        return cell == "true"
    if re.fullmatch(r"-?\d{1,20}", cell, re.ASCII):
        return int(cell)
    if re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", cell, re.ASCII):
        return float(cell)
    if len(cell) > 1 and cell[0] == cell[-1] == '"':
        try:
            return str(json.loads(cell, strict=False))
        except ValueError:
            raise BadFile("speed.results.error.cell", cell=_short(cell)) from None
    return _bare(cell)


def _bare(cell: str) -> str:
    return cell[1:] if cell.startswith("'") else cell


def from_csv(text: str) -> tuple[Machine, list[Record]]:
    """The inverse of `to_csv` where there is a record at least. `BadFile` for anything else."""
    _fits(text)
    try:
        rows = [row for row in csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True) if row]
    except csv.Error:
        raise BadFile("speed.results.error.csv") from None
    head = [_bare(name) for name in rows[0]] if rows else []
    missing = [name for name in NEEDED if name not in head]
    if len(missing) == len(NEEDED):
        raise BadFile("speed.results.error.other")
    if missing:
        raise BadFile("speed.results.error.column", name=missing[0])
    if len(set(head)) != len(head):
        raise BadFile("speed.results.error.twice", name=_short(next(name for name in head if head.count(name) > 1)))
    if len(rows) - 1 > MOST_RECORDS:
        raise BadFile("speed.results.error.many", n=f"{len(rows) - 1:,}", most=f"{MOST_RECORDS:,}")
    if len(rows) < 2:
        raise BadFile("speed.results.error.empty")
    for i, row in enumerate(rows, start=1):
        if len(row) != len(head):
            raise BadFile("speed.results.error.cells", i=f"{i:,}", n=len(row), columns=len(head))
    lines = [dict(zip(head, row, strict=True)) for row in rows[1:]]
    machines = {tuple((name, one[name]) for name in head if name.startswith(MACHINE)) for one in lines}
    if len(machines) > 1:
        raise BadFile("speed.results.error.machines", n=len(machines))
    return _machine(_machine_cells(dict(machines.pop()))), [_row(one, i) for i, one in enumerate(lines, start=1)]


def _machine_cells(cells: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {name.removeprefix(MACHINE): _bare(cell) for name, cell in cells.items()}
    if "threads" in found:
        found["threads"] = _number(found["threads"]) if found["threads"] else None
    return found


def _row(cells: Mapping[str, str], i: int) -> Record:
    setting = {
        name.removeprefix(SETTING): _meant(cell) for name, cell in cells.items() if name.startswith(SETTING) and cell
    }
    row: dict[str, Any] = {"setting": setting}
    for name in COLUMNS:
        cell = cells.get(name, "")
        if name in TEXTS:
            row[name] = _bare(cell)
        elif cell:
            row[name] = _number(cell)
    return _record(row, i)


def _number(cell: str) -> Any:
    """A number, or the cell itself, which is then refused by its name."""
    try:
        return int(cell) if re.fullmatch(r"-?\d{1,20}", cell, re.ASCII) else float(cell)
    except ValueError:
        return cell


# ---- Markdown


def to_markdown(machine: Machine, records: Sequence[Record]) -> str:
    """For people: a list that describes the machine, then a table for each experiment."""
    told = [f"- {name}: {_plain(str(value))}" for name, value in asdict(machine).items() if value is not None]
    parts = ["# tfviz", "\n".join(told)]
    for experiment in dict.fromkeys(one.experiment for one in records):
        head = "| setting | quantity | value | unit | low | high | runs | when |\n|:--|:--|--:|:--|--:|--:|--:|:--|"
        rows = [_line(one) for one in records if one.experiment == experiment]
        parts.append(f"## {_plain(experiment)}\n\n" + "\n".join([head, *rows]))
    return "\n\n".join(parts) + "\n"


def _line(one: Record) -> str:
    numbers = ["" if x is None else f"{x:.6g}" for x in (one.low, one.high)]
    runs = "" if one.runs is None else str(one.runs)
    texts = [_plain(said(one.setting)), _plain(one.quantity), f"{one.value:.6g}", _plain(one.unit)]
    return "| " + " | ".join([*texts, *numbers, runs, _plain(one.at)]) + " |"


def said(setting: Mapping[str, Setting]) -> str:
    """n = 1024, kernel = flash"""
    return ", ".join(f"{name} = {_meaning(value)}" for name, value in setting.items())


def _meaning(value: Setting) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else value


def _plain(text: str) -> str:
    """No Markdown and no HTML in it, and one line."""
    marked = re.sub(r"([\\`*_\[\]()#|~!])", r"\\\1", text)
    return re.sub(r"\s+", " ", marked.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


# ---- what may stand in a file


def read(text: str) -> tuple[Machine, list[Record]]:
    """A file of either kind, told by its first character."""
    return from_json(text) if text.removeprefix("\ufeff").lstrip().startswith(("{", "[")) else from_csv(text)


def _fits(text: str) -> None:
    if not text.strip():
        raise BadFile("speed.results.error.nothing")
    if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise BadFile("speed.results.error.large", most=f"{MOST_BYTES // 1_000_000}")


def _machine(found: Mapping[str, Any]) -> Machine:
    values: dict[str, Any] = {}
    for one in fields(Machine):
        value, allowed = found.get(one.name), "count" if one.name == "threads" else "text"
        if value is None and allowed == "text":
            raise BadFile("speed.results.error.machine_lacks", name=one.name)
        if value is not None and not CHECKS[allowed](value):
            raise BadFile("speed.results.error.machine_entry", **_unfit(one.name, value, allowed))
        values[one.name] = value
    return Machine(**values)


def _record(row: Any, i: int) -> Record:
    if not isinstance(row, dict):
        raise BadFile("speed.results.error.record", i=f"{i:,}")
    given = {name: row[name] for name in ENTRIES if row.get(name) is not None}
    for name, allowed in ENTRIES.items():
        if name not in given and name in (*NEEDED, "setting"):
            raise BadFile("speed.results.error.lacks", i=f"{i:,}", name=name)
        if name in given and not CHECKS[allowed](given[name]):
            raise BadFile("speed.results.error.entry", i=f"{i:,}", **_unfit(name, given[name], allowed))
    return Record(**{**given, "value": float(given["value"])})


def _unfit(name: str, value: Any, allowed: str) -> dict[str, Any]:
    limits = {"most": LONGEST_TEXT, "settings": MOST_SETTINGS}
    return {"name": name, "value": _short(value), "allowed": Phrase(f"speed.results.allowed.{allowed}", limits)}


def sound(records: Sequence[Record]) -> list[Record]:
    """Those that a file can hold: NumPy's numbers as Python's, and none that is infinite or not a number."""
    plain = [replace(one, **{name: _own(getattr(one, name)) for name in NUMBERS}) for one in records]
    plain = [replace(one, setting={name: _own(value) for name, value in one.setting.items()}) for one in plain]
    return [one for one in plain if all(_is_number(x) for x in (one.value, one.low or 0, one.high or 0))]


def _own(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TEXT


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 if isinstance(value, int) else math.isfinite(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _is_setting(value: object) -> bool:
    if not isinstance(value, dict) or len(value) > MOST_SETTINGS:
        return False
    return all(
        _is_text(name) and (_is_text(one) or isinstance(one, bool) or _is_number(one)) for name, one in value.items()
    )


def _short(value: object) -> str:
    """As it stands in a file."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:40]}\u2026"


CHECKS = {"text": _is_text, "number": _is_number, "count": _is_count, "setting": _is_setting}
ENTRIES = {  # of a record -> what is allowed there
    **dict.fromkeys(TEXTS, "text"),
    **dict.fromkeys(("value", "low", "high"), "number"),
    "runs": "count",
    "setting": "setting",
}
