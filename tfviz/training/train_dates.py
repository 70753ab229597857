"""Trains the dates model that ships with tfviz: `python -m tfviz.training.train_dates`.

The same seed, thread count and torch release give the same file. No label smoothing: it would teach the model never to
be surer than 0.9 of a token, and the page shows its probabilities.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch

from tfviz.checks import from_to, whole
from tfviz.config import PRESETS
from tfviz.messages import ASSETS
from tfviz.model.transformer import Transformer
from tfviz.training import weights
from tfviz.training.dates import HELD_OUT_DAYS, DateTask
from tfviz.training.evaluate import Score, exact_match
from tfviz.training.loop import Recipe, train

SHIPPED = ASSETS / "models" / "dates" / "model.safetensors"
RECIPE = Recipe(steps=3500, batch_size=128, warmup_steps=400, decay=True, smoothing=0.0, clip_norm=1.0)
DROPOUT = 0.0  # the examples never repeat, so there is nothing to learn by heart


def build(task: DateTask, seed: int) -> Transformer:
    """The preset with the task's vocabulary, its weights drawn from `seed`."""
    torch.manual_seed(seed)
    return Transformer(replace(PRESETS["dates"], vocab_size=len(task.vocabulary), dropout=DROPOUT))


def main(arguments: Sequence[str] | None = None) -> Score:
    """Trains, rounds the weights to FP16, scores what is left on all held-out days, writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=RECIPE.steps)
    parser.add_argument("--out", type=Path, default=SHIPPED)
    parser.add_argument("--seed", type=int, default=RECIPE.seed)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--held-out", type=int, default=HELD_OUT_DAYS, help="how many held-out days to score")
    chosen = parser.parse_args(arguments)
    whole("threads", chosen.threads, 1)
    from_to("held_out", chosen.held_out, 1, HELD_OUT_DAYS)
    recipe = replace(RECIPE, steps=chosen.steps, seed=chosen.seed)
    torch.set_num_threads(chosen.threads)

    start, task = perf_counter(), DateTask()
    model = build(task, recipe.seed)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(task.vocabulary)} characters")
    for record in train(model, task, recipe):
        if record.step % 50 == 0 or record.step == recipe.steps:
            print(
                f"step {record.step:5}  loss {record.loss:.4f}  token accuracy {record.accuracy:.4f}  "
                f"rate {record.learning_rate:.2e}  gradient {record.gradient_norm:.2f}  "
                f"{record.tokens_per_second:,.0f} tokens/s  {perf_counter() - start:.0f} s",
                flush=True,
            )
    halves = weights.rounded(model)
    weights.fill(model, halves)
    score = exact_match(model, task, task.held_out(chosen.held_out))
    weights.write(
        chosen.out,
        halves,
        config=model.config.to_dict(),
        vocabulary=task.vocabulary,
        seed=recipe.seed,
        recipe=recipe.to_dict(),
        data=task.describe(),
        score=score.to_dict(),
    )
    print(f"exact: {score.right:,} of {score.n:,}; by language: {score.by_group}; written to {chosen.out}")
    for example, text in score.wrong[:20]:
        print(f"  {example.group}  {example.source!r}  should be {example.target}, is {text}")
    return score


if __name__ == "__main__":
    main()
