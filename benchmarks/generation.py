"""How fast one text is written: transformers' `generate`, our own loop in three precisions, and our loop traced.

Run: python benchmarks/generation.py [--tokens 64] [--rounds 5] [--threads 1]
Greedy, one row, SmolLM2-135M, every variant in turn in alternating order. A step reads each weight once, so the
memory's read bandwidth, measured in the same run on an array as large as the FP32 weights, sets the limit. `generate`
runs on a model as transformers loads it (its own SDPA attention, no storage of ours); traced means that every step
keeps what its attentions read and the whole distribution of its token through all stages of sampling.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from tfviz.config import Settings
from tfviz.inference.device import describe, set_threads
from tfviz.inference.measure import Latency, compare, latency
from tfviz.introspection.generation import run_steps
from tfviz.introspection.run import Plan
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.flat_decoding import flat_step, one_row_products
from tfviz.sources.locate import locate
from tfviz.sources.resident import Resident

TEXT = "The animal didn't cross the street because it was too tired"
MODEL = "smollm2-135m"
PRECISIONS = ("fp32", "bf16", "int4")
SHARES = {  # what a profiler calls it -> what it is; its own children are counted in
    "linear layers and head": ("mm", "addmm", "_weight_int4pack_mm_for_cpu", "_weight_int8pack_mm"),
    "attention": ("scaled_dot_product_attention",),
    "norms": ("layer_norm", "rms_norm"),
    "RoPE, activation, residual": ("addcmul", "roll", "silu", "mul", "add"),
    "cache writes": ("copy_",),
    "joining outputs": ("cat",),
}


def theirs(model: Any, ids: Tensor, tokens: int) -> list[int]:
    with torch.inference_mode():
        mask = torch.ones_like(ids)
        made = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False
        )
    return made[0, ids.shape[1] :].tolist()


def ours(loaded: LoadedModel, prompt: Prompt, tokens: int) -> list[int]:
    with torch.inference_mode():
        decoding = loaded.decoding(prompt.inputs)
        for _ in range(tokens):
            decoding.append(decoding.logits().argmax(-1))
    return decoding.ids[0, -tokens:].tolist()


def traced(loaded: LoadedModel, prompt: Prompt, tokens: int) -> list[int]:
    return [step.id for step in run_steps(loaded, prompt, Plan(max_new_tokens=tokens))]


def read_bandwidth(n_bytes: int) -> float:
    """Bytes a second at which this many are read, by the best of several sums."""
    array = torch.ones(n_bytes // 4)
    return n_bytes / latency(array.sum, repeats=9, budget=3.0).low


def row(name: str, measured: Latency, tokens: int) -> str:
    per_second = (tokens / seconds for seconds in (measured.median, measured.high, measured.low))
    return "  {:<26}{:>7.1f} tokens/s  ({:.1f} to {:.1f})".format(name, *per_second)


def ratio(name: str, slow: Latency, fast: Latency, target: float) -> str:
    low, high = slow.low / fast.high, slow.high / fast.low
    return f"  {name:<44}{slow.median / fast.median:>6.2f}x  ({low:.2f} to {high:.2f}; wanted {target:.1f}x)"


def where_time_goes(loaded: LoadedModel, prompt: Prompt, steps: int = 12) -> str:
    """Shares of a step's time by the profiler, which itself costs something; the rest is Python and dispatch."""
    decoding, head = loaded.decoding(prompt.inputs), flat_step(loaded)
    assert head is not None, "no written-out step"
    with torch.inference_mode():
        decoding.append(decoding.logits().argmax(-1))
        row = torch.zeros(1, head.norm.weight.shape[0], dtype=head.dtype)
        with one_row_products(head.slow_onednn):
            head_ms = 1e3 * latency(partial(head.head, row), repeats=9).median

        def go_on() -> None:
            decoding.append(decoding.logits().argmax(-1))

        whole = 1e3 * latency(go_on, repeats=steps, budget=10.0).median
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as recorded:
            for _ in range(steps):
                go_on()
    micro = {event.key: event for event in recorded.key_averages()}
    shares = {}
    for part, names in SHARES.items():
        kind = "cpu_time_total" if part in {"attention", "norms"} else "self_cpu_time_total"
        found = (micro.get(f"aten::{name}") for name in names)
        shares[part] = sum(getattr(event, kind) for event in found if event is not None) / steps / 1e3
    shares["views, dispatch and Python"] = max(0.0, whole - sum(shares.values()))
    told = ", ".join(f"{part} {ms:.2f}" for part, ms in shares.items())
    return f"{whole:.2f} ms a step: {told} (the head alone {head_ms:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="0: torch's own choice")
    options = parser.parse_args()
    logging.set_verbosity_error()
    settings = replace(Settings.from_environment(), threads=options.threads, memory_budget=8 * 2**30)
    set_threads(options.threads)
    resident = Resident(settings)
    models = {precision: resident.get(MODEL, precision) for precision in PRECISIONS}
    prompt = models["fp32"].prompt(TEXT)
    ids, folder = prompt.inputs["input_ids"], locate(MODEL, settings, None).folder
    runs: dict[str, Callable[[], list[int]]] = {}
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        plain = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()
        runs[f"generate {precision}"] = partial(theirs, plain, ids, options.tokens)
    for precision, loaded in models.items():
        runs[f"ours {precision}"] = partial(ours, loaded, prompt, options.tokens)
    for precision, loaded in models.items():
        runs[f"ours {precision}, traced"] = partial(traced, loaded, prompt, options.tokens)
    told = describe(torch.device("cpu"))
    print(
        f"{MODEL}, {ids.shape[1]} + {options.tokens} tokens, {told.name}, {told.threads} threads, {torch.__version__}"
    )
    same = runs["generate fp32"]() == runs["ours fp32"]() == runs["ours fp32, traced"]()
    bandwidth = read_bandwidth(models["fp32"].weight_bytes)
    measured = compare(runs, options.rounds)
    bandwidth = max(bandwidth, read_bandwidth(models["fp32"].weight_bytes))
    print(f"medians (quartiles) of {options.rounds} rounds in alternating order; greedy tokens the same: {same}\n")
    for name, taken in measured.items():
        print(row(name, taken, options.tokens))
    print()
    print(ratio("ours / generate, FP32", measured["generate fp32"], measured["ours fp32"], 1.3))
    print(ratio("ours / generate, BF16", measured["generate bf16"], measured["ours bf16"], 1.8))
    print(ratio("ours INT4 / ours FP32", measured["ours fp32"], measured["ours int4"], 2.0))
    for precision in PRECISIONS:
        plain_run, with_trace = measured[f"ours {precision}"], measured[f"ours {precision}, traced"]
        print(ratio(f"traced / untraced, {precision.upper()}", plain_run, with_trace, 0.8))
    print(f"\n  read bandwidth {bandwidth / 1e9:.1f} GB/s; every weight is read once a token:")
    for precision, loaded in models.items():
        limit, reached = bandwidth / loaded.weight_bytes, options.tokens / measured[f"ours {precision}"].median
        size = f"{loaded.weight_bytes / 2**20:.0f} MiB"
        print(f"  {precision.upper()}  {size:>8}, limit {limit:>6.1f} tokens/s, reached {reached / limit:>5.0%}")
        print(f"        {where_time_goes(loaded, prompt)}")


if __name__ == "__main__":
    main()
