"""What each form of attention costs at one size: wall time, peak memory, and how far its output is from the naive one.

naive: softmax(Q K^T / sqrt(d_k)) V, written out: two matrices of n x n numbers a head are alive at once
flash: torch's fused kernel, whichever its own dispatch takes here (Dao et al. 2022, https://arxiv.org/abs/2205.14135)
flex:  torch's flex_attention, compiled for this machine (Dong et al. 2024, https://arxiv.org/abs/2412.05496)
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from tfviz.inference.measure import Latency, difference, peak_extra_bytes, seconds_of
from tfviz.introspection.experiments import flex
from tfviz.model.attention import ATTENTION_KERNELS, ScoreRule

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
KERNELS = ("naive", "flash", "flex")
ROUNDS = (3, 15)  # measured calls of each kernel: at least, at most
POINT_SECONDS = 2.0  # of measured calls at one size, once there are enough
CHUNK_SECONDS = 0.8  # after which the device is given to others
SHORT, IN_A_ROW = 128, 1024  # up to the one n, calls are made in a row: as many as add up to the other
CHECKED_ROWS = 64  # of the output, where the whole naive one would not fit

Call = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True)
class KernelSetting:
    """One size: q, k and v are random [batch, heads, n, head_dim]; `backward` adds the gradients of all three."""

    n: int
    batch: int = 1
    heads: int = 8
    head_dim: int = 64
    causal: bool = True
    dtype: str = "fp32"
    backward: bool = False

    @property
    def squares(self) -> int:
        """Bytes of one matrix of n x n numbers for every head."""
        return self.batch * self.heads * self.n**2 * DTYPES[self.dtype].itemsize

    @property
    def rows(self) -> int:
        """Bytes of one array like q."""
        return self.batch * self.heads * self.n * self.head_dim * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class KernelPoint:
    """What was measured; by kernel name. A kernel that was not run (too large, not usable) is in no dictionary."""

    setting: KernelSetting
    latency: dict[str, Latency]
    peak_bytes: dict[str, int]  # beyond q, k and v
    max_abs: dict[str, float]  # output against the naive one (its last rows only where that was too large to run)
    backend: dict[str, str]  # flash | efficient | cudnn | math | other, of torch's fused call
    gradient_abs: dict[str, float] = field(default_factory=dict)  # backward: largest difference of any gradient


def naive_bytes(setting: KernelSetting) -> int:
    """Peak of the naive form beyond q, k and v.

    Forward: scores and weights of all heads. Backward: the weights, their gradient and the scores' gradient, with the
    scaled queries, the output and the values' gradient, and the mask; or, with few keys, a little later, when one such
    matrix is left beside five arrays like q.
    """
    if not setting.backward:
        return max(2 * setting.squares, setting.squares + setting.rows)  # 2 B H n^2 bytes of a number
    early = 3 * setting.squares + 3 * setting.rows + setting.causal * setting.n**2
    return max(early, setting.squares + 5 * setting.rows)


def fused_bytes(setting: KernelSetting) -> int:
    """About what a fused kernel needs: its output and a sum for each row; four arrays like q more for gradients."""
    return setting.rows * (6 if setting.backward else 1) + 4 * setting.batch * setting.heads * setting.n


def measure(setting: KernelSetting, device: str, kernels: Sequence[str] = ("naive", "flash")) -> KernelPoint:
    """The whole of one size at once."""
    seconds: dict[str, list[float]] = {}
    while not enough(seconds):
        add(seconds, time_some(setting, device, tuple(kernels), rounds_of(seconds)))
    return look(setting, device, tuple(kernels), seconds)


# ---- its steps, each short enough for others to wait


def rounds_of(seconds: Mapping[str, Sequence[float]]) -> int:
    return min(map(len, seconds.values()), default=0)


def enough(seconds: Mapping[str, Sequence[float]]) -> bool:
    done, least, most = rounds_of(seconds), *ROUNDS
    return done >= most or (done >= least and sum(map(sum, seconds.values())) >= POINT_SECONDS)


def add(seconds: dict[str, list[float]], more: Mapping[str, Sequence[float]]) -> None:
    for name, values in more.items():
        seconds.setdefault(name, []).extend(values)


def time_some(
    setting: KernelSetting, device: str, kernels: Sequence[str], done: int, most: int | None = None
) -> dict[str, list[float]]:
    """Seconds of a few calls of each kernel, in turn, every second round in reverse order; at first uncounted ones.

    A short call counts as the median of several in a row: right after the other kernel's its code and data are in no
    cache, which costs a call of 20 microseconds a third more.
    Until there are `most` rounds with the `done` ones (None: `ROUNDS`), or `CHUNK_SECONDS` are spent.
    """
    most = ROUNDS[1] if most is None else most
    calls = calls_of(setting, device, kernels)
    seconds: dict[str, list[float]] = {name: [] for name in kernels}
    times = IN_A_ROW // setting.n if setting.n <= SHORT else 1
    with graph_mode(setting):
        if not done:
            for call in calls.values():
                call()
        while True:
            for name in list(kernels)[:: -1 if (done + rounds_of(seconds)) % 2 else 1]:
                seconds[name].append(median(seconds_of(calls[name]) for _ in range(times)))
            if done + rounds_of(seconds) >= most or sum(map(sum, seconds.values())) >= CHUNK_SECONDS:
                return seconds


def look(
    setting: KernelSetting, device: str, kernels: Sequence[str], seconds: Mapping[str, Sequence[float]]
) -> KernelPoint:
    """The point of these seconds: one more call of each kernel, for its peak and its output."""
    calls, where = calls_of(setting, device, kernels), torch.device(device)
    outputs: dict[str, tuple[Tensor, ...]] = {}
    with graph_mode(setting):
        peaks = {name: peak_extra_bytes(partial(_kept, outputs, name, call), where) for name, call in calls.items()}
    return KernelPoint(
        setting,
        {name: Latency.of(values) for name, values in seconds.items()},
        peaks,
        _apart(setting, device, outputs),
        {"flash": backend(setting, device)} if "flash" in kernels else {},
        _gradients_apart(outputs) if setting.backward else {},
    )


def _kept(outputs: dict[str, tuple[Tensor, ...]], name: str, call: Call) -> None:
    outputs[name] = call()


def backend(setting: KernelSetting, device: str) -> str:
    """Which kernel torch's fused call takes for such arrays: the answer of the dispatch that it asks itself."""
    q, k, v = inputs_of(setting, device)
    choice = torch._fused_sdp_choice(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=setting.causal)
    names = {SDPBackend.MATH: "math", SDPBackend.FLASH_ATTENTION: "flash", SDPBackend.EFFICIENT_ATTENTION: "efficient"}
    names[SDPBackend.CUDNN_ATTENTION] = "cudnn"
    return {int(one.value): name for one, name in names.items()}.get(int(choice), "other")  # type: ignore[attr-defined]


