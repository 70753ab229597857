"""Key/value caches in pictures: bytes by context, what a window misses, how a cache grows, what INT4 costs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int

from tfviz.figures.theme import SERIES, SOFT, layout, plain

LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 12}}
MARGIN = {"l": 64, "r": 16, "t": 44, "b": 48}
TITLE = {"font": {"size": 13}, "standoff": 8}
QUERY, KEY = "#d97706", "#0e9fb8"
GUIDE = {"color": SOFT, "width": 1.5, "dash": "dot"}
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
NONE: dict[str, Any] = {}
DASHES = ("solid", "dash", "dot", "dashdot")


def bytes_by_context(
    contexts: Int[np.ndarray, " point"],
    curves: Mapping[str, Float[np.ndarray, " point"]],
    own: str,
    *,
    memory: float | int | None = None,
    limit: int | None = None,
    at: int | None = None,
    words: Sequence[str] = ("context", "cache", "memory", "the model's limit"),
) -> go.Figure:
    """One line a precision on logarithmic axes, `own` drawn strong with a dot at context `at`; the memory is a line
    across, the model's last position one upright. `ValueError` if `own` is no curve."""
    if own not in curves:
        raise ValueError(f"no curve {own!r}; there are {', '.join(curves)}")
    x_word, y_word, memory_word, limit_word = words
    lines = []
    others = iter(SERIES[1:] * len(curves))
    for name, values in curves.items():
        line = {"color": SERIES[0], "width": 3.5} if name == own else {"color": next(others), "width": 1.5}
        said = [_bytes(value) for value in values]
        lines.append(_line(contexts, values, name, line, said, f"{x_word} %{{x:,}}: %{{customdata}}"))
    if at is not None:
        dot = {"color": SERIES[0], "size": 10, "line": {"color": "#ffffff", "width": 1.5}}
        value = float(np.interp(at, contexts, curves[own]))
        lines.append(_dot(at, value, dot, f"{x_word} {at:,}: {_bytes(value)}"))
    top = max(max(float(values.max()) for values in curves.values()), float(memory or 0))
    low = min(float(values[values > 0].min(initial=top)) for values in curves.values())
    guides = []
    if memory:
        guides.append(_guide("y", memory, memory_word))
    if limit and contexts[0] <= limit <= contexts[-1]:
        guides.append(_guide("x", limit, limit_word))
    ends = [float(np.log10(contexts[0])), float(np.log10(contexts[-1]))]
    x = {"type": "log", "range": ends, **_powers(contexts)}
    return _figure(lines, (x_word, y_word), x, {"type": "log", **_byte_ticks(max(low, 1.0), max(top, 1.0))}, guides)


