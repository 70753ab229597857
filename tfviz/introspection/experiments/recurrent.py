"""How far apart two tokens are: one attention layer beside an RNN, a GRU and an LSTM of the same width or size.

    RNN         h_t = tanh(W x_t + U h_(t-1) + b)        dh_n/dx_(n-k) is a product of k Jacobians: about rho^k
    attention   o_n = sum over j of a_nj W_o W_v x_j     do_n/dx_(n-k) is one product, whatever k is

(a) The gradient of the last output with respect to every input, of layers that nobody has trained, in double precision.
(b) The time of a pass as n grows. Sources: Hochreiter 1991; Bengio et al. 1994; Pascanu et al. 2013,
https://arxiv.org/abs/1211.5063; the table of path lengths: Vaswani et al. 2017, section 4.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, log, sqrt
from time import perf_counter
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from tfviz.inference.measure import Latency, compare
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.model.multi_head import MultiHeadAttention
from tfviz.registry import choose

RECURRENT: dict[str, tuple[Callable[..., nn.RNNBase], int]] = {  # kind -> the layer, its gates
    "rnn": (nn.RNN, 1),
    "gru": (nn.GRU, 3),
    "lstm": (nn.LSTM, 4),
    "lstm_forget": (nn.LSTM, 4),  # its forget gate starts at sigma(1) = 0.73 instead of sigma(0) = 0.5
}
KINDS = (*RECURRENT, "attention")
TIMED = ("rnn", "gru", "lstm", "attention")  # a bias costs no time
LENGTHS = (64, 128, 256, 512, 1024, 2048)
SEEDS, LONGEST = 9, 256
ROWS = 8  # random inputs and directions that one gradient is the mean of
FORWARD_SECONDS, BACKWARD_SECONDS = 0.5, 1.2  # of one length, once there are rounds enough
ROUNDS = (3, 25)  # at least, at most
KERNEL = 3  # of the convolutions in the table


@dataclass(frozen=True)
class RecurrentSetting:
    """All layers read `width` numbers a token. `equal`: they also give `width`, or have attention's parameters."""

    width: int = 64
    equal: str = "width"  # width | parameters


class Layer(nn.Module):
    """One layer of a kind, [batch, n, width] -> [batch, n, hidden]; its weights as its library draws them."""

    def __init__(self, kind: str, setting: RecurrentSetting, seed: int) -> None:
        super().__init__()
        hidden = hidden_of(kind, setting)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.layer: nn.Module = (
                MultiHeadAttention(setting.width, 1, bias=True)
                if kind == "attention"
                else choose(RECURRENT, kind, "layer")[0](setting.width, hidden, batch_first=True)
            )
        if kind == "lstm_forget":
            into, back = (self.layer.get_parameter(f"bias_{name}_l0") for name in ("ih", "hh"))
            with torch.no_grad():  # gates lie in the order input, forget, cell, output
                into[hidden : 2 * hidden], back[hidden : 2 * hidden] = 1.0, 0.0

    def forward(self, x: Float[Tensor, "batch n width"]) -> Float[Tensor, "batch n hidden"]:
        if isinstance(self.layer, nn.RNNBase):
            outputs, _ = self.layer(x)
            return outputs  # type: ignore[no-any-return]
        return self.layer(x, causal=True)  # type: ignore[no-any-return]


def hidden_of(kind: str, setting: RecurrentSetting) -> int:
    """With equal parameters: the h that solves gates (h^2 + (d + 2) h) = 4 d^2 + 4 d, rounded."""
    choose({"width": 0, "parameters": 0}, setting.equal, "equal")
    d = setting.width
    if kind == "attention" or setting.equal == "width":
        return d
    half, goal = (d + 2) / 2, 4 * d * (d + 1) / RECURRENT[kind][1]
    return max(1, round(sqrt(half**2 + goal) - half))


def parameters_of(kind: str, setting: RecurrentSetting) -> int:
    """Counted, not computed."""
    return sum(one.numel() for one in Layer(kind, setting, 0).parameters())


# ---- gradients


def gradient_by_distance(
    kind: str, setting: RecurrentSetting, longest: int = LONGEST, seed: int = 0
) -> Float[np.ndarray, " distance"]:
    """||d output_n / d x_(n-k)||_F for k = 1 ... longest in a text of longest + 1 random tokens; one layer, one seed.

    With v of unit variance in each of h directions, the mean of ||v^T J||^2 is ||J||_F^2: one pass backwards through
    `ROWS` rows tells all distances at once. In FP64 on the CPU: FP32 ends at 1e-45, an RNN's gradient does not.
    """
    layer, x = _prepared(kind, setting, longest + 1, seed)
    outputs = layer(x)[:, -1]
    generator = torch.Generator().manual_seed(seed + 1)
    v = torch.randn(outputs.shape, generator=generator, dtype=x.dtype)
    (gradient,) = torch.autograd.grad(outputs, x, v)
    norms = gradient.square().sum(-1).mean(0).sqrt()  # [batch, n, width] -> [n]
    return np.asarray(norms.flip(0)[1:].numpy())


def gradient_to_first(
    kind: str, setting: RecurrentSetting, distances: Sequence[int], seed: int = 0
) -> Float[np.ndarray, " distance"]:
    """||d output_(k+1) / d x_1||_F: the first token, seen from a text that ends k tokens later."""
    return np.array([gradient_by_distance(kind, setting, k, seed)[-1] for k in distances])


