"""How long OpenMP's threads should spin before they sleep: SmolLM2's decode alone and beside other work.

Run: python benchmarks/busy.py [--rounds 5] [--tokens 24] [--load 2] [--spins 300000 1000 ...]   (about 3 minutes)
At the end of each parallel loop a thread spins until the others are there. Alone that is the fastest way to wait. Where
another program has taken a processor, the thread that is waited for does not run, and who spins keeps it from running.
Each setting has a process of its own, as libgomp reads it once; all decode the same text in turn, one at a time, in
alternating order, first alone and then beside --load processes that only count. The ratios are medians of rounds:
a setting's against libgomp's own in the same round.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

ROOT = Path(__file__).resolve().parent.parent
OWN = 300_000  # libgomp's spin count where nothing is set
SPINS = (OWN, 100_000, 30_000, 10_000, 3_000, 1_000, 0)  # 0 is OMP_WAIT_POLICY=PASSIVE
TEXT = "The animal didn't cross the street because it was too tired"
COUNT = "while True: pass"


def work() -> None:
    """One setting's process: for each line of its input it decodes so many tokens, and prints the tokens per second."""
    import torch

    from tfviz.config import Settings
    from tfviz.sources.resident import Resident

    model = Resident(Settings.from_environment({"TFVIZ_DEVICE": "cpu"})).get("smollm2-135m", "fp32")
    prompt = model.prompt(TEXT)
    for line in sys.stdin:
        with torch.inference_mode():
            decoding = model.decoding(prompt.inputs)
            decoding.append(decoding.logits().argmax(-1))  # the prompt, which no decode repeats
            begin = perf_counter()
            for _ in range(int(line)):
                decoding.append(decoding.logits().argmax(-1))
            print(int(line) / (perf_counter() - begin), flush=True)


class Setting:
    """A process that decodes with this spin count, and what it made in every round."""

    def __init__(self, spins: int) -> None:
        unset = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        self.spins, self.made = spins, list[float]()
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker"],
            env={**environment, "PYTHONPATH": str(ROOT), "GOMP_SPINCOUNT": str(spins)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def decode(self, tokens: int) -> float:
        assert self.process.stdin and self.process.stdout
        print(tokens, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


def race(settings: list[Setting], rounds: int, tokens: int) -> None:
    for one in settings:
        one.made = []
    for i in range(rounds):
        for one in settings if i % 2 == 0 else settings[::-1]:
            one.made.append(one.decode(tokens))


def table(settings: list[Setting]) -> None:
    own = settings[0].made
    for one in settings:
        ratios = sorted(ours / theirs for ours, theirs in zip(one.made, own, strict=True))
        print(
            f"  spin count {one.spins:>7,}{median(one.made):>8.2f} tokens/s{median(ratios):>8.2f}x   "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--load", type=int, default=os.cpu_count(), help="processes of other work")
    parser.add_argument("--spins", type=int, nargs="+", default=SPINS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work()
        return
    settings = [Setting(spins) for spins in dict.fromkeys((OWN, *options.spins))]
    others: list[subprocess.Popen[bytes]] = []
    try:
        for one in settings:
            one.decode(2)  # loaded and warm
        busy = os.getloadavg()[0]
        print(f"Alone (the machine's load is {busy:.1f}), against libgomp's own {OWN:,}")
        race(settings, options.rounds, options.tokens)
        table(settings)
        others += [subprocess.Popen([sys.executable, "-c", COUNT]) for _ in range(options.load)]
        print(f"\nBeside {options.load} processes that only count")
        race(settings, options.rounds, options.tokens)
        table(settings)
    finally:
        for process in (*others, *(one.process for one in settings)):
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
