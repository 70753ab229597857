"""What our Transformer costs beside torch's own: paper-base against `nn.Transformer` with the same weights, in one run.

Run: python benchmarks/transformer.py [--rounds 9] [--threads 0]
Forward pass of FP32 in eval and inference mode. torch gets its best: packed projections, the encoder's fast path, no
final norms, no padding to look for, the causal mask as a flag. Both get the same embedding, positions and tied output.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfviz.config import PRESETS, TransformerConfig
from tfviz.inference.device import describe, set_threads
from tfviz.inference.measure import Latency, compare
from tfviz.model import Transformer
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.model.positions.sinusoidal import sinusoidal_encoding

SHAPES = ((8, 128), (1, 1024))  # batch, tokens of source and of target
SPARE_IDS = 3  # padding, start, end: not among the random tokens


class TorchTransformer(nn.Module):
    """The same network assembled from torch's parts; `config` must be post-norm, ReLU, sinusoidal and tied."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.stacks = nn.Transformer(
            config.d_model,
            config.n_heads,
            config.n_encoder_layers,
            config.n_decoder_layers,
            config.d_ff,
            dropout=0.0,
            batch_first=True,
        )
        self.stacks.encoder.norm = self.stacks.decoder.norm = None  # the paper has none behind a post-norm stack
        self.table = nn.Embedding(config.vocab_size, config.d_model)

    def embed(self, ids: Tensor) -> Tensor:
        d_model = self.table.embedding_dim
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        return self.table(ids) * d_model**0.5 + sinusoidal_encoding(positions, d_model)

    def forward(self, source_ids: Tensor, target_ids: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target_ids.shape[1])
        x = self.stacks(self.embed(source_ids), self.embed(target_ids), tgt_mask=causal, tgt_is_causal=True)
        return F.linear(x, self.table.weight)


@torch.no_grad()
def copy_weights(ours: Transformer, theirs: TorchTransformer) -> None:
    """Ours into theirs; biases that only torch has become zero."""
    assert ours.encoder is not None and ours.decoder is not None
    theirs.table.weight.copy_(ours.output.weight)
    stacks = theirs.stacks
    for own, other in zip(ours.encoder.layers, stacks.encoder.layers, strict=True):
        copy_attention(own.attention, other.self_attn)
        copy_rest(own, other, norms={"attention_residual": "norm1", "feed_forward_residual": "norm2"})
    for own, other in zip(ours.decoder.layers, stacks.decoder.layers, strict=True):
        copy_attention(own.attention, other.self_attn)
        copy_attention(own.cross_attention, other.multihead_attn)
        norms = {"attention_residual": "norm1", "cross_residual": "norm2", "feed_forward_residual": "norm3"}
        copy_rest(own, other, norms)


def copy_attention(own: Any, other: Any) -> None:
    other.in_proj_weight.copy_(torch.cat([own.w_q.weight, own.w_k.weight, own.w_v.weight]))
    other.in_proj_bias.zero_()
    other.out_proj.weight.copy_(own.w_o.weight)
    other.out_proj.bias.zero_()


def copy_rest(own: Any, other: Any, norms: dict[str, str]) -> None:
    other.linear1.load_state_dict(own.feed_forward.w_1.state_dict())
    other.linear2.load_state_dict(own.feed_forward.w_2.state_dict())
    for name, name_there in norms.items():
        getattr(other, name_there).load_state_dict(getattr(own, name).norm.state_dict())


def with_kernel(model: Transformer, kernel: str, *ids: Tensor) -> Callable[[], Tensor]:
    def forward() -> Tensor:
        with attention_call(AttentionCall(kernel=kernel)):
            return model(*ids)

    return forward


def row(name: str, measured: Latency, reference: Latency) -> str:
    quartiles = f"{1e3 * measured.low:.0f} to {1e3 * measured.high:.0f}"
    return (
        f"  {name:<14}{1e3 * measured.median:>8.0f} ms  ({quartiles:<12}) {measured.median / reference.median:>6.2f}x"
    )


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=0, help="0: torch's own choice")
    options = parser.parse_args()
    set_threads(options.threads)
    torch.manual_seed(0)
    config = PRESETS["paper-base"]
    ours, theirs = Transformer(config).eval(), TorchTransformer(config).eval()
    copy_weights(ours, theirs)
    told = describe(torch.device("cpu"))
    print(f"paper-base, FP32, {told.name}, {told.threads} threads, torch {torch.__version__}")
    print(f"medians (quartiles) of {options.rounds} runs in alternating order, relative to torch\n")
    for batch, n in SHAPES:
        source, target = (torch.randint(SPARE_IDS, config.vocab_size, (batch, n)) for _ in range(2))
        runs: dict[str, Callable[[], Tensor]] = {
            "torch": partial(theirs, source, target),
            "ours, flash": with_kernel(ours, "flash", source, target),
            "ours, naive": with_kernel(ours, "naive", source, target),
        }
        expected = runs["torch"]()
        apart = {name: float((run() - expected).abs().max()) for name, run in runs.items()}
        measured = compare(runs, options.rounds)
        print(f"[{batch}, {n}] source and target")
        for name, latency in measured.items():
            print(row(name, latency, measured["torch"]), f"  max difference {apart[name]:.1e}")


if __name__ == "__main__":
    main()
