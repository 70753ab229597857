"""The feed-forward and residual sections on hand-made layers: exact values, and badges that turn red."""

import base64
import json
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
import torch

from tfviz.introspection.anatomy import LayerSeen, NormSeen
from tfviz.messages import LANGUAGES, sentences
from tfviz.ui.components.picture import Picture, payload
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.layers import feed_forward, residual

EN = Translator("en")
PARAMETERS = {"attention": 30, "cross": 0, "feed_forward": 70, "norm": 4}
RANDOM = np.random.default_rng(0)


def rows(*values: list[float]) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def noise(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def pre_layer(x: np.ndarray, activation: str = "relu", hidden: np.ndarray | None = None, **more: object) -> LayerSeen:
    """A layer that adds: its attention and feed-forward outputs are drawn at random."""
    a, f = noise(*x.shape), noise(*x.shape)
    up = noise(len(x), 6)
    bent = np.maximum(up, 0)
    layer = LayerSeen(
        resid_pre=x,
        attention_out=a,
        resid_mid=x + a,
        cross_out=None,
        resid_cross=None,
        feed_forward_out=f,
        resid_post=x + a + f,
        hidden=bent if hidden is None else hidden,
        up=up,
        activation=activation,
        placement="pre",
        norms=(),
        parameters=PARAMETERS,
    )
    return replace(layer, **more)


def stack(n: int = 3, tokens: int = 4) -> list[LayerSeen]:
    layers = [pre_layer(noise(tokens, 5))]
    while len(layers) < n:
        layers.append(pre_layer(layers[-1].resid_post))
    return layers


def post_layer(x: np.ndarray) -> LayerSeen:
    a, f = noise(*x.shape), noise(*x.shape)
    first = norm_of(x + a)
    last = norm_of(first.after + f)
    layer = pre_layer(x, attention_out=a, resid_mid=first.after, feed_forward_out=f, resid_post=last.after)
    return replace(layer, placement="post", norms=(first, last))


def norm_of(before: np.ndarray) -> NormSeen:
    weight, bias, eps = noise(before.shape[1]), noise(before.shape[1]), 1e-5
    x = torch.from_numpy(before)
    after = torch.nn.functional.layer_norm(x, x.shape[1:], torch.from_numpy(weight), torch.from_numpy(bias), eps)
    return NormSeen("norm", "layer", before, after.numpy(), weight, bias, eps)


def ffn(layers: list[LayerSeen], layer: int = 0, token: int = 0, **more: object) -> feed_forward.Shown:
    tokens = [f"t{i}" for i in range(len(layers[0].resid_pre))]
    return replace(feed_forward.Shown("id", layers, layer, token, tokens), **more)


def stream(layers: list[LayerSeen], layer: int = 0, token: int = 0, **more: object) -> residual.Shown:
    tokens = [f"t{i}" for i in range(len(layers[0].resid_pre))]
    return replace(residual.Shown(layers, layer, token, tokens), **more)


def checks(picture: Picture) -> list[bool | None]:
    return [badge.ok for badge in picture.badges]


def unpacked(text: str, dtype: type) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)


# ---- feed-forward


def test_a_unit_is_active_above_zero_after_relu_and_beyond_the_threshold_otherwise() -> None:
    hidden = rows([0, 0.1, -0.3, 2])
    assert feed_forward.active_share(hidden, "relu") == pytest.approx([0.5])
    assert feed_forward.active_share(hidden, "swiglu") == pytest.approx([0.5])
    assert feed_forward.active_share(rows([0.1, 0.15, -0.17, 0.2]), "gelu") == pytest.approx([0])


def test_the_threshold_lies_beyond_gelus_own_dip() -> None:
    x, values, _ = feed_forward.curves()
    assert -feed_forward.ACTIVE < values["gelu"].min() and values["relu"].min() == 0


def test_curves_and_slopes_are_those_of_the_functions() -> None:
    x, values, slopes = feed_forward.curves()
    np.testing.assert_array_equal(values["relu"], np.maximum(x, 0))
    np.testing.assert_array_equal(slopes["relu"], (x > 0).astype(np.float32))
    for name in values:
        away = np.abs(x) > 0.1  # from the corner of ReLU
        made = np.gradient(values[name].astype(np.float64), x)
        np.testing.assert_allclose(slopes[name][1:-1][away[1:-1]], made[1:-1][away[1:-1]], atol=0.02)


def test_the_browser_gets_this_tokens_units_and_the_strongest_over_the_sentence() -> None:
    hidden = rows([0, -4, 1], [2, 8, 0], [0.5, 0, -3])
    layer = pre_layer(noise(3, 5), hidden=hidden)
    data = feed_forward.units_data(ffn([layer], token=0), hidden, EN)
    np.testing.assert_array_equal(unpacked(data["row"], np.float32), hidden[0])
    assert list(unpacked(data["units"], np.uint16)) == [1, 2, 0]
    over = unpacked(data["over"], np.int16).reshape(3, 3) * unpacked(data["step"], np.float32)[:, None]
    np.testing.assert_allclose(over, hidden[:, [1, 2, 0]].T, atol=8 / 32767)
    assert data["tokens"] == ["t0", "t1", "t2"] and data["query"] == 0


