"""How every figure looks: one sequential scale for weights, transparent ground, nothing of the default."""

from collections.abc import Sequence
from typing import Any

FONT = "IBM Plex Sans, Noto Sans CJK SC, PingFang SC, Microsoft YaHei, system-ui, sans-serif"
MONO = "IBM Plex Mono, Noto Sans Mono CJK SC, ui-monospace, monospace"
SOFT, LINE = "#55607a", "#e3e6ef"
SERIES = ("#6d66f0", "#d97706", "#0e9fb8", "#16a34a", "#db2777", "#7c8aa5")  # lines; they read on light and dark
WEIGHT_SCALE = [[0.0, "#ffffff"], [0.5, "#928fd6"], [1.0, "#2a2673"]]  # evenly spaced in perceived lightness
DIVERGING_SCALE = [[0.0, "#0b6b80"], [0.5, "#ffffff"], [1.0, "#b0175f"]]  # below, at and above zero


def layout(title: str = "", *, x: str = "", y: str = "") -> dict[str, Any]:
    """The layout shared by all figures; transparent, so that it sits on a light or dark page."""
    axis = {"showgrid": False, "zeroline": False, "linecolor": LINE, "tickfont": {"family": MONO, "size": 12}}
    return {
        "template": "none",
        "title": {"text": title, "font": {"size": 15}, "x": 0},
        "font": {"family": FONT, "color": SOFT, "size": 13},
        "colorway": SERIES,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 96, "r": 16, "t": 40 if title else 16, "b": 96},
        "xaxis": {**axis, "title": {"text": x, "font": {"size": 13}}},
        "yaxis": {**axis, "title": {"text": y, "font": {"size": 13}}},
    }


def position_axis(labels: Sequence[str]) -> dict[str, Any]:
    """Ticks at positions with the tokens as their text: on a category axis equal tokens would merge."""
    return {"tickmode": "array", "tickvals": list(range(len(labels))), "ticktext": [plain(label) for label in labels]}


def plain(text: str) -> str:
    """A user's text as text: Plotly reads a little HTML in labels."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
