"""Generate, logit lens: what each layer would say at each position, by the model's own final norm and output head.

The numbers are those of tfviz.introspection.lens; assets/js/views/lens.js draws the grid and answers the pointer.
"""

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tfviz.figures.generation import lens_distances, lens_ranks
from tfviz.inference import rounding
from tfviz.ui.components.picture import Badge, Panel, Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, significant

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.lens import Lens

COLUMNS, STRIDE = 48, 16  # positions on show; the part of a longer text that is shown moves by so many
STEPS = 2000  # codes for one nat: a log-probability as 16 bits, to 0.05 % of the probability
FORMULAS = (
    r"\text{logits}_\ell = \text{head}(\text{norm}(x_\ell)), \qquad p_\ell = \text{softmax}(\text{logits}_\ell)",
    r"\text{KL}(p_{\text{final}} \,\|\, p_\ell) = \sum_v p_{\text{final}}(v)\,"
    r"\ln \frac{p_{\text{final}}(v)}{p_\ell(v)}",
)
# relative gap to the model's own logits; others as FP32
LIST, SHARE = 1e-4, 1e-6  # of log-probabilities that stand in two places; of a distance that cannot be below 0
WORDS = (
    "grid colour by_prob by_rank by_kl by_entropy same prob rank kl entropy nats layer after_layer embedding "
    "embedding_short top final"
).split()


def draw(scene: Scene) -> Iterator[Picture]:
    from tfviz.introspection.lens import lens_steps

    assert scene.trace is not None
    place, trace = scene.place, scene.trace
    tokens = trace.target_tokens or trace.source_tokens
    n = len(tokens)
    other_side = bool(trace.target_tokens) and place["kind"] == "encoder"
    query = min(place["query"], n - 1)
    first, end = window(n, query)
    key = ("generate.lens", first, end, trace.kernel)
    found = scene.bench.recall(scene.trace_id, key)
    shown = [token.label for token in tokens]
    show = partial(picture, labels=shown, place=place, query=query, family=trace.family, t=scene.t)
    show = partial(show, precision=trace.precision, id=f"{scene.trace_id}/{first}", other_side=other_side)
    if found is None or not found.done:  # another choice of layer or token goes on where the last one was left
        job = partial(lens_steps, first=first, end=end, kernel=trace.kernel, had=found)
        for found in scene.stream(job):
            scene.bench.remember(scene.trace_id, key, found)
            if scene.stop():
                return
            if not found.done:
                yield show(found)
        if found is None or not found.done:
            return  # a newer wish is there
    yield show(found)


