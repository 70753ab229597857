"""The Step by step tab's data step: what is sent is what was computed, and each badge turns red when an array lies."""

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import ARCHITECTURES
from tests.conftest import Loaded
from tfviz.inference.measure import Latency
from tfviz.introspection.anatomy import examine
from tfviz.introspection.capture import capture
from tfviz.introspection.experiments.cost import SIZES, Cost, score_bytes
from tfviz.introspection.trace import Trace
from tfviz.messages import LANGUAGES, sentences
from tfviz.ui.components.picture import Picture, payload
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.step import SECTIONS, cost, flow, heads, scale
from tfviz.ui.tabs.step.shown import KEYS_SHOWN, Shown, look

EN, ZH = Translator("en"), Translator("zh")
TEXT = "The animal didn't cross the street because it was too tired"
Look = Callable[..., Shown]


@pytest.fixture
def shown(loaded: Loaded) -> Look:
    """`shown("llama", head=1)`: what the flow of that model shows."""

    def make(name: str, text: str = TEXT, kind: str = "", **place: int) -> Shown:
        model = loaded(name)
        second = "the cat saw" if model.family == "encoder-decoder" else None
        prompt = model.prompt(text, second)
        trace: Trace = capture(model, prompt, (text, second), kernel="naive")
        where = {"kind": kind or next(iter(trace.stacks)), "layer": 1, "head": 1, "query": 2, "key": 0, **place}
        seen = examine(model, prompt).attentions[where["kind"], where["layer"]]  # type: ignore[index]
        return look(trace.stacks[where["kind"]], seen, where)  # type: ignore[index]

    return make


def data(picture: Picture) -> dict[str, Any]:
    return dict(picture.panels[0].data)


def array(sent: dict[str, Any], name: str) -> np.ndarray:
    packed = sent["arrays"][name]
    return np.frombuffer(base64.b64decode(packed["data"]), dtype=np.float32).reshape(packed["shape"])


def failing(badges: Any) -> list[str]:
    return [badge.text for badge in badges if badge.ok is False]


# ---- the flow


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_flows_and_every_check_holds(name: str, language: str, shown: Look) -> None:
    picture = flow.picture(shown(name), Translator(language))
    assert not failing(picture.badges) and sum(badge.ok is True for badge in picture.badges) >= 3
    sent = json.loads(json.dumps(payload(picture), allow_nan=False))["panels"][0]["data"]
    ids = [stage["id"] for stage in sent["stages"]]
    assert ids[-3:] == ["sum", "joined", "output"] and ids.index("raw") < ids.index("weights") < ids.index("values")
    for stage in sent["stages"]:
        assert stage["name"] and stage["say"] and stage["letters"] and stage["shape"]
        fields = set(re.findall(r"\{(\w+)\}", stage["say"]))
        assert fields <= {"query", "other", "raw", "scaled", "before", "bias", "score", "weight", "head", "capped"}


def test_what_is_sent_is_what_was_computed(shown: Look) -> None:
    made = shown("llama")
    sent = data(flow.picture(made, EN))
    for name in ("query", "key", "value", "raw", "scaled", "scores", "weights"):
        np.testing.assert_array_equal(array(sent, name), getattr(made.steps, name))
    np.testing.assert_array_equal(array(sent, "sum"), made.steps.output)
    assert made.whole is not None and sent["whole"] == sent["rows"] == list(range(len(made.queries)))
    np.testing.assert_allclose(array(sent, "joined"), made.whole.joined, rtol=1e-6)
    assert sent["keys"] == list(made.keys) and sent["rest"] == 0


