"""The Attention tab's data step: what is sent is what was computed, and the badges are checks of what is sent."""

import base64
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import ARCHITECTURES
from tests.conftest import Loaded
from tfviz.introspection.capture import capture
from tfviz.introspection.trace import Answer, LayerAttention, Trace
from tfviz.messages import LANGUAGES
from tfviz.sources.tokens import Token
from tfviz.ui.i18n import Translator
from tfviz.ui.selection import EXACT_CELLS, FIRST, best_copying, most_telling, place
from tfviz.ui.tabs import attention as tab
from tfviz.ui.tabs.attention import _look_up, draw, draw_head, draw_row

EN = Translator("en")
TEXT = "The animal didn't cross the street because it was too tired"
FIELDS = {"kind", "layer", "head", "query", "key"}


@pytest.fixture
def trace_of(loaded: Loaded) -> Any:
    def trace(name: str, text: str = TEXT, second: str | None = None) -> Trace:
        model = loaded(name)
        second = second or ("the cat saw" if model.family == "encoder-decoder" else None)
        kernel = "naive" if name == "gemma2" else "flash"
        return capture(model, model.prompt(text, second), (text, second), kernel=kernel, overview=True)

    return trace


def floats(data: str, *shape: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(data), dtype=np.float32).reshape(shape)


def codes(data: str, *shape: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(data), dtype=np.uint8).reshape(shape)


