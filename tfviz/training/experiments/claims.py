"""What the article's claims about training are measured by: rates, the two targets of smoothing, norms, dropout."""

from functools import lru_cache
from math import log

import numpy as np
import torch

from tfviz.config import PRESETS
from tfviz.training.experiments.clipping import ClippedRun
from tfviz.training.experiments.subjects import seeded
from tfviz.training.loss import LabelSmoothingLoss, over_all, over_allowed
from tfviz.training.schedule import noam_lr

Numbers = dict[str, float]
D_MODEL, WARMUP = 512, 4000
VOCABULARY, SMOOTHING = 10, 0.1  # few tokens, so that the two targets are seen to differ
PAPER_VOCABULARY = PRESETS["paper-base"].vocab_size
VALUES = 1_000_000  # that dropout is drawn for
CLIPPED_STEPS = 10


@lru_cache
def rates() -> Numbers:
    """The highest of 20,000 rates, and the slopes on logarithmic axes before and after it."""
    steps = np.arange(1, 5 * WARMUP + 1)
    curve = np.array([noam_lr(int(step), D_MODEL, WARMUP) for step in steps])
    top = int(curve.argmax())
    rise, fall = (np.polyfit(np.log(steps[part]), np.log(curve[part]), 1)[0] for part in (slice(top), slice(top, None)))
    formula = (D_MODEL * WARMUP) ** -0.5  # d^-1/2 w^-1/2
    found = {"step": steps[top], "peak": curve[top], "rise": rise, "fall": fall, "warmup": WARMUP, "formula": formula}
    return {name: float(value) for name, value in found.items()}


@lru_cache
def smoothing() -> Numbers:
    """The text's target and the code's; the text's loss beside torch's; its least with the paper's vocabulary, H(q)."""
    text, code = over_all(VOCABULARY, SMOOTHING), over_allowed(VOCABULARY, SMOOTHING)
    paper = over_all(PAPER_VOCABULARY, SMOOTHING)
    apart = max(abs(a - b) for a, b in zip(text, code, strict=True))
    logits = torch.randn(8, VOCABULARY, generator=torch.Generator().manual_seed(0)).double()
    targets = torch.arange(1, 9)
    ours = LabelSmoothingLoss(VOCABULARY, 0, SMOOTHING)(logits, targets)
    torchs = torch.nn.functional.cross_entropy(logits, targets, label_smoothing=SMOOTHING)
    return {
        "torch_off": abs(float(ours - torchs)),
        "apart": apart,
        "text_right": text.right,
        "code_right": code.right,
        "text_other": text.other,
        "code_other": code.other,
        "floor": -paper.right * log(paper.right) - (PAPER_VOCABULARY - 1) * paper.other * log(paper.other),  # nats
        "vocabulary": VOCABULARY,
    }


def clipped(max_norm: float = 1.0) -> list[tuple[float, float]]:
    """Norms before and after, of the first steps of a real run."""
    run = ClippedRun(max_norm)
    return [run.advance().norms for _ in range(CLIPPED_STEPS)]


@lru_cache
def dropped(p: float = 0.1) -> Numbers:
    """torch's own dropout on ones: the share that is 0, and the mean of all."""
    with seeded(0):
        kept = torch.nn.functional.dropout(torch.ones(VALUES), p)
    return {"p": p, "values": VALUES, "share": float((kept == 0).double().mean()), "mean": float(kept.double().mean())}
