"""Generate, beam search: the whole tree as it grows, what was cut at every step, and the texts that are left.

The search is tfviz.introspection.beams; assets/js/views/beams.js draws the tree.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import gradio as gr

from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, percent_of_log, significant

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.beams import Found, Tree

FORMULAS = (
    r"\log P(y_{1:t}) = \sum_{i=1}^{t} \log p(y_i \mid y_{<i}), \qquad"
    r" \text{score} = \frac{\log P(y_{1:t})}{t^{\,\alpha}}",
)
MOST_BEAMS, MOST_STEPS = 8, 24
EVERY = 0.1  # seconds between two drawings of a growing tree
ADDED = 1e-4  # of a node's sum, relative
# a token, with the cache against without; else FP32. INT4: .055 was measured on SmolLM2, BF16: .031
EXACT = {"fp32": 1e-4, "fp16": 5e-3, "bf16": 5e-2, "int8_weights": 1e-1, "int8": 1e-1, "int4": 1e-1}
STATES = ("kept", "dropped", "ended")
WORDS = "tree step start prob total place kept dropped ended best found other path cut".split()


def draw(scene: Scene, n_beams: float, steps: float, penalty: float) -> Iterator[Picture]:
    from tfviz.introspection.beams import beam_steps

    assert scene.trace is not None
    options: dict[str, Any] = {
        "n_beams": max(1, min(MOST_BEAMS, int(n_beams))),
        "max_new_tokens": max(1, min(MOST_STEPS, int(steps))),
        "length_penalty": float(max(0, min(2, penalty))),
        "kernel": scene.trace.kernel,
    }
    key, drawn = ("generate.beams", *options.values()), 0.0
    tree: Tree | None = scene.bench.recall(scene.trace_id, key)
    if tree is None:
        for tree in scene.stream(partial(beam_steps, **options)):
            if scene.stop():
                return
            if not tree.done and (tree.stopped or monotonic() - drawn > EVERY):
                yield picture(tree, scene.t, scene.trace.precision)
                drawn = monotonic()
        if tree is None or not tree.done:
            return  # a newer wish is there
        scene.bench.remember(scene.trace_id, key, tree)
    yield picture(tree, scene.t, scene.trace.precision)


def picture(tree: "Tree", t: Translator, precision: str = "fp32") -> Picture:
    """The tree, and the texts that are left, best first, the greedy one below them."""
    notes = [t("generate.beams.short", limit=tree.limit)] if tree.stopped == "max_positions" else []
    panels = [
        Panel(view="beams", data=data(tree, t), wide=True, note=t("generate.beams.note", n=tree.n_beams)),
        Panel(title=t("generate.beams.texts"), html=texts(tree, t), note=_verdict(tree, t), wide=True),
    ]
    part = None if tree.done else tree.step / tree.limit
    return Picture(panels, badges(tree, t, precision) if tree.done else (), notes, part)


def data(tree: "Tree", t: Translator) -> dict[str, Any]:
    """Columns of numbers: one entry a node."""
    nodes = tree.nodes
    return {
        "n_beams": tree.n_beams,
        "steps": tree.limit,
        "step": tree.step,
        "stopped": tree.stopped is not None,
        "parents": [node.parent for node in nodes],
        "columns": [node.step for node in nodes],
        "labels": [node.label for node in nodes],
        "states": [STATES.index(node.state) for node in nodes],
        "ends": [int(node.ends) for node in nodes],
        "ranks": [node.rank + 1 for node in nodes],
        "probs": [round(node.log_prob, 5) for node in nodes],
        "totals": [round(node.total, 5) for node in nodes],
        "found": [one.node for one in tree.found],
        "words": {word: t(f"generate.beams.{word}") for word in WORDS},
    }


def texts(tree: "Tree", t: Translator) -> str:
    """A row a text, escaped by the table."""
    heads = [t(f"generate.beams.{name}") for name in ("log_prob", "prob", "length", "score", "state")]
    rows = [(f"{i}. {_shown(one)}", _cells(one, t)) for i, one in enumerate(tree.found, 1)]
    if tree.greedy is not None:
        rows.append((t("generate.beams.greedy", text=_shown(tree.greedy)), _cells(tree.greedy, t)))
    return table(t("generate.beams.texts"), heads, rows)


def _shown(found: "Found") -> str:
    """The text with its white space visible where it would be lost."""
    return found.text.replace("\n", "⏎").strip(" ") or "∅"


def _cells(found: "Found", t: Translator) -> list[str]:
    state = t("generate.beams.finished" if found.finished else "generate.beams.open")
    score = significant(found.score, 4)
    return [significant(found.log_prob, 4), percent_of_log(found.log_prob), str(len(found.ids)), score, state]


def _verdict(tree: "Tree", t: Translator) -> str:
    """What the search has over greedy, if anything: it promises nothing."""
    if tree.greedy is None:
        return ""
    best, greedy = tree.found[0], tree.greedy
    if best.ids == greedy.ids:
        return t("generate.beams.verdict.same")
    gain = best.log_prob - greedy.log_prob
    return t(f"generate.beams.verdict.{'better' if gain >= 0 else 'worse'}", gain=significant(abs(gain)))


# ---- checks


def badges(tree: "Tree", t: Translator, precision: str) -> list[Badge]:
    """Sums, cuts and ranks are made again from the nodes; the texts' probabilities come from a pass without a cache."""
    return [_sums(tree, t), _cuts(tree, t), _forced(tree, t, precision), _against_greedy(tree, t, precision)]


