"""The architecture map's drawing: order, links, shares and badges of hand-made blocks."""

import json
import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest

from tfviz.sources.blocks import Architecture, Block, Layer, Side, Weight
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.layers.drawing import Spot
from tfviz.ui.tabs.layers.map import picture, shares, whole
from tfviz.ui.tabs.layers.opened import INPUT, arrange, ways_around

EN, ZH = Translator("en"), Translator("zh")
HEADS = {"heads": 4, "kv_heads": 2, "head_dim": 2, "value_dim": 2, "n_query": 5, "n_key": 5, "biased": False}


def weight(name: str, *shape: int, shared: bool = False) -> Weight:
    count = 1
    for size in shape:
        count *= size
    return Weight(name, shape, count, shared)


def block(kind: str, *reads: int, weights: tuple[Weight, ...] = (), **detail: Any) -> Block:
    return Block(kind, f"layers.0.{kind}", weights, (5, 8), reads, detail)


def pre_norm(attention: int = 0, cross: int | None = None) -> Layer:
    blocks = (
        block("norm", INPUT, weights=(weight("layers.0.norm.weight", 8),), **{"class": "RMSNorm"}),
        block("attention", 0, weights=(weight("layers.0.attention.<q>", 8, 8),), **HEADS),
        block("add", INPUT, 1, gap=0.0, factor=1.0),
        block("feed_forward", 2, weights=(weight("w", 16, 8),), hidden=16, activation="SiLU", matrices=3, experts=0),
        block("add", 2, 3, gap=0.0, factor=0.5),
    )
    return Layer("layers.0", blocks, attention, cross, 0.0)


def parallel() -> Layer:
    blocks = (
        block("norm", INPUT, **{"class": "LayerNorm"}),
        block("attention", 0, **HEADS),
        block("norm", INPUT, **{"class": "LayerNorm"}),
        block("feed_forward", 2, hidden=16, activation="", matrices=2, experts=0),
        block("add", INPUT, 1, 3, gap=0.0, factor=1.0),
    )
    return Layer("layers.0", blocks, 0, None, 0.0)


def model(*layers: Layer) -> Architecture:
    table = weight("tokens", 100, 8)
    before = (
        Block("embedding", "tokens", (table,), (5, 8)),
        Block("positions", "rotary", detail={"scheme": "rope"}),
    )
    head = Block("head", "head", (replace(table, shared=True),), (5, 100))
    side = Side("self", 5, before, layers or (pre_norm(0), pre_norm(1)), (head,))
    return Architecture(8, (side,), (), sum(one.parameters for one in side.blocks))


def html(found: Architecture, layer: int = 0, t: Translator = EN) -> str:
    return whole(Spot(found, "self", layer, t))


# ---- which stands where


def test_a_layer_is_a_row_from_below_and_each_plus_has_a_way_around() -> None:
    layer = pre_norm()
    units = arrange(layer.blocks)
    assert units == [[[0]], [[1]], [[2]], [[3]], [[4]]]
    assert ways_around(layer.blocks, units) == [(INPUT, 2), (2, 4)]


def test_parallel_branches_stand_side_by_side() -> None:
    layer = parallel()
    units = arrange(layer.blocks)
    assert units == [[[0, 1], [2, 3]], [[4]]]
    assert ways_around(layer.blocks, units) == [(INPUT, 1)]


def test_branches_that_share_a_norm_begin_after_it() -> None:
    blocks = (block("norm", INPUT), block("attention", 0), block("feed_forward", 0), block("add", INPUT, 1, 2))
    assert arrange(blocks) == [[[0]], [[1], [2]], [[3]]]


# ---- the markup


def buttons(markup: str) -> list[dict[str, str]]:
    found = re.findall(r"<button ([^>]*)>", markup)
    return [dict(re.findall(r'([\w-]+)="([^"]*)"', attributes)) for attributes in found]


def test_blocks_lead_to_their_tab_at_their_layer() -> None:
    leads = {(one.get("data-tab"), one.get("data-section")): one for one in buttons(html(model(), 1))}
    assert json.loads(unescape(leads["attention", None]["data-select"])) == {"kind": "self", "layer": 1}
    assert {tab for tab, _ in leads} == {None, "positions", "layers", "attention", "step", "masks"}
    assert {section for _, section in leads} == {None, "layers.norm", "layers.ffn", "layers.residual"}


