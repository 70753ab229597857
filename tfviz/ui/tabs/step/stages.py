"""The stages of the flow in letters and words: those that this model has, in the order in which it computes them."""

from functools import partial

import numpy as np

from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.step.shown import Shown


def stages(shown: Shown, t: Translator) -> list[dict[str, str]]:
    """Those that this model has, in order: letters, shape, name, and the sentence whose {fields} the view fills in."""
    steps, n_key = shown.steps, len(shown.keys)
    d_k, d_v, biased = steps.key.shape[1], steps.value.shape[1], steps.bias is not None
    root = is_root(steps.scale, d_k)
    own = partial(_stage, t, d=d_k, value_dim=d_v, n=n_key, heads=shown.n_heads, scale=f"{steps.scale:.3g}")
    row, vectors = f"1 × {n_key}", f"{n_key} × {d_k}"
    found = []
    if shown.before is not None:
        found.append(own("before", "q, K", vectors, f"before.{shown.change}"))
    letters = {"rotated": "R q, R K", "same": "q, K"}.get(shown.change, "q′, K′")
    found.append(own("vectors", letters, vectors, f"vectors.{shown.change}"))
    found.append(own("raw", "q · k", row))
    found.append(own("scaled", f"÷ √{d_k}" if root else f"× {steps.scale:.3g}", row, "" if root else "times"))
    if steps.softcap is not None:
        found.append(own("capped", f"{steps.softcap:g} tanh", row, cap=f"{steps.softcap:g}"))
    if biased:
        found.append(own("bias", "+ b", row))
    if biased or steps.blocked.any():
        found.append(own("scores", "s" if biased else t("step.flow.mask"), row, "biased" if biased else ""))
    found.append(own("weights", "α = softmax", row))
    found.append(own("values", "V", f"{n_key} × {d_v}"))
    found.append(own("mixed", "α · V", f"{n_key} × {d_v}"))
    found.append(own("sum", "Σ α v", f"1 × {d_v}"))
    if shown.whole is not None:
        features, d_model = shown.whole.joined.shape[1], shown.whole.output.shape[1]
        found.append(own("joined", "[head₀ head₁ … ]", f"{shown.n_heads} × {d_v}", features=features))
        found.append(own("output", t("step.flow.output"), f"1 × {d_model}", features=features, d_model=d_model))
    return found


def _stage(t: Translator, key: str, letters: str, shape: str, variant: str = "", **fields: object) -> dict[str, str]:
    """`variant` names another sentence for the same stage; fields that change with the row stay as they are."""
    live = {
        name: f"{{{name}}}"
        for name in ("query", "other", "raw", "scaled", "before", "bias", "score", "weight", "head", "capped")
    }
    at = f"step.flow.say.{key}" if not variant else f"step.flow.say.{variant if '.' in variant else f'{key}.{variant}'}"
    own = f"step.flow.name.{key}.{variant}"
    name = t(own if t.has(own) else f"step.flow.name.{key}")
    said = {"id": key, "letters": letters, "shape": shape, "name": name, "say": t(at, **live, **fields)}
    if t.has(f"step.flow.say.{key}.blocked"):
        said["say_blocked"] = t(f"step.flow.say.{key}.blocked", **live, **fields)
    return said


def is_root(scale: float, d_k: int) -> bool:
    """Whether the model's scale is 1 / sqrt(d_k)."""
    return bool(np.isclose(scale, d_k**-0.5, rtol=1e-4))
