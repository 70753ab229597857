"""Are tfviz's figures what one measures without it? The same pairs in plain PyTorch, in the same process, side by side.

python benchmarks/measurement.py [--threads N] [--repeats N] [--parts kernels,process,model] [--sizes 16,64]

kernels: softmax(Q K^T / sqrt(d)) V written out here, and F.scaled_dot_product_attention, each with a perf_counter loop
         and torch.profiler(profile_memory=True), beside tfviz's kernels.measure. Medians should agree within 10 %,
         peaks within 2 %. Both are repeated in turn, and the ratio is the middle one of neighbours,
         so that what else the machine does falls on both.
process: what one call adds to the VmHWM of a fresh process that has made the call once, against the profiler's peak:
         within 1 MiB; the middle of five processes, and the farthest off.
model:   SmolLM2's prefill of 128 tokens, FP32 and BF16: transformers' module called directly, beside tfviz.measure.
"""

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler otherwise prints two lines a call
SIZES, DTYPES = (16, 64, 256, 1024, 2048), {"fp32": torch.float32, "bf16": torch.bfloat16}
HEADS, DIM = 8, 64
TOKENS = 128
PROCESS_SIZES, PROCESSES = (1024, 2048), 5

# ---- plain PyTorch: nothing of tfviz below


def plain_naive(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    scores = (q / q.shape[-1] ** 0.5) @ k.transpose(-2, -1)
    if causal:
        at = torch.arange(scores.shape[-1])
        scores.masked_fill_(at > at[:, None], float("-inf"))  # the future
    weights = torch.softmax(scores, dim=-1)
    del scores
    return weights @ v


def plain_flash(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


PLAIN: dict[str, Callable[..., Tensor]] = {"naive": plain_naive, "flash": plain_flash}


def plain_arrays(n: int, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, HEADS, n, DIM).to(dtype) for _ in range(3)]


@torch.inference_mode()
def plain_seconds(fn: Callable[[], Any], calls: int = 15, budget: float = 1.0) -> float:
    fn()
    seconds: list[float] = []
    while len(seconds) < 3 or (len(seconds) < calls and sum(seconds) < budget):
        start = time.perf_counter()
        fn()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


@torch.inference_mode()
def plain_peak(fn: Callable[[], Any]) -> int:
    """Highest running sum of the profiler's memory events."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = fn()
    del result
    held = peak = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def plain_prefill(folder: Path, ids: list[int], dtype: torch.dtype) -> Callable[[], Any]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()
    inputs = torch.tensor([ids])
    return lambda: model(input_ids=inputs, attention_mask=torch.ones_like(inputs), use_cache=False).logits


CHILD = """
import ctypes, sys, torch, torch.nn.functional as F
kernel, n, heads, dim = sys.argv[1], *map(int, sys.argv[2:])

def naive(q, k, v):
    return torch.softmax((q / q.shape[-1] ** 0.5) @ k.transpose(-2, -1), dim=-1) @ v

def status(name):
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1]) * 1024

run = naive if kernel == "naive" else F.scaled_dot_product_attention
with torch.inference_mode():
    q, k, v = (torch.randn(1, heads, n, dim) for _ in range(3))
    run(q, k, v)  # libraries, threads, and the buffers that the BLAS keeps, as before every measured call
    ctypes.CDLL(None).malloc_trim(0)
    open("/proc/self/clear_refs", "w").write("5")  # VmHWM starts anew
    before = status("VmRSS")
    out = run(q, k, v)
print(status("VmHWM") - before)
"""


def process_growth(kernel: str, n: int) -> int:
    """VmHWM of a fresh process beyond what it held before the call, bytes."""
    command = [sys.executable, "-c", CHILD, kernel, str(n), str(HEADS), str(DIM)]
    returns = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}  # glibc gives what is freed back at once
    return int(subprocess.run(command, capture_output=True, text=True, check=True, env=returns).stdout)


# ---- beside tfviz


def keep_freed_memory() -> None:
    """glibc gives freed pages back or not by how the heap happens to lie, which alone makes the naive form of 16 MiB
    matrices up to 1.7 times slower, for whoever measures. Here it keeps them; matrices above 32 MiB are always new."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, the largest allowed
        mallopt(-1, 2**30)  # M_TRIM_THRESHOLD


