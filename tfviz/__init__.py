"""tfviz: see inside a Transformer. `trace`, `generate`, `models`, `measure` load on first use: importing is instant."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfviz.introspection.api import generate, measure, models, trace

__all__ = ["generate", "measure", "models", "trace"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in __all__:
        from tfviz.introspection import api

        return getattr(api, name)
    raise AttributeError(f"module 'tfviz' has no attribute {name!r}")