@pytest.mark.parametrize(
    "name, kind, there, missing",
    [
        ("llama", "", {"before", "scores"}, {"capped", "bias"}),
        ("qwen3", "", {"before", "scores"}, {"capped", "bias"}),
        ("gemma2", "", {"before", "capped", "scores"}, {"bias"}),
        ("opt", "", {"before"}, {"bias"}),
        ("gpt2", "", {"scores"}, {"before", "bias"}),
        ("bert", "", set(), {"before", "bias", "scores"}),
        ("t5", "encoder", {"bias", "scores"}, {"before"}),
        ("t5", "cross", set(), {"bias", "before"}),
        ("bart", "decoder", {"scores"}, {"bias"}),
    ],
)
def test_only_the_stages_that_a_model_has_are_there(
    name: str, kind: str, there: set[str], missing: set[str], shown: Look
) -> None:
    ids = {stage["id"] for stage in data(flow.picture(shown(name, kind=kind), EN))["stages"]}
    assert there <= ids and not missing & ids


def test_the_change_before_the_dot_product_is_named(shown: Look) -> None:
    assert [shown(name).change for name in ("llama", "opt", "qwen3", "bert")] == [
        "rotated",
        "scaled",
        "changed",
        "same",
    ]


def test_a_scale_that_is_not_the_root_is_said(shown: Look) -> None:
    t5, llama = shown("t5", kind="encoder"), shown("llama")
    assert any("multiplies q · k by 1," in note for note in flow.picture(t5, EN).notes)
    assert not flow.picture(llama, EN).notes
    letters = {stage["id"]: stage["letters"] for stage in data(flow.picture(llama, EN))["stages"]}
    assert letters["scaled"] == "÷ √8"


def test_grouped_heads_are_said_and_shown(shown: Look) -> None:
    sent = data(flow.picture(shown("llama", head=2), EN))
    assert sent["sharing"] == [2, 3] and "key/value head 1 of 2" in sent["words"]["shared"]
    assert data(flow.picture(shown("gpt2"), EN))["sharing"] == []


def test_a_long_text_shows_the_largest_weights_and_sums_over_all(shown: Look) -> None:
    made = shown("t5", "the cat " * 60, kind="encoder", query=3)
    picture = flow.picture(made, EN)
    sent, weights = data(picture), made.steps.weights[0]
    assert sent["rows"] == [3] and len(sent["keys"]) == KEYS_SHOWN and sent["rest"] == len(made.keys) - KEYS_SHOWN
    assert min(weights[sent["key_at"]]) >= max(np.delete(weights, sent["key_at"]))
    assert sent["key_at"] == sorted(sent["key_at"]) and any(str(KEYS_SHOWN) in note for note in picture.notes)
    part = (array(sent, "weights") @ array(sent, "value"))[0] + array(sent, "rest")[0]
    np.testing.assert_allclose(part, array(sent, "sum")[0], atol=1e-5)
    assert array(sent, "weights").sum() + array(sent, "rest_weight")[0, 0] == pytest.approx(1, rel=1e-5, abs=1e-5)


def test_heads_that_would_take_too_much_are_sent_for_the_chosen_row_alone(shown: Look, monkeypatch: Any) -> None:
    made = shown("llama")
    monkeypatch.setattr(flow, "WHOLE_BYTES", 100)
    sent = data(flow.picture(made, EN))
    assert sent["whole"] == [made.row] and len(array(sent, "output")) == 1 and len(sent["rows"]) > 1


def tampered(made: Shown, part: str, name: str, at: Any, value: float) -> Shown:
    changed = np.array(getattr(getattr(made, part), name))
    changed[at] = value
    return replace(made, **{part: replace(getattr(made, part), **{name: changed})})


@pytest.mark.parametrize(
    "part, name, at, value, says",
    [
        ("steps", "weights", (2, 0), 2.0, "rows sum to 1"),
        ("steps", "weights", (0, -1), 1e-30, "blocked cells"),
        ("steps", "output", (1, 0), 9.0, "head 1 equals"),
        ("whole", "model_joined", (0, 9), 9.0, "head 1 equals"),
        ("whole", "output", (2, 0), 9.0, "the vector of"),
        ("whole", "model_output", (2, 5), 9.0, "the vector of"),
    ],
)
def test_a_badge_turns_red_when_an_array_is_tampered_with(
    part: str, name: str, at: Any, value: float, says: str, shown: Look
) -> None:
    made = shown("llama")
    assert not failing(flow.badges(made, EN))
    red = failing(flow.badges(tampered(made, part, name, at, value), EN))
    assert any(says in text for text in red), red


