"""The Positions tab's data steps: pictures of hand-made arrays and of tiny models, and badges that can turn red."""

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

from tests.conftest import Loaded
from tests.sources.test_positions import LONG, ours, saved, theirs
from tfviz.introspection.capture import capture
from tfviz.introspection.position_checks import Turn
from tfviz.introspection.position_curves import rope_angles, sinusoids
from tfviz.introspection.positions import Added, PositionsSeen
from tfviz.introspection.trace import LayerAttention
from tfviz.messages import LANGUAGES, sentences
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.positions import Buckets, PositionFacts, Table
from tfviz.ui.components.picture import Badge, Picture, payload
from tfviz.ui.components.section import Scene
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.positions import SECTIONS, bias, distance, encoding, extrapolate, order, rotation, this_model
from tfviz.ui.tabs.positions.common import CELLS, thinned
from tfviz.ui.tabs.positions.this_parts import Looked

EN, ZH = Translator("en"), Translator("zh")
TEXT = "the cat saw the other cat near the door"
DEFAULTS: dict[str, dict[str, Any]] = {
    "positions.encoding": {"scheme": "sinusoidal", "d": 64, "length": 128, "base": 10_000, "dimension": 12},
    "positions.distance": {"scheme": "sinusoidal", "d": 128, "base": 10_000, "position": 40},
    "positions.bias": {"scheme": "alibi", "n_heads": 8, "head": 2, "length": 32},
    "positions.extrapolate": {
        "ways": ["linear", "ntk", "yarn"],
        "factor": 4,
        "trained": 2048,
        "base": 10_000,
        "pair": 24,
    },
}


class Bench:
    """What a scene asks the workbench for, run at once on one model and text."""

    def __init__(self, model: LoadedModel, prompt: Prompt) -> None:
        self.model, self.prompt, self.found = model, prompt, dict[Any, Any]()

    def examine(self, trace_id: str, job: Any, key: Any, stop: Any = None) -> Any:
        if key not in self.found:
            self.found[key] = job(self.model, self.prompt)
        return self.found[key]


def scene(model: LoadedModel, t: Translator = EN, **place: Any) -> Scene:
    prompt = model.prompt(TEXT)
    trace = capture(model, prompt, (TEXT, None), kernel="naive")
    at = {"kind": next(iter(trace.stacks)), "layer": 0, "head": 1, "query": 4, "key": 2} | place
    return Scene(t, Bench(model, prompt), "id", trace, at)  # type: ignore[arg-type]


def held(picture: Picture) -> list[bool | None]:
    return [badge.ok for badge in picture.badges]