def test_a_long_text_sends_the_tokens_around_the_chosen_one_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_forward, "TOKENS", 4)
    layer = pre_layer(noise(10, 5))
    picture = feed_forward.picture(ffn([layer], token=8), EN)
    assert picture.panels[0].data["tokens"] == ["t6", "t7", "t8", "t9"] and picture.panels[0].data["first"] == 6
    assert picture.notes == ["Tokens 6 to 9 of 10 are shown, around the chosen one."]


def test_only_as_many_units_travel_as_there_is_room_for() -> None:
    hidden = noise(100, 3000)
    data = feed_forward.units_data(ffn([pre_layer(noise(100, 5), hidden=hidden)]), hidden, EN)
    assert len(unpacked(data["over"], np.int16)) <= feed_forward.VALUES
    assert len(json.dumps(data)) < 200_000


def test_units_that_are_the_function_of_the_first_projection_are_confirmed() -> None:
    picture = feed_forward.picture(ffn(stack()), EN)
    assert checks(picture) == [True, None]
    assert "ReLU" in picture.badges[0].text and "difference 0)" in picture.badges[0].text


def test_a_hidden_value_that_was_changed_turns_the_badge_red() -> None:
    layers = stack()
    assert layers[1].hidden is not None
    layers[1].hidden[2, 3] += 0.01
    assert checks(feed_forward.picture(ffn(layers, 1), EN)) == [False, None]
    assert checks(feed_forward.picture(ffn(layers, 0), EN)) == [True, None]


def test_a_gated_network_is_confirmed_with_both_of_its_projections() -> None:
    up, through = noise(4, 6), noise(4, 6)
    hidden = torch.nn.functional.silu(torch.from_numpy(up)).numpy() * through
    layer = pre_layer(noise(4, 5), "swiglu", hidden, up=up, through=through)
    picture = feed_forward.picture(ffn([layer]), EN)
    assert checks(picture) == [True, None] and "SwiGLU is gated" in picture.panels[1].note
    tampered = replace(layer, through=through + 0.1)
    assert checks(feed_forward.picture(ffn([tampered]), EN)) == [False, None]


def test_the_layers_own_function_is_marked_and_its_units_lie_on_it() -> None:
    layer = pre_layer(noise(4, 5), "gelu_tanh", noise(4, 6))
    figure = feed_forward.picture(ffn([layer], token=2), EN).panels[1].figure
    assert figure is not None and [line.name for line in figure.data][:3] == ["ReLU", "SiLU", "GELU (tanh)"]
    np.testing.assert_allclose(figure.data[3].x, np.sort(layer.up[2]))
    strongest = np.abs(layer.hidden[2]).argmax()
    assert figure.data[4].x[0] == pytest.approx(layer.up[2, strongest])


def test_units_beyond_the_curves_are_counted_not_drawn() -> None:
    up = np.float32([[0, 1, 20, -30, 2, 3]])
    layer = pre_layer(noise(1, 5), hidden=np.maximum(up, 0), up=up)
    panel = feed_forward.picture(ffn([layer]), EN).panels[1]
    assert "Points beyond ±8, not drawn: 2." in panel.note
    assert panel.figure is not None and len(panel.figure.data) == 4  # three curves, the points, no mark: it is at 20


def test_a_mixture_of_experts_says_that_it_has_no_units_and_keeps_its_parameters() -> None:
    layer = pre_layer(noise(2, 5), "", up=None)
    picture = feed_forward.picture(ffn([replace(layer, hidden=None)]), EN)
    assert len(picture.panels) == 1 and "mixture of experts" in picture.notes[0]


def test_an_unknown_function_is_not_claimed_to_be_anything() -> None:
    layer = pre_layer(noise(2, 5), "", up=None)
    picture = feed_forward.picture(ffn([layer]), EN)
    assert len(picture.panels) == 3 and checks(picture) == [None]


def test_parameters_are_those_of_the_layer_beside_the_papers() -> None:
    html = unescape(feed_forward.picture(ffn(stack()), EN).panels[-1].html)
    assert feed_forward.paper_base("encoder") == {"attention": 1_048_576, "cross": 0, "feed_forward": 2_099_712}
    assert feed_forward.paper_base("decoder") == {"attention": 1_048_576, "cross": 1_048_576, "feed_forward": 2_099_712}
    for expected in ("2,099,712", "1,048,576", "70.0 %", "66.7 %", "this model, layer 0"):
        assert expected in html


# ---- residual stream


def test_lengths_are_euclidean() -> None:
    layer = replace(pre_layer(rows([3, 4])), resid_post=rows([6, 8]))
    assert residual.lengths([layer], "resid_pre").tolist() == [[5]]
    assert residual.lengths([layer], "resid_post").tolist() == [[10]]


