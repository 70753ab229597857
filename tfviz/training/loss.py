"""Cross entropy against a softened target: some of the right token's probability is spread over the others.

    loss = - sum_k q_k log p_k,  averaged over the targets that are neither padding nor ignored

The article disagrees with itself about q. Its text says q = (1 - eps) onehot + eps / |V|, as the paper and torch do:
"all" here, and the default. Its code leaves 1 - eps on the right token and gives eps / (|V| - 2) to every other one
but padding: "allowed" here.
Sources: Vaswani et al. 2017, section 5.4, https://arxiv.org/abs/1706.03762;
Szegedy et al. 2015, section 7, https://arxiv.org/abs/1512.00567
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfviz.checks import at_least, from_below, from_to, require, whole
from tfviz.errors import TfvizError
from tfviz.registry import choose


class Masses(NamedTuple):
    """The target distribution in three numbers: probability of the right token, of each other one, of padding."""

    right: float
    other: float
    padding: float


def over_all(vocab_size: int, smoothing: float) -> Masses:
    """eps is spread over the whole vocabulary, the right token and padding included: torch's `label_smoothing`."""
    share = smoothing / vocab_size
    return Masses(1 - smoothing + share, share, share)


def over_allowed(vocab_size: int, smoothing: float) -> Masses:
    """eps is spread over every token but the right one and padding, which has exactly 0; it takes 3 tokens or more."""
    if smoothing:
        at_least("vocab_size", vocab_size, 3)
    return Masses(1 - smoothing, smoothing / (vocab_size - 2) if smoothing else 0.0, 0.0)


SMOOTHINGS: dict[str, Callable[[int, float], Masses]] = {"all": over_all, "allowed": over_allowed}
IGNORED = -100  # a target that counts for nothing, as in torch's losses


def smoothed_targets(
    targets: Int[Tensor, " n"],
    vocab_size: int,
    smoothing: float = 0.1,
    padding_idx: int = 0,
    over: str = "all",
    ignore_index: int = IGNORED,
) -> Float[Tensor, "n vocab"]:
    """The distributions that the loss compares with, to look at: rows sum to 1; those of padding and of ignored targets
    are all zeros. `TfvizError` for values that the loss refuses too."""
    choose(SMOOTHINGS, over, "smoothing")
    from_below("smoothing", smoothing, 0, 1)
    whole("vocab_size", vocab_size, 1)
    from_to("padding_idx", padding_idx, 0, vocab_size - 1)
    right, other, padding = SMOOTHINGS[over](vocab_size, smoothing)
    real = _counted(targets, vocab_size, padding_idx, ignore_index)
    q = torch.full((len(targets), vocab_size), other, device=targets.device)
    q[:, padding_idx] = padding
    q.scatter_(1, targets.masked_fill(~real, padding_idx)[:, None], right)
    return q.masked_fill_(~real[:, None], 0.0)


def _counted(targets: Int[Tensor, "..."], vocab_size: int, padding_idx: int, ignore_index: int) -> Bool[Tensor, "..."]:
    """Which targets count. `TfvizError` for one that is no token of the vocabulary and is not ignored either."""
    ignored = targets == ignore_index
    odd = targets[~ignored & ((targets < 0) | (targets >= vocab_size))]
    if len(odd):
        allowed = {"last": vocab_size - 1, "ignored": ignore_index}
        require(False, "targets", int(odd[0]), "allowed.target", **allowed)
    return ~ignored & (targets != padding_idx)


class LabelSmoothingLoss(nn.Module):
    """Mean loss over the targets that are neither `padding_idx` nor `ignore_index`, in nats, in FP32 at least; 0 when
    there are none.

    `over` is a key of SMOOTHINGS; "all" equals `nn.CrossEntropyLoss(label_smoothing=, ignore_index=)`. Where
    `vocab_size` is given, logits of another width are refused. `TfvizError` for a smoothing outside [0, 1), and for a
    target outside the vocabulary.
    """

    def __init__(
        self,
        vocab_size: int | None = None,
        padding_idx: int = 0,
        smoothing: float = 0.1,
        over: str = "all",
        ignore_index: int = IGNORED,
    ) -> None:
        super().__init__()
        choose(SMOOTHINGS, over, "smoothing")
        from_below("smoothing", smoothing, 0, 1)
        whole("padding_idx", padding_idx, 0)
        if vocab_size is not None:
            whole("vocab_size", vocab_size, padding_idx + 1)
            SMOOTHINGS[over](vocab_size, smoothing)
        self.vocab_size, self.padding_idx, self.smoothing, self.over = vocab_size, padding_idx, smoothing, over
        self.ignore_index = ignore_index

    def forward(self, logits: Float[Tensor, "... vocab"], targets: Int[Tensor, "..."]) -> Float[Tensor, ""]:
        """logits [batch, target, vocab] or [n, vocab] and targets [batch, target] or [n]."""
        vocab_size, pad = logits.shape[-1], self.padding_idx
        if logits.shape[:-1] != targets.shape:
            raise TfvizError("error.training.loss_shapes", logits=list(logits.shape), targets=list(targets.shape))
        if vocab_size != (self.vocab_size or vocab_size) or vocab_size <= pad:
            raise TfvizError("error.training.loss_vocab", got=vocab_size, expected=self.vocab_size or pad + 1)
        right, other, padding = SMOOTHINGS[self.over](vocab_size, self.smoothing)
        real = _counted(targets, vocab_size, pad, self.ignore_index)
        targets = targets.masked_fill(~real, pad)

        log_p = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
        # - sum_k q_k log p_k, without a table of q; a mass of 0 is left out, so that 0 * log 0 is 0
        own, others = right - other, log_p
        if own <= 0:  # more smoothing than that: where p = 0 the two infinities below would make NaN
            own, others = right, log_p.scatter(-1, targets[..., None], 0.0)
        loss = -own * log_p.gather(-1, targets[..., None])[..., 0]
        if other:
            loss = loss - other * (others[..., :pad].sum(dim=-1) + others[..., pad + 1 :].sum(dim=-1))
        if padding:
            loss = loss - padding * log_p[..., pad]
        return loss.masked_fill(~real, 0.0).sum() / real.sum().clamp(min=1)