def cells(html: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [[unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


def first_table(picture: Picture) -> dict[str, str]:
    html = next(panel.html for panel in picture.panels if panel.html)
    return {row[0]: row[1] for row in cells(html)[1:]}


# ---- all of them

MODELS = ["gpt2", "llama", "bert", "t5", "marian"]


@pytest.mark.parametrize(("name", "language"), [*((name, "en") for name in MODELS), ("llama", "zh"), ("marian", "zh")])
def test_every_section_is_drawn_for_every_kind_of_model(loaded: Loaded, name: str, language: str) -> None:
    for section in SECTIONS:
        picture = section.draw(scene(loaded(name), Translator(language)), **DEFAULTS.get(section.key, {}))
        assert isinstance(picture, Picture) and picture.panels and payload(picture)
        assert not any(badge.ok is False for badge in picture.badges), (section.key, picture.badges)
        assert all(panel.title or panel.html for panel in picture.panels)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.key)
def test_what_is_offered_to_try_can_be_drawn_and_has_its_words(loaded: Loaded, section: Any) -> None:
    values = DEFAULTS.get(section.key, {})
    controls = set(section.controls(EN))
    assert controls == set(values)
    for one in section.tries:
        assert set(one.values) <= controls
        section.draw(scene(loaded("bert"), **one.place), **values | one.values)
        for language in LANGUAGES:
            assert f"{section.key}.try.{one.key}" in sentences(language)
    assert all(callable(one) for one in section.code())


def test_cross_attention_falls_back_to_the_encoder_and_says_so(loaded: Loaded) -> None:
    for draw in (this_model.draw, order.draw, rotation.draw):
        assert draw(scene(loaded("t5"), kind="cross")).panels
    assert this_model.draw(scene(loaded("t5"), kind="cross")).notes == [EN("positions.cross")]


# ---- this model


def test_a_learned_table_is_described_and_compared(loaded: Loaded) -> None:
    picture = this_model.draw(scene(loaded("gpt2")))
    facts = first_table(picture)
    assert facts["scheme"] == "learned" and facts["size (positions × d_model)"] == "64 × 32"
    assert facts["stored in"] == "transformer.wpe" and facts["longest text in the config"] == "64 tokens"
    assert picture.badges == [Badge(True, "rows 0 to 8 are what the model added (difference 0)")]
    assert picture.panels[1].figure.data[0].z.shape == (9, 32)  # type: ignore[union-attr]


def test_rope_is_described_with_its_pairing_and_its_own_numbers(tmp_path: Path) -> None:
    picture = this_model.draw(scene(theirs("gptj", tmp_path)))
    facts = first_table(picture)
    assert facts["scheme"] == "RoPE" and facts["pairing"] == "interleaved: 2i with 2i + 1"
    assert facts["base b"] == "10,000" and facts["turned dimensions of a head"] == "4 of 8"
    assert held(picture) == [True, None]


def test_scaling_comes_with_its_factors(tmp_path: Path) -> None:
    facts = first_table(this_model.draw(scene(theirs("llama3", tmp_path))))
    assert facts["scaling"].startswith("Llama 3 (factor 8.00") and facts["base b"] == "500,000"
    assert facts["pairing"] == "halves: i with i + 4"


def test_every_layer_is_turned_by_its_own_angles(tmp_path: Path) -> None:
    model = theirs("gemma4", tmp_path)
    for layer, dims, waves in ((0, "16 of 16", 8), (5, "8 of 32 (12 pairs stand still)", 4)):
        there = scene(model, layer=layer)
        picture = this_model.draw(there)
        assert first_table(picture)["turned dimensions of a head"] == dims and held(picture)[0] is True
        curve = picture.panels[2].figure.data[0]  # type: ignore[union-attr]
        assert len(curve.y) == waves and np.isfinite(curve.y).all()
        turned = rotation.draw(there)
        assert held(turned)[0] is True
        json.dumps(turned.panels[0].data, allow_nan=False)
    assert np.allclose(curve.y, [6.283, 14.90, 35.33, 83.79], rtol=1e-3)
    assert turned.panels[0].data["shown"] == [0, 1, 2, 3]  # type: ignore[index]


@pytest.mark.parametrize(
    "more, shown",
    [
        ({}, "1.277259 (scores × 1.63139)"),
        ({"attention_factor": 1.0}, "1 (scores × 1)"),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, "1 (scores × 1)"),
    ],
)
def test_yarns_attention_factor_is_shown_and_is_what_the_model_does(
    tmp_path: Path, more: dict[str, float], shown: str
) -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 64} | more
    model = saved(lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**LONG | {"rope_parameters": yarn})), tmp_path)
    there = scene(model)
    picture = this_model.draw(there)
    assert first_table(picture)["attention factor"] == f"q and k × {shown}" and held(picture)[0] is True
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    ids = there.trace.token_ids  # type: ignore[union-attr]
    with torch.inference_mode():
        eager = theirs(torch.tensor([ids]), output_attentions=True)
        fast = model.decoding({"input_ids": torch.tensor([ids[:-1]])})
        fast.logits()
        fast.append(torch.tensor([ids[-1]]))
        last = fast.logits()
    assert np.allclose(there.trace.attention["self"][0], eager.attentions[0][0], atol=1e-5)  # type: ignore[union-attr]
    assert torch.allclose(last, eager.logits[:, -1], rtol=1e-5, atol=1e-5 * float(eager.logits.abs().max()))


def test_t5_and_alibi_are_described_and_compared(loaded: Loaded) -> None:
    picture = this_model.draw(scene(loaded("t5"), kind="decoder"))
    assert first_table(picture)["distances"] == "before only" and held(picture) == [True]
    picture = this_model.draw(scene(ours(positions="alibi", n_heads=8)))
    assert first_table(picture)["slopes"] == "0.500, 0.250, …, 0.00391" and held(picture) == [True]


def test_a_model_without_positions_says_so() -> None:
    picture = this_model.draw(scene(ours(positions="none")))
    assert first_table(picture)["scheme"] == "none" and held(picture) == [None]


