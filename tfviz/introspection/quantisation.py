"""One weight matrix of a loaded model with the activations that it reads, and what quantising it does to its output.

    error = ||X W^T - X What^T|| / ||X W^T||

X are real rows: of texts that the methods may learn from (calibration), of others (held out), and of the sentence on
the page. A layer's matrices are told apart by what they gave in a short pass (projections.py), not by name.
"""

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from tfviz.errors import UnsupportedHere
from tfviz.inference.quantisation import Quantised, Scaled, Scheme, awq, gptq, hessian, output_error, quantise, relative
from tfviz.inference.quantisation.schemes import BITS, bits_already
from tfviz.introspection.layer_calls import Attended, LayerCall, Step, observe
from tfviz.introspection.layer_parts import Parts, find_activation
from tfviz.introspection.projections import Projections, read_projections
from tfviz.messages import ASSETS
from tfviz.model.attention_call import AttentionCall
from tfviz.sources.base import LoadedModel, Prompt

PARTS = ("q", "k", "v", "o", "up", "gate", "down")
METHODS = ("rtn", "gptq", "awq")
MOST_ROWS = 1024  # of activations
MOST_WEIGHTS = 2_500_000  # of a larger matrix the first rows are looked at: rows do not touch one another
MOST_INPUTS = 4096  # GPTQ's Hessian has inputs x inputs numbers, and its factor takes their cube
SPARED = 0.01  # of the input channels
GROUPS = (16, 32, 64, 128)
SHORT = 8  # tokens of the pass that finds a layer's matrices


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
        return sum(4 * one.numel() for one in (self.weight, self.calibration, self.held_out, self.sentence))

    @property
    def n_in(self) -> int:
        return self.weight.shape[1]


@dataclass(frozen=True)
class Outcome:
    """What one method and scheme does to a matrix. Errors are relative."""

    bits: int
    bits_a_weight: float
    weight_error: float
    calibration: float
    held_out: float
    spared: float | None = None  # held_out, if the channels of `outliers` stay as they are
    alpha: float | None = None  # AWQ's


@dataclass(frozen=True, eq=False)
class Solved:
    """All bit-widths of one method and scheme, and the matrices of those that are slow to find again."""

    outcomes: tuple[Outcome, ...]  # as BITS
    made: tuple[Quantised, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.made)


# ---- the matrix and what it reads


