"""Does INT8 pay on this machine? Speed, weights and agreement against FP32, in one run, for one model on disk.

INT8: weights and activations in 8 bits; INT8 w: the weights only, activations in BF16.

python benchmarks/int8.py [--model FOLDER] [--threads N] [--rounds N]
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from tfviz.config import Settings
from tfviz.inference.device import describe, set_threads
from tfviz.inference.measure import Latency, compare, difference
from tfviz.inference.precision import PRECISIONS, weight_bytes

ROUNDED = ("int8", "int8_weights")
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


def row(name: str, taken: dict[str, Latency]) -> str:
    cells = [f"{1e3 * t.median:.1f} ms ({1e3 * t.low:.1f}-{1e3 * t.high:.1f})" for t in taken.values()]
    ratios = [f"{taken['fp32'].median / t.median:.2f}x" for t in taken.values()]
    return f"{name:<14}" + "".join(f"{cell:>30}{ratio:>7}" for cell, ratio in zip(cells, ratios, strict=True))


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
    models = {"fp32": fp32} | {name: PRECISIONS[name].convert(fp32) for name in ROUNDED}
    texts = {name: tokenizer(" ".join(text.split()), return_tensors="pt").input_ids for name, text in TEXTS.items()}
    long = torch.cat(list(texts.values()), dim=1)[:, :PREFILL]

    print(f"{'':<14}" + "".join(f"{PRECISIONS[name].label + ' median (quartiles)':>30}{'FP32/':>7}" for name in models))
    prefill = compare({name: partial(model, long) for name, model in models.items()}, options.rounds)
    print(row(f"prefill {PREFILL}", prefill))
    steps = {name: Steps(model, long[:, :CONTEXT]) for name, model in models.items()}
    print(row(f"decode at {CONTEXT}", compare(steps, 4 * options.rounds)))
    sizes = [weight_bytes(model) / 2**20 for model in models.values()]
    print(f"{'weights':<14}" + "".join(f"{f'{one:.1f} MiB':>30}{one / sizes[0]:>7.1%}" for one in sizes) + "\n")

    print(f"{'text':<10} {'precision':<10} {'tokens':>6} {'top-1':>7} {'KL(FP32||.)':>12}")
    for text, ids in texts.items():
        judged = ids[:, :JUDGED]
        right = fp32(judged).logits
        for name in ROUNDED:
            apart = difference(right, models[name](judged).logits, is_logits=True)
            print(f"{text:<10} {PRECISIONS[name].label:<10} {judged.shape[1]:>6} {apart.top1:>7.3f} {apart.kl:>12.4f}")


if __name__ == "__main__":
    main()