def looked(facts: PositionFacts, **changes: Any) -> Looked:
    """A layer of two heads of two dimensions over three tokens."""
    values = np.zeros((2, 3, 2), dtype=np.float32)
    attention = LayerAttention(values, values, values, None, changes.pop("bias", None), None, False, None)
    seen = PositionsSeen(facts, changes.pop("added", {}))
    return Looked("m", "fp32", seen, "self", 0, 0, attention, ["a", "b", "a"], **changes)


def test_a_badge_turns_red_when_the_rows_are_not_the_tables() -> None:
    facts = PositionFacts(8, {"self": Table("w", np.eye(8, 4, dtype=np.float32), 8)})
    good, bad = (looked(facts, added={"self": Added(0, difference, 1.0)}) for difference in (1e-6, 1e-2))
    assert held(this_model.picture(good, EN)) == [True] and held(this_model.picture(bad, EN)) == [False]
    coarse = replace(bad, precision="int8")  # other precisions round
    assert held(this_model.picture(coarse, EN)) == [True]


def test_a_badge_turns_red_when_the_queries_are_turned_otherwise() -> None:
    said = rope_angles(2, 10_000.0)
    facts = PositionFacts(8, angles=(said,))
    for difference, ok in ((1e-6, True), (0.5, False)):
        turned = this_model.picture(looked(facts, turn=Turn(said, "halves", difference, 1.0, 1.0)), EN)
        assert held(turned) == [ok, None]
        still = this_model.picture(looked(facts, turn=Turn(None, "", difference, np.nan, 1.0)), EN)
        assert held(still) == [ok]


def test_a_badge_turns_red_when_the_bias_is_another() -> None:
    buckets = Buckets(np.arange(64, dtype=np.float32).reshape(32, 2), 128, True)
    facts = PositionFacts(None, buckets={"self": (buckets,)})
    from tfviz.introspection.position_checks import bucket_bias

    bias_ = bucket_bias(buckets, 3, 3)
    assert held(this_model.picture(looked(facts, bias=bias_), EN)) == [True]
    bias_ = bias_.copy()
    bias_[1, 0, 2] += 0.1
    assert held(this_model.picture(looked(facts, bias=bias_), EN)) == [False]


