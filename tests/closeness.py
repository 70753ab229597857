"""How near two computations of the same numbers must be in a test: as tfviz.inference.rounding derives it.

    assert difference(ours, theirs) < SUM      one product or two, in another order
    assert difference(ours, theirs) < MODEL    some layers of a model

Where two things must differ, a test asks for ten times what rounding may make, or more.
"""

from typing import Any

import numpy as np
import torch

from tfviz.inference import rounding

SUM, MODEL = rounding.once(), rounding.layers()


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