# ---- the calls


def graph_mode(setting: KernelSetting) -> AbstractContextManager[Any]:
    """Without a graph, unless there are gradients to compute."""
    return nullcontext() if setting.backward else torch.inference_mode()


def inputs_of(setting: KernelSetting, device: str) -> tuple[Tensor, Tensor, Tensor]:
    draw, shape = torch.Generator().manual_seed(setting.n), (setting.batch, setting.heads, setting.n, setting.head_dim)
    made = [torch.randn(shape, generator=draw).to(device, DTYPES[setting.dtype]) for _ in range(3)]
    q, k, v = (one.requires_grad_(setting.backward) for one in made)
    return q, k, v


def calls_of(setting: KernelSetting, device: str, kernels: Sequence[str]) -> dict[str, Call]:
    """What is measured, by kernel: a call gives the output, and with `backward` the gradients of q, k and v.

    Calls are made inside `graph_mode(setting)`.
    """
    q, k, v = inputs_of(setting, device)
    rule = ScoreRule(causal=setting.causal)
    pull = torch.randn(q.shape, generator=torch.Generator().manual_seed(1)).to(q) if setting.backward else None
    calls: dict[str, Call] = {}
    for kernel in kernels:
        if kernel == "flex":
            calls[kernel] = partial(_flex, q, k, v, flex.block_mask(setting.n, setting.causal, device))
        elif pull is not None:
            calls[kernel] = _backward(kernel, q, k, v, rule, pull)
        else:
            calls[kernel] = forward_of(kernel, q, k, v, rule)
    return calls


def _flex(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> tuple[Tensor, ...]:
    return (flex.flex(q, k, v, mask),)


def forward_of(kernel: str, q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule) -> Call:
    """The kernel alone, looked up beforehand and without the checks around it: small sizes take microseconds.

    To be called in inference mode, which a caller enters once for all calls.
    """
    fn = ATTENTION_KERNELS[kernel]
    return lambda: (fn(q, k, v, None, 0.0, rule)[0],)


def _backward(kernel: str, q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule, pull: Tensor) -> Call:
    forward = forward_of(kernel, q, k, v, rule)

    def call() -> tuple[Tensor, ...]:
        (output,) = forward()
        return output.detach(), *torch.autograd.grad(output, (q, k, v), pull)

    return call


def _apart(setting: KernelSetting, device: str, outputs: Mapping[str, tuple[Tensor, ...]]) -> dict[str, float]:
    if "naive" in outputs:
        exact = outputs["naive"][0]
    else:
        q, k, v = (one.detach() for one in inputs_of(setting, device))
        with torch.inference_mode():
            (exact,) = forward_of("naive", q[:, :, -CHECKED_ROWS:], k, v, ScoreRule(causal=setting.causal))()
    rows = exact.shape[2]
    others = {name: one[0][:, :, -rows:] for name, one in outputs.items() if name != "naive"}
    return {name: difference(exact, one, is_logits=False).max_abs for name, one in others.items()}


def _gradients_apart(outputs: Mapping[str, tuple[Tensor, ...]]) -> dict[str, float]:
    if "naive" not in outputs:
        return {}
    others = {name: one for name, one in outputs.items() if name != "naive"}
    pairs = {name: zip(outputs["naive"][1:], one[1:], strict=True) for name, one in others.items()}
    return {name: max(difference(a, b, is_logits=False).max_abs for a, b in pair) for name, pair in pairs.items()}
