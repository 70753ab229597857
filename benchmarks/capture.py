"""What looking costs: a trace against the plain SDPA forward, and against transformers' eager `output_attentions=True`.

Run: python benchmarks/capture.py [--tokens 64 256 512 1024] [--rounds 5]
Times alternate within one run; memory is the allocation peak beyond what was there before, each against plain SDPA.
"""

import argparse
import copy
from statistics import median
from time import perf_counter

import torch

from tfviz.config import MIB, Settings
from tfviz.inference.measure import peak_extra_bytes
from tfviz.introspection.capture import capture
from tfviz.sources.resident import Resident

WORDS = "The animal did not cross the street because it was too tired and the road was wide and full of cars . "


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--tokens", type=int, nargs="+", default=[64, 128, 256, 512, 1024])
    arguments.add_argument("--rounds", type=int, default=5)
    options = arguments.parse_args()
    loaded = Resident(Settings.from_environment()).get("smollm2-135m")
    sdpa, eager = copy.deepcopy(loaded.model), copy.deepcopy(loaded.model)
    sdpa.set_attn_implementation("sdpa")
    eager.set_attn_implementation("eager")
    print(f"{loaded.label}, {loaded.device}, {torch.get_num_threads()} threads, medians of {options.rounds}\n")
    print(f"{'':>7} | {'time, ms':^40} | {'time / plain SDPA':^24} | memory beyond plain SDPA, MiB")
    three = f"{'one layer':>10} {'page':>6} {'eager':>6}"
    print(f"{'tokens':>7} | {'SDPA':>9} {'one layer':>10} {'page':>9} {'eager':>9} | {three} | {three}  eager/one")
    for n in options.tokens:
        text = WORDS * (n // 10 + 1)
        prompt = loaded.prompt(text, limit=n)
        ids = prompt.inputs

        def plain(ids: dict = ids) -> None:
            with torch.inference_mode():
                sdpa(**ids, use_cache=False, logits_to_keep=1)

        def theirs(ids: dict = ids) -> object:
            with torch.inference_mode():
                return eager(**ids, use_cache=False, logits_to_keep=1, output_attentions=True)

        def one(prompt: object = prompt, text: str = text) -> object:
            trace = capture(loaded, prompt, (text, None), layers=[13])
            return trace, trace.attention["self"]

        def page(prompt: object = prompt, text: str = text) -> object:
            trace = capture(loaded, prompt, (text, None), overview=True)
            return trace, trace.stacks["self"].layers[13].weights()

        ways = {"sdpa": plain, "one": one, "page": page, "eager": theirs}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for run in ways.values():
            run()
        for _ in range(options.rounds):
            for name, run in ways.items():
                start = perf_counter()
                run()
                times[name].append(perf_counter() - start)
        ms = {name: 1000 * median(taken) for name, taken in times.items()}
        peak = {name: peak_extra_bytes(run, loaded.device) / MIB for name, run in ways.items()}
        more = {name: peak[name] - peak["sdpa"] for name in ways}
        print(f"{prompt.n_tokens:>7} | {ms['sdpa']:>9.1f} {ms['one']:>10.1f} {ms['page']:>9.1f} {ms['eager']:>9.1f} "
              f"| {ms['one'] / ms['sdpa']:>9.2f}x {ms['page'] / ms['sdpa']:>5.2f}x {ms['eager'] / ms['sdpa']:>5.2f}x "
              f"| {more['one']:>10.1f} {more['page']:>6.1f} {more['eager']:>7.1f} "
              f"{more['eager'] / max(more['one'], 0.1):>9.1f}x")  # fmt: skip


if __name__ == "__main__":
    main()
