"""The training loop, one record a step: batch, forward, loss, backward, clip, rate, Adam.

Everything random in step k (its batch, its dropout) comes from the seed and k alone. So a run can be stopped after any
step and resumed, and its records and weights are those of a run that was never stopped.
Adam with beta2 = 0.98 and eps = 1e-9: Vaswani et al. 2017, section 5.3, https://arxiv.org/abs/1706.03762
"""

import os
import pickle
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from tfviz.checks import above, at_least, from_below, from_to
from tfviz.errors import TfvizError, UnsupportedHere
from tfviz.model.transformer import Transformer
from tfviz.registry import choose
from tfviz.training.loss import LabelSmoothingLoss
from tfviz.training.schedule import Schedule
from tfviz.training.tasks import Batch, Task

AUTOCAST: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Recipe:
    """Everything that decides how a run goes beside its model and task. `TfvizError` for what makes no sense."""

    steps: int
    batch_size: int = 128  # examples of one optimiser step
    accumulate: int = 1  # parts that a batch is computed in, for less memory; the step is the same
    schedule: str = "noam"  # key of SCHEDULES
    warmup_steps: int = 400
    scale: float = 1.0  # times the schedule
    decay: bool = False  # bring the rate linearly down to 0 over the second half
    smoothing: float = 0.1
    smoothing_over: str = "all"  # key of SMOOTHINGS
    clip_norm: float | None = 1.0  # longest gradient, in the L2 norm over all parameters; None: any
    precision: str = "fp32"  # key of AUTOCAST; weights and optimiser stay FP32
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    seed: int = 0

    def __post_init__(self) -> None:
        at_least("steps", self.steps, 1)
        at_least("batch_size", self.batch_size, 1)
        from_to("accumulate", self.accumulate, 1, self.batch_size)
        self.schedule_for(d_model=1)
        LabelSmoothingLoss(None, 0, self.smoothing, self.smoothing_over)
        if self.clip_norm is not None:
            above("clip_norm", self.clip_norm, 0)
        choose(AUTOCAST, self.precision, "precision")
        for i, beta in enumerate(self.betas, start=1):
            from_below(f"beta{i}", beta, 0, 1)
        above("eps", self.eps, 0)
        from_below("seed", self.seed, 0, 2**31)

    def schedule_for(self, d_model: int) -> Schedule:
        decay = (self.steps // 2, self.steps) if self.decay else None
        return Schedule(d_model, self.warmup_steps, self.scale, decay, self.schedule, total_steps=self.steps)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self) | {"betas": list(self.betas)}


@dataclass(frozen=True)
class Record:
    """What one step was like. Loss and accuracy are those of its batch, before the weights moved."""

    step: int  # from 1
    loss: float  # mean over the real target tokens, in nats, smoothing included
    accuracy: float  # share of the real target tokens whose most likely guess was right
    learning_rate: float
    gradient_norm: float  # before clipping
    seconds: float
    tokens_per_second: float  # tokens of source and target that are not padding


