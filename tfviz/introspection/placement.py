"""How a layer adds its sublayers to the residual stream, read off the numbers: which sum holds?

    pre        mid = x + a,          y = mid + f                 some later step reads mid
    parallel   y = x + a + f                                     nothing reads x + a
    post       mid = norm(x + a),    y = norm(mid + f)

x and y are what the layer read and gave; a and f are what W_O and the down projection gave, a norm of that (Gemma-2) or
a multiple of it (Granite). In an encoder-decoder a third branch c, the cross attention, stands between. A layer that
follows none of the three is "other": its parts are shown, no sum is claimed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Float

from tfviz.introspection.layer_calls import Step
from tfviz.introspection.layer_parts import Parts

Array = np.ndarray
Rows = Float[Array, "pos d_model"]
ROUNDINGS = 3  # of the largest number in a row, by which a sum made in another order may be off
PROBED = 8  # positions on which sums are tried before the one that fits best is checked on all


@dataclass(frozen=True)
class Stream:
    """The residual stream of one layer and what was added to it."""

    pre: Rows
    attention_out: Rows
    mid: Rows
    cross_out: Rows | None
    cross: Rows | None
    feed_forward_out: Rows
    post: Rows
    hidden: Float[Array, "pos d_ff"] | None
    placement: str


def read_stream(parts: Parts) -> Stream | None:
    """None where not even the parts can be told: no W_O, or no output of the feed-forward that fits any sum."""
    return _pre_or_parallel(parts) or _post(parts) or _other(parts)


def sum_error(total: Rows, terms: Sequence[Rows]) -> float:
    """max over positions of |total - sum of terms|, relative to the largest number of that position."""
    gap = np.abs(total - sum(terms)).max(axis=1)
    largest = np.max([np.abs(one).max(axis=1) for one in (total, *terms)], axis=0)
    return float((gap / np.maximum(largest, 1e-30)).max())


def _fits(parts: Parts, total: Rows, terms: Sequence[Rows]) -> bool:
    return sum_error(total, terms) <= ROUNDINGS * parts.call.eps


def _given(parts: Parts, step: Step | None) -> list[Rows]:
    """What a sublayer may add to the stream: its last projection's output, or a norm of it."""
    if step is None or step.after is None:
        return []
    normed = [one.after for one in parts.norms if one.before is step.after and one.after is not None]
    return [step.after, *normed]


def _whole_blocks(parts: Parts) -> list[Rows]:
    """Outputs of the layer's direct parts, for sublayers that end in no linear layer (mixtures of experts)."""
    return [one.after for one in parts.blocks if one.after is not None]


def _pre_or_parallel(parts: Parts) -> Stream | None:
    x, y = _ends(parts)
    attention, cross, down = _given(parts, parts.out(0)), _given(parts, parts.out(1)), _given(parts, parts.down)
    branches = [attention, *([cross] if parts.out(1) else []), down]
    ways = (lambda: branches, lambda: [*branches[:-1], _whole_blocks(parts)], lambda: _scaled(x, y, branches))
    for way, from_down in zip(ways, (True, False, True), strict=True):
        terms = _best_sum(x, y, way())
        if terms is None or not _fits(parts, y, [x, *terms]):
            continue
        a, f, c = terms[0], terms[-1], terms[1] if len(terms) == 3 else None
        mid = _read_later(parts, [x, a])
        after_cross = None if c is None else _read_later(parts, [x, a, c])
        return Stream(
            pre=x,
            attention_out=a,
            mid=x + a if mid is None else mid,
            cross_out=c,
            cross=x + a + c if c is not None and after_cross is None else after_cross,
            feed_forward_out=f,
            post=y,
            hidden=parts.down.before if parts.down is not None and from_down else None,
            placement="parallel" if mid is None else "pre",
        )
    return None


def _scaled(x: Rows, y: Rows, branches: Sequence[Sequence[Rows]]) -> list[list[Rows]]:
    """Each branch times one number (Granite's residual multiplier), by least squares on a few positions."""
    if not all(branches):
        return []
    few = _probed(x)
    columns = np.stack([given[0][few].ravel() for given in branches], axis=1)
    factors = np.linalg.lstsq(columns, (y - x)[few].ravel(), rcond=None)[0]
    return [[given[0] * np.float32(factor)] for given, factor in zip(branches, factors, strict=True)]


def _ends(parts: Parts) -> tuple[Rows, Rows]:
    """What the layer read and what it gave."""
    x, y = parts.call.whole.before, parts.call.whole.after
    assert x is not None and y is not None
    return x, y


def _probed(rows: Rows) -> Array:
    return np.unique(np.linspace(0, len(rows) - 1, PROBED).astype(int))


def _best_sum(x: Rows, y: Rows, branches: Sequence[Sequence[Rows]]) -> tuple[Rows, ...] | None:
    """One output of each branch, such that x plus them comes nearest to y on a few positions."""
    few = _probed(x)
    sums = product(*branches) if branches else ()
    return min(sums, key=lambda terms: sum_error(y[few], [x[few], *(one[few] for one in terms)]), default=None)


def _read_later(parts: Parts, terms: Sequence[Rows]) -> Rows | None:
    """The tensor that is this sum and that a norm or projection of the layer reads."""
    read = [step.before for step in (*parts.norms, *parts.call.of_role("linear"))]
    candidates = {id(one): one for one in read if one is not None and one.shape == terms[0].shape}
    fitting = (one for one in candidates.values() if one is not terms[0] and _fits(parts, one, terms))
    return next(fitting, None)


def _post(parts: Parts) -> Stream | None:
    """x = norm(x + branch), once for each branch."""
    x, y = _ends(parts)
    stream, steps = x, list[tuple[Rows, Rows]]()
    for branch in (parts.out(0), *([parts.out(1)] if parts.out(1) else []), parts.down):
        norm = branch and next((one for one in parts.norms if _reads(parts, one, stream, branch)), None)
        if branch is None or branch.after is None or norm is None or norm.after is None:
            return None
        stream = norm.after
        steps.append((branch.after, stream))
    if not _fits(parts, y, [stream]):
        return None
    (a, mid), (f, _) = steps[0], steps[-1]
    c, after_cross = steps[1] if len(steps) == 3 else (None, None)
    assert parts.down is not None
    return Stream(x, a, mid, c, after_cross, f, y, parts.down.before, "post")


def _reads(parts: Parts, norm: Step, stream: Rows, branch: Step) -> bool:
    """norm reads stream + branch"""
    if norm.before is None or branch.after is None or branch.after.shape != stream.shape:
        return False
    return _fits(parts, norm.before, [stream, branch.after])


def _other(parts: Parts) -> Stream | None:
    x, y = _ends(parts)
    out, cross, down = parts.out(0), parts.out(1), parts.down
    if out is None or out.after is None or down is None or down.after is None:
        return None
    mid = x + out.after
    c = None if cross is None else cross.after
    after_cross = None if c is None else mid + c
    return Stream(x, out.after, mid, c, after_cross, down.after, y, down.before, "other")
