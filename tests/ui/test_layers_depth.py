"""The depth section: curves grow as they are measured, are kept, and slopes are judged against the theorem."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tfviz.introspection.experiments.depth import Depth
from tfviz.ui.components.section import Scene
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.layers import depth
from tfviz.ui.tabs.layers.depth import SLOPE, draw, picture, runs_for, slope

EN = Translator("en")


def fake(placement: str, n: int, d_model: int, seed: int, scale: str, power: float | None = None) -> Depth:
    power = SLOPE[placement] if power is None else power
    return Depth(placement, n, np.full(n, 0.4 * n**power), np.full(n, 0.5), np.full(n, 0.25), 5.0)


class Counted:
    """A scene that computes nothing and counts what it was asked for."""

    def __init__(self, stop: Callable[[], bool] = lambda: False) -> None:
        self.t, self.stop, self.asked = EN, stop, list[Any]()

    def compute(self, job: Callable[..., Any], *args: Any) -> Any:
        self.asked.append(args)
        return fake(*args)


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "_measured", type(depth._measured)())


def drawn(scene: Any, depths: list[int], measure: bool = True) -> list[Any]:
    return list(draw(scene, depths, 64, 0, measure))


def test_nothing_is_measured_before_the_button() -> None:
    scene = Counted()
    (only,) = drawn(scene, [2, 8], measure=False)
    assert not scene.asked and not only.panels and "8 models of up to 8 layers" in only.notes[0]


def test_curves_appear_one_depth_after_the_other() -> None:
    scene = Counted()
    pictures = drawn(scene, [8, 2])
    lines = [len(one.panels[0].figure.data) for one in pictures]
    assert lines[0] == 1 and lines[-1] == 2 and lines == sorted(lines)
    parts = [one.part for one in pictures]
    assert parts[-1] is None and parts[:-1] == sorted(parts[:-1]) and not pictures[0].badges
    assert [args[:2] for args in scene.asked[:4]] == [("post", 2), ("pre", 2), ("post", 8), ("pre", 8)]


def test_what_was_measured_stands_there_at_once() -> None:
    scene = Counted()
    drawn(scene, [2, 8])
    n = len(scene.asked)
    assert len(drawn(scene, [2, 8], measure=False)) == 1 and len(scene.asked) == n
    assert drawn(scene, [2, 8], measure=False)[0].badges


def test_a_newer_wish_ends_it() -> None:
    scene = Counted(stop=lambda: True)
    assert drawn(scene, [2, 48]) == [] and len(scene.asked) == 1


def test_no_depth_is_said() -> None:
    assert drawn(Counted(), [])[0].notes == ["Choose at least one depth."]


def test_slopes_are_judged_against_the_theorem() -> None:
    runs = runs_for([2, 8, 32], 64, 0)
    found = [(run, fake(*run)) for run in runs]
    badges = picture(found, len(runs), EN).badges
    assert [badge.ok for badge in badges] == [True, True] and "layers^-0.50" in badges[1].text
    tampered = [(run, fake(*run, power=-0.5)) for run in runs]
    assert [badge.ok for badge in picture(tampered, len(runs), EN).badges] == [False, True]


def test_the_table_holds_the_deepest_model_under_each_start() -> None:
    runs = runs_for([2, 8], 64, 0)
    table = picture([(run, fake(*run)) for run in runs], len(runs), EN).panels[3].html
    assert table.count("<tr>") == 7 and "<td>0.500</td><td>0.500</td><td>0.250</td>" in table


def test_a_slope_is_that_of_the_logarithms() -> None:
    assert slope([2, 8, 32], [4, 2, 1]) == pytest.approx(-0.5)


def test_the_scene_of_the_page_fits() -> None:
    assert {"compute", "stop", "t"} <= set(dir(Scene)) | set(Scene.__dataclass_fields__)