def test_other_precisions_are_given_their_own_tolerance_and_it_is_said(shown: Look) -> None:
    made = shown("llama")
    off = tampered(made, "whole", "model_output", (2, 5), float(made.whole.model_output[2, 5]) * 1.01)  # type: ignore[union-attr]
    assert failing(flow.badges(off, EN)) and not failing(flow.badges(replace(off, precision="bf16"), EN))
    assert "BF16" in flow.badges(replace(off, precision="bf16"), EN)[-1].title
    assert any("INT8 rounds differently" in note for note in flow.notes(replace(off, precision="int8", again=True), EN))


def test_without_w_o_the_flow_ends_at_the_sum_and_says_why(shown: Look) -> None:
    made = replace(shown("llama"), whole=None, before=None, missing="It is too long.")
    picture = flow.picture(made, EN)
    assert data(picture)["stages"][-1]["id"] == "sum" and any("It is too long." in note for note in picture.notes)
    assert len(picture.badges) == 2


# ---- why the square root


@pytest.mark.parametrize("t", [EN, ZH])
def test_the_proof_stands_beside_its_measurement(t: Translator) -> None:
    picture = scale.picture(64, 64, 0, t)
    assert not failing(picture.badges) and len(picture.panels) == 4
    cells = re.findall(r"<td>([^<]+)</td>", picture.panels[0].html)
    predicted, measured = cells[::2], [float(cell) for cell in cells[1::2]]
    assert predicted == ["0", "1", "64", "1"]
    assert measured == pytest.approx([0, 1, 64, 1], rel=0.2, abs=0.05)
    json.dumps(payload(picture), allow_nan=False)


def test_a_variance_that_is_not_the_predicted_one_is_red() -> None:
    badge = scale._near("step.badge.variance", 80.0, 64, 0.1, EN)
    assert badge.ok is False and "+25.0 %" in badge.text


def test_real_heads_stand_in_the_picture(loaded: Loaded) -> None:
    model = loaded("llama")
    trace = capture(model, model.prompt(TEXT), (TEXT, None), kernel="naive")
    own, layer = scale.own_variances(trace), trace.stacks["self"].layers[0]
    raw = layer.query[0] @ layer.key[0].T
    assert scale.raw_variances(layer)[0] == pytest.approx(raw[~layer.blocked[0]].var(), rel=1e-4)
    every = np.concatenate([scale.raw_variances(layer) for layer in trace.stacks["self"].layers.values()])
    width, (least, median, most) = own[trace.model_label]
    assert (width, least, median, most) == pytest.approx((8, every.min(), np.median(every), every.max()))
    assert "orange" in scale.picture(16, 64, 0, EN, own).panels[1].note.lower()


# ---- many heads


SHAPE = heads.Shape(d_model=64, n_heads=4, n_kv_heads=4, dim=16, value_dim=16, counted=4 * 64**2)
WEIGHTS = np.array([[[0.5, 0.5, 0.0]], [[0.5, 0.5, 0.0]], [[0.0, 0.0, 1.0]], [[0.5, 0.25, 0.25]]])


@pytest.mark.parametrize("t", [EN, ZH])
def test_heads_are_compared_and_counted(t: Translator) -> None:
    picture = heads.picture(WEIGHTS, 4, 1, SHAPE, t, 3)
    assert not failing(picture.badges) and len(picture.badges) == 3
    html = picture.panels[1].html
    assert html.count("data-select='{\"head\":0}'") >= 1 and "1.00" in html and "16,384" in html


def test_counts_that_do_not_fit_are_red() -> None:
    assert failing(heads.count_badges(replace(SHAPE, counted=4 * 64**2 - 1), EN))
    assert failing(heads.count_badges(replace(SHAPE, counted=6 * 64**2), EN))
    assert failing(heads.picture(WEIGHTS * 1.1, 4, 1, SHAPE, EN, 3).badges)


