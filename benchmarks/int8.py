"""Does INT8 pay on this machine? Speed, weights and agreement against FP32, in one run, for one model on disk.

python benchmarks/int8.py [--model FOLDER] [--threads N] [--rounds N]
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from tfviz.config import Settings
from tfviz.inference.device import describe, set_threads
from tfviz.inference.measure import Latency, compare, difference
from tfviz.inference.precision import PRECISIONS, weight_bytes

PREFILL, CONTEXT, JUDGED = 128, 96, 96  # tokens
TEXTS = {
    "harbour": """The harbour was quiet when the first boats came back. Women in heavy coats stood along the wall and
counted the masts, as their mothers had done before them. A boy ran down the steps with a rope over his shoulder and
called out the names he could read on the bows. By the time the sun had cleared the hills, most of the catch was already
packed in ice, and the gulls had begun to argue over what was left on the stones. Nobody spoke of the storm, though
everyone had heard it in the night and lain awake listening. Later the wind turned and the smoke from the chimneys came
down over the water.""",
    "ice": """Water expands when it freezes because its molecules arrange themselves in an open lattice that takes up
more room than the liquid did. This is why ice floats, why pipes burst in a cold winter, and why a lake freezes from the
top down rather than from the bottom up. The layer of ice protects the water beneath it from the cold air, so fish can
survive until spring. Most other substances behave in the opposite way and sink as they become solid, which would leave
a pond with no living thing in it by the end of the first hard frost.""",
    "letter": """Dear Margaret, thank you for the books, which arrived on Tuesday without a scratch. I have read the
first two already and lent the third to my neighbour, who promises to give it back before you visit. The garden is doing
well despite the dry weather; the beans are taller than I am and the tomatoes have started to turn. My knee still
complains on the stairs, but the doctor says I should walk more and worry less. Please tell your brother that I found
his old camera in the attic and that it seems to work.""",
    "bridge": """The council voted last night to close the old bridge to cars for two years while the foundations are
repaired. Shop owners on the east side said they had not been asked and feared that customers would go elsewhere. The
mayor answered that engineers had found cracks in three of the five pillars and that waiting any longer would be
dangerous. Buses will be sent over the northern crossing, and a small ferry for people on foot will start in the spring.
The work is expected to cost forty million, a third of which comes from the state.""",
    "bread": """To make a simple loaf of bread you need flour, water, salt and yeast, and above all some patience. Mix
the dry ingredients in a large bowl, add warm water little by little, and work the dough with your hands until it no
longer sticks to the table. Cover it with a cloth and leave it in a warm place for about an hour, or until it has
doubled in size. Press out the air, shape the dough into a ball, and let it rest again while the oven heats. Bake for
thirty-five minutes, then tap the bottom: it should sound hollow.""",
}


class Steps:
    """Decode steps at one length of context: the token that a step appends to the cache is cut off before the next."""

    def __init__(self, model: nn.Module, context: Tensor) -> None:
        self.model, self.token, self.length = model, context[:, -1:], context.shape[1]
        self.cache = model(context, use_cache=True).past_key_values

    def __call__(self) -> None:
        if self.cache.get_seq_length() > self.length:
            self.cache.crop(-1)
        self.model(self.token, cache=self.cache, use_cache=True)


def row(name: str, fp32: Latency, int8: Latency) -> str:
    cells = (f"{1e3 * t.median:8.1f} ms ({1e3 * t.low:.1f}-{1e3 * t.high:.1f})" for t in (fp32, int8))
    return f"{name:<16} {next(cells):<30} {next(cells):<30} {fp32.median / int8.median:5.2f}x"


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Settings.from_environment().cache / "models" / "smollm2-135m")
    parser.add_argument("--threads", type=int, default=0, help="0: torch's own choice")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    set_threads(options.threads)
    told = describe(torch.device("cpu"))
    print(f"{options.model.name} on {told.name}, {told.threads} threads, torch {torch.__version__}\n")

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    fp32 = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32, attn_implementation="sdpa").eval()
    int8 = PRECISIONS["int8"].convert(fp32)
    texts = {name: tokenizer(" ".join(text.split()), return_tensors="pt").input_ids for name, text in TEXTS.items()}
    long = torch.cat(list(texts.values()), dim=1)[:, :PREFILL]

    print(f"{'':<16} {'FP32 median (quartiles)':<30} {'INT8 median (quartiles)':<30} ratio")
    prefill = compare({"fp32": lambda: fp32(long), "int8": lambda: int8(long)}, options.rounds)
    print(row(f"prefill {PREFILL}", **prefill))
    decode = compare(
        {"fp32": Steps(fp32, long[:, :CONTEXT]), "int8": Steps(int8, long[:, :CONTEXT])}, 4 * options.rounds
    )
    print(row(f"decode at {CONTEXT}", **decode))
    sizes = [weight_bytes(model) / 2**20 for model in (fp32, int8)]
    print(f"{'weights':<16} {f'{sizes[0]:8.1f} MiB':<30} {f'{sizes[1]:8.1f} MiB':<30} {sizes[1] / sizes[0]:5.1%}\n")

    print(f"{'text':<10} {'tokens':>6} {'top-1':>7} {'KL(FP32||INT8)':>15}")
    for name, ids in texts.items():
        judged = ids[:, :JUDGED]
        apart = difference(fp32(judged).logits, int8(judged).logits, is_logits=True)
        print(f"{name:<10} {judged.shape[1]:>6} {apart.top1:>7.3f} {apart.kl:>15.4f}")


if __name__ == "__main__":
    main()