def sent_codes(reply: dict[str, Any]) -> np.ndarray:
    """A large head as the view unpacks it: whole, or only row i's first i + 1 cells where nothing looks ahead."""
    n_query, n_key = reply["n_query"], reply["n_key"]
    if not reply.get("lower"):
        return codes(reply["weights"], n_query, n_key)
    whole = np.zeros((n_query, n_key), dtype=np.uint8)
    whole[np.tri(n_query, n_key, dtype=bool)] = codes(reply["weights"], n_query * (n_query + 1) // 2)
    return whole


def states(reply: dict[str, Any]) -> list[str]:
    return [badge["state"] for badge in reply["badges"]]


# ---- every architecture


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_view_is_plain_json_and_every_check_holds(name: str, language: str, trace_of: Any) -> None:
    trace = trace_of(name)
    value = draw("id", trace, FIRST, Translator(language))
    assert json.loads(json.dumps(value, allow_nan=False))["trace"] == "id"
    assert [kind["key"] for kind in value["kinds"]] == list(trace.stacks)
    for kind in trace.stacks:
        for layer in trace.stacks[kind].layers:
            reply = draw_head(trace, kind, layer, 1, Translator(language))
            json.dumps(reply, allow_nan=False)
            assert set(states(reply)) == {"ok", "note"}, reply["badges"]
            assert all(badge["text"] and badge["title"] for badge in reply["badges"]) and reply["caption"]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_head_sent_is_the_weights_with_blocked_cells_as_nan(name: str, trace_of: Any) -> None:
    trace = trace_of(name)
    for kind, stack in trace.stacks.items():
        reply = draw_head(trace, kind, 1, 3, EN)
        n_query, n_key = len(stack.query_tokens), len(stack.key_tokens)
        assert (reply["n_query"], reply["n_key"], reply["format"]) == (n_query, n_key, "f32")
        sent = floats(reply["weights"], n_query, n_key)
        blocked = np.broadcast_to(stack.layers[1].blocked, (4, n_query, n_key))[3]
        np.testing.assert_array_equal(np.isnan(sent), blocked)
        np.testing.assert_allclose(np.where(blocked, 0, sent), trace.attention[kind][1, 3], atol=1e-6)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_row_sent_alone_is_that_row_of_the_head(name: str, trace_of: Any) -> None:
    trace = trace_of(name)
    for kind, stack in trace.stacks.items():
        n_query, n_key = len(stack.query_tokens), len(stack.key_tokens)
        head = floats(draw_head(trace, kind, 0, 2, EN)["weights"], n_query, n_key)
        for query in (0, n_query - 1):
            row = floats(draw_row(trace, kind, 0, 2, query)["weights"], n_key)
            np.testing.assert_allclose(row, head[query], atol=1e-7)


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_kinds_tell_their_sizes_and_token_lists(name: str, trace_of: Any) -> None:
    trace = trace_of(name)
    value = draw("id", trace, FIRST, EN)
    for kind in value["kinds"]:
        stack = trace.stacks[kind["key"]]
        assert (kind["n_heads"], kind["n_kv_heads"]) == (stack.n_heads, stack.n_kv_heads)
        assert kind["n_query"] == len(value["token_lists"][kind["query_list"]]["tokens"])
        assert kind["n_key"] == len(value["token_lists"][kind["key_list"]]["tokens"])
        thumbs = codes(kind["thumbs"], kind["n_layers"], kind["n_heads"], *kind["thumb"])
        np.testing.assert_array_equal(thumbs, stack.overview)
        assert kind["causal"] == (kind["key"] in {"self", "decoder"})
    assert set(value["token_lists"]) == ({"source"} if name == "llama" else {"source", "target"})


# ---- large heads


def test_a_large_head_travels_as_codes_and_zero_means_blocked(trace_of: Any, loaded: Loaded) -> None:
    trace = trace_of("t5", "cat the " * 100, "the door " * 100)
    for kind in ("encoder", "decoder", "cross"):
        stack = trace.stacks[kind]
        n_query, n_key = len(stack.query_tokens), len(stack.key_tokens)
        assert n_query * n_key > EXACT_CELLS
        reply = draw_head(trace, kind, 1, 2, EN)
        json.dumps(reply, allow_nan=False)
        assert reply["format"] == "u8"
        sent = sent_codes(reply)
        weights = stack.layers[1].weights(2)[0]
        blocked = np.broadcast_to(stack.layers[1].blocked, (4, n_query, n_key))[2]
        np.testing.assert_array_equal(sent == 0, blocked)
        decoded = ((sent.astype(np.float64) - 1) / 254) ** 2
        assert np.abs(decoded - weights)[~blocked].max() < 1 / 200
        row = floats(draw_row(trace, kind, 1, 2, 150)["weights"], n_key)
        np.testing.assert_allclose(np.nan_to_num(row), weights[150], atol=1e-7)


def test_160_by_160_is_still_exact_and_one_more_is_not(trace_of: Any) -> None:
    def format_of(n: int) -> str:
        trace = trace_of("t5", " ".join(["cat"] * (n - 1)), "the")
        assert len(trace.source_tokens) == n
        return draw_head(trace, "encoder", 0, 0, EN)["format"]

    assert (format_of(160), format_of(161)) == ("f32", "u8")


def test_large_overviews_are_asked_for_later(trace_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of("llama")
    monkeypatch.setattr(tab, "INLINE_BYTES", 10)
    assert draw("id", trace, FIRST, EN)["kinds"][0]["thumbs"] is None


# ---- the selection


def test_a_selection_beyond_the_model_is_moved_to_its_edge(trace_of: Any) -> None:
    trace = trace_of("llama")
    n = len(trace.tokens)
    far = {"kind": "self", "layer": 99, "head": 99, "query": 999, "key": 999}
    assert draw("id", trace, far, EN)["select"] == {"kind": "self", "layer": 2, "head": 3, "query": n - 1, "key": n - 1}
    below = {"kind": "self", "layer": -5, "head": -1, "query": -1, "key": -1}
    assert draw("id", trace, below, EN)["select"] == {"kind": "self", "layer": 0, "head": 0, "query": 0, "key": 0}


@pytest.mark.parametrize("selection", [{}, {"kind": None, "layer": None}, {"kind": "no such kind", "head": 2}, FIRST])
def test_a_selection_made_elsewhere_finds_a_place_in_every_stack(selection: dict[str, Any], trace_of: Any) -> None:
    for name in ("gpt2", "bart"):
        trace = trace_of(name)
        value = draw("id", trace, selection, EN)
        select = value["select"]
        assert set(select) == FIELDS and select["kind"] in trace.stacks
        first = draw_head(trace, select["kind"], select["layer"], select["head"], EN)
        assert value["first"]["weights"] == first["weights"]


def test_a_selection_that_exists_is_kept_in_its_own_stack(trace_of: Any) -> None:
    chosen = {"kind": "cross", "layer": 1, "head": 2, "query": 3, "key": 5}
    assert draw("id", trace_of("bart"), chosen, EN)["select"] == chosen
    too_deep = chosen | {"layer": 2}  # the encoder has a third layer, the decoder has not
    assert draw("id", trace_of("bart"), too_deep, EN)["select"]["layer"] == 1


def coded(weights: list[list[list[float]]]) -> np.ndarray:
    """One layer's thumbnails of these heads."""
    return np.round(1 + 254 * np.sqrt(np.array([weights], dtype=np.float64))).astype(np.uint8)


def test_the_most_telling_head_aligns_each_row_with_its_own_column() -> None:
    same = [[1.0, 0, 0]] * 3  # sharp, but always at the same place
    even = [[1 / 3] * 3] * 3
    aligned = [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]
    assert most_telling(coded([same, even, aligned])) == (0, 2)
    assert most_telling(coded([aligned, even, same])) == (0, 0)


def test_the_most_telling_head_is_one_of_the_last_layer() -> None:
    first, last = coded([np.eye(3).tolist(), [[1 / 3] * 3] * 3]), coded([[[1 / 3] * 3] * 3, [[0.5, 0.5, 0]] * 3])
    assert most_telling(np.concatenate([first, last]))[0] == 1


def test_a_row_with_nothing_allowed_tells_nothing() -> None:
    overview = coded([np.eye(3).tolist(), np.eye(3).tolist()])
    overview[0, 0] = 0
    assert most_telling(overview) == (0, 1)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_the_most_telling_head_of_a_short_text_is_that_of_the_exact_weights(name: str, trace_of: Any) -> None:
    trace = trace_of(name)
    weights = trace.attention["cross"][-1].astype(np.float64)

    def entropy(p: np.ndarray) -> np.ndarray:
        return -(p * np.log(p + 1e-30)).sum(axis=-1)

    information = entropy(weights.mean(axis=1)) - entropy(weights).mean(axis=-1)
    _, head = most_telling(trace.stacks["cross"].overview)
    assert information[head] == pytest.approx(information.max(), abs=2e-2)


def with_answer(trace: Any, texts: list[str]) -> Any:
    """The trace as if the decoder had said this: one token a position, each as probable as the others."""
    tokens = tuple(Token(0, text, text) for text in texts)
    answer = Answer("".join(texts), tokens, np.full(len(texts), 0.5, np.float32), ((),) * len(texts), True)
    return replace(trace, answer=answer)


def test_the_best_copying_head_looks_at_the_token_it_writes(trace_of: Any) -> None:
    trace = trace_of("t5")
    source = [token.text for token in trace.source_tokens]
    answer = ["#"] * (len(trace.target_tokens) - 1) + [source[2]]
    copied = np.array([text == source[2] for text in source])
    weights = trace.attention["cross"][-1]
    layer, head = best_copying(with_answer(trace, answer)) or (None, None)
    assert (layer, head) == (trace.stacks["cross"].n_layers - 1, weights[:, -1, copied].sum(axis=-1).argmax())


def test_no_head_copies_where_no_token_is_repeated(trace_of: Any) -> None:
    trace = trace_of("t5")
    assert best_copying(with_answer(trace, ["#"] * len(trace.target_tokens))) is None
    assert best_copying(replace(trace, answer=None)) is None


def test_a_decoders_place_opens_an_encoder_decoder_at_its_best_cross_head(trace_of: Any) -> None:
    trace = trace_of("t5")
    select = draw("id", trace, FIRST, EN)["select"]
    best = best_copying(trace) or most_telling(trace.stacks["cross"].overview)
    assert (select["layer"], select["head"]) == best
    row = trace.attention["cross"][select["layer"], select["head"], 0]
    assert (select["kind"], select["query"], select["key"]) == ("cross", 0, int(row.argmax()))


def test_a_place_in_cross_attention_opens_a_decoder_where_it_opens_by_itself(trace_of: Any) -> None:
    trace = trace_of("llama")
    cross = {"kind": "cross", "layer": 0, "head": 1, "query": 0, "key": 0}
    assert place(cross, trace) == place(FIRST, trace)


# ---- badges are computed


def corrupted(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    weights = LayerAttention.weights

    def wrong(self: LayerAttention, head: int | None = None) -> np.ndarray:
        array = weights(self, head).copy()
        change(array)
        return array

    monkeypatch.setattr(LayerAttention, "weights", wrong)


def badge(reply: dict[str, Any], beginning: str) -> dict[str, str]:
    (found,) = [badge for badge in reply["badges"] if badge["text"].startswith(beginning)]
    return found


def test_the_row_badge_warns_when_rows_do_not_sum_to_one(trace_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of("llama")
    assert badge(draw_head(trace, "self", 0, 0, EN), "rows sum to 1")["state"] == "ok"
    corrupted(monkeypatch, lambda array: array.__setitem__((0, 3, 0), array[0, 3, 0] + 0.01))
    warned = badge(draw_head(trace, "self", 0, 0, EN), "rows sum to 1")
    assert warned["state"] == "warn" and "0.01" in warned["text"]


def test_the_row_badge_warns_of_nan(trace_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of("bert")
    corrupted(monkeypatch, lambda array: array.__setitem__((0, 1), np.nan))
    reply = draw_head(trace, "self", 0, 0, EN)
    json.dumps(reply, allow_nan=False)
    assert badge(reply, "rows sum to 1")["state"] == "warn"


@pytest.mark.parametrize("name, beginning", [("llama", "nothing looks ahead"), ("mistral", "nothing looks ahead")])
def test_the_future_badge_warns_of_the_smallest_leak(
    name: str, beginning: str, trace_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = trace_of(name)
    assert badge(draw_head(trace, "self", 0, 0, EN), beginning)["state"] == "ok"
    corrupted(monkeypatch, lambda array: array.__setitem__((0, 0, 1), 1e-7))
    warned = badge(draw_head(trace, "self", 0, 0, EN), beginning)
    assert warned["state"] == "warn" and "1.00e-7" in warned["text"]


def test_the_kernel_badge_warns_when_the_kernels_differ(trace_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of("llama")
    assert badge(draw_head(trace, "self", 0, 0, EN), "flash = naive")["state"] == "ok"
    monkeypatch.setattr(LayerAttention, "kernel_difference", lambda self, head, weights: 0.02)
    assert badge(draw_head(trace, "self", 0, 0, EN), "flash = naive")["state"] == "warn"


def test_an_encoder_blocks_nothing_and_claims_nothing_about_it(trace_of: Any) -> None:
    texts = [each["text"] for each in draw_head(trace_of("bert"), "self", 0, 0, EN)["badges"]]
    assert not any("blocked" in text or "ahead" in text for text in texts)


def test_a_soft_cap_makes_no_claim_about_flash(trace_of: Any) -> None:
    texts = [each["text"] for each in draw_head(trace_of("gemma2"), "self", 0, 0, EN)["badges"]]
    assert not any("flash = naive" in text for text in texts)


def test_rows_with_nothing_allowed_are_counted_and_still_hold(trace_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of("bert")
    n = len(trace.tokens)
    mask = np.zeros((1, n, n), dtype=bool)
    mask[0, [1, 4]] = True
    layers = {0: LayerAttention(**{**vars(trace.stacks["self"].layers[0]), "mask": mask})}
    monkeypatch.setattr(type(trace.stacks["self"]), "layers", property(lambda stack: layers), raising=False)
    reply = draw_head(trace, "self", 0, 0, EN)
    assert badge(reply, "2 rows have nothing allowed")["state"] == "note"
    assert badge(reply, "rows sum to 1")["state"] == "ok" and badge(reply, "blocked cells are 0")["state"] == "ok"
    assert np.isnan(floats(reply["weights"], n, n)[4]).all()


def test_a_mask_of_each_head_is_drawn_for_its_own_head(trace_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of("bert")
    n = len(trace.tokens)
    mask = np.zeros((4, n, n), dtype=bool)
    mask[3, :, 1] = True
    layers = {0: LayerAttention(**{**vars(trace.stacks["self"].layers[0]), "mask": mask})}
    monkeypatch.setattr(type(trace.stacks["self"]), "layers", property(lambda stack: layers), raising=False)
    for head in range(4):
        reply = draw_head(trace, "self", 0, head, EN)
        assert set(states(reply)) == {"ok", "note"}
        np.testing.assert_array_equal(np.isnan(floats(reply["weights"], n, n)), mask[head])


@pytest.mark.parametrize("kernel", ["naive", "flash"])
def test_the_origin_note_says_which_kernel_the_weights_come_from(kernel: str, loaded: Loaded) -> None:
    model = loaded("llama")
    trace = capture(model, model.prompt("the cat"), ("the cat", None), kernel=kernel, overview=True)
    note = draw_head(trace, "self", 2, 0, EN)["badges"][-1]
    assert note["state"] == "note" and "layer 2" in note["text"]
    assert ("flash keeps no weights" in note["text"]) == (kernel == "flash")


# ---- text of a stranger


def test_markup_is_sent_as_the_plain_text_it_is(trace_of: Any) -> None:
    text = "</script><script>alert(1)</script> <b>&\"'"
    value = draw("id", trace_of("gpt2", text), FIRST, EN)
    tokens = value["token_lists"]["source"]["tokens"]
    assert "".join(token["title"].split(" · ")[0] for token in tokens).replace("␣", " ") == text
    assert "&lt;" not in json.dumps(value) and "&amp;" not in json.dumps(value)


def test_braces_in_a_text_are_not_filled_in(trace_of: Any) -> None:
    tokens = draw("id", trace_of("gpt2", "{id} {0} {raw.__class__}"), FIRST, EN)["token_lists"]["source"]["tokens"]
    assert "{" in "".join(token["text"] for token in tokens)


def test_equal_words_keep_a_place_each_and_their_titles_say_which(trace_of: Any) -> None:
    tokens = draw("id", trace_of("llama", "the cat the cat the cat"), FIRST, EN)["token_lists"]["source"]["tokens"]
    assert len(tokens) == 6 and len({token["title"] for token in tokens}) == 6
    assert [f"position {i}" in token["title"] for i, token in enumerate(tokens)] == [True] * 6


def test_pieces_and_direction_reach_the_view(trace_of: Any) -> None:
    tokens = draw("id", trace_of("gpt2", "猫 שלום"), FIRST, EN)["token_lists"]["source"]["tokens"]
    assert [token["piece"] for token in tokens[:3]] == [(1, 3), (2, 3), (3, 3)]
    assert not tokens[0]["rtl"] and tokens[-1]["rtl"]


@pytest.mark.parametrize(
    "request_",
    [
        None,
        "abc",
        [],
        {},
        {"trace": None},
        {"kind": "self"},
        {"layer": "x"},
        {"layer": -1},
        {"head": 1e9},
        {"head": 99},
    ],
)
def test_a_request_of_any_form_gets_an_answer_and_no_traceback(trace_of: Any, request_: Any) -> None:
    kept = {"t": trace_of("llama")}
    ctx = SimpleNamespace(workbench=SimpleNamespace(find=kept.get))
    whole = {"trace": "t", "kind": "self", "layer": 0, "head": 0}
    asked = {**whole, **request_} if isinstance(request_, dict) and request_ else request_
    trace, place = _look_up(ctx, asked)  # type: ignore[arg-type]
    assert place is None or (trace is not None and place[0] == "self" and place[1] == 0)
    assert _look_up(ctx, whole)[1] == ("self", 0, 0)  # type: ignore[arg-type]