def test_one_token_and_too_many_are_not_compared_and_say_why(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    at = scene(loaded("llama"))
    assert at.trace is not None
    one = replace(at.trace.stacks["self"].layers[0], query=at.trace.stacks["self"].layers[0].query[:, :1])
    short = replace(at.trace, stacks={"self": replace(at.trace.stacks["self"], layers={0: one})})
    picture = this_model.draw(replace(at, trace=short))
    assert picture.notes == [EN("positions.this.one")] and not picture.badges
    monkeypatch.setattr("tfviz.introspection.anatomy.BUDGET", 1)
    for draw in (this_model.draw, rotation.draw):
        assert "tokens" in draw(scene(loaded("llama"))).notes[0]


# ---- word order


def test_the_matrices_are_the_arrays_and_a_tampered_one_turns_red() -> None:
    plain = np.array([[0.5, 0.5], [0.25, 0.75]], dtype=np.float32)
    other = np.array([[0.5, 0.5], [0.5, 0.5]], dtype=np.float32)
    read = {"without": order.Read(plain, plain), "with": order.Read(plain, other)}
    picture = order.picture(read, 0.3, ["<b>", "a"], ["a", "<b>"], 1e-4, ZH)
    assert held(picture) == [True, True, None]
    assert picture.panels[1].figure.data[2].customdata.tolist() == [[0, 0], [0.25, -0.25]]  # type: ignore[union-attr]
    read["without"] = order.Read(plain, other)
    assert held(order.picture(read, 0.3, ["a", "b"], ["b", "a"], 1e-4, ZH))[0] is False
    read["with"] = order.Read(plain, plain)  # a model without positions is no failure
    assert held(order.picture(read, 0.3, ["a", "b"], ["b", "a"], 1e-4, ZH))[1] is None


# ---- encodings, distance, biases


def test_heatmap_and_curves_show_the_models_own_encoding() -> None:
    chosen = encoding.Chosen("sinusoidal", 64, 128, 10_000.0, 13)
    rows = sinusoids(128, 64, 10_000.0)
    heat, curves, waves = encoding.picture(rows, chosen, EN).panels
    assert np.array_equal(heat.figure.data[0].z, rows)  # type: ignore[union-attr]
    assert [line.name for line in curves.figure.data] == ["dimension 12", "dimension 13"]  # type: ignore[union-attr]
    assert np.array_equal(curves.figure.data[1].y, rows[:, 13])  # type: ignore[union-attr]
    assert waves.figure.data[0].y[0] == pytest.approx(2 * np.pi)  # type: ignore[union-attr]


def test_a_dimension_that_is_not_there_is_the_last_with_a_note_and_off_the_circle_is_red() -> None:
    chosen = encoding.Chosen("sinusoidal", 8, 16, 10_000.0, 500)
    rows = sinusoids(16, 8, 10_000.0)
    picture = encoding.picture(rows, chosen, EN)
    assert picture.notes == ["With 8 dimensions the last is 7: it is shown."] and held(picture) == [True]
    rows[3, 2] += 0.1
    assert held(encoding.picture(rows, chosen, EN)) == [False]


def test_a_learned_table_is_the_loaded_models_or_said_to_be_fresh(loaded: Loaded) -> None:
    values = DEFAULTS["positions.encoding"] | {"scheme": "learned", "d": 16, "length": 32}
    own = encoding.draw(scene(loaded("gpt2")), **values)
    table = loaded("gpt2").model.get_submodule("transformer.wpe").weight.numpy()  # type: ignore[union-attr,operator]
    assert np.array_equal(own.panels[0].figure.data[0].z, table[:32, :16]) and not own.notes  # type: ignore[union-attr]
    assert encoding.draw(scene(loaded("llama")), **values).notes == [EN("positions.no_table")]
    larger = encoding.draw(scene(loaded("gpt2")), **values | {"d": 64, "length": 512})
    assert "64 positions of 32 dimensions" in larger.notes[0]


def test_one_number_on_each_diagonal_or_red() -> None:
    alike = np.eye(4)
    assert held(distance.picture(alike, None, 9, "rope", EN)) == [True]  # position 9 is cut to the last
    alike[0, 1] = 0.5
    assert held(distance.picture(alike, None, 1, "rope", EN)) == [False]
    assert held(distance.picture(alike, None, 1, "learned", EN)) == [None]


def test_alibi_has_its_slopes_its_diagonal_and_turns_red_otherwise() -> None:
    made = bias.alibi(8, 16)
    assert made.slopes is not None and made.slopes.tolist() == [2.0**-power for power in range(1, 9)]
    picture = bias.picture(made, 2, EN)
    assert held(picture) == [True, True, True]
    assert np.array_equal(picture.panels[0].figure.data[0].z, made.bias[2])  # type: ignore[union-attr]
    twelve = bias.alibi(12, 16).slopes
    assert twelve is not None and twelve[8:] == pytest.approx([2.0**-power for power in (0.5, 1.5, 2.5, 3.5)])
    tampered = made.bias.copy()
    tampered[1, 2, 2] = 0.1
    assert held(bias.picture(replace(made, bias=tampered), 2, EN)) == [False, False, False]
    assert bias.picture(made, 15, EN).notes == ["There are 8 heads: head 7 is shown."]


def test_t5_buckets_are_the_loaded_tables_or_only_which_share_one(loaded: Loaded) -> None:
    values = DEFAULTS["positions.bias"] | {"scheme": "t5"}
    assert not bias.draw(scene(loaded("t5")), **values).notes
    bare = bias.draw(scene(loaded("bert")), **values)
    assert bare.notes == [EN("positions.bias.no_table")]
    assert {line.y.max() for line in bare.panels[0].figure.data} == {31}  # type: ignore[union-attr]


# ---- rotation, longer texts


def two() -> rotation.Two:
    q, k = np.random.default_rng(0).normal(size=(2, 10)).astype(np.float32)
    said = replace(rope_angles(8, 10_000.0), pairs="halves")
    return rotation.Two(q, k, (5, 2), ("<it>", "it"), said, 0.25)


def test_the_arrows_are_the_pairs_and_the_rest_is_counted() -> None:
    data = rotation.arrows(two(), EN)
    one = two()
    assert data["q"][1] == pytest.approx([one.q[1], one.q[5]], rel=1e-5, abs=1e-5)  # dimension i with i + d / 2
    assert data["rest"] == pytest.approx(float(one.q[8:] @ one.k[8:])) and len(data["shown"]) == 4
    neighbours = replace(one, said=replace(one.said, pairs="interleaved"))
    assert rotation.arrows(neighbours, EN)["q"][1] == pytest.approx([one.q[2], one.q[3]], rel=1e-5, abs=1e-5)
    whole = sum(a @ b for a, b in zip(np.array(data["q"]), np.array(data["k"]), strict=True)) + data["rest"]
    assert whole == pytest.approx(float(one.q @ one.k), rel=1e-5, abs=1e-5)
    assert set(data["words"]) == set(rotation.WORDS) and data["words"]["shift"] == "move both by {n}"


def test_the_score_of_the_trace_is_where_the_curve_is_marked(loaded: Loaded) -> None:
    at = scene(loaded("llama"), layer=1, head=2, query=6, key=1)
    assert at.trace is not None
    layer = at.trace.stacks["self"].layers[1]
    curve = rotation.draw(at).panels[1].figure
    score = float(layer.query[2, 6] @ layer.key[1, 1]) * 8**-0.5
    assert curve is not None and curve.data[0].y[5] == pytest.approx(score, rel=1e-4)
    assert curve.layout.shapes[0].x0 == 5


def test_a_score_that_moves_with_the_shift_turns_red(monkeypatch: pytest.MonkeyPatch) -> None:
    assert held(rotation.picture(two(), EN)) == [True, True, True, None]
    true = rotation._turned
    monkeypatch.setattr(rotation, "_turned", lambda x, by, said: true(x, by, said) * (1 + 0.01 * by) + 0.01)
    assert held(rotation.picture(two(), EN)) == [False, False, True, None]


def test_stretching_keeps_slow_pairs_inside_what_training_showed() -> None:
    chosen = extrapolate.Stretch(["linear", "ntk", "yarn"], 4.0, 2048, 10_000.0, 24)
    angles = extrapolate.stretched(chosen)
    assert list(angles) == ["none", "linear", "ntk", "yarn"]
    assert np.allclose(angles["linear"].theta * 4, angles["none"].theta)
    assert [extrapolate._unseen(said, angles["none"], chosen) for said in angles.values()] == [11, 0, 10, 0]
    picture = extrapolate.picture(angles, chosen, EN)
    assert held(picture) == [True]
    rows = cells(picture.panels[-1].html)
    assert rows[1] == ["as trained", "6,283", "4.00x", "11 of 32", "1.00x"]
    assert rows[2] == ["linear", "25,133", "1.00x", "0 of 32", "1.00x"] and rows[4][4] == "1.30x"
    tampered = angles | {"linear": replace(angles["linear"], theta=angles["linear"].theta * 1.1)}
    assert held(extrapolate.picture(tampered, chosen, EN)) == [False]


def test_a_factor_of_one_changes_nothing() -> None:
    chosen = extrapolate.Stretch(["linear", "ntk", "yarn"], 1.0, 2048, 10_000.0, 24)
    angles = extrapolate.stretched(chosen)
    assert held(extrapolate.picture(angles, chosen, ZH)) == [True]
    tampered = angles | {"ntk": replace(angles["ntk"], theta=angles["ntk"].theta * 1.1)}
    assert held(extrapolate.picture(tampered, chosen, ZH)) == [False]
    nothing = extrapolate.Stretch([], 4.0, 2048, 10_000.0, 24)
    assert held(extrapolate.picture(extrapolate.stretched(nothing), nothing, EN)) == []


def test_large_tables_are_thinned_and_keep_sines_and_cosines() -> None:
    values = np.arange(300 * 2, dtype=np.float32).reshape(300, 2)
    cells, rows, columns, step = thinned(values)
    assert step == (3, 1) and cells.shape == (100, 2) and max(cells.shape) <= CELLS
    assert cells[1].tolist() == [6, 7] and rows[:2].tolist() == [0, 3] and columns.tolist() == [0, 1]
    assert thinned(values[:5])[3] == (1, 1)
    _, _, columns, step = thinned(np.zeros((2, 256)))
    assert step == (1, 3) and {int(column) % 2 for column in columns} == {0, 1}
