"""What the article's claims are measured by where no other experiment does it: counts, drawn numbers, short timings.

Each function measures and says nothing about what follows; the rules that judge stand with the page that shows them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch

from tfviz.config import PRESETS
from tfviz.inference.measure import Latency, compare, latency
from tfviz.inference.quantisation import Quantised, Scaled, Scheme, awq, gptq, hessian, output_error, quantise
from tfviz.introspection.experiments.depth import measure_depth
from tfviz.introspection.experiments.heads import projections
from tfviz.introspection.experiments.kernels import KernelSetting, forward_of, inputs_of
from tfviz.introspection.experiments.scaling import QUERIES, sample, standard_error
from tfviz.introspection.filling import draw_fates
from tfviz.model.attention import ScoreRule, attention_weights
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.model.feed_forward import FeedForward
from tfviz.model.multi_head import MultiHeadAttention
from tfviz.model.positions.sinusoidal import frequencies, sinusoidal_encoding
from tfviz.model.probes import probes
from tfviz.model.transformer import Transformer
from tfviz.sources.base import LoadedModel

Numbers = dict[str, float]
PAPER = PRESETS["paper-base"]
MAX_LEN, OFFSETS = 5000, (1, 7, 64, 1024)  # the article's table of positions; distances that are shifted by
KEYS = 4096  # that the drawn queries meet
D_K = 64
DRAWN = 20_000  # tokens that BERT's masking chooses from
LENGTHS = (512, 1024, 2048)
ROUNDS = (3, 9)
MONTHS = "January February March April May June July August September October November December".split()
ANSWER = "1999-12-31"  # so that the model writes none
DATES = tuple(
    f"{day} {month} {year}" for day, month, year in zip(range(1, 29), MONTHS * 3, range(1990, 2018), strict=False)
)
SECONDS = 0.8  # of one timing, once there are rounds enough


# ---- counted on modules without weights, and drawn


@lru_cache
def base() -> Numbers:
    """The paper's base model as it is built here."""
    with torch.device("meta"):
        model = Transformer(PAPER)
    assert model.encoder is not None and model.decoder is not None
    attentions = [one for one in model.modules() if isinstance(one, MultiHeadAttention)]
    networks = [one for one in model.modules() if isinstance(one, FeedForward)]
    rates = {one.p for one in model.modules() if isinstance(one, torch.nn.Dropout)}
    return {
        "d_model": attentions[0].w_q.in_features,
        "d_ff": networks[0].w_1.out_features,
        "heads": attentions[0].n_heads,
        "head_dim": attentions[0].head_dim,
        "encoder": len(model.encoder.layers),
        "decoder": len(model.decoder.layers),
        "dropout": max(rates),
        "parameters": sum(one.numel() for one in model.parameters()),
    }


@lru_cache
def heads() -> Numbers:
    """Parameters of eight heads, of one, and by 4 d_model^2."""
    many, one = (_size(MultiHeadAttention(PAPER.d_model, n)) for n in (PAPER.n_heads, 1))
    width = PAPER.d_model // PAPER.n_heads
    written = sum(m.size for m in projections(PAPER.d_model, PAPER.n_heads, PAPER.n_heads, width, width))
    assert written == many, (written, many)
    return {"many": many, "one": one, "formula": 4 * PAPER.d_model**2}


@lru_cache
def feed_forward() -> Numbers:
    network = FeedForward(PAPER, torch.relu)
    biases = sum(one.numel() for name, one in network.named_parameters() if name.endswith("bias"))
    return {"weights": _size(network) - biases, "biases": biases, "all": _size(network)}


def _size(module: torch.nn.Module) -> int:
    return sum(one.numel() for one in module.parameters())


