"""Arrays as the grids of assets/js/views/masks.js: which cells are blocked by what, and the numbers that stand in them.

All grids of one panel have the same queries and keys, so that a cell pointed at is pointed at in each of them.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tfviz.introspection.mask_parts import Axes
    from tfviz.ui.i18n import Translator

Array = np.ndarray
Grid = dict[str, Any]


def grid_data(
    axes: "Axes",
    why: Mapping[str, Array],
    strips: Sequence[tuple[str, Sequence[Grid]]],
    t: "Translator",
    *,
    together: bool = True,
) -> dict[str, Any]:
    """The data of a panel with the view "masks". `why`: what each mask blocks, by its name in `mask_grid`.

    `together`: they are parts of one mask; a cell pointed at says which of them block it, and queries without a key
    are marked.
    """
    bits = np.zeros((len(axes.queries), len(axes.keys)), dtype=np.uint16)
    for bit, blocked in enumerate(why.values()):
        bits |= blocked.astype(np.uint16) << bit
    return {
        "queries": [_mark(token.label, pad) for token, pad in zip(axes.queries, axes.query_padding, strict=True)],
        "keys": [_mark(token.label, pad) for token, pad in zip(axes.keys, axes.key_padding, strict=True)],
        "bits": _packed(bits),
        "names": list(why),
        "causes": [t(f"masks.part.{name}") for name in why] if together else [],
        "whole": list(why) if together else [],
        "strips": [{"title": title, "grids": list(grids)} for title, grids in strips],
        "words": {word: t(f"masks.view.{word}") for word in ("grid", "blocked", "open", "nothing")},
    }


def mask_grid(title: str, masks: Sequence[str], *, sign: str = "", texts: tuple[str, str] | None = None) -> Grid:
    """Cells that any of `masks` blocks are hatched. `texts`: what stands in (an open, a blocked) cell."""
    return {"title": title, "sign": sign, "kind": "mask", "masks": list(masks), "texts": texts}


def value_grid(
    title: str, values: Array, kind: str, *, sign: str = "", masks: Sequence[str] = (), largest: float = 1.0
) -> Grid:
    """Cells filled by their number: "weight" from 0 to 1, "signed" from -largest to largest; hatched where blocked."""
    numbers = _packed(values.astype(np.float32))
    return {"title": title, "sign": sign, "kind": kind, "masks": list(masks), "values": numbers, "largest": largest}


def _mark(label: str, padding: bool) -> dict[str, Any]:
    return {"text": label, "pad": bool(padding)}


def _packed(array: Array) -> str:
    return b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