class Run:
    """A model on its way through a recipe: iterate over it for its records, `save` it, `load` it into a fresh one.

    The model must be an encoder-decoder with the task's vocabulary, or it is refused; it is trained where it is,
    and between steps it is in the mode (train or eval) that it was given in.
    """

    def __init__(self, model: Transformer, task: Task, recipe: Recipe) -> None:
        config, words = model.config, len(task.vocabulary)
        if config.family != "encoder-decoder":
            raise TfvizError("error.training.family", family=config.family)
        if min(config.vocab_size, config.target_vocabulary) < words:
            raise TfvizError("error.training.vocabulary", name=task.name, n=words, vocab_size=config.vocab_size)
        self.model, self.task, self.recipe = model, task, recipe
        self.device = next(model.parameters()).device
        if recipe.precision == "fp16" and self.device.type != "cuda":
            raise UnsupportedHere("error.training.fp16", device=self.device.type)
        self.step = 0
        self.schedule = recipe.schedule_for(config.d_model)
        self.loss = LabelSmoothingLoss(None, 0, recipe.smoothing, recipe.smoothing_over)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.0, betas=recipe.betas, eps=recipe.eps)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=recipe.precision == "fp16")

    def __iter__(self) -> Iterator[Record]:
        """Steps until the recipe's last; one may leave at any step and iterate again later."""
        while self.step < self.recipe.steps:
            yield self.advance()

    def advance(self) -> Record:
        """One optimiser step. `TfvizError` if the loss or its gradient is no number: the weights then stay."""
        start, step = perf_counter(), self.step + 1
        seed = self.recipe.seed * 1_000_003 + step
        batch = self.task.batch(self.recipe.batch_size, torch.Generator().manual_seed(seed)).to(self.device)
        was_training = self.model.training
        self.model.train()
        try:
            with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
                torch.manual_seed(seed)  # of the dropout
                loss, right, n_target = self._gradients(batch)
            norm = self._update(step, loss)
        finally:
            self.optimizer.zero_grad(set_to_none=True)
            self.model.train(was_training)
        self.step = step
        seconds = perf_counter() - start
        n_tokens = n_target + int((batch.source != 0).sum())
        return Record(
            step=step,
            loss=loss,
            accuracy=right / n_target,
            learning_rate=self.schedule(step),
            gradient_norm=norm,
            seconds=seconds,
            tokens_per_second=n_tokens / seconds,
        )

    def _gradients(self, batch: Batch) -> tuple[float, int, int]:
        """Adds up the gradients of the batch's parts, each weighted by its share of the real target tokens.

        Gives the batch's mean loss, how many of its target tokens were guessed right, and how many there are.
        """
        dtype = AUTOCAST[self.recipe.precision]
        n_target = int((batch.target[:, 1:] != 0).sum())
        loss, right = torch.zeros((), device=self.device), torch.zeros((), dtype=torch.long, device=self.device)
        for part in batch.chunks(self.recipe.accumulate):
            read, predict = part.target[:, :-1], part.target[:, 1:]
            real = predict != 0
            with torch.autocast(self.device.type, dtype, enabled=dtype is not None):
                logits = self.model(part.source, read)
            part_loss = self.loss(logits, predict) * (real.sum() / n_target)
            self.scaler.scale(part_loss).backward()
            loss += part_loss.detach()
            right += (real & (logits.detach().argmax(-1) == predict)).sum()
        return loss.item(), int(right), n_target

    def _update(self, step: int, loss: float) -> float:
        """Clips, sets the rate, moves the weights; gives the norm before clipping."""
        limit = float("inf") if self.recipe.clip_norm is None else self.recipe.clip_norm
        self.scaler.unscale_(self.optimizer)
        norm: Tensor = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        overflow = self.scaler.is_enabled() and not norm.isfinite()  # the scaler leaves such a step out, and halves
        if not (torch.tensor(loss).isfinite() and (norm.isfinite() or overflow)):
            raise TfvizError("error.training.diverged", step=step, loss=loss)
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule(step)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return norm.item()

    def save(self, path: Path) -> None:
        """All that goes on: weights, optimiser, step, as tensors and plain values. The old file stays meanwhile."""
        state = {
            "step": self.step,
            "recipe": self.recipe.to_dict(),
            "task": self.task.name,
            "config": self.model.config.to_dict(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(path.name + ".part")
        torch.save(state, unfinished)
        os.replace(unfinished, path)

    def load(self, path: Path) -> None:
        """Goes on from where `save` was called. `TfvizError` for a file of another model, task or recipe."""
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
            theirs = state["recipe"] | {"task": state["task"], "config": state["config"]}
        except (OSError, RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError) as error:
            raise TfvizError("error.training.checkpoint", path=path) from error
        ours = self.recipe.to_dict() | {"task": self.task.name, "config": self.model.config.to_dict()}
        different = [name for name in ours if ours[name] != theirs.get(name)]
        if different:
            raise TfvizError("error.training.other_run", path=path, different=", ".join(different))
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.step = state["step"]


def train(model: Transformer, task: Task, recipe: Recipe) -> Iterator[Record]:
    """Trains `model` on `task` step by step; leaving early keeps what was learnt. To stop and resume: `Run`."""
    return iter(Run(model, task, recipe))
