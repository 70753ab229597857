"""How near two computations of the same numbers must be: measured and derived here, once for every test.

Right programs round differently: another processor, another number of threads, another kernel or a padded row adds the
same summands in another order. Each addition is off by at most eps / 2 of the largest partial sum, so a sum of n terms
by about sqrt(n) eps of it, however small the sum itself comes out. So a difference counts as a share of the largest
number among what is compared, and a share of eps = 2^-23 (FP32) is allowed that leaves room for any order:

    SUM     128 eps = 1.5e-5   one product or a few in a row: 64 eps for 4,096 terms, the longest here, on either side
    MODEL  1024 eps = 1.2e-4   some layers of a model: each adds its own, and a softmax passes on more than it was given

What lies between 0 and 1 (weights, probabilities) is compared as it is: its size is 1. Where two things must differ,
a test asks for a difference at least ten times as large as what rounding may make.
"""

from typing import Any

import numpy as np
import torch

EPS = 2.0**-23
SUM, MODEL = 128 * EPS, 1024 * EPS


def difference(ours: Any, theirs: Any) -> float:
    """The largest difference of two arrays or tensors of one shape, as a share of the largest number in them.

    `theirs` may be one number for all of ours.
    """
    one, other = (np.asarray(_array(values), dtype=np.float64) for values in (ours, theirs))
    assert one.shape == other.shape or other.ndim == 0, (one.shape, other.shape)
    gap, largest = np.abs(one - other).max(initial=0), max(np.abs(one).max(initial=0), np.abs(other).max(initial=0))
    return float(gap / largest) if largest else 0.0


def _array(values: Any) -> Any:
    return values.detach().double().cpu().numpy() if isinstance(values, torch.Tensor) else values
