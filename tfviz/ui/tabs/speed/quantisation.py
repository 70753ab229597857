"""Speed, inside quantisation: one weight matrix in fewer bits, and what that does to what its layer gives."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gradio as gr

from tfviz.errors import UnsupportedHere
from tfviz.ui.components.picture import Picture
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.speed.quantisation_panels import METHODS, Shown
from tfviz.ui.tabs.speed.quantisation_picture import picture

if TYPE_CHECKING:  # torch comes with them
    from tfviz.inference.quantisation import Scheme
    from tfviz.inference.records import Record
    from tfviz.introspection.quantisation import Matrix, Outcome
    from tfviz.introspection.quantisation_look import Look

PARTS = ("q", "k", "v", "o", "up", "gate", "down")
SHARES = ("tensor", "channel", "group")
GROUPS = (16, 32, 64, 128)
RECORDED = (8, 4, 3, 2)  # bits that are exported
FORMULAS = (
    r"\hat W_{oi} = s_g\, q_{oi} + m_g, \qquad q = \text{round}\!\left(\frac{W - m}{s}\right), \qquad"
    r" s = \frac{\max - \min}{2^b - 1}",
    r"\text{GPTQ: } w_k \leftarrow w_k - \frac{w_j - \hat w_j}{U_{jj}}\, U_{jk} \;\; (k > j), \quad"
    r" (X^\top X)^{-1} = U^\top U",
    r"\text{AWQ: } \hat W = Q(W \text{diag}(s))\, \text{diag}(s)^{-1}, \;\; s_j = \overline{|x_j|}^{\,\alpha}",
)


def draw(
    scene: Scene,
    part: str,
    method: str,
    bits: float,
    share: str,
    group: str,
    symmetric: bool,
    act_order: bool,
    measure: bool = False,
) -> Picture | Iterator[Picture | str]:
    """A picture at once where all widths are known; else one that grows, after the texts are read."""
    from tfviz.inference.quantisation import Scheme
    from tfviz.introspection import quantisation

    where = {"kind": scene.place["kind"], "layer": scene.place["layer"], "part": part}
    key = ("speed.quantisation.matrix", *where.values())
    grouped = {"group": int(group)} if share == "group" else {}
    scheme = Scheme(int(bits), share, symmetric=bool(symmetric), **grouped)

    def drawn() -> Picture | Iterator[Picture]:
        matrix = scene.examine(partial(quantisation.read, **where), key)
        return _drawn(Found(scene, matrix, bool(act_order), replace(scheme, bits=4)), part, method, scheme, measure)

    known = scene.bench.recall(scene.trace_id, key) is not None
    return drawn() if known else _read(scene, partial(quantisation.reading, **where), drawn)


def _read(
    scene: Scene, job: Callable[..., Iterator[tuple[int, int]]], drawn: Callable[[], Picture | Iterator[Picture]]
) -> Iterator[Picture | str]:
    """The model reads the texts, with the device free for others after each; then what is drawn."""
    for done, n in scene.stream(job):
        yield scene.t("speed.quantisation.reading", done=done, n=n)
    then = drawn()
    yield from [then] if isinstance(then, Picture) else then


def _drawn(found: "Found", part: str, method: str, scheme: "Scheme", measure: bool) -> Picture | Iterator[Picture]:
    from tfviz.introspection import quantisation

    scene = found.scene
    every = [scheme, *quantisation.schemes(found.matrix.n_in)] if measure else [scheme]
    wanted = dict.fromkeys(replace(one, bits=4) for one in every)
    todo = [one for one in wanted if not found.complete(one)]
    if not todo:
        return picture(found.shown(part, method, scheme), scene.t)
    return _solved(found, todo, lambda part_: picture(found.shown(part, method, scheme), scene.t, part=part_))


def _solved(found: "Found", todo: "Sequence[Scheme]", drawn: Callable[[float | None], Picture]) -> Iterator[Picture]:
    for i, one in enumerate(todo):
        for name in METHODS:
            if found.scene.stop():
                return
            found.solve(name, one)
            if not i and name == METHODS[0]:
                yield drawn(0.05)
        if i < len(todo) - 1:
            yield drawn((i + 1) / len(todo))
    yield drawn(None)


@dataclass(frozen=True)
class Found:
    """What is kept of one matrix: errors as results of this machine, what is drawn with the sentence."""

    scene: Scene
    matrix: "Matrix"
    act_order: bool
    chosen: "Scheme"  # at 4 bits: the one that is drawn

    def key(self, method: str, scheme: "Scheme") -> tuple[Any, ...]:
        assert self.scene.trace is not None
        trace = self.scene.trace
        way = (method, self.act_order and method == "gptq", replace(scheme, bits=4))
        return "speed.quantisation", trace.model, trace.revision, trace.precision, self.matrix.name, *way

    def outcomes(self, method: str, scheme: "Scheme") -> "tuple[Outcome, ...] | None":
        """At each of BITS; empty for what cannot be done here; None: not known yet."""
        found: tuple[Outcome, ...] | None = self.scene.kept(self.key(method, scheme))
        return found

    def looks(self, method: str, scheme: "Scheme") -> "tuple[Look, ...]":
        """At each of BITS; empty where they are not known."""
        solved = self.scene.bench.recall(self.scene.trace_id, self.key(method, scheme))
        return () if solved is None else solved.looks

    def complete(self, scheme: "Scheme") -> bool:
        """Whether the errors of every method are known, and of the chosen scheme what is drawn of them."""
        known = {name: self.outcomes(name, scheme) for name in METHODS}
        needed = [name for name, one in known.items() if one and scheme == self.chosen]
        return None not in known.values() and all(self.looks(name, scheme) for name in needed)

    def solve(self, method: str, scheme: "Scheme") -> None:
        """Keeps what this method and scheme do at every width."""
        from tfviz.introspection import quantisation

        key, drawn = self.key(method, scheme), scheme == self.chosen
        try:
            solved = self.scene.compute(quantisation.solve, self.matrix, method, scheme, self.act_order, drawn)
        except UnsupportedHere:
            self.scene.keep(key, ())
            return
        self.scene.keep(key, solved.outcomes, self.records(method, scheme, solved.outcomes))
        if drawn:
            self.scene.bench.remember(self.scene.trace_id, key, solved)

    def shown(self, part: str, method: str, scheme: "Scheme") -> Shown:
        from tfviz.inference.quantisation.schemes import BITS
        from tfviz.introspection.quantisation import schemes

        assert self.scene.trace is not None
        trace = self.scene.trace
        wanted = dict.fromkeys([*schemes(self.matrix.n_in), replace(scheme, bits=4)])
        outcomes = {(name, one): self.outcomes(name, one) or () for name in METHODS for one in wanted}
        looks = {name: found[BITS.index(scheme.bits)] for name in METHODS if (found := self.looks(name, scheme))}
        return Shown(
            self.matrix, part, method, scheme, looks, outcomes, trace.model_label, trace.precision, self.scene.trace_id
        )

    def records(self, method: str, scheme: "Scheme", outcomes: "Sequence[Outcome]") -> "list[Record]":
        from tfviz.inference.records import Record, now

        assert self.scene.trace is not None
        trace, at = self.scene.trace, now()
        setting: dict[str, str | int | float | bool] = {
            "model": trace.model,
            "precision": trace.precision,
            "matrix": self.matrix.name,
        }
        way: dict[str, str | int | float | bool] = {
            "method": method,
            "share": scheme.share,
            "symmetric": scheme.symmetric,
        }
        way |= {"group": scheme.group} if scheme.share == "group" else {}
        way |= {"act_order": self.act_order} if method == "gptq" else {}
        return [
            Record("quantisation", {**setting, **way, "bits": one.bits}, quantity, value, unit, at=at)
            for one in outcomes
            if one.bits in RECORDED
            for quantity, value, unit in (
                ("output_error", one.held_out, "1"),
                ("output_error_calibration", one.calibration, "1"),
                ("weight_error", one.weight_error, "1"),
                ("bits_per_weight", one.bits_a_weight, "bit"),
            )
        ]


def controls(t: Translator) -> dict[str, Any]:
    def named(name: str, values: Sequence[str]) -> list[tuple[str, str]]:
        return [(t(f"speed.quantisation.{name}.{one}"), one) for one in values]

    label = "speed.quantisation.label"
    made: dict[str, Any] = {
        "part": gr.Dropdown(named("part", PARTS), value="q", label=t(f"{label}.part"), filterable=False),
        "method": gr.Radio(named("method", METHODS), value="rtn", label=t(f"{label}.method")),
        "bits": gr.Slider(2, 8, value=4, step=1, label=t(f"{label}.bits")),
        "share": gr.Radio(named("share", SHARES), value="channel", label=t(f"{label}.share")),
        "group": gr.Radio(
            [(str(one), str(one)) for one in GROUPS], value="64", label=t(f"{label}.group"), visible=False
        ),
        "symmetric": gr.Checkbox(value=False, label=t(f"{label}.symmetric")),
        "act_order": gr.Checkbox(value=False, label=t(f"{label}.act_order"), visible=False),
    }
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    made["share"].change(lambda share: gr.update(visible=share == "group"), made["share"], made["group"], **quiet)
    made["method"].change(
        lambda method: gr.update(visible=method == "gptq"), made["method"], made["act_order"], **quiet
    )
    return made


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.inference.quantisation.awq import awq, channel_scales
    from tfviz.inference.quantisation.gptq import _columns, choose_damping, gptq, inverse_root
    from tfviz.inference.quantisation.schemes import grid, nearest, output_error

    return grid, nearest, gptq, _columns, inverse_root, choose_damping, awq, channel_scales, output_error


SECTION = Section(
    key="speed.quantisation",
    draw=draw,
    formulas=FORMULAS,
    controls=controls,
    selects=("kind", "layer"),
    button="speed.quantisation.button",
    tries=(
        Try("tensor", {"method": "rtn", "bits": 4, "share": "tensor", "symmetric": True}),
        Try("same", {"method": "rtn", "bits": 4, "share": "group", "group": "32", "symmetric": False}),
        Try("compensate", {"method": "gptq", "bits": 3, "share": "channel", "symmetric": False}),
        Try("scale", {"method": "awq", "bits": 3, "share": "group", "group": "128", "symmetric": False}),
    ),
    code=code,
)
