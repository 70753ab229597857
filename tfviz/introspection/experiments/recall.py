"""Remembering the first token: what a layer has learned after the same number of steps, by how far back the token lies.

    a  #  #  #  ...  #   ->  a          a: one of `SYMBOLS`;  #: `distance` random tokens of another alphabet

Embedding, one layer of tfviz.introspection.experiments.recurrent, a linear map to the symbols; Adam, always on the CPU.
The task of Hochreiter & Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735, in its smallest form.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tfviz.introspection.experiments.recurrent import KINDS, Layer, RecurrentSetting, hidden_of, one_thread
from tfviz.model.attention_call import AttentionCall, attention_call

SYMBOLS = 8  # guessing is right in one of eight
DISTANCES = (4, 16, 64)
STEPS, AT_ONCE = 200, 50  # of training; in one turn at the device
ROWS, CHECKED, RATE = 32, 512, 3e-3  # texts of a step, texts of the check, Adam's learning rate


class Student(nn.Module):
    """Reads the whole text and answers at its end with the logits of the first token. Keeps its optimizer with it."""

    def __init__(self, kind: str, setting: RecurrentSetting, distance: int, seed: int = 0) -> None:
        super().__init__()
        self.distance, self.steps = distance, 0
        self.generator_seed = seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(2 * SYMBOLS, setting.width)
            self.layer = Layer(kind, setting, seed)
            self.head = nn.Linear(hidden_of(kind, setting), SYMBOLS)
        self.optimizer = torch.optim.Adam(self.parameters(), RATE)

    def forward(self, ids: Int[Tensor, "batch n"]) -> Float[Tensor, "batch symbol"]:
        return self.head(self.layer(self.embedding(ids))[:, -1])  # type: ignore[no-any-return]


def texts(distance: int, rows: int, seed: int) -> Int[Tensor, "rows n"]:
    """`rows` random texts of distance + 1 tokens: a symbol, then tokens that are none."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(0, SYMBOLS, (rows, 1), generator=generator)
    others = torch.randint(SYMBOLS, 2 * SYMBOLS, (rows, distance), generator=generator)
    return torch.cat([first, others], dim=1)


def train(student: Student, steps: int = AT_ONCE) -> Student:
    """So many steps more, each on texts not seen before; a job for `Scene.compute`."""
    with torch.enable_grad(), one_thread(), attention_call(AttentionCall("flash")):
        for _ in range(steps):
            ids = texts(student.distance, ROWS, 1_000_000 * (student.generator_seed + 1) + student.steps)
            loss = F.cross_entropy(student(ids), ids[:, 0])
            student.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            student.optimizer.step()
            student.steps += 1
    return student


def accuracy(student: Student) -> float:
    """Share of `CHECKED` other texts whose first token it names."""
    ids = texts(student.distance, CHECKED, 7)
    with torch.no_grad(), attention_call(AttentionCall("flash")):
        return float((student(ids).argmax(-1) == ids[:, 0]).float().mean())


def students(distances: Sequence[int] = DISTANCES) -> list[tuple[str, int]]:
    """(kind, distance) in the order in which they are taught: near ones first."""
    return [(kind, distance) for distance in distances for kind in KINDS]
