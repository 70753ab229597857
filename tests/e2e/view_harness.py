"""A small app that shows the Attention view with synthetic data.

python -m tests.e2e.view_harness [case] [language] [port]
"""

import base64
import os
import sys
import time

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before gradio is imported

import gradio as gr
import numpy as np

from tfviz.messages import ASSETS
from tfviz.ui.components.attention_view import attention_view, view_labels

ANIMAL = "The animal didn 't cross the street because it was too tired".split()
ANIMAL_SHOWN = [
    "The",
    "␣animal",
    "␣didn",
    "'t",
    "␣cross",
    "␣the",
    "␣street",
    "␣because",
    "␣it",
    "␣was",
    "␣too",
    "␣tired",
]
BROKEN, SLOW = (1, 8), (2, 0)  # (layer, head) that answers with an error, and one that answers late
EXACT_CELLS = 256 * 256  # larger matrices travel as uint8


def token(text: str, i: int, **more: object) -> dict:
    """One entry of a token list, as the page's Python side makes it."""
    plain = {"special": False, "typed": False, "joined": False, "piece": None, "rtl": False}
    return {"text": text, "title": f"{text} · id {1000 + i} · position {i}", **plain, **more}


def words(n: int) -> list[dict]:
    """A text of `n` tokens."""
    return [token(ANIMAL[i % len(ANIMAL)], i, joined=ANIMAL[i % len(ANIMAL)] == "'t") for i in range(n)]


def attention(layers: int, heads: int, queries: int, keys: int, causal: bool, seed: int = 0) -> np.ndarray:
    """[layer, head, query, key] float32; rows sum to 1, blocked cells are NaN; heads differ in what they look at."""
    rng = np.random.default_rng(seed)
    i, j = np.arange(queries)[:, None] * keys / queries, np.arange(keys)[None]
    out = np.empty((layers, heads, queries, keys), np.float32)
    for layer in range(layers):
        for head in range(heads):
            scores = rng.normal(0, 1.2, (queries, keys)).astype(np.float32)
            style = rng.integers(4)
            scores += [4.0 * (j == 0), 3.5 * (np.abs(i - 1 - j) < 0.6), -np.abs(i - j) / 3, 2.0 * (j % 7 == 3)][style]
            if causal:
                scores[j > i + 1e-9] = -np.inf
            weights = np.exp(scores - scores.max(1, keepdims=True))
            out[layer, head] = weights / weights.sum(1, keepdims=True)
    if causal:
        out[:, :, np.triu(np.ones((queries, keys), bool), 1)] = np.nan
    return out


def codes(weights: np.ndarray) -> np.ndarray:
    """0 = blocked, else 1 + round(254 sqrt(weight)): the view's uint8 form."""
    coded = np.sqrt(weights)
    coded *= 254
    coded += 1.5
    return np.fmax(coded, 0).astype(np.uint8)


def lower(square: np.ndarray) -> np.ndarray:
    """The lower triangle of a causal matrix, row after row: half the bytes."""
    return np.concatenate([row[: i + 1] for i, row in enumerate(square)])


def packed(array: np.ndarray) -> str:
    """base64 of the array's bytes."""
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


class Synthetic:
    """What a trace would hold: arrays by kind, and the value that describes them."""

    def __init__(self, trace: str, kinds: dict[str, dict], lists: dict[str, dict], select: dict | None = None) -> None:
        self.arrays, described = {}, []
        for seed, (key, k) in enumerate(kinds.items()):
            queries, keys = len(lists[k["query_list"]]["tokens"]), len(lists[k["key_list"]]["tokens"])
            stored = min(k["n_layers"] * k["n_heads"], k.get("distinct", 10**6))  # long texts repeat a few heads
            heads = attention(1, stored, queries, keys, k["causal"], seed)[0]
            self.arrays[key] = heads
            rows, columns = min(queries, 32), min(keys, 32)
            pick = np.ix_(np.linspace(0, queries - 1, rows).astype(int), np.linspace(0, keys - 1, columns).astype(int))
            all_heads = [i % stored for i in range(k["n_layers"] * k["n_heads"])]
            small = codes(np.stack([heads[i][pick] for i in all_heads]))
            k = {name: entry for name, entry in k.items() if name != "distinct"}
            large = small.size > 100_000
            self.arrays[key, "overview"] = {"thumbs": packed(small), "thumb": [rows, columns]}
            described.append(
                {"key": key, "n_query": queries, "n_key": keys, "thumb": [rows, columns]}
                | {"thumbs": None if large else packed(small)}
                | k
            )
        self.value = {"trace": trace, "kinds": described, "token_lists": lists, "select": select}


