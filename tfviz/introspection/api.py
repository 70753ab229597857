"""What a notebook uses: `tfviz.trace`, `generate`, `models`, `measure`. Loaded when one of them is first used."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict

import pandas as pd

from tfviz.checks import require, whole
from tfviz.errors import BadText, WrongModel
from tfviz.inference.sampling import Sampling
from tfviz.introspection.generation import run_steps
from tfviz.introspection.run import Plan, TokenStep
from tfviz.introspection.trace import Trace
from tfviz.introspection.workbench import Request, Workbench, default_workbench

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
    int8_weights | int8 (activations too) | int4. `layers` keeps only those (None: all); `overview` adds 24 x 24
    thumbnails of every head. An error is a `ValueError` that says in one sentence what is wrong and what is allowed.
    """
    request = _request(text, model, kernel, precision)
    return default_workbench().trace(request, layers=layers, overview=overview, memory=True)[1]


def generate(
    prompt: str,
    *,
    model: str = "smollm2-135m",
    kernel: str = "flash",
    precision: str = "fp32",
    max_new_tokens: int = 24,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    use_cache: bool = True,
    seed: int = 0,
    chat: bool = False,
) -> Iterator[TokenStep]:
    """Goes on from `prompt` token by token; each step comes out as soon as it is computed.

    A step has the token, its probability over the whole vocabulary and what every setting made of it (`step.top`), its
    entropy and surprise in nats, the text so far, seconds and cache bytes. Temperature 0 takes the most probable token;
    else the same `seed` gives the same text. An encoder-decoder reads `prompt` as its source. `chat` puts it into the
    model's chat template. An error is a `ValueError` in one sentence, before the first step where that can be known.
    """
    for name, given in (("prompt", prompt), ("model", model)):
        require(isinstance(given, str), name, given, "allowed.one_text")
    plan = Plan(
        max_new_tokens=max_new_tokens,
        sampling=Sampling(temperature, top_k, top_p, min_p, repetition_penalty),
        seed=seed,
        use_cache=use_cache,
        kernel=kernel,
        chat=chat,
    )
    bench = default_workbench()
    loaded = bench.resident.get(model, precision)
    if loaded.family == "encoder" or not loaded.has_logits:
        raise WrongModel("error.no_generation", model=loaded.label)
    target = prompt if loaded.family == "encoder-decoder" else None  # typed, so that it need not be written: unused
    read = loaded.prompt(prompt, target)
    if read.source.total > read.n_tokens:
        raise BadText("error.generation.too_long", model=loaded.label, n=read.source.total, limit=read.n_tokens)
    return _in_turns(bench, run_steps(loaded, read, plan, record=False))


def _in_turns(bench: Workbench, steps: Iterator[TokenStep]) -> Iterator[TokenStep]:
    """Between two steps the device is free for others."""
    while True:
        with bench.gate.turn():
            step = next(steps)
        yield step
        if step.stopped is not None:
            return


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
    precisions: Sequence[str] = ("fp32", "fp16", "bf16", "int8_weights", "int8", "int4"),
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
    require(isinstance(model, str), "model", model, "allowed.one_text")
    first, second = pair
    return Request(first, second or None, model, kernel, precision)