def test_shares_of_input_and_sublayers_add_up_to_one() -> None:
    x, a, f = rows([1, 0]), rows([0, 1]), rows([2, 0])
    layer = replace(pre_layer(x), attention_out=a, feed_forward_out=f, resid_mid=x + a, resid_post=x + a + f)
    start, of = residual.shares([layer], 0)  # the last vector is (3, 1)
    assert start == pytest.approx(0.3)
    assert of["attention_out"] == pytest.approx([0.1]) and of["feed_forward_out"] == pytest.approx([0.6])
    start, of = residual.shares(stack(), 2)
    assert start + sum(values.sum() for values in of.values()) == pytest.approx(1)


def test_relative_lengths_compare_a_sublayer_with_what_it_is_added_to() -> None:
    layer = pre_layer(rows([3, 4]), attention_out=rows([0, 10]))
    layer = replace(layer, feed_forward_out=rows([0, 1]), resid_mid=rows([0, 4]))
    found = residual.relative_lengths([layer], 0)
    assert found["attention_out"] == pytest.approx([2]) and found["feed_forward_out"] == pytest.approx([0.25])


def test_cosines_of_vectors() -> None:
    assert residual.cosines(rows([1, 0], [1, 1]), rows([0, 2], [2, 2])) == pytest.approx([0, 1], abs=1e-6)


def test_sums_of_a_pre_norm_layer_hold() -> None:
    picture = residual.picture(stream(stack(), 1), "resid_post", EN)
    assert checks(picture) == [True, True, True]
    assert picture.badges[0].text.startswith("resid_pre + attention_out = resid_mid (max difference")


@pytest.mark.parametrize(
    "tampered, expected", [("attention_out", [False, True, False]), ("feed_forward_out", [True, False, False])]
)
def test_an_array_that_was_changed_turns_its_sum_red(tampered: str, expected: list[bool]) -> None:
    layers = stack()
    getattr(layers[1], tampered)[:, 0] += 0.5
    assert checks(residual.picture(stream(layers, 1), "resid_post", EN)) == expected


def test_sums_of_a_post_norm_layer_hold_until_an_array_is_changed() -> None:
    layer = post_layer(noise(4, 5))
    assert checks(residual.picture(stream([layer]), "resid_post", EN)) == [True, True]
    layer.resid_mid[1, 1] += 0.01
    assert checks(residual.picture(stream([layer]), "resid_post", EN)) == [False, False]


def test_a_post_norm_stream_shows_ratios_because_nothing_adds_up() -> None:
    pictures = [residual.picture(stream([one]), "resid_post", EN) for one in (post_layer(noise(4, 5)), *stack(1))]
    titles = [picture.panels[-1].title for picture in pictures]
    assert titles == [EN("layers.residual.ratios.title"), EN("layers.residual.shares.title")]


def test_a_parallel_layer_has_one_sum() -> None:
    layer = replace(stack(1)[0], placement="parallel")
    picture = residual.picture(stream([layer]), "resid_post", EN)
    assert checks(picture) == [True, True] and "resid_pre + attention_out + feed_forward_out" in picture.badges[0].text


def test_a_cross_attention_has_its_own_sum_and_its_own_map() -> None:
    layer = stack(1)[0]
    c = noise(4, 5)
    crossed = replace(layer, cross_out=c, resid_cross=layer.resid_mid + c, resid_post=layer.resid_post + c)
    picture = residual.picture(stream([crossed]), "cross_out", EN)
    assert checks(picture) == [True] * 4 and picture.notes == []
    assert picture.panels[0].title == "Length: what cross-attention adds"
    assert residual.picture(stream([layer]), "cross_out", EN).notes == [EN("layers.residual.no_cross")]


def test_a_layer_of_its_own_kind_claims_no_sum() -> None:
    picture = residual.picture(stream([replace(stack(1)[0], placement="other")]), "resid_post", EN)
    assert checks(picture) == [None]


def test_a_click_in_the_map_of_a_long_text_names_the_true_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual, "TOKENS", 4)
    panel = residual.picture(stream(stack(tokens=10), 2, 8), "resid_post", EN).panels[0]
    assert panel.select == {"x": "query", "y": "layer"}
    assert panel.figure is not None and panel.figure.data[0].x0 == 6 and panel.figure.data[0].z.shape == (3, 4)


# ---- both


@pytest.mark.parametrize("language", LANGUAGES)
def test_both_languages_draw_and_user_text_is_plain(language: str) -> None:
    t = Translator(language)
    tokens = ["<b>x</b>", "b", "c", "d"]
    drawn = [
        feed_forward.picture(ffn(stack(), tokens=tokens), t),
        residual.picture(stream(stack(), tokens=tokens), "resid_post", t),
    ]
    for picture in drawn:
        said = payload(picture)
        assert "<b>" not in "".join(panel["figure"] + panel["html"] for panel in said["panels"])


def test_every_sentence_of_these_sections_is_there_in_both_languages() -> None:
    ours = ("layers.ffn.", "layers.residual.", "layers.w", "error.anatomy")
    keys = [{key for key in sentences(language) if key.startswith(ours)} for language in LANGUAGES]
    assert keys[0] == keys[1]
    for section in (feed_forward.SECTION, residual.SECTION):
        for part in ("name", "title", "intro", "article", *(f"try.{one.key}" for one in section.tries)):
            assert f"{section.key}.{part}" in keys[0]