def single(trace: str, tokens: list[dict], layers: int, heads: int, kv: int, causal: bool, select=None, distinct=10**6):
    """A model with one kind of attention."""
    kind = {"label": "Self-attention", "n_layers": layers, "n_heads": heads, "n_kv_heads": kv, "causal": causal}
    kinds = {"self": kind | {"query_list": "tokens", "key_list": "tokens", "distinct": distinct}}
    return Synthetic(trace, kinds, {"tokens": {"title": "Tokens", "tokens": tokens}}, select)


def chinese() -> list[dict]:
    """Byte fragments, a character that follows without a space, right-to-left text, a typed special token."""
    made = [token("<s>", 0, special=True), token("注意", 1), token("力", 2, joined=True)]
    made += [token("鑫", 3 + p, joined=p == 0, piece=[p + 1, 3]) for p in range(3)]
    made += [token("很", 6, joined=True), token("有趣", 7, joined=True), token("שלום", 8, rtl=True)]
    return [*made, token("</s>", 9, typed=True), token("<b>&amp;", 10), token("。", 11, joined=True)]


def translation() -> Synthetic:
    """An encoder-decoder: three kinds, unequal depths, 14 source and 9 target tokens."""
    source, target = words(14), [token("<s>", 0, special=True), *words(8)]
    base = {"n_heads": 4, "n_kv_heads": 4}
    kinds = {
        "encoder": base
        | {"label": "Encoder", "n_layers": 3, "query_list": "source", "key_list": "source", "causal": False},
        "decoder": base
        | {"label": "Decoder", "n_layers": 2, "query_list": "target", "key_list": "target", "causal": True},
        "cross": base
        | {"label": "Cross", "n_layers": 2, "query_list": "target", "key_list": "source", "causal": False},
    }
    lists = {"source": {"title": "Source", "tokens": source}, "target": {"title": "Target", "tokens": target}}
    return Synthetic("t-translation", kinds, lists, {"kind": "cross", "layer": 1, "head": 2, "query": 3, "key": 5})


def smollm() -> Synthetic:
    """30 layers x 9 heads, three to a key/value, twelve tokens, causal."""
    tokens = [token(text, i, joined=text == "'t") for i, text in enumerate(ANIMAL_SHOWN)]
    select = {"kind": "self", "layer": 13, "head": 8, "query": 8, "key": 1}
    made = single("t-smollm", tokens, 30, 9, 3, True, select)
    row = np.full(9, 0.0251 / 7, np.float32)
    row[[0, 1]] = 0.2259, 0.749
    made.arrays["self"][13 * 9 + 8, 8, :9] = row
    return made


CASES = {
    "smollm": smollm,
    "minilm": lambda: single(
        "t-minilm", [token("[CLS]", 0, special=True), *words(12), token("[SEP]", 13, special=True)], 6, 12, 12, False
    ),
    "translation": translation,
    "chinese": lambda: single("t-chinese", chinese(), 2, 2, 2, True),
    "big": lambda: single("t-big", words(20), 48, 32, 8, True, distinct=40),
    **{
        str(n): (lambda n=n: single(f"t-{n}", words(n), 30, 9, 3, True, distinct=24 if n > 300 else 90))
        for n in (2, 16, 128, 200, 512, 1024)
    },
}


