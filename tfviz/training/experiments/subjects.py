"""What the experiments are made on: a small Transformer fresh from its seed, and the dates model of tfviz."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, timedelta
from functools import cache

import torch
from torch import Tensor

from tfviz.config import TransformerConfig
from tfviz.model.transformer import Transformer
from tfviz.training import weights
from tfviz.training.loss import LabelSmoothingLoss
from tfviz.training.tasks import Batch, Example, Task
from tfviz.training.train_dates import SHIPPED

MONTHS = "January February March April May June July August September October November December".split()
STYLES = ("{d} {month} {y}", "{month} {d}, {y}", "{d}.{m}.{y}", "{y}年{m}月{d}日")
SMALL = TransformerConfig(
    vocab_size=24, d_model=64, d_ff=256, n_heads=4, n_encoder_layers=1, n_decoder_layers=1, max_seq_len=32, dropout=0.0
)


class PlainDates(Task):
    """Days in a few styles for the shipped model's vocabulary; unlike `DateTask` it needs no Babel."""

    name = "plain dates"

    def __init__(self, vocabulary: tuple[str, ...]) -> None:
        self.vocabulary = vocabulary

    def examples(self, n: int, rng: random.Random) -> list[Example]:
        found = []
        for _ in range(n):
            day = date(1900, 1, 1) + timedelta(days=rng.randrange(73_000))
            written = {"d": day.day, "m": day.month, "y": day.year, "month": MONTHS[day.month - 1]}
            found.append(Example(rng.choice(STYLES).format(**written), day.isoformat()))
        return found

    def held_out(self, n: int, seed: int = 0) -> list[Example]:
        return self.examples(n, random.Random(-1 - seed))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What is random inside comes from `seed`, and nothing outside notices."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def small(vocab_size: int, seed: int = 0) -> Transformer:
    """One encoder and one decoder layer of width 64, no dropout, weights drawn from `seed`."""
    with seeded(seed):
        return Transformer(replace(SMALL, vocab_size=vocab_size))


def dates_task() -> PlainDates:
    return PlainDates(tuple(_checkpoint()[1]["vocabulary"]))


def dates_model(*, trained: bool = True, dropout: float = 0.0, seed: int = 0) -> Transformer:
    """The dates model as it ships, or as it was before its first step; a new one at each call."""
    tensors, metadata = _checkpoint()
    with seeded(seed):
        model = Transformer(replace(TransformerConfig.from_dict(metadata["config"]), dropout=dropout))
    if trained:
        weights.fill(model, tensors)
    return model


def loss_of(model: Transformer, batch: Batch) -> Tensor:
    """Mean cross entropy over the real target tokens."""
    return LabelSmoothingLoss(smoothing=0.0)(model(batch.source, batch.target[:, :-1]), batch.target[:, 1:])


def batch_of(task: Task, n: int, seed: int) -> Batch:
    return task.batch(n, torch.Generator().manual_seed(seed))


@cache
def _checkpoint() -> tuple[dict[str, Tensor], dict]:
    return weights.read(SHIPPED)
