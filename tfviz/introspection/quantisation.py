"""One weight matrix of a loaded model with the activations that it reads, and what quantising it does to its output.

    error = ||X W^T - X What^T|| / ||X W^T||

X are real rows: of texts that the methods may learn from (calibration), of others (held out), and of the sentence on
the page (quantisation_inputs.py).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from jaxtyping import Float, Int
from torch import Tensor

from tfviz.errors import UnsupportedHere
from tfviz.inference.quantisation import (
    Quantised,
    Scaled,
    Scheme,
    awq,
    choose_damping,
    gptq,
    hessian,
    quantise,
    relative,
)
from tfviz.inference.quantisation.schemes import BITS, bits_already
from tfviz.introspection.quantisation_inputs import PARTS, READINGS, Linear, inputs, weight_of
from tfviz.introspection.quantisation_look import Look, look
from tfviz.messages import ASSETS
from tfviz.sources.base import LoadedModel, Prompt

METHODS = ("rtn", "gptq", "awq")
MOST_WEIGHTS = 2_500_000  # of a larger matrix the first rows are looked at: rows do not touch one another
MOST_INPUTS = 4096  # GPTQ's Hessian has inputs x inputs numbers, and its factor takes their cube
SPARED = 0.01  # of the input channels
GROUPS = (16, 32, 64, 128)


@dataclass(frozen=True, eq=False)
class Matrix:
    """A linear layer's weight and inputs, FP32 on the CPU."""

    name: str  # its path in the model
    parts: tuple[str, ...]  # what it is of PARTS: more than one where matrices lie in one
    weight: Float[Tensor, "out in"]
    n_out: int  # of all rows, where `weight` is a cut
    calibration: Float[Tensor, "row in"]
    held_out: Float[Tensor, "row in"]
    sentence: Float[Tensor, "row in"]
    rounded: bool = False  # the weight is what an INT8 or INT4 table stands for
    already: int | None = None  # bits that it was in before, found from its values (schemes.bits_already)

    @property
    def nbytes(self) -> int:
        """Of what is kept with the sentence; the rows of the texts are counted where they are kept (Readings)."""
        return 4 * (self.weight.numel() + self.sentence.numel())

    @property
    def n_in(self) -> int:
        return self.weight.shape[1]

    @cached_property
    def damping(self) -> float:
        """GPTQ's, the same for every scheme."""
        return choose_damping(self.weight, self.calibration)


@dataclass(frozen=True)
class Outcome:
    """What one method and scheme does to a matrix. Errors are relative."""

    bits: int
    bits_a_weight: float
    weight_error: float
    calibration: float
    held_out: float
    spared: float | None = None  # rounding's held_out, if the channels of `outliers` stay as they are
    alpha: float | None = None  # AWQ's
    damping: float | None = None  # GPTQ's


@dataclass(frozen=True, eq=False)
class Solved:
    """All bit-widths of one method and scheme: what they cost, and what is drawn of them. Both as BITS."""

    outcomes: tuple[Outcome, ...]
    looks: tuple[Look, ...]

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.looks)


# ---- the matrix and what it reads


def reading(loaded: LoadedModel, prompt: Prompt, kind: str, layer: int, part: str) -> Iterator[tuple[int, int]]:
    """Reads the texts that `read` needs, one a step: (texts read, of how many). No step where they are known."""
    _, part = _found(loaded, kind, layer, part)
    yield from READINGS.reading(loaded, kind, layer, part, texts())


