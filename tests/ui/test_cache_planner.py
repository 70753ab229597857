"""The planner: facts, tables and curves of one shape agree, and each badge turns red when a number is tampered with."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.inference.test_memory_plan import MODEL
from tests.sources.test_cache_config import GPT_OSS
from tfviz.errors import TfvizError
from tfviz.inference.cache_size import CACHE_PRECISIONS, CacheLayer, CacheShape, Packed, cache_bytes
from tfviz.inference.memory_plan import plan
from tfviz.inference.memory_shapes import Load
from tfviz.messages import LANGUAGES
from tfviz.sources.cache_config import read_config, shape_from
from tfviz.ui.components.picture import Picture, payload
from tfviz.ui.i18n import Translator, megabytes
from tfviz.ui.tabs.cache import planner
from tfviz.ui.tabs.cache.planner import TRIES
from tfviz.ui.tabs.cache.planner_picture import PRECISIONS, Wish, badges, picture, weight_bytes, whole_bytes, within
from tfviz.ui.tabs.speed.memory_picture import notes

EN = Translator("en")
WISH = Wish(1000, 2, "fp16", 1024**2, 0.0, None, 10)
HYBRID = CacheShape(
    "made",
    "decoder",
    (CacheLayer("sliding", 2, 8, 8, window=5), CacheLayer("full", 2, 8, 8), CacheLayer("full", 2, 8, 8)),
    limit=4096,
    n_query_heads=4,
)


def failing(drawn: Picture) -> list[str]:
    return [badge.text for badge in drawn.badges if badge.ok is False]


def test_the_curves_are_the_formula() -> None:
    figure = picture(HYBRID, WISH, EN).panels[1].figure
    assert figure is not None
    for line, name in zip(figure.data, PRECISIONS, strict=False):
        expected = [cache_bytes(HYBRID, int(n), 2, CACHE_PRECISIONS[name], 10) for n in line.x]
        np.testing.assert_array_equal(line.y, expected)
    assert 1000 in figure.data[0].x
    wide = replace(HYBRID, layers=(CacheLayer("sliding", 2, 8, 8, window=301), *HYBRID.layers))
    assert 300 in picture(wide, WISH, EN).panels[1].figure.data[0].x  # type: ignore[union-attr]


def test_facts_and_tables_say_the_same() -> None:
    drawn = picture(HYBRID, WISH, EN)
    total = 2 * (4 + 1000 + 1000) * 2 * 16 * 2
    assert cache_bytes(HYBRID, 1000, 2, CACHE_PRECISIONS["fp16"]) == total
    facts, kinds, precisions = drawn.panels[0].html, drawn.panels[2].html, drawn.panels[3].html
    for html in (facts, kinds, precisions):
        assert megabytes(total) in html
    assert "window of 5" in kinds and "full attention" in kinds
    assert megabytes(2 * 2 * 2 * 16 * 2) in facts  # one token more: two full layers, two rows
    assert not failing(drawn)


def test_what_heads_and_windows_save_is_against_every_head_at_every_position() -> None:
    assert whole_bytes(HYBRID, WISH) == 2 * 3 * 1000 * 4 * 16 * 2
    latent = CacheShape("mla", "decoder", (CacheLayer("full", 1, 24, 8, unfolded=88),), n_query_heads=4)
    assert whole_bytes(latent, WISH) == 2 * 1000 * 88 * 2


def test_weights_come_off_the_memory_when_their_number_is_known() -> None:
    wish = replace(WISH, weight_bits=16.0)
    assert weight_bytes(HYBRID, wish) is None and weight_bytes(HYBRID, WISH) == 0
    assert any("not subtracted" in note for note in picture(HYBRID, wish, EN).notes)
    assert weight_bytes(replace(HYBRID, n_parameters=100), wish) == 200
    assert weight_bytes(replace(HYBRID, n_parameters=100), replace(wish, parameters=7.0)) == 200  # what is known wins
    assert weight_bytes(HYBRID, replace(wish, parameters=7.0)) == 14


def test_weights_that_fill_the_memory_leave_room_for_nothing() -> None:
    drawn = picture(HYBRID, replace(WISH, weight_bits=16.0, parameters=1e9), EN)
    assert "<dd>0</dd>" in drawn.panels[0].html and not failing(drawn)
    assert "weights alone take 1.86 GiB" in drawn.notes[0]


def test_a_context_beyond_the_model_is_said() -> None:
    assert any("4,096 positions" in note for note in picture(HYBRID, replace(WISH, context=5000), EN).notes)
    assert not picture(HYBRID, WISH, EN).notes


@pytest.mark.parametrize(("limit", "context", "source"), [(64, 64, 64), (4096, 4096, 512), (None, 8192, 512)])
def test_where_no_context_is_typed_it_is_the_models_limit(limit: int | None, context: int, source: int) -> None:
    shape, wish = replace(HYBRID, limit=limit), replace(WISH, context=0, source=0)
    assert within(shape, wish) == replace(WISH, context=context, source=source)
    assert within(shape, WISH) == WISH
    drawn = picture(shape, wish, EN)
    assert not drawn.notes and f"cache of {context:,} tokens" in drawn.panels[0].html


def test_a_single_token_is_called_one() -> None:
    drawn = picture(HYBRID, replace(WISH, context=1, memory=2 * 3 * 64), EN)
    assert "cache of 1 token × 2" in drawn.panels[0].html and "<dt>token fits into" in drawn.panels[0].html
    assert "1 token fits, 2 do not" in drawn.badges[1].text and "is 1 token ×" in drawn.panels[1].note


def test_one_page_size_for_windows_and_full_layers_is_said() -> None:
    shape, wish = shape_from(GPT_OSS | {"num_hidden_layers": 24}), replace(WISH, context=8192, batch=32)
    note = picture(shape, wish, EN).panels[2].note
    assert "pages of one size for all layers sets aside 12.0 GiB" in note and "a window of 128 holds 127" in note
    sliding = replace(HYBRID, layers=HYBRID.layers[:1])
    assert "pages" not in picture(sliding, WISH, EN).panels[2].note


def test_windows_alone_fit_any_text() -> None:
    sliding = replace(HYBRID, layers=HYBRID.layers[:1])
    assert "any number of" in picture(sliding, WISH, EN).panels[0].html


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_the_file_says_of_itself_and_what_is_left_out_is_said(language: str) -> None:
    t = Translator(language)
    packed = replace(HYBRID, remarks=("tower",), packed=Packed("gptq", 4))
    for draws in (picture(packed, WISH, t).notes, memory_notes(packed, t)):
        assert t("cache.planner.remark.tower") in draws
        assert any("4" in note and "(gptq)" in note for note in draws)
    (unsaid,) = picture(replace(HYBRID, packed=Packed()), WISH, t).notes
    assert unsaid == t("cache.planner.packed.some")
    (method,) = picture(replace(HYBRID, packed=Packed("eetq")), WISH, t).notes
    assert "(eetq)" in method and "None" not in method


def memory_notes(shape: CacheShape, t: Translator) -> list[str]:
    model = replace(MODEL, cache=shape)
    return notes(model, Load(10), 1e12, plan(model, Load(10)), t)


def test_what_keeps_no_cache_is_said() -> None:
    assert "is an encoder" in picture(CacheShape("BERT", "encoder", ()), WISH, EN).notes[0]
    mamba = CacheShape("Mamba", "decoder", (CacheLayer("state"),))
    drawn = picture(mamba, WISH, EN)
    assert not drawn.panels and "no attention layer" in drawn.notes[0]


def test_the_badge_of_the_real_arrays_turns_red_when_they_differ() -> None:
    right = [2 * 16] * 3
    assert not failing(picture(HYBRID, WISH, EN, right))
    for wrong in ([2 * 16, 2 * 16, 2 * 15], [2 * 16] * 2):
        assert any("traced pass" in text for text in failing(picture(HYBRID, WISH, EN, wrong)))


def test_layers_without_keys_are_left_out_of_that_badge() -> None:
    shared = replace(HYBRID, layers=(*HYBRID.layers, CacheLayer("shared"), CacheLayer("state")))
    assert not failing(picture(shared, WISH, EN, [32] * 5))  # a layer that shares reads another's
    assert not failing(picture(shared, WISH, EN, [32] * 3))


def test_badges_turn_red_when_the_total_or_the_largest_context_is_wrong() -> None:
    total = cache_bytes(HYBRID, 1000, 2, CACHE_PRECISIONS["fp16"])
    fits = 4093
    good = badges(HYBRID, WISH, total, fits, WISH_ROOM, None, EN)
    assert [badge.ok for badge in good] == [True, True]
    bad = badges(HYBRID, WISH, total + 1, fits - 1, WISH_ROOM, None, EN)
    assert [badge.ok for badge in bad] == [False, False]


WISH_ROOM = 2 * (4 + 2 * 4093) * 2 * 16 * 2


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("one", TRIES, ids=lambda one: one.key)
def test_every_example_is_drawn_in_both_languages(one: Any, language: str) -> None:
    wish = Wish(32_768, 1, "fp16", 24 * 1024**3, 16.0, 1e9 * one.values["parameters"], 512)
    drawn = picture(read_config(one.values["config"]), wish, Translator(language))
    assert not failing(drawn) and len(drawn.panels) == 4
    assert len(json.dumps(payload(drawn), allow_nan=False)) < 100_000


def test_a_name_from_a_config_is_no_markup() -> None:
    text = TRIES[0].values["config"].replace("Llama-2-7B", "<b>x</b>")
    html = picture(read_config(text), WISH, EN).panels[0].html
    assert "<b>x" not in html


def scene(model: Any) -> Any:
    """A page that looks at a sentence through this model."""
    from tfviz.introspection.capture import capture

    prompt = model.prompt("the animal didn't cross", "the cat saw" if model.family == "encoder-decoder" else None)
    trace = capture(model, prompt, ("the animal", None), kernel="naive")
    return SimpleNamespace(t=EN, trace=trace, examine=lambda job: job(model, prompt))


CONTROLS = {
    "model": "loaded",
    "config": "",
    "context": 100,
    "batch": 1,
    "precision": "fp32",
    "memory": 1,
    "weights": "fp16",
    "parameters": 0,
    "source": 5,
}


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "mistral", "gemma2", "opt", "t5", "bart", "marian"])
def test_the_model_on_the_page_is_planned_and_its_arrays_agree(name: str, loaded: Any) -> None:
    drawn = planner.draw(scene(loaded(name)), **CONTROLS)
    assert not failing(drawn) and any("traced pass" in badge.text for badge in drawn.badges)


def test_an_encoder_on_the_page_is_told_apart(loaded: Any) -> None:
    assert "keeps no cache" in planner.draw(scene(loaded("bert-mlm")), **CONTROLS).notes[0]


def test_the_box_counts_when_it_is_chosen(loaded: Any) -> None:
    page, text = scene(loaded("gpt2")), TRIES[1].values["config"]
    with pytest.raises(TfvizError, match=r"Paste a config\.json"):
        planner.draw(page, **CONTROLS | {"model": "pasted"})
    drawn = planner.draw(page, **CONTROLS | {"model": "pasted", "config": text})
    assert drawn.panels[0].title == "Llama-3-8B" and "not subtracted" in drawn.notes[0]
    own = planner.draw(page, **CONTROLS | {"config": text})  # another model is chosen: the text is not read
    assert own.panels[0].title != "Llama-3-8B" and not any("config.json" in note for note in own.notes)
    assert planner.draw(page, **CONTROLS | {"model": "facebook/bart-base"}).panels[0].title == "BART base"


@pytest.mark.parametrize(
    "odd", [{"context": None}, {"context": 0}, {"context": 10**30}, {"batch": 0}, {"memory": None}, {"source": None}]
)
def test_odd_numbers_are_brought_within_their_ends(odd: dict[str, Any], loaded: Any) -> None:
    assert not failing(planner.draw(scene(loaded("llama")), **CONTROLS | odd))