def _prepared(kind: str, setting: RecurrentSetting, n: int, seed: int) -> tuple[Layer, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, n, setting.width, generator=generator, dtype=torch.float64)
    return Layer(kind, setting, seed).double(), x.requires_grad_()


def powers(longest: int) -> tuple[int, ...]:
    """1, 2, 4 ... and the longest distance itself."""
    return tuple(sorted({*(2**i for i in range(longest.bit_length())), longest}))


def gradients(setting: RecurrentSetting, longest: int, seed: int) -> dict[str, Float[np.ndarray, " distance"]]:
    """One seed's step of the measurement, a job for `Scene.compute`: every kind's gradients by distance, and
    attention's to the first token at the distances of `powers`."""
    with torch.enable_grad(), one_thread():
        found = {kind: gradient_by_distance(kind, setting, longest, seed) for kind in KINDS}
        return found | {"first": gradient_to_first("attention", setting, powers(longest), seed)}


@contextmanager
def one_thread() -> Iterator[None]:
    """For many small products whose time is not what is measured: threads that wait for each other cost more than they
    bring, and on a busy machine twenty times as much."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Decay:
    """gradient = start x per_step^k, least squares on logarithms over the second half of the distances."""

    per_step: float
    start: float


def decay(relative: Float[np.ndarray, " distance"]) -> Decay | None:
    """None where there are fewer than three distances, or where a gradient is 0."""
    k = np.arange(1, len(relative) + 1)[len(relative) // 2 :]
    y = np.asarray(relative, dtype=np.float64)[len(relative) // 2 :]
    if len(k) < 3 or not (y > 0).all():
        return None
    slope, shift = np.polyfit(k, np.log(y), 1)
    return Decay(float(np.exp(slope)), float(np.exp(shift)))


def relative_quartiles(norms: Float[np.ndarray, "seed distance"]) -> Float[np.ndarray, "3 distance"]:
    """(low, median, high) over seeds, each seed relative to its own distance 1."""
    return np.asarray(np.percentile(norms / norms[:, :1], [25, 50, 75], axis=0))


def predicted_decay(setting: RecurrentSetting) -> float:
    """The RNN's decay a step in mean field, for torch's first weights: uniform within 1/sqrt(h), variance 1/(3h).

        q = d/(3h) + 2/(3h) + E[tanh^2(sqrt(q) z)] / 3        rho = sqrt(E[(1 - tanh^2(sqrt(q) z))^2] / 3)

    q: variance of what tanh gets, z: a standard normal, inputs of variance 1. Poole et al. 2016,
    https://arxiv.org/abs/1606.05340; for RNNs Chen et al. 2018, https://arxiv.org/abs/1806.05394
    """
    h, d = hidden_of("rnn", setting), setting.width
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    weights, q = weights / weights.sum(), 0.0
    for _ in range(100):
        q = (d + 2) / (3 * h) + weights @ np.tanh(sqrt(q) * nodes) ** 2 / 3
    return sqrt(weights @ (1 - np.tanh(sqrt(q) * nodes) ** 2) ** 2 / 3)


# ---- time


def times(
    n: int,
    setting: RecurrentSetting,
    backward: bool = False,
    device: str = "cpu",
    kinds: Sequence[str] = TIMED,
    seconds: float | None = None,
) -> dict[str, Latency]:
    """A pass over one text of n tokens in FP32, by kind, in alternating order; with `backward` its gradients as well.

    A job for `Scene.compute`. As many rounds as `seconds` (by default 0.5, with backward 1.2) have room for, 3 to 25.
    """
    x = torch.randn(1, n, setting.width, generator=torch.Generator().manual_seed(0)).to(device)
    fns = {kind: _pass(Layer(kind, setting, 0).to(device), x, backward) for kind in kinds}
    budget = seconds if seconds is not None else BACKWARD_SECONDS if backward else FORWARD_SECONDS
    with attention_call(AttentionCall("flash")):
        once = sum(took.median for took in compare(fns, 1).values())
        end = perf_counter() + 2 * budget  # on a machine that has become busy
        rounds = min(ROUNDS[1], max(ROUNDS[0], int(budget / max(once, 1e-9))))
        return compare(fns, rounds, stop=lambda: perf_counter() > end)


def _pass(layer: Layer, x: Tensor, backward: bool) -> Callable[[], Any]:
    def forward() -> None:
        with torch.no_grad():
            layer(x)

    def both() -> None:
        with torch.enable_grad():
            layer.zero_grad(set_to_none=True)
            layer(x).sum().backward()

    return both if backward else forward


# ---- by the formula


def work(kind: str, setting: RecurrentSetting, n: int) -> int:
    """Multiply-adds of a forward pass: gates n h (d + h), or 4 n d^2 and the n (n + 1) / 2 pairs of a causal layer."""
    d, h = setting.width, hidden_of(kind, setting)
    if kind == "attention":
        return 4 * n * d**2 + n * (n + 1) * d  # a pair is multiplied twice: q.k, and weight times v
    return RECURRENT[kind][1] * n * h * (d + h)


def sequential_steps(kind: str, n: int) -> int:
    """How many steps must wait for the one before."""
    return 1 if kind == "attention" else n


def path_lengths(n: int, kernel: int = KERNEL) -> Mapping[str, int]:
    """The most layers or steps that a signal between any two of n positions passes through."""
    return {
        "attention": 1,
        "recurrent": n - 1,
        "dilated": ceil(log(n, kernel) - 1e-9),
        "convolution": ceil((n - 1) / (kernel - 1)),
    }
