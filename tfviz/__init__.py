"""tfviz: see inside a Transformer. `trace`, `generate`, `models`, `measure` load on first use: importing is instant."""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfviz.introspection.api import generate, measure, models, trace

__all__ = ["generate", "measure", "models", "trace"]
__version__ = "0.1.0"

# How often OpenMP's threads look whether the others are there before they sleep. By itself libgomp looks 300,000 times,
# a few milliseconds: on a busy machine the one that is waited for cannot run meanwhile. Measured by benchmarks/busy.py;
# it must stand in the environment before torch is imported, and whoever set one of the two keeps it.
SPIN_COUNT = 10_000
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)


def __getattr__(name: str) -> Any:
    if name in __all__:
        from tfviz.introspection import api

        return getattr(api, name)
    raise AttributeError(f"module 'tfviz' has no attribute {name!r}")