def kernels(repeats: int, sizes: Sequence[int] = SIZES) -> None:
    from tfviz.introspection.experiments.kernels import KernelSetting, measure

    keep_freed_memory()
    title = f"{'dtype':<5} {'mask':<6} {'n':>5} {'kernel':<6}"
    print(f"{title} {'plain ms':>10} {'tfviz ms':>10} {'ratio':>7} {'plain MiB':>11} {'tfviz MiB':>11} {'ratio':>7}")
    off_time, off_memory = [], []
    for dtype, torch_dtype in DTYPES.items():
        for causal in (False, True):
            for n in sizes:
                arrays = plain_arrays(n, torch_dtype)
                calls = {name: partial(fn, *arrays, causal) for name, fn in PLAIN.items()}
                setting = KernelSetting(n, 1, HEADS, DIM, causal, dtype)
                ours: dict[str, list[float]] = {name: [] for name in PLAIN}
                theirs: dict[str, list[float]] = {name: [] for name in PLAIN}
                for turn in range(repeats):
                    for who in ("tfviz", "plain") if turn % 2 else ("plain", "tfviz"):
                        if who == "tfviz":
                            point = measure(setting, "cpu")
                        for name, call in calls.items():
                            if who == "tfviz":
                                ours[name].append(point.latency[name].median)
                            else:
                                theirs[name].append(plain_seconds(call))
                for name, call in calls.items():
                    took = statistics.median(theirs[name]), statistics.median(ours[name])
                    peaks = plain_peak(call), point.peak_bytes[name]
                    off_time.append(paired(theirs[name], ours[name]))
                    off_memory.append(peaks[1] / peaks[0])
                    times = f"{1e3 * took[0]:>10.3f} {1e3 * took[1]:>10.3f} {off_time[-1]:>7.3f}"
                    memory = f"{peaks[0] / 2**20:>11.3f} {peaks[1] / 2**20:>11.3f} {off_memory[-1]:>7.4f}"
                    mask = "causal" if causal else "none"
                    print(f"{dtype:<5} {mask:<6} {n:>5} {name:<6} {times} {memory}", flush=True)
    told("medians", off_time, 0.10)
    told("peaks", off_memory, 0.02)


def paired(theirs: list[float], ours: list[float]) -> float:
    """The middle ratio of medians that were measured one right after the other."""
    return statistics.median(b / a for a, b in zip(theirs, ours, strict=True))


def told(what: str, ratios: list[float], allowed: float) -> None:
    inside = sum(abs(one - 1) <= allowed for one in ratios)
    worst = max(ratios, key=lambda one: abs(one - 1))
    middle = statistics.median(abs(one - 1) for one in ratios)
    print(f"{what}: {inside} of {len(ratios)} within {allowed:.0%}; middle difference {middle:.1%}, worst {worst:.3f}")


def process() -> None:
    print(f"\n{'kernel':<6} {'n':>5} {'profiler MiB':>13} {'VmHWM MiB':>11} {'apart MiB':>10} {'farthest':>9}")
    for name in PLAIN:
        for n in PROCESS_SIZES:
            peak = plain_peak(partial(PLAIN[name], *plain_arrays(n, torch.float32), False))
            found = [process_growth(name, n) for _ in range(PROCESSES)]
            high, farthest = statistics.median(found), max(found, key=lambda one: abs(one - peak))
            row = f"{peak / 2**20:>13.2f} {high / 2**20:>11.2f} {(high - peak) / 2**20:>10.2f}"
            print(f"{name:<6} {n:>5} {row} {(farthest - peak) / 2**20:>9.2f}", flush=True)


def model(repeats: int) -> None:
    import tfviz
    from tfviz.config import Settings

    text = "dog" + " dog" * (TOKENS - 1)
    ids = tfviz.trace(text, model="smollm2-135m").token_ids
    folder = Settings.from_environment().cache / "models" / "smollm2-135m"
    plain = {name: plain_prefill(folder, list(ids), dtype) for name, dtype in DTYPES.items()}
    ours: dict[str, list[float]] = {name: [] for name in DTYPES}
    theirs: dict[str, list[float]] = {name: [] for name in DTYPES}
    peaks = {}
    for turn in range(repeats):
        for who in ("tfviz", "plain") if turn % 2 else ("plain", "tfviz"):
            if who == "plain":
                for name, call in plain.items():
                    theirs[name].append(plain_seconds(call, calls=5, budget=5))
            else:
                table = tfviz.measure(text, kernels=["flash"], precisions=list(DTYPES))
                for name, took, peak in zip(table["precision"], table["seconds"], table["peak_bytes"], strict=True):
                    ours[name].append(float(took))
                    peaks[name] = int(peak)
    print(f"\nSmolLM2, {len(ids)} tokens, fused kernel: transformers' module called directly, beside tfviz.measure")
    median = {name: (statistics.median(theirs[name]), statistics.median(ours[name])) for name in DTYPES}
    for name, (direct, reported) in median.items():
        peak = plain_peak(plain[name])
        times = f"{1e3 * direct:>8.1f} ms {1e3 * reported:>8.1f} ms {reported / direct:>6.3f}"
        print(f"{name:<5} {times}   {peak / 2**20:>7.2f} {peaks[name] / 2**20:>7.2f} MiB {peaks[name] / peak:>7.4f}")
    gains = [median["fp32"][i] / median["bf16"][i] for i in range(2)]
    print(f"FP32 / BF16: {gains[0]:.2f}x directly, {gains[1]:.2f}x by tfviz; apart {gains[1] / gains[0] - 1:+.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=0, help="0: torch's own choice")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--parts", default="kernels,process,model")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="n of the kernels")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, [1, {HEADS}, n, {DIM}]\n")
    sizes = [int(n) for n in options.sizes.split(",")]
    parts: dict[str, Callable[[], None]] = {"kernels": partial(kernels, options.repeats, sizes), "process": process}
    parts["model"] = partial(model, options.repeats)
    for part in options.parts.split(","):
        parts[part]()


if __name__ == "__main__":
    main()