def read(loaded: LoadedModel, prompt: Prompt, kind: str, layer: int, part: str) -> Matrix:
    """The matrix of this part of a layer, or the nearest that it has. `UnsupportedHere` for a layer that has none."""
    found = linears(loaded, kind, layer)
    if not found:
        raise UnsupportedHere("speed.quantisation.error.none", model=loaded.label, layer=layer)
    module = found[part if part in found else "up" if part == "gate" and "up" in found else next(reversed(found))]
    whole = _weight(module)
    weight = whole[: max(16, MOST_WEIGHTS // whole.shape[1])].clone()
    names = {one: name for name, one in loaded.model.named_modules()}
    texts = json.loads((ASSETS / "examples" / "prose.json").read_text(encoding="utf-8"))
    calibration, held_out = (
        inputs(loaded, module, prompts(loaded, texts[one])) for one in ("calibration", "evaluation")
    )
    return Matrix(
        names[module],
        tuple(one for one in PARTS if found.get(one) is module),
        weight,
        len(whole),
        calibration,
        held_out,
        inputs(loaded, module, [prompt]),
        rounded=hasattr(module, "dequantised"),
        already=bits_already(weight),
    )


def prompts(loaded: LoadedModel, texts: Sequence[str]) -> list[Prompt]:
    """The decoder of an encoder-decoder reads the same text."""
    return [loaded.prompt(text, text if loaded.family == "encoder-decoder" else None) for text in texts]


def linears(loaded: LoadedModel, kind: str, layer: int) -> dict[str, nn.Module]:
    """The linear layers of one layer by part, in the order of PARTS; of a decoder with a `kind` "cross" those of it."""
    second = "The animal" if loaded.family == "encoder-decoder" else None
    short = loaded.prompt("The animal", second, limit=SHORT)
    side = "decoder" if kind == "cross" else kind
    call = next((one for one in observe(loaded, short) if (one.side, one.index) == (side, layer)), None)
    if call is None:
        raise UnsupportedHere("error.anatomy_layer", model=loaded.label, layer=layer)
    attentions = read_projections(call)
    at = 1 if kind == "cross" else 0
    found = _of_attention(list(attentions.values())[at]) | _of_feed_forward(call, attentions)
    return {part: found[part].module for part in PARTS if part in found}


def _of_attention(found: Projections) -> dict[str, Step]:
    """W_Q, W_K, W_V by what they gave, and W_O; fused projections stand for all that lie in them."""
    steps = list(found.linears)
    if len(steps) == 3 and found.inputs is not None:
        given = zip(found.inputs, steps, strict=True)
        steps = [next((one for one in steps if one.after is rows), other) for rows, other in given]
    by_count = {1: [0, 0, 0], 2: [0, 1, 1], 3: [0, 1, 2]}
    named = {part: steps[i] for part, i in zip("qkv", by_count.get(len(steps), []), strict=False)}
    return named | ({"o": found.out} if found.out is not None else {})


def _of_feed_forward(call: LayerCall, attentions: dict[Attended, Projections]) -> dict[str, Step]:
    """The network's last matrix is `down`; of two before it the gate is the one that the activation reads."""
    parts = Parts(call, attentions)
    if parts.down is None:
        return {}
    before = [step for step in parts.feed_forward if step is not parts.down]
    named = {"down": parts.down} | ({"up": before[-1]} if before else {})
    bent, through, _ = find_activation(parts, parts.down.before)
    if through is not None:
        named |= {
            name: step for name, rows in (("gate", bent), ("up", through)) for step in before if step.after is rows
        }
        if len(before) == 1:  # both in one matrix
            named |= {"gate": before[0], "up": before[0]}
    return named


def _weight(module: Any) -> Float[Tensor, "out in"]:
    """FP32 [out, in] on the CPU; of an INT8 or INT4 layer what its table stands for."""
    made = module.dequantised() if hasattr(module, "dequantised") else module.weight.detach()
    made = made.float().cpu()
    return made.T if hasattr(module, "nf") else made  # transformers' Conv1D: [in, out]


def inputs(loaded: LoadedModel, module: nn.Module, asked: Sequence[Prompt]) -> Float[Tensor, "row in"]:
    """What one module reads, one row a token, over these prompts; the first MOST_ROWS rows."""
    rows: list[Tensor] = []
    thread = threading.get_ident()

    def before(called: nn.Module, args: tuple[Any, ...]) -> None:
        if called is module and threading.get_ident() == thread:
            rows.append(args[0].reshape(-1, args[0].shape[-1]).float().cpu().clone())

    handle = register_module_forward_pre_hook(before)
    try:
        for prompt in asked:
            if sum(map(len, rows)) < MOST_ROWS:
                loaded.forward(prompt, AttentionCall("naive"), all_logits=False)  # which every model can
    finally:
        handle.remove()
    return torch.cat(rows)[:MOST_ROWS].clone()  # outside inference mode: tensors like any others


# ---- what quantising it does


def schemes(n_in: int) -> list[Scheme]:
    """Every way to share scales that this matrix is wide enough for, coarsest first; their bits do not count."""
    shares = [Scheme(4, "tensor"), Scheme(4, "channel"), *(Scheme(4, "group", g) for g in GROUPS[::-1] if g < n_in)]
    return [replace(one, symmetric=symmetric) for one in shares for symmetric in (True, False)]


def solve(matrix: Matrix, method: str, scheme: Scheme, act_order: bool = False) -> Solved:
    """The method at every bit-width. `UnsupportedHere` where GPTQ's Hessian would be too large."""
    every = [replace(scheme, bits=bits) for bits in BITS]
    if method == "gptq":
        made = tuple(compensated(matrix, every, act_order))
        return Solved(tuple(outcome(matrix, one) for one in made), made)
    found = [scaled(matrix, one) if method == "awq" else quantise(matrix.weight, one) for one in every]
    return Solved(tuple(outcome(matrix, one) for one in found))


def compensated(matrix: Matrix, every: Sequence[Scheme], act_order: bool = False) -> list[Quantised]:
    """GPTQ on the calibration rows."""
    if matrix.n_in > MOST_INPUTS:
        raise UnsupportedHere("speed.quantisation.error.wide", n=f"{matrix.n_in:,}", most=f"{MOST_INPUTS:,}")
    return gptq(matrix.weight, hessian(matrix.calibration), every, act_order=act_order)


def scaled(matrix: Matrix, scheme: Scheme, alpha: float | None = None) -> Scaled:
    """AWQ on the calibration rows; with an `alpha` that was found before, without a search."""
    return awq(matrix.weight, matrix.calibration, scheme, **({} if alpha is None else {"alphas": (alpha,)}))


def outcome(matrix: Matrix, made: Quantised | Scaled) -> Outcome:
    weight, what = matrix.weight, made.dequantised()
    plain = made.quantised if isinstance(made, Scaled) else made
    extra = 16 / matrix.n_out if isinstance(made, Scaled) else 0.0
    kept = what.index_copy(1, top := outliers(matrix), weight[:, top])
    return Outcome(
        plain.scheme.bits,
        plain.scheme.bits_a_weight(matrix.n_out, matrix.n_in) + extra,
        relative(weight - what, weight),
        output_error(matrix.calibration, weight, what),
        output_error(matrix.held_out, weight, what),
        spared=output_error(matrix.held_out, weight, kept),
        alpha=made.alpha if isinstance(made, Scaled) else None,
    )


def outliers(matrix: Matrix) -> Int[Tensor, " channel"]:
    """The 1 % of input channels that are largest on the calibration rows, largest first; one at least."""
    return channel_sizes(matrix).topk(max(1, round(SPARED * matrix.n_in))).indices


def channel_sizes(matrix: Matrix) -> Float[Tensor, " in"]:
    """max |x_j| on the calibration rows."""
    return matrix.calibration.abs().amax(0)


def four_bits(matrix: Matrix, group: int = 128, bits: int = 4) -> dict[str, tuple[float, float]]:
    """By method: (share of the FP32 bytes that is saved, output error on held-out text), asymmetric groups."""
    scheme = Scheme(bits, "group", group)
    found = {"rtn": quantise(matrix.weight, scheme), "gptq": compensated(matrix, [scheme])[0]}
    every = {name: outcome(matrix, one) for name, one in (found | {"awq": scaled(matrix, scheme)}).items()}
    return {name: (1 - one.bits_a_weight / 32, one.held_out) for name, one in every.items()}
