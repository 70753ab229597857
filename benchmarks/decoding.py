"""What the KV cache saves: greedy steps of the dates model's shape with it and without, in one run.

Run: python benchmarks/decoding.py [--steps 64] [--rounds 9] [--batch 1 4 16] [--threads 0]
A step's time hardly depends on the weights: random ones, unless the trained model lies in assets/models/dates. Without
the cache the decoder reads everything again at each step; the source is encoded once in both. One row of so small a
model costs mostly operator calls, which no cache can save: with more rows, or beams, the ratio grows.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from tfviz.config import PRESETS, TransformerConfig
from tfviz.inference.device import describe, set_threads
from tfviz.inference.generate import generate
from tfviz.inference.measure import Latency, compare
from tfviz.model import Transformer

SHIPPED = Path(__file__).resolve().parent.parent / "assets" / "models" / "dates" / "model.safetensors"
SOURCE = 24  # tokens: "Mittwoch, 5. März 2025" and a little


def dates_config() -> TransformerConfig:
    """That of the shipped model where there is one, else of its preset."""
    if not SHIPPED.exists():
        return PRESETS["dates"]
    with safe_open(SHIPPED, framework="pt") as stored:
        return TransformerConfig.from_dict(json.loads(stored.metadata()["config"]))


def row(name: str, measured: Latency, steps: int) -> str:
    quartiles = f"{1e3 * measured.low:.0f} to {1e3 * measured.high:.0f}"
    a_step = f"{1e3 * measured.median / steps:.2f} ms a step"
    return f"  {name:<14}{1e3 * measured.median:>8.0f} ms  ({quartiles:<12}) {a_step:>16}"


def decode(model: Transformer, source: Tensor, steps: int, use_cache: bool) -> Tensor:
    """The greedy ids [batch, steps]."""
    stream = generate(model, source, max_new_tokens=steps, use_cache=use_cache, stop_at_end=False)
    return torch.stack([step.ids for step in stream], dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--threads", type=int, default=0, help="0: torch's own choice")
    options = parser.parse_args()
    set_threads(options.threads)
    torch.manual_seed(0)
    config = dates_config()
    model = Transformer(replace(config, max_seq_len=max(config.max_seq_len, options.steps + SOURCE))).eval()
    told = describe(torch.device("cpu"))
    print(f"dates model, {options.steps} greedy steps, {told.name}, {told.threads} threads, torch {torch.__version__}")
    print(f"medians (quartiles) of {options.rounds} runs in alternating order\n")
    for batch in options.batch:
        source = torch.randint(4, config.vocab_size, (batch, SOURCE))
        runs: dict[str, Callable[[], Tensor]] = {
            "with cache": partial(decode, model, source, options.steps, True),
            "without cache": partial(decode, model, source, options.steps, False),
        }
        same = torch.equal(runs["with cache"](), runs["without cache"]())
        measured = compare(runs, options.rounds)
        cached, uncached = measured["with cache"], measured["without cache"]
        print(f"batch {batch}, same tokens: {same}")
        for name, latency in measured.items():
            print(row(name, latency, options.steps))
        low, high = uncached.low / cached.high, uncached.high / cached.low
        print(f"  without / with {uncached.median / cached.median:>7.2f}x     ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