def window(n: int, query: int) -> tuple[int, int]:
    """(first, end) of the columns: the same ones for neighbouring positions, so that they need not be computed anew."""
    first = max(0, min(query // STRIDE * STRIDE - STRIDE, n - COLUMNS))
    return first, min(n, first + COLUMNS)


def picture(
    lens: "Lens", labels: Sequence[str], place: Mapping[str, Any], query: int, family: str, t: Translator,
    precision: str = "fp32", id: str = "", other_side: bool = False,
) -> Picture:  # fmt: skip
    """The grid of all layers and positions, then the chosen position's way through the layers."""
    end = lens.first + len(lens.final)
    notes = [t("generate.lens.other_side")] if other_side else []
    if end - lens.first < len(labels):
        notes.append(t("layers.window", first=lens.first, last=end - 1, n=len(labels)))
    column = query - lens.first
    layer = None if other_side else place["layer"]
    panels = [_grid(lens, labels, family, layer, query, id, other_side, t)]
    if lens.done:
        panels += _lines(lens, labels, column, layer, t)
    part = None if lens.done else len(lens.kl) / lens.n_rows
    return Picture(panels, badges(lens, precision, t), notes, part)


def settled(lens: "Lens") -> list[int]:
    """For each column the lowest row from which on every row's top token is the final one."""
    same = lens.ids[:, :, 0] == lens.final
    return [lens.n_rows - int(np.append(~column[::-1], True).argmax()) for column in same.T]


# ---- panels


def _grid(
    lens: "Lens", labels: Sequence[str], family: str, layer: int | None, query: int, id: str, other_side: bool,
    t: Translator,
) -> Panel:  # fmt: skip
    end = lens.first + len(lens.final)
    ids, at = np.unique(np.concatenate([lens.ids.ravel(), lens.final]), return_inverse=True)
    n = lens.ids.size
    data = {
        "id": id,
        "rows": lens.n_rows,
        "begun": lens.begun,
        "layers": list(lens.layers),
        "first": lens.first,
        "tokens": list(labels[lens.first : end]),
        "next": [*labels[lens.first + 1 : end + 1]] if family != "encoder" else [],
        "names": [lens.labels[int(one)] for one in ids],
        "tops": lens.ids.shape[2],
        "ids": packed(at[:n], np.uint16),
        "logs": coded(lens.log_probs),
        "final": at[n:].tolist(),
        "final_logs": packed(lens.final_log_probs, np.float32),
        "ranks": packed(lens.ranks, np.int32),
        "kl": packed(lens.kl, np.float32),
        "entropy": packed(lens.entropy, np.float32),
        "settled": settled(lens) if lens.done else [],
        "layer": layer,
        "query": query,
        "kind": "decoder" if other_side else "",
        "words": {word: t(f"generate.lens.{word}") for word in WORDS} | {"steps": STEPS},
    }
    return Panel(view="lens", data=data, wide=True, note=_note(lens, family, t))


def _note(lens: "Lens", family: str, t: Translator) -> str:
    """How to read the grid, and what the model does after its last layer."""
    read = t("generate.lens.note.masked" if family == "encoder" else "generate.lens.note.next")
    after = t("generate.lens.after.normed" if lens.normed else "generate.lens.after", path=" → ".join(lens.after))
    return f"{read} {after}" if t.language != "zh" else f"{read}{after}"


def packed(array: np.ndarray, dtype: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype=dtype).tobytes()).decode("ascii")


def coded(log_probs: np.ndarray) -> str:
    """Natural logarithms as 16 bits, `STEPS` to a nat: what is below e^-32.7 counts as that."""
    return packed(np.clip(np.round(-log_probs * STEPS), 0, 65535), np.uint16)


def _lines(lens: "Lens", labels: Sequence[str], column: int, layer: int | None, t: Translator) -> list[Panel]:
    said, row = lens.labels[int(lens.final[column])], settled(lens)[column]
    said = said[1:] if said[:1] == "␣" and said[1:].strip("␣") else said  # a space before a word is its word mark
    numbers = [i for i, number in enumerate(lens.layers) if number == layer]
    at = numbers[0] if numbers else None
    layer_word, start = t("generate.lens.layer"), t("generate.lens.embedding_short")
    named = {"token": labels[lens.first + column], "said": said}
    ranks = lens_ranks(
        np.exp(lens.final_log_probs[:, column]),
        lens.ranks[:, column],
        at,
        words=(layer_word, t("generate.lens.prob"), t("generate.lens.rank"), start),
    )
    distances = lens_distances(
        lens.kl[:, column],
        lens.entropy[:, column],
        at,
        words=(layer_word, t("generate.lens.nats"), t("generate.lens.kl"), t("generate.lens.entropy"), start),
    )
    note = t("generate.lens.ranks.embedding") if row == 0 else t("generate.lens.ranks.note", layer=row - 1)
    return [
        Panel(figure=ranks, title=t("generate.lens.ranks.title", **named), note=note, select={"x": "layer"}),
        Panel(
            figure=distances,
            title=t("generate.lens.distances.title", token=named["token"]),
            note=t("generate.lens.distances.note"),
            select={"x": "layer"},
        ),
    ]


# ---- checks


def badges(lens: "Lens", precision: str, t: Translator) -> list[Badge]:
    """The last row is the model's own answer; ranks, lists and distances agree with one another."""
    return [_own(lens, precision, t), _listed(lens, t), _distances(lens, t)]


def _own(lens: "Lens", precision: str, t: Translator) -> Badge:
    n = len(lens.own_ids)
    if not n:
        return Badge(None, t("generate.lens.badge.unknown"))
    shown, own = lens.log_probs[-1, -n:], lens.own_log_probs
    equal = rounding.once(precision)
    apart = float(np.abs(shown - own).max())
    ok = (
        lens.gap <= equal
        and apart <= max(LIST, 100 * equal)
        and bool((lens.ids[-1, -n:, 0] == lens.own_ids[:, 0]).all())
    )
    return Badge(
        ok, t("generate.lens.badge.own", gap=significant(max(lens.gap, apart))), t("generate.lens.badge.own.title")
    )


def _listed(lens: "Lens", t: Translator) -> Badge:
    """Where the final token's rank is within the list, the list has it there with that probability; else it has not."""
    within = lens.ranks <= lens.ids.shape[2]
    place = np.where(within, lens.ranks - 1, 0)[..., None]
    listed = np.take_along_axis(lens.log_probs, place, axis=2)[..., 0]
    right = np.where(
        within, np.abs(listed - lens.final_log_probs) <= LIST, (lens.ids != lens.final[:, None]).all(axis=2)
    )
    falling = bool((np.diff(lens.log_probs, axis=2) <= 0).all()) and bool(
        np.exp(lens.log_probs).sum(axis=2).max() <= 1 + LIST
    )
    return Badge(bool(right.all()) and falling, t("generate.lens.badge.listed", n=f"{lens.ranks.size:,}"))


def _distances(lens: "Lens", t: Translator) -> Badge:
    """KL is 0 from the last row to itself and below 0 nowhere."""
    scale = max(1.0, float(np.abs(lens.kl).max()))
    last, least = float(np.abs(lens.kl[-1]).max()), float(lens.kl.min())
    ok = last <= SHARE * scale and least >= -100 * SHARE * scale and bool(np.isfinite(lens.kl).all())
    return Badge(ok, t("generate.lens.badge.kl", last=significant(last), most=significant(float(lens.kl.max()))))


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.introspection import lens

    return lens.lens_steps, lens._tell, lens._through


SECTION = Section(
    key="generate.lens",
    draw=draw,
    formulas=FORMULAS,
    selects=("layer", "query"),
    tries=(
        Try("copy", sentence="one two three four one two three four one two three"),
        Try("fact", sentence="The capital of France is Paris. The capital of Japan is"),
        Try("last", place={"layer": 10_000, "query": 10_000}),
    ),
    code=code,
)
