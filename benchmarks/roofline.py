"""How far a prediction from this machine's limits is off: each part of each model, predicted and measured in one run.

Run: python benchmarks/roofline.py [--models smollm2-135m:fp32 ...] [--n 128] [--threads 0] [--parts]
The limits are measured on random operands (tfviz.inference.roofline_probes), in turn with the model's own passes.
"""

import argparse

from tfviz.inference.device import describe, set_threads
from tfviz.introspection.roofline_parts import count
from tfviz.introspection.roofline_run import Found, run
from tfviz.introspection.workbench import default_workbench

MODELS = (
    "smollm2-135m:fp32", "smollm2-135m:bf16", "smollm2-135m:int8", "minilm-l6:fp32", "dates:fp32", "paper-base:fp32",
)  # fmt: skip
TEXTS = {"dates": "March 5, 2021"}
TEXT = "The animal didn't cross the street because it was too tired"


def row(found: Found, number: int) -> str:
    part = found.counted.parts[number]
    took, predicted, error = found.measured(part), found.predicted(part), found.error(part)
    if took is None or error is None:
        return f"    {part.phase:<8}{part.side:<8}{part.name:<13} not measured"
    work = f"{part.flops / 1e6:>10.1f} MFLOP {part.nbytes / 2**20:>8.2f} MiB"
    return (
        f"    {part.phase:<8}{part.side:<8}{part.name:<13}{work}"
        f"{1e3 * predicted.seconds:>10.3f} ms {1e3 * took.low:>10.3f} ms {100 * error:>+7.1f} %  {predicted.bound}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--n", type=int, default=128)
    parser.add_argument("--threads", type=int, default=0, help="0: torch's own choice")
    parser.add_argument("--parts", action="store_true", help="a line for each part")
    options = parser.parse_args()
    set_threads(options.threads)
    bench = default_workbench()
    told = describe(bench.resident.device)
    print(f"{told.name}, threads {told.threads}; median of |predicted - measured| / measured, at most 25 % wanted\n")
    for name in options.models:
        model, _, precision = name.partition(":")
        loaded = bench.resident.get(model, precision or "fp32")
        prompt = loaded.prompt(TEXTS.get(model, TEXT))
        *_, found = run(loaded, prompt, count(loaded, prompt, options.n))
        assert found.median_error is not None
        print(f"  {name:<20}{100 * found.median_error:>6.1f} %   ({len(found.counted.parts)} parts)", flush=True)
        for phase in found.counted.phases:
            summed, whole, predicted = found.sums(phase.name) or (0.0, 0.0, 0.0)
            whole_pass = (
                f"whole {1e3 * whole:.2f} ms, parts measured {1e3 * summed:.2f}, predicted {1e3 * predicted:.2f}"
            )
            print(f"    {phase.name:<8}n = {phase.n:<6}{whole_pass}")
        if options.parts:
            print("\n".join(row(found, number) for number in range(len(found.counted.parts))))


if __name__ == "__main__":
    main()