def read(loaded: LoadedModel, prompt: Prompt, kind: str, layer: int, part: str) -> Matrix:
    """The matrix of this part of a layer, or the nearest that it has. `UnsupportedHere` for a layer that has none."""
    found, part = _found(loaded, kind, layer, part)
    module, reader = found[part].module, found[part].reader
    whole = weight_of(module)
    weight = whole[: max(16, MOST_WEIGHTS // whole.shape[1])].clone()
    calibration, held_out = READINGS.rows(loaded, kind, layer, part, texts())
    return Matrix(
        next(name for name, one in loaded.model.named_modules() if one is module),
        tuple(one for one in PARTS if one in found and found[one].module is module),
        weight,
        len(whole),
        calibration,
        held_out,
        inputs(loaded, [reader], [prompt])[reader],
        rounded=hasattr(module, "dequantised"),
        already=bits_already(weight),
    )


def _found(loaded: LoadedModel, kind: str, layer: int, part: str) -> tuple[Mapping[str, Linear], str]:
    """The layer's matrices, and which of them stands for this part."""
    layers = READINGS.layers(loaded, kind)
    found = layers[layer] if layer < len(layers) else {}
    if not found:
        raise UnsupportedHere("speed.quantisation.error.none", model=loaded.label, layer=layer)
    return found, part if part in found else "up" if part == "gate" and "up" in found else list(found)[-1]


@cache
def texts() -> tuple[list[str], list[str]]:
    """(those that the methods learn from, those that are held out)."""
    every = json.loads((ASSETS / "examples" / "prose.json").read_text(encoding="utf-8"))
    return every["calibration"], every["evaluation"]


# ---- what quantising it does


def schemes(n_in: int) -> list[Scheme]:
    """Every way to share scales that this matrix is wide enough for, coarsest first; their bits do not count."""
    shares = [Scheme(4, "tensor"), Scheme(4, "channel"), *(Scheme(4, "group", g) for g in GROUPS[::-1] if g < n_in)]
    return [replace(one, symmetric=symmetric) for one in shares for symmetric in (True, False)]


def solve(matrix: Matrix, method: str, scheme: Scheme, act_order: bool = False, looks: bool = True) -> Solved:
    """The method at every bit-width. `UnsupportedHere` where GPTQ's Hessian would be too large."""
    every = [replace(scheme, bits=bits) for bits in BITS]
    made: Sequence[Quantised | Scaled]
    if method == "gptq":
        made = compensated(matrix, every, act_order)
    else:
        made = [scaled(matrix, one) if method == "awq" else quantise(matrix.weight, one) for one in every]
    given = matrix.calibration @ matrix.weight.T, matrix.held_out @ matrix.weight.T
    outcomes = tuple(outcome(matrix, one, method, given) for one in made)
    return Solved(outcomes, tuple(look_of(matrix, one) for one in made) if looks else ())


def look_of(matrix: Matrix, made: Quantised | Scaled, array: Tensor | None = None) -> Look:
    """What is drawn of a matrix in few bits; `array` is what it became."""
    return look(matrix.weight, matrix.sentence, made, outliers(matrix), array)


def compensated(matrix: Matrix, every: Sequence[Scheme], act_order: bool = False) -> list[Quantised]:
    """GPTQ on the calibration rows."""
    if matrix.n_in > MOST_INPUTS:
        raise UnsupportedHere("speed.quantisation.error.wide", n=f"{matrix.n_in:,}", most=f"{MOST_INPUTS:,}")
    seen = hessian(matrix.calibration)
    return gptq(matrix.weight, seen, every, act_order=act_order, damping=matrix.damping)


def scaled(matrix: Matrix, scheme: Scheme) -> Scaled:
    """AWQ on the calibration rows."""
    return awq(matrix.weight, matrix.calibration, scheme)


def outcome(matrix: Matrix, made: Quantised | Scaled, method: str, given: tuple[Tensor, Tensor]) -> Outcome:
    """`given`: X W^T of the calibration and the held-out rows."""
    weight, what = matrix.weight, made.dequantised()
    plain = made.quantised if isinstance(made, Scaled) else made
    extra = 16 / matrix.n_out if isinstance(made, Scaled) else 0.0
    kept = what.index_copy(1, top := outliers(matrix), weight[:, top]) if method == "rtn" else None
    return Outcome(
        plain.scheme.bits,
        plain.scheme.bits_a_weight(matrix.n_out, matrix.n_in) + extra,
        relative(weight - what, weight),
        relative(matrix.calibration @ (weight - what).T, given[0]),
        relative(matrix.held_out @ (weight - what).T, given[1]),
        spared=None if kept is None else relative(matrix.held_out @ (weight - kept).T, given[1]),
        alpha=made.alpha if isinstance(made, Scaled) else None,
        damping=matrix.damping if method == "gptq" else None,
    )


def outliers(matrix: Matrix) -> Int[Tensor, " channel"]:
    """The 1 % of input channels that are largest on the calibration rows, largest first; one at least."""
    return channel_sizes(matrix).topk(max(1, round(SPARED * matrix.n_in))).indices


def channel_sizes(matrix: Matrix) -> Float[Tensor, " in"]:
    """max |x_j| on the calibration rows."""
    return matrix.calibration.abs().amax(0)