def mass_outside(
    windows: Int[np.ndarray, " window"],
    outside: Mapping[str, Float[np.ndarray, " window"]],
    at: int,
    *,
    words: Sequence[str] = ("window", "weight outside"),
) -> go.Figure:
    """What part of an attention's weight lies on keys that a window of this width does not hold; `at` is chosen."""
    lines = []
    for i, (name, values) in enumerate(outside.items()):
        line = {"color": (QUERY, SERIES[0])[i // 2 % 2], "width": 2.5, "dash": DASHES[i % 2]}
        lines.append(_line(windows, 100 * values, name, line, None, f"{words[0]} %{{x}}: %{{y:.1f}} %"))
    return _figure(lines, words, y={"rangemode": "tozero", "ticksuffix": " %"}, guides=[_guide("x", at)])


def allocation_growth(
    steps: Int[np.ndarray, " step"],
    allocated: Mapping[str, Float[np.ndarray, " step"]],
    used: Float[np.ndarray, " step"],
    *,
    words: Sequence[str] = ("tokens", "allocated", "in use"),
) -> go.Figure:
    """Bytes that each way to grow has allocated, against the bytes in use (the dotted line)."""
    lines = [_line(steps, used, words[2], GUIDE, [_bytes(one) for one in used], "%{x:,}: %{customdata}")]
    for i, (name, values) in enumerate(allocated.items()):
        line = {"color": SERIES[i % len(SERIES)], "width": 2.5, "shape": "hv"}
        lines.append(_line(steps, values, name, line, [_bytes(one) for one in values], "%{x:,}: %{customdata}"))
    top = max(float(values.max()) for values in [used, *allocated.values()])
    unit, power = _unit(top)
    ticks = np.linspace(0, top, 5)
    y = {"tickvals": ticks, "ticktext": [f"{tick / power:.3g} {unit}" for tick in ticks], "rangemode": "tozero"}
    return _figure(lines, words[:2], y=y)


def write_times(
    lengths: Int[np.ndarray, " length"],
    seconds: Mapping[str, Float[np.ndarray, "quartile length"]],
    *,
    words: Sequence[str] = ("tokens held", "µs a step"),
) -> go.Figure:
    """Median and quartiles ([low, median, high]) of one step by what the cache holds already, logarithmic axes."""
    lines = []
    for i, (name, (low, middle, high)) in enumerate(seconds.items()):
        bars = {"type": "data", "symmetric": False, "array": 1e6 * (high - middle), "arrayminus": 1e6 * (middle - low)}
        line = {"color": SERIES[i % len(SERIES)], "width": 2.5}
        drawn = _line(lengths, 1e6 * middle, name, line, None, f"{words[0]} %{{x:,}}: %{{y:.3g}} µs")
        lines.append({**drawn, "mode": "lines+markers", "error_y": {**bars, "thickness": 1.2, "width": 3}})
    x = {"type": "log", "tickvals": lengths, "ticktext": [f"{n:,}" for n in lengths]}
    return _figure(lines, words, x, {"type": "log", "exponentformat": "none", "dtick": 1})


def channel_sizes(
    key: Float[np.ndarray, " channel"],
    value: Float[np.ndarray, " channel"],
    *,
    words: Sequence[str] = ("channel", "largest size", "keys", "values"),
) -> go.Figure:
    """The largest absolute number of each channel of one head, over all tokens: keys and values as bars."""
    bars = []
    for name, sizes, color in ((words[2], key, KEY), (words[3], value, SERIES[5])):
        hover = f"{plain(name)}, {words[0]} %{{x}}: %{{y:.3g}}<extra></extra>"
        bars.append({"type": "bar", "y": sizes.astype(np.float32), "name": plain(name), "hovertemplate": hover})
        bars[-1]["marker"] = {"color": color}
    return _figure(bars, words[:2], barmode="group", bargap=0.15, bargroupgap=0)


def layer_errors(
    errors: Mapping[str, Float[np.ndarray, " layer"]],
    at: int | None = None,
    *,
    words: Sequence[str] = ("layer", "error of the output"),
) -> go.Figure:
    """Relative errors in percent, one line a way, by layer; `at` is the chosen layer."""
    lines = []
    for i, (name, values) in enumerate(errors.items()):
        line = {"color": SERIES[i % len(SERIES)], "width": 2.5, "dash": DASHES[i // len(SERIES) % 4]}
        drawn = _line(np.arange(len(values)), 100 * values, name, line, None, f"{words[0]} %{{x}}: %{{y:.3g}} %")
        lines.append({**drawn, "mode": "lines+markers", "marker": {"size": 5}})
    guides = [] if at is None else [_guide("x", at)]
    return _figure(lines, words, y={"rangemode": "tozero", "ticksuffix": " %"}, guides=guides)


# ---- parts


def _figure(
    traces: Sequence[Mapping[str, Any]],
    words: Sequence[str],
    x: Mapping[str, Any] = NONE,
    y: Mapping[str, Any] = NONE,
    guides: Sequence[tuple[dict[str, Any], dict[str, Any] | None]] = (),
    **look: Any,
) -> go.Figure:
    """Made in one go, which is what is fast; `guides` are (shape, its words)."""
    base = layout()
    grid = {"showgrid": True, "gridcolor": "rgba(124,138,165,.22)"}
    said = {
        "xaxis": {**base["xaxis"], "title": {**TITLE, "text": words[0]}, **x},
        "yaxis": {**base["yaxis"], **grid, "title": {**TITLE, "text": words[1]}, **y},
        "shapes": [shape for shape, _ in guides],
        "annotations": [text for _, text in guides if text is not None],
    }
    rest = {"height": 320, "margin": MARGIN, "legend": LEGEND, "showlegend": True, "hovermode": "closest"}
    return go.Figure({"data": list(traces), "layout": {**base, **said, **rest, **look}})


def _guide(axis: str, at: float | int, word: str = "") -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(a dotted line across or upright, its word at the end); Plotly places words on a logarithmic axis by log10."""
    other = "x" if axis == "y" else "y"
    ends = {f"{axis}0": at, f"{axis}1": at, f"{other}0": 0, f"{other}1": 1, f"{other}ref": f"{other} domain"}
    shape = {"type": "line", "line": GUIDE, f"{axis}ref": axis, **ends}
    if not word:
        return shape, None
    where = {axis: float(np.log10(at)), f"{other}ref": f"{other} domain", other: 0.01, f"{axis}ref": axis}
    text = {"text": plain(word), "showarrow": False, "font": {"size": 12, "color": SOFT}, "xanchor": "left"}
    return shape, {**text, **where, "yanchor": "bottom"}


def _line(
    x: np.ndarray, y: np.ndarray, name: str, line: Mapping[str, Any], said: Sequence[str] | None, hover: str
) -> dict[str, Any]:
    more = {} if said is None else {"customdata": said}
    drawn = {"type": "scatter", "mode": "lines", "x": x, "y": y, "name": plain(name), "line": dict(line), **more}
    return {**drawn, "hovertemplate": f"{hover}<extra>{plain(name)}</extra>"}


def _dot(x: float | int, y: float, marker: Mapping[str, Any], hover: str) -> dict[str, Any]:
    dot = {"type": "scatter", "mode": "markers", "x": [x], "y": [y], "marker": dict(marker), "showlegend": False}
    return {**dot, "hovertemplate": f"{hover}<extra></extra>"}


def _unit(n_bytes: float) -> tuple[str, float]:
    i = min(int(np.log(max(n_bytes, 1)) / np.log(1024)), len(UNITS) - 1)
    return UNITS[i], 1024.0**i


def _bytes(n_bytes: float) -> str:
    unit, power = _unit(n_bytes)
    return f"{n_bytes / power:.3g} {unit}"


def _byte_ticks(low: float, high: float) -> dict[str, Any]:
    """Powers of 16 or 1024 with their units."""
    first, last = int(np.floor(np.log2(low))), int(np.ceil(np.log2(high)))
    step = next(step for step in (2, 5, 10, 20, 40) if (last - first) / step <= 7 or step == 40)
    ticks = [2.0**power for power in range(-(-first // step) * step, last + 1, step)]
    return {"tickvals": ticks, "ticktext": [_bytes(tick) for tick in ticks]}


def _powers(values: np.ndarray) -> dict[str, Any]:
    """A tick at each power of 4 or 16: 256, 1k, 4k, 16k (k = 1024)."""
    first, last = int(np.ceil(np.log2(values[0]))), int(np.floor(np.log2(values[-1])))
    step = 2 if last - first <= 14 else 4
    ticks = [2**power for power in range(first + first % 2, last + 1, step)]
    return {"tickvals": ticks, "ticktext": [_short(tick) for tick in ticks]}


def _short(n: int) -> str:
    for power, letter in ((30, "G"), (20, "M"), (10, "k")):
        if n >= 1 << power:
            return f"{n >> power}{letter}"
    return str(n)
