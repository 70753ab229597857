"""Speed, path length: the gradient across k tokens and the time of n, of one attention layer beside recurrent ones."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from tfviz.figures.speed_recurrent import gradient_distances, pass_times, recall_accuracy
from tfviz.ui.components.picture import Badge, Panel, Picture, table
from tfviz.ui.components.section import Scene, Section, Try
from tfviz.ui.i18n import Translator, milliseconds, percent, ratio, significant

if TYPE_CHECKING:  # torch comes with them
    from tfviz.introspection.experiments.recurrent import RecurrentSetting
    from tfviz.introspection.experiments.recurrent_sweep import Finding

KEY = "speed.recurrent"
WIDTHS = (32, 64, 128)
DISTANCES = (64, 128, 256, 512)
SHOWN_N = (16, 128, 1024, 16_384)  # of the table of path lengths
SAME = 0.1  # the formula is met: decay a step within 10 %
FLAT = 4.0  # attention's median stays within this factor of distance 1
FORMULAS = (
    r"\text{RNN: } \frac{\partial h_n}{\partial x_{n-k}} = \underbrace{J_n \cdots J_{n-k+1}}_{k\ \text{factors}}\,"
    r" \frac{\partial h_{n-k}}{\partial x_{n-k}} \sim \rho^{k} \qquad"
    r" \text{attention: } \frac{\partial o_n}{\partial x_{n-k}} \approx a_{n,\,n-k}\, W_o W_v",
)


def draw(
    scene: Scene,
    width: int = 64,
    equal: str = "width",
    longest: int = 256,
    forget: bool = True,
    measure: bool = False,
) -> Iterator[Picture]:
    from tfviz.inference.device import describe
    from tfviz.introspection.experiments.recurrent import RecurrentSetting
    from tfviz.introspection.experiments.recurrent_sweep import Finding, records_of, sweep

    setting, longest = RecurrentSetting(int(width), str(equal)), int(longest)
    device = scene.bench.resident.device
    machine = describe(device)
    where = {"device": machine.name, "threads": machine.threads or 1}
    key = (KEY, setting, longest)
    found: Finding | None = scene.kept(key)
    if measure:
        for found in sweep(setting, longest, str(device), scene.compute, scene.stop):
            scene.keep(key, found, records_of(found))
            if found.part < 1:
                yield picture(found, setting, longest, forget, where, scene.t, found.part)
        if scene.stop():
            return
    yield replace(picture(found, setting, longest, forget, where, scene.t), last=True)


def picture(
    found: "Finding | None",
    setting: "RecurrentSetting",
    longest: int,
    forget: bool,
    where: Mapping[str, object],
    t: Translator,
    part: float | None = None,
) -> Picture:
    """What has been measured so far, beside what the formulas say."""
    names = {kind: t(f"{KEY}.kind.{kind}") for kind in ("attention", "rnn", "gru", "lstm", "lstm_forget")}
    hidden = () if forget else ("lstm_forget",)
    notes = [t(f"{KEY}.ready", **where)] if found is None else []
    if found is not None and part is None and found.part < 1:
        notes.append(t(f"{KEY}.stopped", part=percent(found.part)))
    panels = [_gradients(found, setting, longest, hidden, names, t)]
    if found is not None and found.accuracy:
        panels.append(_recall(found, hidden, names, t))
    if found is not None:
        panels += [_times(found, way, names, where, t) for way in ("forward", "backward") if found.times.get(way)]
    panels.append(_layers(found, setting, longest, hidden, names, t))
    panels.append(_paths(t))
    return Picture(panels, badges(found, setting, t) if found is not None and part is None else (), notes, part)


# ---- panels


def _gradients(
    found: "Finding | None",
    setting: "RecurrentSetting",
    longest: int,
    hidden: Sequence[str],
    names: Mapping[str, str],
    t: Translator,
) -> Panel:
    from tfviz.introspection.experiments.recurrent import powers, predicted_decay, relative_quartiles

    rho = predicted_decay(setting)
    predicted = rho ** np.arange(longest, dtype=np.float64)
    measured, first = {}, None
    if found is not None and found.gradients:
        shown = {kind: norms for kind, norms in found.gradients.items() if kind not in (*hidden, "first")}
        measured = {kind: relative_quartiles(norms) for kind, norms in shown.items()}
        first = np.array(powers(longest)), relative_quartiles(found.gradients["first"])
    words = [t(f"{KEY}.{word}") for word in ("distance", "relative", "formula", "first", "fp32")]
    figure = gradient_distances(measured, predicted, first, names=names, words=words)
    note = t(f"{KEY}.gradient.ready", rho=significant(rho))
    if found is not None and found.gradients:
        decays = {kind: significant(one) for kind, one in found.decays().items()}
        note = t(f"{KEY}.gradient.note", seeds=found.seeds, rho=significant(rho), **decays)
    return Panel(figure, t(f"{KEY}.gradient"), note, wide=True)


def _recall(found: "Finding", hidden: Sequence[str], names: Mapping[str, str], t: Translator) -> Panel:
    from tfviz.introspection.experiments.recall import DISTANCES as TAUGHT
    from tfviz.introspection.experiments.recall import STEPS, SYMBOLS

    accuracy = {
        kind: np.array([found.accuracy.get((kind, distance), np.nan) for distance in TAUGHT])
        for kind in names
        if kind not in hidden
    }
    words = [t(f"{KEY}.{word}") for word in ("distance", "right", "guessing")]
    figure = recall_accuracy(TAUGHT, accuracy, 1 / SYMBOLS, names=names, words=words)
    return Panel(figure, t(f"{KEY}.recall"), t(f"{KEY}.recall.note", steps=STEPS, symbols=SYMBOLS), wide=True)


def _times(found: "Finding", way: str, names: Mapping[str, str], where: Mapping[str, object], t: Translator) -> Panel:
    n, by_kind = found.lengths(way), found.latencies(way)
    measured = {
        kind: 1e3 * np.array([[one.low, one.median, one.high] for one in latencies]).T
        for kind, latencies in by_kind.items()
    }
    met = found.crossing(way)
    crossing = None if met is None else (met[1], t(f"{KEY}.crossing", name=names[met[0]], n=f"{round(met[1]):,}"))
    words = [t(f"{KEY}.tokens"), t(f"{KEY}.ms")]
    figure = pass_times(np.array(n), measured, crossing, names=names, words=words)
    fits = found.exponents(way)
    note = t(f"{KEY}.time.few")
    if fits:
        said = ", ".join(t(f"{KEY}.exponent", name=names[kind], p=_power(one)) for kind, one in fits.items())
        note = t(f"{KEY}.time.note", fits=said, **where)
    return Panel(figure, t(f"{KEY}.time.{way}"), note)


def _layers(
    found: "Finding | None",
    setting: "RecurrentSetting",
    longest: int,
    hidden: Sequence[str],
    names: Mapping[str, str],
    t: Translator,
) -> Panel:
    """A row a layer: its size, its gradient, its time, its steps."""
    from tfviz.introspection.experiments.recurrent import LENGTHS, hidden_of, parameters_of, sequential_steps, work

    n = LENGTHS[-1]
    decays = found.decays() if found is not None else {}
    farthest = found.farthest() if found is not None else {}
    took = found.times.get("forward", {}).get(n, {}) if found is not None else {}
    columns = ["hidden", "parameters", *(["decay", "farthest"] if decays else []), *(["token"] if took else [])]
    rows = []
    for kind in (kind for kind in names if kind not in hidden):
        timed = took.get("lstm" if kind == "lstm_forget" else kind)
        cells = [f"{hidden_of(kind, setting):,}", f"{parameters_of(kind, setting):,}"]
        cells += [_decay(decays[kind]), _small(farthest[kind])] if decays else []
        cells += [_micro(timed.median / n)] if timed is not None else []
        rows.append((names[kind], [*cells, f"{sequential_steps(kind, n):,}", f"{work(kind, setting, n) / 1e6:,.0f} M"]))
    heads = [t(f"{KEY}.head.{one}", n=f"{n:,}", k=f"{longest:,}") for one in [*columns, "steps", "work"]]
    html = table(t(f"{KEY}.layers"), heads, rows)
    return Panel(html=html, title=t(f"{KEY}.layers"), note=t(f"{KEY}.layers.{setting.equal}"), wide=True)


def _power(exponent: float) -> str:
    return f"{round(exponent, 2) + 0.0:.2f}".replace("-", "\u2212")


def _decay(per_step: float) -> str:
    return f"\u00d7 {significant(per_step)}"


def _small(value: float) -> str:
    return significant(value) if value >= 1e-3 else f"{value:.1e}".replace("e-", "e\u2212")


def _micro(seconds: float) -> str:
    return f"{significant(seconds * 1e6)} \u00b5s"


def _paths(t: Translator) -> Panel:
    """Of formulas alone."""
    from tfviz.introspection.experiments.recurrent import KERNEL, path_lengths

    rows = []
    for kind in ("attention", "recurrent", "dilated", "convolution"):
        cells = [f"{path_lengths(n)[kind]:,}" for n in SHOWN_N]
        rows.append((t(f"{KEY}.path.{kind}", k=KERNEL), [t(f"{KEY}.order.{kind}"), *cells]))
    heads = [t(f"{KEY}.order"), *(f"n\u00a0=\u00a0{n:,}" for n in SHOWN_N)]
    html = table(t(f"{KEY}.paths"), heads, rows)
    return Panel(html=html, title=t(f"{KEY}.paths"), note=t(f"{KEY}.paths.note", k=KERNEL), wide=True)


# ---- what was checked


def badges(found: "Finding", setting: "RecurrentSetting", t: Translator) -> list[Badge]:
    """The RNN's decay against the formula, attention's flatness, and which layer is faster, of what is shown."""
    from tfviz.introspection.experiments.recurrent import predicted_decay, relative_quartiles

    told = []
    rho, decays = predicted_decay(setting), found.decays()
    if "rnn" in decays:
        off = decays["rnn"] / rho - 1
        fields = {"measured": significant(decays["rnn"]), "rho": significant(rho), "off": f"{100 * abs(off):.1f} %"}
        told.append(Badge(abs(off) <= SAME, t(f"{KEY}.badge.decay", **fields), t(f"{KEY}.badge.decay.title")))
    if found.gradients:
        flat = relative_quartiles(found.gradients["attention"])[1]
        low, high = float(flat.min()), float(flat.max())
        fields = {"low": significant(low), "high": significant(high), "k": f"{len(flat):,}"}
        told.append(Badge(1 / FLAT <= low and high <= FLAT, t(f"{KEY}.badge.flat", **fields)))
    last = found.last("forward")
    if last is not None:
        n, took = last
        for kind in ("rnn", "lstm"):
            gain = took[kind].median / took["attention"].median
            which = "faster" if gain >= 1 else "slower"
            fields = {"n": f"{n:,}", "ratio": ratio(max(gain, 1 / gain)), "name": t(f"{KEY}.kind.{kind}")}
            spent = {"ours": milliseconds(took["attention"].median), "theirs": milliseconds(took[kind].median)}
            told.append(Badge(None, t(f"{KEY}.badge.{which}", **fields, **spent)))
    return told


def controls(t: Translator) -> dict[str, Any]:
    equals = [(t(f"{KEY}.equal.{one}"), one) for one in ("width", "parameters")]
    return {
        "width": gr.Radio(list(WIDTHS), value=64, label=t(f"{KEY}.width")),
        "equal": gr.Radio(equals, value="width", label=t(f"{KEY}.equal")),
        "longest": gr.Radio(list(DISTANCES), value=256, label=t(f"{KEY}.longest")),
        "forget": gr.Checkbox(True, label=t(f"{KEY}.forget")),
    }


def code() -> Sequence[Callable[..., Any]]:
    from tfviz.introspection.experiments import recurrent

    return recurrent.Layer, recurrent.gradient_by_distance, recurrent.predicted_decay, recurrent.times


SECTION = Section(
    key=KEY,
    draw=draw,
    formulas=FORMULAS,
    controls=controls,
    needs_trace=False,
    button=f"{KEY}.button",
    tries=(Try("parameters", {"equal": "parameters"}), Try("far", {"longest": 512})),
    code=code,
)
