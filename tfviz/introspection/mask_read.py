"""The masks that a model really builds for a batch, layer by layer, against those expected of it.

    expected = padding | causal (a decoder's own attention) | the window that the config says of the layer

Nothing is expected of what was read: a layer that blocks another cell is found.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from tfviz.introspection.batch import BatchAttention, BatchRun
from tfviz.introspection.mask_parts import Axes, MaskChoice, mask_parts, together

Array = np.ndarray


@dataclass(frozen=True)
class MaskKind:
    """Layers of one kind of attention that build the same mask."""

    kind: str
    layers: tuple[int, ...]
    window: int | None  # by the config
    form: str  # how it came: mask | mask+flag | flag | bias | none
    shape: tuple[int, ...]  # of the tensor that came; empty if none did
    read: tuple[Bool[Array, "query key"], ...]  # row by row, True = blocked
    expected: tuple[Bool[Array, "query key"], ...]

    def differing(self, padding: Bool[Array, "row query"]) -> tuple[int, int]:
        """(cells in the rows of real tokens, cells in the rows of padding, which nobody reads)"""
        differs = np.stack(self.read) != np.stack(self.expected)
        return int(differs[~padding].sum()), int(differs[padding].sum())


def read_masks(run: BatchRun, kind: str, axes: Sequence[Axes], causal: bool) -> list[MaskKind]:
    """The different masks of a kind of attention, in the order of their first layers. `axes`: of each row."""
    groups: dict[object, list[int]] = {}
    for layer, attention in enumerate(run.attentions[kind]):
        alike = (id(attention.mask), attention.causal, _form(attention), run.windows[kind][layer])
        groups.setdefault(alike, []).append(layer)
    found: dict[object, MaskKind] = {}
    for layers in groups.values():
        one = _mask_kind(run, kind, tuple(layers), axes, causal)
        same = (one.window, one.form, *(mask.tobytes() for mask in one.read))
        known = found.get(same)
        found[same] = one if known is None else _joined(known, one)
    return list(found.values())


def _mask_kind(run: BatchRun, kind: str, layers: tuple[int, ...], axes: Sequence[Axes], causal: bool) -> MaskKind:
    attention, window = run.attentions[kind][layers[0]], run.windows[kind][layers[0]]
    choice = MaskChoice(causal=causal, window=window)
    return MaskKind(
        kind=kind,
        layers=layers,
        window=window,
        form=_form(attention),
        shape=() if attention.mask is None else attention.mask.shape,
        read=tuple(attention.blocked(row) for row in range(len(axes))),
        expected=tuple(together(mask_parts(one, kind, choice)) for one in axes),
    )


def _joined(one: MaskKind, other: MaskKind) -> MaskKind:
    layers = tuple(sorted(one.layers + other.layers))
    return MaskKind(one.kind, layers, one.window, one.form, one.shape, one.read, one.expected)


def _form(attention: BatchAttention) -> str:
    if attention.mask is not None:
        return "mask+flag" if attention.causal else "mask"
    if attention.causal:
        return "flag"
    return "none" if attention.bias is None else "bias"
