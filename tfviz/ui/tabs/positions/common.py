"""What the sections of the Positions tab share: which attention has positions, controls, pooling, tolerances."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np
from jaxtyping import Float

from tfviz.inference import rounding
from tfviz.ui.i18n import Translator

if TYPE_CHECKING:
    from tfviz.introspection.trace import Trace

BASES = (100, 10_000, 100_000, 500_000)
CELLS = 128  # of a heatmap, each way


def tolerance(precision: str) -> float:
    """Of what is compared, as a share of its largest number: an angle of 1,000 radians is rounded too."""
    return 3e-2 if precision == "int8" else rounding.layers(precision)  # INT8 rounds the table and what it reads


def own_kind(place: Mapping[str, Any]) -> str:
    """The stack looked at; for cross-attention, which gets no positions, the encoder."""
    kind = str(place["kind"])
    return kind if kind != "cross" else "encoder"


def inside(place: Mapping[str, Any], trace: "Trace") -> tuple[str, int, int, int, int]:
    """(kind, layer, head, query, key) of a self-attention, whatever is selected."""
    kind = own_kind(place)
    stack = trace.stacks[kind]
    ends = (max(stack.layers), stack.n_heads - 1, len(stack.query_tokens) - 1, len(stack.key_tokens) - 1)
    layer, head, query, key = (
        min(int(place[name]), end) for name, end in zip(("layer", "head", "query", "key"), ends, strict=True)
    )
    return kind, layer, head, query, key


def labels(tokens: Sequence[Any]) -> list[str]:
    return [token.label for token in tokens]


def thinned(values: Float[np.ndarray, "row column"]) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]:
    """(values, row numbers, column numbers, step each way): every so many rows and columns, at most CELLS x CELLS.

    Picked, not averaged: the mean of a sine and its cosine, or of a wave over its turns, is no value of the encoding.
    The step over columns is odd, so that sines and cosines take turns.
    """
    high, wide = (-(-n // CELLS) for n in values.shape)
    wide += wide > 1 and wide % 2 == 0
    picked = values[::high, ::wide]
    rows, columns = np.arange(values.shape[0])[::high], np.arange(values.shape[1])[::wide]
    return picked, rows.astype(float), columns.astype(float), (high, wide)


def thinned_note(step: tuple[int, int], t: Translator) -> str:
    return "" if step == (1, 1) else t("positions.thinned", rows=step[0], columns=step[1])


def base_control(t: Translator) -> gr.Radio:
    return gr.Radio([(f"{base:,}", base) for base in BASES], value=10_000, label=t("positions.base"))


def scheme_control(t: Translator, names: Sequence[str]) -> gr.Radio:
    choices = [(t(f"positions.scheme.{name}"), name) for name in names]
    return gr.Radio(choices, value=names[0], label=t("positions.scheme"))