def test_a_chip_opens_its_layer_and_the_open_one_is_pressed() -> None:
    chips = [one for one in buttons(html(model(), 1)) if "aria-pressed" in one]
    assert [one["aria-pressed"] for one in chips] == ["false", "true"]
    assert [json.loads(unescape(one["data-select"]))["layer"] for one in chips] == [0, 1]


@pytest.mark.parametrize("t", [EN, ZH])
def test_shapes_and_parameters_are_written_out(t: Translator) -> None:
    markup = html(model(), t=t)
    for said in ("5 × 8", "5 × 100", "4 × 5 × 2", "2 × 5 × 2", "4 × 5 × 5", ">800<", ">128<", "8 → 16 → 8", "× 0.500"):
        assert said in markup, said


def test_names_from_a_checkpoint_are_text() -> None:
    found, bad = model(), Block("other", "<img src=x>", (weight("<b>", 2),), (5, 8))
    side = replace(found.sides[0], after=(bad,))
    panels = picture(replace(found, sides=(side,)), "self", 0, "fp32", EN).panels
    markup = "".join(panel.html + str(panel.data.get("html", "")) for panel in panels)
    assert "&lt;img src=x&gt;" in markup and "<img" not in markup
    assert "&lt;q&gt;" in markup and "<q>" not in markup


def test_a_layer_without_attention_cannot_be_opened() -> None:
    only = replace(pre_norm(), attention=None)
    chips = [one for one in re.findall(r"<button [^>]*aria-pressed[^>]*>", html(model(pre_norm(), only)))]
    assert "disabled" in chips[1] and "disabled" not in chips[0]


# ---- numbers


def test_shares_are_of_the_whole() -> None:
    rows = re.findall(r'<th scope="row">(.*?)</th>.*?<td>([\d,]+)</td><td>(.*?)</td>', shares(model(), EN))
    assert rows == [
        ("Token embedding", "800", "66.7 %"),
        ("Self-attention", "128", "10.7 %"),
        ("Feed-forward", "256", "21.3 %"),
        ("Norm", "16", "1.33 %"),
    ]


def test_the_badges_hold_for_what_adds_up() -> None:
    badges = picture(model(), "self", 0, "fp32", EN).badges
    assert [badge.ok for badge in badges] == [True, True]
    assert "1,200 of 1,200" in badges[0].text and "4 additions" in badges[1].text


def test_a_lost_parameter_turns_the_first_badge_red() -> None:
    assert picture(replace(model(), total=1201), "self", 0, "fp32", EN).badges[0].ok is False


def test_a_sum_that_is_off_turns_the_second_badge_red() -> None:
    off = replace(pre_norm(), gap=1e-3)
    assert picture(model(pre_norm(), off), "self", 0, "fp32", EN).badges[1].ok is False
    assert picture(model(pre_norm(), off), "self", 0, "bf16", EN).badges[1].ok is True
    lost = picture(model(pre_norm(), replace(pre_norm(), gap=None)), "self", 0, "fp32", EN)
    assert lost.badges[1].ok is False and "1 layers" in lost.notes[0]


def test_cross_attention_opens_the_decoders_layer() -> None:
    layer = pre_norm()
    crossed = block("cross", 2, weights=(weight("c", 8, 8),), **{**HEADS, "n_key": 7})
    decoder = Side("decoder", 5, (), (replace(layer, blocks=(*layer.blocks, crossed), cross=0),), ())
    encoder = Side("encoder", 7, (), (layer,), ())
    found = Architecture(8, (encoder, decoder), (), 0)
    drawn = picture(found, "cross", 0, "fp32", EN).panels[0].data["html"]
    assert 'data-open="decoder"' in drawn and "4 × 5 × 7" in drawn and "7 × 8" in drawn
    selected = [unescape(one.get("data-select", "")) for one in buttons(drawn)]
    assert json.dumps({"kind": "cross", "layer": 0}) in selected
