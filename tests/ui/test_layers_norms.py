"""The normalisation section: real arrays in, exact numbers and honest badges out."""

from dataclasses import replace

import numpy as np
import pytest

from tfviz.errors import UnsupportedHere
from tfviz.introspection.anatomy import NormSeen
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.layers import norms
from tfviz.ui.tabs.layers.norms import chosen, picture

EN = Translator("en")
BEFORE = np.random.default_rng(0).normal(1, 2, (5, 32)).astype(np.float32)
GAIN = np.linspace(0.5, 1.5, 32).astype(np.float32)


def layer_norm() -> NormSeen:
    x = BEFORE.astype(np.float64)
    spread = np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    after = (GAIN * (x - x.mean(axis=1, keepdims=True)) / spread + 0.25).astype(np.float32)
    return NormSeen("norm1", "layer", BEFORE, after, GAIN, np.full(32, 0.25, dtype=np.float32), 1e-5)


def draw(norm: NormSeen, **changes: object) -> norms.Picture:
    values = {"token": 2, "label": "<it>", "eps": 1e-5, "sigma": 1e-3, "precision": "fp32", "t": EN} | changes
    return picture(norm, **values)  # type: ignore[arg-type]


def test_before_and_after_are_the_models_own() -> None:
    before, after = (panel.figure for panel in draw(layer_norm()).panels[:2])
    assert np.nansum(before.data[0].y) == np.nansum(after.data[0].y) == 32
    assert f"mean {BEFORE[2].mean():.3g}" in before.layout.annotations[0].text


def test_the_models_norm_is_reproduced_by_our_formula() -> None:
    own, unit = draw(layer_norm()).badges
    assert own.ok and unit.ok and "LayerNorm" in own.text


def test_a_tampered_output_turns_the_badge_red() -> None:
    norm = layer_norm()
    after = norm.after.copy()
    after[4, 7] += 0.01
    assert draw(replace(norm, after=after)).badges[0].ok is False
    assert draw(replace(norm, after=after), precision="bf16").badges[0].ok is True  # within its rounding


def test_a_norm_of_another_kind_is_only_named() -> None:
    assert draw(replace(layer_norm(), kind="ScaleNorm")).badges[0].ok is None


def test_the_table_of_what_moves_says_0_for_layer_norm() -> None:
    table = next(panel.html for panel in draw(layer_norm()).panels if "padding" in panel.html)
    rows = table.split("<tr>")[2:]
    assert len(rows) == 6 and all("<td>0</td>" in row for row in rows)
    assert "more than 1 value per channel" in next(p.note for p in draw(layer_norm()).panels if p.html == table)


def test_the_two_places_of_eps_are_told_apart() -> None:
    table = draw(layer_norm()).panels[-1].html
    assert "<td>0.00100</td><td>0.302</td><td>0.990</td>" in table


def test_one_position_is_drawn_without_batch_norm() -> None:
    norm = layer_norm()
    one = draw(replace(norm, before=norm.before[:1], after=norm.after[:1]), token=0)
    assert one.badges[0].ok and "BatchNorm" not in one.panels[3].html


def test_a_layers_last_norm_stands_for_those_it_lacks() -> None:
    class Seen:
        norms = (layer_norm(), replace(layer_norm(), name="norm2"))

    assert [chosen(Seen, which).name for which in "012"] == ["norm1", "norm2", "norm2"]  # type: ignore[arg-type]
    Seen.norms = ()  # type: ignore[assignment]
    with pytest.raises(UnsupportedHere):
        chosen(Seen, "0")  # type: ignore[arg-type]
