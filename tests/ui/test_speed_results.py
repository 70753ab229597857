"""Speed, results: exact words and numbers of what is exported and compared, and a file that does not give them back."""

import re
from dataclasses import replace
from typing import Any

import pytest

from tfviz.config import Settings
from tfviz.figures.speed_results import gain_dots
from tfviz.inference.records import Machine, Record
from tfviz.introspection import export
from tfviz.introspection.comparison import compare
from tfviz.introspection.workbench import Workbench
from tfviz.messages import LANGUAGES, sentences
from tfviz.ui.components.picture import Picture, pack, payload
from tfviz.ui.components.section import Scene
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.speed import results

EN = Translator("en")
HERE = Machine("CPU A", "cpu", 2, "AVX512", "Linux x86_64", "3.11.9", "2.13.0")
THERE = replace(HERE, device="<b>B</b>", threads=8)
AT = "2026-11-30T06:54:46+00:00"
RECORDS = [
    Record("kernels", {"kernel": "flash", "n": 1024}, "latency", 0.0125, "s", 0.01, 0.02, 5, AT),
    Record("kernels", {"kernel": "flash", "n": 2048}, "latency", 2.5, "s", at=AT),
    Record("precision", {"model": "<i>x</i>"}, "weight_bytes", 4 * 2**20, "B", at=AT),
    Record("roofline", {"dtype": "fp32"}, "matrix", 95.1e9, "FLOP/s", at=AT),
    Record("new", {}, "odd_thing", 3.0, "1", at="yesterday"),
]
OTHERS = [
    replace(RECORDS[0], value=0.025),
    replace(RECORDS[3], value=190.2e9),
    replace(RECORDS[4], value=6.0),
    replace(RECORDS[0], setting={"n": 9}),
]


def compared(t: Translator = EN, others: list[Record] = OTHERS) -> Picture:
    return results.picture(HERE, RECORDS, t, THERE, compare(RECORDS, others))


@pytest.mark.parametrize("language", LANGUAGES)
def test_before_anything_is_measured_it_says_where_to_measure(language: str) -> None:
    picture = results.picture(HERE, [], Translator(language))
    files, empty = picture.panels
    assert files.data["files"] == {} and not picture.badges
    assert re.findall(r'data-section="speed\.(\w+)"', empty.html) == list(results.PARTS)
    assert all(f'data-tab="speed" data-section="speed.{part}"' in empty.html for part in results.PARTS)
    assert "CPU A" in files.note and "2.13.0" in files.note
    pack(payload(picture))


def test_figures_stand_by_experiment_with_their_units() -> None:
    picture = results.picture(HERE, RECORDS, EN)
    html = picture.panels[-1].html
    row = "<td>12.5 ms</td><td>10.0 ms – 20.0 ms</td><td>5</td><td>2026-11-30 06:54:46 UTC</td>"
    assert f'<th scope="row">time<small>kernel = flash, n = 1,024</small></th>{row}' in html
    assert "<td>2.50 s</td>" in html and "<td>4.00 MiB</td>" in html and "<td>95.1 GFLOP/s</td>" in html
    assert "odd thing<small></small></th><td>3.00</td><td></td><td></td><td>yesterday</td>" in html
    assert "<i>" not in html and "&lt;i&gt;x" in html and html.count("<details open>") == 4
    assert [badge.ok for badge in picture.badges] == [True] and "these 5 figures" in picture.badges[0].text


def test_the_files_are_those_of_export() -> None:
    files = results.picture(HERE, RECORDS, EN).panels[0].data["files"]
    assert files["json"] == export.to_json(HERE, RECORDS) and files["csv"] == export.to_csv(HERE, RECORDS)
    assert files["markdown"] == export.to_markdown(HERE, RECORDS)


def test_a_file_that_loses_a_figure_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    to_csv = export.to_csv
    monkeypatch.setattr(export, "to_csv", lambda machine, records: to_csv(machine, records).replace("0.0125", "0.0126"))
    (badge,) = results.badges(HERE, RECORDS, EN)
    assert badge.ok is False and badge.text.startswith("CSV:")


def test_only_so_many_rows_are_shown_and_the_rest_is_counted() -> None:
    many = [replace(RECORDS[0], setting={"n": n}) for n in range(results.SHOWN + 7)]
    html = results.picture(HERE, many, EN).panels[-1].html
    assert html.count('scope="row"') == results.SHOWN and "7 more rows are in the files" in html