def build(language: str = "en", first: str | None = "smollm", cases: tuple[str, ...] = tuple(CASES)) -> gr.Blocks:
    """The app: buttons load a case; a text box shows the last event."""
    kept: dict[str, Synthetic] = {}

    def load(case: str) -> dict:
        made = CASES[case]()
        kept[made.value["trace"]] = made
        return made.value

    def head(request: dict) -> dict:
        if request["trace"] not in kept:
            return {"gone": True}
        heads = kept[request["trace"]].arrays[request["kind"]]
        described = next(k for k in kept[request["trace"]].value["kinds"] if k["key"] == request["kind"])
        weights = heads[(request["layer"] * described["n_heads"] + request["head"]) % len(heads)]
        if (request["layer"], request["head"]) == BROKEN:
            return {"error": "This head could not be read."}
        if (request["layer"], request["head"]) == SLOW:
            time.sleep(0.7)
        exact = weights.size <= EXACT_CELLS
        sums = float(np.abs(np.nansum(weights, 1) - 1).max())
        badges = [
            {"state": "ok", "text": f"rows sum to 1 (off by {sums:.0e})", "title": "max |sum - 1| over the rows shown"}
        ]
        if described["causal"]:
            badges.append({"state": "ok", "text": "nothing looks ahead (66 cells, max 0)", "title": ""})
        badges.append({"state": "warn", "text": "flash differs from naive by 0.02", "title": "bf16"})
        badges.append(
            {"state": "note", "text": f"weights recomputed from q and k of layer {request['layer']}", "title": ""}
        )
        caption = (
            "When the model reads “it”, three quarters of this head's weight falls on “animal”. Later words are masked."
        )
        reply = {"n_query": weights.shape[0], "n_key": weights.shape[1], "badges": badges, "caption": caption}
        if exact:
            return reply | {"format": "f32", "weights": packed(weights)}
        if described["causal"]:
            return reply | {"format": "u8", "lower": True, "weights": packed(lower(codes(weights)))}
        return reply | {"format": "u8", "weights": packed(codes(weights))}

    def row(request: dict) -> dict:
        if request["trace"] not in kept:
            return {"gone": True}
        heads = kept[request["trace"]].arrays[request["kind"]]
        n = next(k for k in kept[request["trace"]].value["kinds"] if k["key"] == request["kind"])["n_heads"]
        return {"weights": packed(heads[(request["layer"] * n + request["head"]) % len(heads)][request["query"]])}

    def forget() -> None:
        for trace in list(kept)[1:]:  # the first stays for whoever opens the page next
            del kept[trace]

    def overview(request: dict) -> dict:
        return kept[request["trace"]].arrays[request["kind"], "overview"]

    with gr.Blocks(title="Attention view") as demo:
        view = attention_view([head, row, overview], view_labels(language), load(first) if first else None)
        with gr.Accordion("harness"):
            event = gr.JSON(label="event")
            for case in cases:
                gr.Button(case).click(
                    lambda case=case: load(case), None, view, show_progress="hidden", api_visibility="private"
                )
            gr.Button("none").click(lambda: None, None, view, api_visibility="private")
            gr.Button("forget").click(forget, None, None, api_visibility="private")

        def told(data: gr.EventData) -> dict:
            return dict(data._data)

        view.select(told, None, event, api_visibility="private", show_progress="hidden")
        view.gone(lambda: {"gone": True}, None, event, api_visibility="private", show_progress="hidden")
    return demo


def launch(demo: gr.Blocks, port: int | None = None, block: bool = False) -> str:
    """Starts the app, returns its address."""
    tokens = (ASSETS / "css" / "tokens.css").read_text(encoding="utf-8")
    page = """html, body, gradio-app { background: var(--tv-bg) !important }
        .gradio-container { max-width: 1126px !important; background: none !important }"""
    _, address, _ = demo.launch(
        run_history=False,
        theme=gr.themes.Base(
            font=[gr.themes.LocalFont("IBM Plex Sans", weights=(400, 700))],
            font_mono=[gr.themes.LocalFont("IBM Plex Mono", weights=(400, 700))],
        ),
        server_port=port,
        head=f"<style>{tokens}{page}</style>",
        prevent_thread_lock=True,
        quiet=True,
        footer_links=[],
    )
    if block:
        print(address, flush=True)
        demo.block_thread()
    return address


if __name__ == "__main__":
    case, language, port = [*sys.argv[1:], *["smollm", "en", "7871"][len(sys.argv) - 1 :]]
    launch(build(language, None if case == "none" else case), int(port), block=True)