@lru_cache
def embedding(rows: int = 4096, seed: int = 0) -> Numbers:
    """Root mean squares of rows of an embedding table times sqrt(d_model), and of the positions added to them.

    paper: variance 1 / d_model; xavier: of a [37,000 x 512] table; plain: the paper's without the factor.
    """
    d, draw = PAPER.d_model, np.random.default_rng(seed)
    bound = (6 / (PAPER.vocab_size + d)) ** 0.5  # xavier_uniform_
    xavier = draw.uniform(-bound, bound, (rows, d))
    paper = draw.standard_normal((rows, d)) * d**-0.5
    positions = _positions().numpy()
    return {
        "positions": _rms(positions),
        "paper": _rms(paper * d**0.5),
        "xavier": _rms(xavier * d**0.5),
        "plain": _rms(paper),
    }


def _positions() -> torch.Tensor:
    return sinusoidal_encoding(torch.arange(MAX_LEN)[None], PAPER.d_model)[0]


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values, dtype=np.float64).mean()))


@lru_cache
def unique() -> Numbers:
    """The two nearest of `MAX_LEN` encodings: their distance depends on how far apart the positions are alone."""
    encoding = _positions().double()
    distances = (encoding[1:] - encoding[0]).norm(dim=-1)
    nearest = int(distances.argmin())
    return {"distance": float(distances[nearest]), "offset": nearest + 1, "positions": MAX_LEN}


@lru_cache
def shift() -> Numbers:
    """The largest difference between PE(pos + k) and PE(pos) turned by k, over positions and offsets."""
    encoding = _positions().double()
    sin, cos = encoding[:, 0::2], encoding[:, 1::2]
    worst = 0.0
    for k in OFFSETS:
        turn = k * frequencies(PAPER.d_model).double()
        turned = sin * turn.cos() + cos * turn.sin()  # sin(a + b)
        worst = max(worst, float((turned[:-k] - sin[k:]).abs().max()))
    return {"error": worst}


@lru_cache
def variance(seed: int = 0) -> Numbers:
    """Of q . k for drawn q and k, before and after the division by sqrt(d_k); `error`: standard, as a share."""
    drawn = sample(D_K, KEYS, seed)
    return {
        "d_k": D_K,
        "variance": float(drawn.dots.var(dtype=np.float64)),
        "scaled": float(drawn.scaled.var(dtype=np.float64)),
        "error": standard_error(D_K, KEYS),
        "products": QUERIES * KEYS,
    }


@lru_cache
def weights(n: int = 256) -> Numbers:
    """Rows of the naive form: how far their sums are from 1, what the future gets, how many keys a row sees."""
    q, k, _ = inputs_of(KernelSetting(n, heads=4), "cpu")
    every = attention_weights(q, k)[0]
    past = attention_weights(q, k, rule=ScoreRule(causal=True))[0]
    sums = torch.cat([every.sum(-1), past.sum(-1)])
    seen = (past > 0).sum(-1)
    future = past.triu(1)
    return {
        "sum_off": float((sums - 1).abs().max()),
        "future": float(future.max()),
        "wrong_rows": float((seen != torch.arange(1, n + 1)).any(0).sum()),
        "rows": n,
    }


@lru_cache
def masking(seed: int = 0) -> Numbers:
    """BERT's procedure as the Generate tab draws it, over very many tokens: what becomes of them, as shares of all."""
    fates = draw_fates(range(DRAWN), [0] * DRAWN, 1, range(2, 1000), seed)
    counted = {name: sum(fate.kind == name for fate in fates) / DRAWN for name in ("mask", "random", "kept")}
    shares = {"masked": counted["mask"], "random": counted["random"], "kept": counted["kept"]}
    return {"tokens": DRAWN, "chosen": len(fates) / DRAWN, **shares}


# ---- timed, or too long to be done at once


def start(n_layers: int = 6, d_model: int = 128, seeds: int = 3) -> Numbers:
    """||sublayer(x)|| / ||x|| in a post-norm decoder before its first step, mean over layers and seeds."""
    drawn = [measure_depth("post", n_layers, d_model, seed) for seed in range(seeds)]
    return {name: float(np.mean([getattr(one, name) for one in drawn])) for name in ("attention", "feed_forward")}