def test_grouped_heads_are_cheaper_and_it_is_no_failure() -> None:
    grouped = replace(SHAPE, n_kv_heads=1, counted=None)
    (badge,) = heads.count_badges(grouped, EN)
    assert badge.ok is None and "62 %" in badge.text
    assert "saves 6,144 parameters" in heads.picture(WEIGHTS, 1, 1, grouped, EN, 3).panels[1].html


def test_a_layer_with_one_head_and_a_sentence_of_one_token_are_sentences() -> None:
    assert heads.picture(WEIGHTS[:1], 1, 0, SHAPE, EN, 3).notes
    assert heads.picture(WEIGHTS[:, :0], 4, 0, SHAPE, EN, 1).notes


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_counted_parameters_of_every_architecture_are_the_formulas(name: str, loaded: Loaded) -> None:
    model = loaded(name)
    second = "the cat" if model.family == "encoder-decoder" else None
    prompt = model.prompt(TEXT, second)
    trace, anatomy = capture(model, prompt, (TEXT, second), kernel="naive"), examine(model, prompt)
    for kind, stack in trace.stacks.items():
        assert not failing(heads.count_badges(heads.shape_of(stack.layers[1], anatomy, kind, 1), EN)), kind


# ---- cost


def measured(n: int, **peak: int) -> Cost:
    took = {kernel: Latency(n * n * 1e-8 * factor, 0, 1, 5) for kernel, factor in (("naive", 2), ("flash", 1))}
    return Cost(n, took, {"naive": score_bytes(n, 8), "flash": n * 1000} | peak)


WHERE = {"device": "<cpu>", "threads": 2}


@pytest.mark.parametrize("t", [EN, ZH])
def test_nothing_is_measured_without_the_button(t: Translator) -> None:
    picture = cost.picture([], 8, 64, WHERE, t)
    assert not picture.badges and picture.notes and picture.panels[0].html.count("<tr>") == len(SIZES) + 1
    assert picture.panels[0].html.count("<td>") == 1 + 2 * len(SIZES)  # the formula's columns alone


def test_points_appear_as_they_are_measured_with_their_exponents() -> None:
    found = [measured(n) for n in SIZES]
    part = cost.picture(found[:3], 8, 64, WHERE, EN, part=0.5)
    assert part.part == 0.5 and len(part.panels[0].figure.data[0].x) == 3  # type: ignore[union-attr]
    whole = cost.picture(found, 8, 64, WHERE, EN)
    assert "naive grows as n^2.00" in whole.panels[0].note and "flash as n^1.00" in whole.panels[1].note
    assert part.panels[2].html.count("–") == 5 * (len(SIZES) - 3) + 3 and "Above 2" not in whole.panels[0].note
    assert not failing(whole.badges) and "flash is 2.00x as fast" in whole.badges[1].text


def test_a_peak_that_is_not_the_formulas_is_red() -> None:
    assert failing(cost.picture([measured(512, naive=score_bytes(512, 8) * 2)], 8, 64, WHERE, EN).badges)


# ---- the tab


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.key)
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_section_has_its_sentences_and_its_code(section: Any, language: str) -> None:
    t = Translator(language)
    keys = [f"{section.key}.{part}" for part in ("name", "title", "intro")]
    keys += [f"{section.key}.try.{one.key}" for one in section.tries] + ([section.button] if section.button else [])
    assert all(t(key) for key in keys) and all(callable(one) for one in section.code())


def test_every_sentence_has_the_same_fields_in_both_languages() -> None:
    def fields(language: str) -> dict[str, set[str]]:
        own = ((key, text) for key, text in sentences(language).items() if key.startswith("step."))
        return {key: set(re.findall(r"\{(\w+)[^}]*\}", text)) for key, text in own}

    assert fields("en") == fields("zh")