@pytest.mark.parametrize("language", LANGUAGES)
def test_two_machines_are_laid_side_by_side(language: str) -> None:
    picture = compared(Translator(language))
    files, machines, gains, rows, mine = picture.panels
    assert files.data["compared"] and "<td>2</td><td>8</td>" in machines.html and "<b>B" not in machines.html
    assert gains.figure is not None and len(mine.html) > 100
    pack(payload(picture))


def test_the_comparison_knows_which_is_better() -> None:
    rows = compared().panels[3].html
    assert "<td>12.5 ms</td><td>25.0 ms</td><td>0.50x</td><td>here, 2.00x</td>" in rows
    assert "<td>95.1 GFLOP/s</td><td>190 GFLOP/s</td><td>0.50x</td><td>other, 2.00x</td>" in rows
    assert "<td>3.00</td><td>6.00</td><td>0.50x</td><td>–</td>" in rows
    assert "2 figures that only this machine has" in rows and "1 figures that only the other machine has" in rows
    assert "3 rows matched; only here: 2, only in the file: 1" in compared().badges[-1].text


def test_gains_are_drawn_around_one() -> None:
    gains = results.gains_of(compare(RECORDS, OTHERS).matched, EN)
    assert {group: list(values) for group, (_, values) in gains.items()} == {
        "Kernels · time" if "Kernels · time" in gains else next(iter(gains)): [2.0],
        list(gains)[1]: [0.5],
    }
    figure = gain_dots(gains)
    assert list(figure.data[0].x) == [2.0] and list(figure.data[-1].x) == [2.0, 0.5]
    low, high = figure.layout.xaxis.range
    assert low < -0.3 and high > 0.3 and figure.layout.shapes[0].x0 == 1


def test_nothing_in_common_is_said() -> None:
    picture = compared(others=[OTHERS[-1]])
    assert len(picture.panels) == 4 and "No row of the file was measured here" in picture.panels[2].html


# ---- with a workbench


@pytest.fixture
def scene() -> Scene:
    bench = Workbench(Settings.from_environment())
    bench.results.put("k", None, RECORDS)
    return Scene(EN, bench, "", None, {})


def test_a_file_of_another_machine_is_compared(scene: Scene) -> None:
    for text in (export.to_json(THERE, OTHERS), export.to_csv(THERE, OTHERS)):
        picture = results.draw(scene, {"file": text})
        assert "3 rows matched" in picture.badges[-1].text and not picture.panels[0].data["error"]


@pytest.mark.parametrize("text", ["{", "hello", '{"tfviz": 3}', "<script>alert(1)</script>", 5, None, ["a"]])
def test_a_bad_file_is_an_error_beside_the_figures(scene: Scene, text: Any) -> None:
    picture = results.draw(scene, {"file": text})
    said = picture.panels[0].data["error"]
    assert bool(said) == isinstance(text, str) and not picture.panels[0].data["compared"]
    assert "12.5 ms" in picture.panels[-1].html


def test_a_bad_file_leaves_the_last_good_comparison(scene: Scene) -> None:
    good = export.to_json(THERE, OTHERS)
    picture = results.draw(scene, {"file": '{"tfviz": 3}', "last": good})
    assert "version 3" in picture.panels[0].data["error"] and picture.panels[0].data["compared"]
    assert "3 rows matched" in picture.badges[-1].text
    newer = results.draw(scene, {"file": good, "last": "{"})
    assert newer.panels[0].data["compared"] and not newer.panels[0].data["error"]


def test_what_is_no_number_is_counted_out(scene: Scene) -> None:
    scene.bench.results.put("bad", None, [replace(RECORDS[0], value=float("nan"))])
    assert "1 figures that are infinite" in results.draw(scene, {}).notes[0]


def test_every_sentence_has_the_same_fields_in_both_languages() -> None:
    def fields(language: str) -> dict[str, set[str]]:
        own = ((k, v) for k, v in sentences(language).items() if k.startswith(("speed.results", "speed.recurrent")))
        return {key: set(re.findall(r"\{(\w+)[^}]*\}", text)) for key, text in own}

    assert fields("en") == fields("zh")