def _sums(tree: "Tree", t: Translator) -> Badge:
    """Every node's log P is its parent's plus its own; every score is log P over its length."""
    gaps = [abs(node.total - tree.nodes[node.parent].total - node.log_prob) for node in tree.nodes[1:]]
    for one in tree.found:
        whole = sum(node.log_prob for node in tree.path(one.node))
        gaps += [abs(whole - one.log_prob), abs(one.score * len(one.ids) ** tree.length_penalty - one.log_prob)]
    scale = max(1.0, *(abs(node.total) for node in tree.nodes))
    return Badge(max(gaps) <= ADDED * scale, t("generate.beams.badge.sums", gap=significant(max(gaps))))


def _cuts(tree: "Tree", t: Translator) -> Badge:
    """At no step was anything cut that is more probable than what was kept, and every text found is in the tree."""
    right = True
    for step in range(1, tree.step + 1):
        made = [node for node in tree.nodes if node.step == step]
        kept = [node.total for node in made if node.state == "kept"]
        cut = [node.total for node in made if node.state == "dropped" and not node.ends]
        right &= len(kept) <= tree.n_beams and (not kept or not cut or min(kept) >= max(cut))
    scores = [one.score for one in tree.found]
    right &= scores == sorted(scores, reverse=True)
    right &= all(tuple(node.token for node in tree.path(one.node)) == one.ids for one in tree.found)
    return Badge(right, t("generate.beams.badge.cuts", n=tree.n_beams, steps=tree.step))


def _forced(tree: "Tree", t: Translator, precision: str) -> Badge:
    pairs = list(zip(tree.found, tree.forced, strict=True))
    gap = max(abs(one.log_prob - other) for one, other in pairs)
    each = EXACT.get(precision, EXACT["fp32"])
    right = all(abs(one.log_prob - other) <= max(1e-3, each * len(one.ids)) for one, other in pairs)
    return Badge(right, t("generate.beams.badge.forced", n=len(pairs), gap=significant(gap)))


def _against_greedy(tree: "Tree", t: Translator, precision: str) -> Badge:
    """One beam must be greedy. More of them mostly find a more probable text, but nothing makes sure of it."""
    assert tree.greedy is not None, "a search that is done has its greedy text"
    best, greedy = tree.found[0], tree.greedy
    if tree.n_beams == 1:
        same = best.ids == greedy.ids and abs(best.log_prob - greedy.log_prob) <= EXACT.get(precision, 1e-4) * len(
            best.ids
        )
        return Badge(same, t("generate.beams.badge.one"))
    said = {"best": significant(max(one.log_prob for one in tree.found), 4), "greedy": significant(greedy.log_prob, 4)}
    likely = max(one.log_prob for one in tree.found) >= greedy.log_prob - 1e-3
    return Badge(True if likely else None, t(f"generate.beams.badge.{'least' if likely else 'below'}", **said))


def controls(t: Translator) -> dict[str, Any]:
    return {
        "n_beams": gr.Slider(1, MOST_BEAMS, value=4, step=1, label=t("generate.beams.n_beams")),
        "steps": gr.Slider(1, MOST_STEPS, value=12, step=1, label=t("generate.beams.steps")),
        "penalty": gr.Slider(0, 2, value=1, step=0.1, label=t("generate.beams.penalty")),
    }


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.inference.generate import beam_search
    from tfviz.introspection.beams import beam_steps

    return beam_search, beam_steps


SECTION = Section(
    key="generate.beams",
    draw=draw,
    formulas=FORMULAS,
    controls=controls,
    origin=True,
    tries=(
        Try("one", {"n_beams": 1}),
        Try("wide", {"n_beams": 8, "steps": 8}),
        Try("short", {"penalty": 0}),
        Try("fact", sentence="The capital of France is Paris. The capital of Japan is"),
    ),
    code=code,
)
