"""What a notebook uses: `tfviz.trace`, `tfviz.models`, `tfviz.measure`. Loaded when one of them is first used."""

from collections.abc import Collection, Sequence
from dataclasses import asdict

import pandas as pd

from tfviz.checks import require, whole
from tfviz.introspection.trace import Trace
from tfviz.introspection.workbench import Request, default_workbench

Text = str | tuple[str, str | None]


def trace(
    text: Text,
    *,
    model: str = "smollm2-135m",
    kernel: str = "flash",
    precision: str = "fp32",
    layers: Collection[int] | None = None,
    overview: bool = False,
) -> Trace:
    """Runs `text` through `model` once and returns what its attentions did.

    `text` may be a (first, second) pair: two sentences for an encoder, source and target for an encoder-decoder.
    `model` is a catalog name, a hub id or a local folder. `kernel`: naive | flash. `precision`: fp32 | fp16 | bf16 |
    int8. `layers` keeps only those (None: all); `overview` adds 24 x 24 thumbnails of every head. An error is a
    `ValueError` that says in one sentence what is wrong and what is allowed.
    """
    request = _request(text, model, kernel, precision)
    return default_workbench().trace(request, layers=layers, overview=overview, memory=True)[1]


def models() -> pd.DataFrame:
    """The catalog: id, family, size, and where each model would come from (disk, wheel or hub)."""
    from tfviz.sources.catalog import CATALOG
    from tfviz.sources.locate import where

    settings = default_workbench().settings
    rows = [
        {
            "id": entry.id,
            "label": entry.label,
            "family": entry.family,
            "parameters": entry.parameters,
            "n_layers": entry.n_layers,
            "n_heads": entry.n_heads,
            "license": entry.license,
            "from": where(entry, settings),
        }
        for entry in CATALOG.values()
    ]
    table = pd.DataFrame(rows)
    table.insert(len(rows[0]), "on_disk", table["from"] == "disk")
    return table


def measure(
    text: Text,
    *,
    model: str = "smollm2-135m",
    kernels: Sequence[str] = ("naive", "flash"),
    precisions: Sequence[str] = ("fp32", "fp16", "bf16", "int8"),
    repeats: int = 5,
) -> pd.DataFrame:
    """Every kernel with every precision on this text and machine, one row each.

    Seconds are medians with quartiles of warm forward passes; `speedup` is against the first row; `max_abs`, `top1` and
    `kl` compare the outputs with FP32 naive (the latter two only where the model has an output head).
    """
    whole("repeats", repeats, 1)
    for name, chosen in (("kernels", kernels), ("precisions", precisions)):
        require(len(chosen) > 0, name, list(chosen), "allowed.some")
    bench = default_workbench()
    trace_id, _ = bench.trace(_request(text, model, kernels[0], precisions[0]), layers=(0,))
    rows = []
    for precision in precisions:
        for kernel in kernels:
            result = bench.measure(trace_id, kernel, precision, repeats=repeats)
            assert result is not None, "the trace was made a moment ago"
            rows.append(
                {"kernel": kernel, "precision": precision, "seconds": result.latency.median}
                | {"low": result.latency.low, "high": result.latency.high, "runs": result.latency.runs}
                | {"peak_bytes": result.peak_bytes, "weight_bytes": result.weight_bytes}
                | asdict(result.difference)
            )
    table = pd.DataFrame(rows)
    table.insert(3, "speedup", table["seconds"].iloc[0] / table["seconds"])
    return table


def _request(text: Text, model: str, kernel: str, precision: str) -> Request:
    pair = (text, None) if isinstance(text, str) else text
    texts = isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)
    require(texts and isinstance(pair[1], str | None), "text", text, "allowed.text")
    first, second = pair
    return Request(first, second or None, model, kernel, precision)
