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
from tfviz.ui.tabs.speed.quantisation_picture import METHODS, Shown, picture

if TYPE_CHECKING:  # torch comes with them
    from tfviz.inference.quantisation import Quantised, Scaled, Scheme
    from tfviz.inference.records import Record
    from tfviz.introspection.quantisation import Matrix, Outcome

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
) -> Iterator[Picture]:
    from tfviz.inference.quantisation import Scheme
    from tfviz.introspection import quantisation

    place = scene.place
    job = partial(quantisation.read, kind=place["kind"], layer=place["layer"], part=part)
    found = Found(scene, scene.examine(job), bool(act_order))
    grouped = {"group": int(group)} if share == "group" else {}
    scheme = Scheme(int(bits), share, symmetric=bool(symmetric), **grouped)
    every = [scheme, *quantisation.schemes(found.matrix.n_in)] if measure else [scheme]
    todo = [one for one in dict.fromkeys(replace(one, bits=4) for one in every) if not found.complete(one)]
    for i, one in enumerate(todo):
        for name in METHODS:
            if scene.stop():
                return
            found.solve(name, one)
            if not i and name == METHODS[0]:
                yield picture(found.shown(part, method, scheme), scene.t, part=0.05)
        if i < len(todo) - 1:
            yield picture(found.shown(part, method, scheme), scene.t, part=(i + 1) / len(todo))
    yield picture(found.shown(part, method, scheme), scene.t)


@dataclass(frozen=True)
class Found:
    """What is kept of one matrix: errors as results of this machine, GPTQ's matrices with the sentence."""

    scene: Scene
    matrix: "Matrix"
    act_order: bool

    def key(self, method: str, scheme: "Scheme") -> tuple[Any, ...]:
        assert self.scene.trace is not None
        trace = self.scene.trace
        way = (method, self.act_order and method == "gptq", replace(scheme, bits=4))
        return "speed.quantisation", trace.model, trace.revision, trace.precision, self.matrix.name, *way

    def outcomes(self, method: str, scheme: "Scheme") -> "tuple[Outcome, ...] | None":
        """At each of BITS; empty for what cannot be done here; None: not known yet."""
        found: tuple[Outcome, ...] | None = self.scene.kept(self.key(method, scheme))
        return found

    def complete(self, scheme: "Scheme") -> bool:
        return all(self.outcomes(method, scheme) is not None for method in METHODS)

    def solve(self, method: str, scheme: "Scheme") -> "tuple[Quantised, ...]":
        """Keeps what this method and scheme do at every width; GPTQ's matrices."""
        from tfviz.introspection import quantisation

        try:
            solved = self.scene.compute(quantisation.solve, self.matrix, method, scheme, self.act_order)
        except UnsupportedHere:
            self.scene.keep(self.key(method, scheme), ())
            return ()
        key = self.key(method, scheme)
        self.scene.keep(key, solved.outcomes, self.records(method, scheme, solved.outcomes))
        if solved.made:
            self.scene.bench.remember(self.scene.trace_id, key, solved)
        made: tuple[Quantised, ...] = solved.made
        return made

    def made(self, method: str, scheme: "Scheme") -> "Quantised | Scaled | None":
        """The matrix in this scheme; None where that is not known, or not possible."""
        from tfviz.inference.quantisation import quantise
        from tfviz.inference.quantisation.schemes import BITS
        from tfviz.introspection.quantisation import scaled

        known, at = self.outcomes(method, scheme), BITS.index(scheme.bits)
        if not known:
            return None
        if method == "rtn":
            return quantise(self.matrix.weight, scheme)
        if method == "awq":
            return scaled(self.matrix, scheme, known[at].alpha)
        kept = self.scene.bench.recall(self.scene.trace_id, self.key(method, scheme))
        return (kept.made if kept is not None else self.solve(method, scheme))[at]

    def shown(self, part: str, method: str, scheme: "Scheme") -> Shown:
        from tfviz.introspection.quantisation import schemes

        assert self.scene.trace is not None
        trace = self.scene.trace
        rows = [one for one in schemes(self.matrix.n_in)]
        wanted = dict.fromkeys([*rows, replace(scheme, bits=4)])
        outcomes = {(name, one): self.outcomes(name, one) or () for name in METHODS for one in wanted}
        made = {name: one for name in METHODS if (one := self.made(name, scheme)) is not None}
        return Shown(
            self.matrix, part, method, scheme, made, outcomes, trace.model_label, trace.precision, self.scene.trace_id
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
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}
    made["share"].change(lambda share: gr.update(visible=share == "group"), made["share"], made["group"], **quiet)
    made["method"].change(
        lambda method: gr.update(visible=method == "gptq"), made["method"], made["act_order"], **quiet
    )
    return made


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.inference.quantisation.awq import awq, channel_scales
    from tfviz.inference.quantisation.gptq import _columns, gptq, inverse_root
    from tfviz.inference.quantisation.schemes import grid, nearest, output_error

    return grid, nearest, gptq, _columns, inverse_root, awq, channel_scales, output_error


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
