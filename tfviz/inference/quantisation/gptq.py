"""GPTQ: the columns of a weight are rounded one after another, and what one got wrong the next ones make up for.

    minimise ||X W^T - X What^T||^2,     H = X^T X / n + λ I,     H^-1 = U^T U  (U upper triangular, Cholesky)
    e_j = (w_j - what_j) / U_jj,         w_k <- w_k - e_j U_jk   for every column k > j

Rows of W do not touch one another, so all are done at once; so are several bit-widths here, since only the loop over
columns costs. A group's scale is found when its first column comes, from the weights as they are by then. With
act-order the columns of the largest H_jj come first, and scales are found beforehand from the original weights, so that
groups stay neighbours.

Frantar et al. 2022, arXiv 2210.17323, algorithm 1; damping and act-order as in its code. With 1,000 rows instead of
its 262,144 the damping λ decides how far the compensation fits those rows only, so that it is chosen on some of them.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfviz.checks import require
from tfviz.inference.quantisation.schemes import Quantised, Scheme, grid, output_error, refuse_odd, same_parts

DAMPING = 0.01  # of the mean of H's diagonal
DAMPINGS = (0.01, 0.03, 0.1, 0.3, 1.0)  # that are tried
HELD_BACK = 4  # one part in so many of the rows
TRIED_ROWS = 128  # of W, which do not touch one another
BLOCK = 128  # columns after which the rest of the matrix is brought up to date


def hessian(x: Float[Tensor, "row in"]) -> Float[Tensor, "in in"]:
    """X^T X / n: half the second derivative of the squared output error, the same for every row of W."""
    refuse_inputs(x)
    found = x.T @ x / max(len(x), 1)
    refuse_inputs(found)  # of activations beyond 1e19 the squares are infinite
    return found


def refuse_inputs(x: Tensor) -> None:
    require(bool(torch.isfinite(x).all()), "activations", "NaN", "speed.quantisation.allowed.finite")


def gptq(
    weight: Float[Tensor, "out in"],
    hessian: Float[Tensor, "in in"],
    schemes: Sequence[Scheme],
    *,
    act_order: bool = False,
    damping: float = DAMPING,
) -> list[Quantised]:
    """The weight in each of these schemes, which differ in their bits only."""
    refuse_odd(weight)
    require(same_parts(schemes), "schemes", len(schemes), "speed.quantisation.allowed.same")
    n_in = weight.shape[1]
    order = hessian.diagonal().argsort(descending=True, stable=True) if act_order else torch.arange(n_in)
    upper = inverse_root(hessian[order][:, order], damping)
    grids = [grid(weight, scheme) for scheme in schemes]
    scale, low = (torch.stack(one) for one in zip(*grids, strict=True))  # [bits, rows, group]
    rest = weight.float()[:, order].repeat(len(schemes), 1, 1)  # [bits, out, in]
    levels = torch.empty_like(rest, dtype=torch.int16)
    width = schemes[0].width(n_in)
    fresh = schemes[0].share == "group" and not act_order
    step = width if fresh else BLOCK
    for start in range(0, n_in, step):
        end = min(start + step, n_in)
        if fresh:
            _find_grids(rest[:, :, start:end], schemes, scale, low, start // width)
        _columns(rest, levels, order, upper, (start, end), schemes, (scale, low), width)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(n_in))
    made = zip(schemes, levels[:, :, back], scale, low, strict=True)
    return [Quantised(scheme, one.contiguous(), s, m) for scheme, one, s, m in made]


def choose_damping(weight: Float[Tensor, "out in"], x: Float[Tensor, "row in"]) -> float:
    """Of DAMPINGS the one that does best, at 4 bits, on the last quarter of the rows when it learns from the others."""
    n = len(x) - len(x) // HELD_BACK
    fitted, other = hessian(x[:n]), x[n:]
    if not len(other):
        return DAMPING
    some, scheme = weight[:: max(1, len(weight) // TRIED_ROWS)], Scheme(4, "channel")
    made = {one: gptq(some, fitted, [scheme], damping=one)[0].dequantised() for one in DAMPINGS}
    return min(DAMPINGS, key=lambda one: output_error(other, some, made[one]))


def inverse_root(hessian: Float[Tensor, "in in"], damping: float = DAMPING) -> Float[Tensor, "in in"]:
    """U with H^-1 = U^T U. A channel that is always zero gets H_jj = 1: it neither errs nor makes up for others.

    More damping, tenfold a time, where the matrix is too near to singular for FP32.
    """
    diagonal = hessian.diagonal()
    dead = diagonal <= 0
    added = torch.where(dead, 1.0, damping * diagonal.mean())
    for _ in range(8):
        lower, failed = torch.linalg.cholesky_ex(hessian + added.diag())
        if not failed:
            inverse = torch.cholesky_inverse(lower)
            upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
            if not failed:
                return upper
        added = added * torch.where(dead, 1.0, 10.0)
    raise AssertionError(f"no Cholesky factor: diagonal {float(diagonal.min())} .. {float(diagonal.max())}")


def _find_grids(
    part: Float[Tensor, "bits out width"], schemes: Sequence[Scheme], scale: Tensor, low: Tensor, group: int
) -> None:
    """The scales of one group, from its weights as they are now."""
    for i, scheme in enumerate(schemes):
        one_scale, one_low = grid(part[i], replace(scheme, group=part.shape[2]))
        scale[i, :, group], low[i, :, group] = one_scale[:, 0], one_low[:, 0]


def _columns(
    rest: Float[Tensor, "bits out in"],
    levels: Tensor,
    order: Int[Tensor, " in"],
    upper: Float[Tensor, "in in"],
    span: tuple[int, int],
    schemes: Sequence[Scheme],
    grids: tuple[Tensor, Tensor],
    width: int,
) -> None:
    """Rounds the columns of one block, and passes on what was wrong: inside it at once, behind it at its end."""
    (start, end), (scale, low) = span, grids
    block = rest[:, :, start:end].permute(2, 0, 1).contiguous()  # [column, bits, out]: a column lies together
    errors = torch.empty_like(block)
    ends = [torch.tensor([getattr(one, name) for one in schemes])[:, None] for name in ("lowest", "highest")]
    groups = (order[start:end] // width).tolist()
    for j, group in enumerate(groups):
        s, m = scale[:, :, group], low[:, :, group]
        w = block[j]
        q = torch.clamp(((w - m) / torch.where(s > 0, s, torch.inf)).round_(), *ends)
        levels[:, :, start + j] = q
        errors[j] = (w - torch.addcmul(m, q, s)) / upper[start + j, start + j]  # e = (w - what) / U_jj
        row = upper[start + j, start + j + 1 : end]
        block[j + 1 :].addcmul_(row[:, None, None], errors[j], value=-1)  # w_k <- w_k - e U_jk
    if end < rest.shape[2]:
        rest[:, :, end:] -= torch.einsum("jbo,jk->bok", errors, upper[start:end, end:])