def products(n: int, device: str) -> dict[str, Latency]:
    """The naive form's two products alone, and all of it, in turn."""
    q, k, v = inputs_of(KernelSetting(n, causal=False), device)
    with torch.inference_mode():
        square = torch.rand(*q.shape[:3], n, device=q.device)
        out = torch.empty_like(square)
        whole = forward_of("naive", q, k, v, ScoreRule())
        return _compared({"products": partial(_multiply, q, k, v, square, out), "whole": whole})


def _multiply(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, square: torch.Tensor, out: torch.Tensor) -> Any:
    torch.matmul(q, k.transpose(-2, -1), out=out)  # into memory that is there already
    return square @ v


def attention_step(n: int, device: str, heads: int = 8, head_dim: int = 64) -> dict[str, Latency]:
    """Attention of a decode step at `n` tokens: one query against n kept keys, and all n of them again."""
    q, k, v = inputs_of(KernelSetting(n, heads=heads, head_dim=head_dim), device)
    rows = {"cached": q[:, :, -1:], "uncached": q}
    calls = {way: forward_of("naive", some, k, v, ScoreRule(causal=True)) for way, some in rows.items()}
    with torch.inference_mode():
        return {way: latency(call, repeats=25, budget=SECONDS, warmup=2) for way, call in calls.items()}


def _compared(fns: dict[str, Any]) -> dict[str, Latency]:
    once = sum(took.median for took in compare(fns, 1).values())
    return compare(fns, min(ROUNDS[1], max(ROUNDS[0], int(SECONDS / max(once, 1e-9)))))


@dataclass(frozen=True)
class Rounded:
    """A matrix in few bits by one method: error of its output on inputs that it was not fitted to, and bytes saved."""

    bits: int
    method: str  # absmax | gptq | awq
    error: float
    saved: float  # share of FP32's


def rounding(loaded: LoadedModel, bits: Sequence[int] = (8, 4)) -> list[Rounded]:
    """The last feed-forward matrix of an encoder of ours, on what it reads in dates; fitted to every second row."""
    matrix, x = _read_by_last(loaded)
    fitted, held_out = x[0::2], x[1::2]
    found = []
    for one in bits:
        scheme = Scheme(one, group=128)
        gptq_made = gptq(matrix, hessian(fitted), [scheme])[0]
        awq_made = awq(matrix, fitted, scheme)
        made: dict[str, Quantised | Scaled] = {"absmax": quantise(matrix, scheme), "gptq": gptq_made, "awq": awq_made}
        for method, quantised in made.items():
            each = quantised.bits_a_weight() if isinstance(quantised, Scaled) else scheme.bits_a_weight(*matrix.shape)
            error = output_error(held_out, matrix, quantised.dequantised())
            found.append(Rounded(one, method, error, 1 - each / 32))
    return found


def _read_by_last(loaded: LoadedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """(weight [out, in], inputs [row, in]) of the last feed-forward network's second matrix in the encoder."""
    model: Any = loaded.model
    rows = []
    for text in DATES:
        with (
            torch.inference_mode(),
            attention_call(AttentionCall("flash")),
            probes(model, "feed_forward_hidden") as seen,
        ):
            model.encode(loaded.prompt(text, ANSWER).inputs["input_ids"])
        rows.append([*seen.values()][-1].flatten(0, -2).float().cpu())
    network = [one for one in model.encoder.modules() if isinstance(one, FeedForward)][-1]
    return network.w_2.weight.detach().float().cpu(), torch.cat(rows)


def numbers(of: Sequence[str]) -> dict[str, Numbers]:
    """Those that need no button, by name."""
    return {name: EXACT[name]() for name in of}


EXACT = {
    "base": base,
    "heads": heads,
    "feed_forward": feed_forward,
    "embedding": embedding,
    "unique": unique,
    "shift": shift,
    "variance": variance,
    "weights": weights,
    "masking": masking,
}
