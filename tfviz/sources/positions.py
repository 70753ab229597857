"""What a loaded model has to tell positions apart, read from its config and its weights. Nothing is run.

    added     x + PE(pos)             a table of vectors, learned or filled with sinusoids (or the formula itself)
    turned    (R(m θ) q) . (R(n θ) k)   RoPE's angles θ, one a pair of dimensions
    biased    q.k + b(n - m)          ALiBi's slopes, T5's table of buckets

A model has any of them, several or none. Keys are sides of the model: "self", or "encoder" and "decoder".
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tfviz.model.positions.alibi import Alibi, slopes
from tfviz.model.positions.learned import Learned
from tfviz.model.positions.rope import Rope, angles
from tfviz.model.positions.sinusoidal import Sinusoidal, sinusoidal_encoding
from tfviz.sources.base import LoadedModel
from tfviz.sources.scratch import ScratchModel

COMPUTED_ROWS = 1024  # of an encoding that has no last position


@dataclass(frozen=True)
class Table:
    """Vectors added to the embeddings, one a position."""

    name: str  # of the weights in the model; empty: computed by the formula, no weights
    rows: Float[np.ndarray, "row d_model"]
    positions: int  # how many the model has


@dataclass(frozen=True)
class Angles:
    """RoPE's: how far each pair turns a position."""

    theta: Float[np.ndarray, " pair"]  # radians per position, scaling included; 0: a pair that stands still (Gemma 4)
    grown: float  # the factor by which turned q and k grow (YaRN, LongRoPE)
    base: float | None  # None: not in the config
    scaling: str = "default"  # as the config calls it
    numbers: Mapping[str, float] = field(default_factory=dict)  # of the scaling: factor and so on
    layers: str = ""  # the kind of layers they are for, as the config calls it; empty: all
    pairs: str = ""  # "halves" | "interleaved"; empty: not in the config

    @property
    def turning(self) -> Int[np.ndarray, " turning"]:
        """The numbers of the pairs that turn at all."""
        return np.flatnonzero(self.theta)


@dataclass(frozen=True)
class Buckets:
    """T5's: a learned bias for each group of distances and each head."""

    table: Float[np.ndarray, "bucket head"]
    farthest: int  # distances from here on share the last bucket
    both_sides: bool  # the sign of the distance counts as well


@dataclass(frozen=True)
class PositionFacts:
    """Everything that was found."""

    longest: int | None  # positions that the config names; None: no last one
    tables: Mapping[str, Table] = field(default_factory=dict)
    angles: tuple[Angles, ...] = ()
    buckets: Mapping[str, tuple[Buckets, ...]] = field(default_factory=dict)  # one for all layers, or one for each
    slopes: Float[np.ndarray, " head"] | None = None  # ALiBi's
    kinds: tuple[str, ...] = ()  # of each layer that has angles of its kind, as the config calls it

    def angles_of(self, layer: int, dim: int) -> tuple[Angles, ...]:
        """The sets of angles that may turn a layer's heads of `dim` dimensions: its kind's own, else all that fit."""
        fitting = tuple(one for one in self.angles if 2 * len(one.theta) <= dim)
        kind = self.kinds[layer] if layer < len(self.kinds) else ""
        return tuple(one for one in fitting if one.layers == kind) or fitting

    def buckets_of(self, side: str, layer: int) -> Buckets | None:
        """T5's table of a layer, if the model has any."""
        found = self.buckets.get(side, ())
        return found[min(layer, len(found) - 1)] if found else None


def read(loaded: LoadedModel) -> PositionFacts:
    """The facts of one of ours or one of transformers' models."""
    return _ours(loaded) if isinstance(loaded, ScratchModel) else _theirs(loaded)


def side_of(loaded: LoadedModel, module: nn.Module) -> str:
    """ "self", or which half of an encoder-decoder this module belongs to."""
    if loaded.family != "encoder-decoder":
        return "self"
    return "encoder" if module in loaded.encoder_modules() else "decoder"


def position_tables(loaded: LoadedModel) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """(name, module, rows) of each table of position vectors in one of transformers' models."""
    config: Any = loaded.model.config
    embedding: Any = loaded.model.get_input_embeddings()  # type: ignore[operator]
    widths = {embedding.weight.shape[1], getattr(config, "hidden_size", None)}
    for name, module in loaded.model.named_modules():
        leaf = name.rsplit(".", 1)[-1]
        rows = getattr(module, "weight", None)
        rows = getattr(module, "weights", None) if rows is None else rows  # sinusoids are often a buffer of that name
        named = "position" in leaf or leaf == "wpe"
        if named and isinstance(rows, Tensor) and rows.dim() == 2 and rows.shape[1] in widths:
            yield name, module, rows


# ---- ours


def _ours(loaded: ScratchModel) -> PositionFacts:
    config, model = loaded.transformer.config, loaded.transformer
    stacks = {"encoder": model.encoder, "decoder": model.decoder}
    found = {side: stack.embedding.positions for side, stack in stacks.items() if stack is not None}
    if len(found) == 1:
        found = {"self": next(iter(found.values()))}
    tables: dict[str, Table] = {}
    turned: tuple[Angles, ...] = ()
    for side, scheme in found.items():
        if isinstance(scheme, Learned):
            tables[side] = Table("table", _array(scheme.table.weight), config.max_seq_len)
        if isinstance(scheme, Sinusoidal):
            positions = torch.arange(min(config.max_seq_len, COMPUTED_ROWS))
            rows = sinusoidal_encoding(positions[None], config.d_model)[0]
            tables[side] = Table("", rows.numpy(), config.max_seq_len)
        if isinstance(scheme, Rope) and not turned:
            theta, grown = angles(config.rope_dims or config.width, config.rope_base, config.rope_scaling)
            scaling = config.rope_scaling
            numbers = {} if scaling is None else {"factor": scaling.factor, "original": float(scaling.original)}
            kind = "default" if scaling is None else scaling.kind
            turned = (Angles(theta.numpy(), grown, config.rope_base, kind, numbers, pairs=config.rope_pairs),)
    biased = any(isinstance(scheme, Alibi) for scheme in found.values())
    return PositionFacts(config.max_seq_len, tables, turned, slopes=slopes(config.n_heads).numpy() if biased else None)


# ---- transformers'


def _theirs(loaded: LoadedModel) -> PositionFacts:
    config: Any = loaded.model.config
    tables = {side_of(loaded, m): Table(name, _array(rows), len(rows)) for name, m, rows in position_tables(loaded)}
    longest = getattr(config, "max_position_embeddings", None)
    turned = tuple(_angles(loaded.model))
    named = {one.layers for one in turned}
    layers = getattr(config.get_text_config(), "layer_types", None) or ()
    kinds = tuple(kind for kind in layers if kind in named)  # others have no attention: a state space, a convolution
    return PositionFacts(longest, tables, turned, _buckets(loaded), kinds=kinds)


def _angles(model: nn.Module) -> Iterator[Angles]:
    """Each different set of angles among the buffers; one a kind of layer, or one for all."""
    seen: set[tuple[str, bytes]] = set()
    for name, buffer in model.named_buffers():
        path, _, leaf = name.rpartition(".")
        if leaf.endswith("inv_freq") and not leaf.endswith("original_inv_freq"):
            layers, theta = leaf.removesuffix("inv_freq").rstrip("_"), _array(buffer)
        elif leaf == "embed_positions" and buffer.dim() == 2 and len(buffer) > 1:  # GPT-J: (sin | cos) of each position
            sine, cosine = _array(buffer[1]).reshape(2, -1)
            layers, theta = "", np.arctan2(sine, cosine)
        else:
            continue
        if (layers, theta.tobytes()) not in seen:
            seen.add((layers, theta.tobytes()))
            yield _described(model.get_submodule(path), layers, theta, model)


def _described(rotary: nn.Module, layers: str, theta: np.ndarray, model: nn.Module) -> Angles:
    """The angles with what the config says of them."""
    config: Any = getattr(rotary, "config", None) or model.config
    said: Any = getattr(config, "rope_parameters", None) or {}
    said = said.get(layers, {}) if layers else said
    numbers = {
        name: float(value)
        for name, value in said.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "rope_theta"
    }
    prefix = f"{layers}_" if layers else ""
    return Angles(
        theta=theta,
        grown=float(getattr(rotary, f"{prefix}attention_scaling", 1.0)),
        base=said.get("rope_theta"),
        scaling=str(said.get("rope_type", "default")),
        numbers=numbers,
        layers=layers,
    )


def _buckets(loaded: LoadedModel) -> dict[str, tuple[Buckets, ...]]:
    """T5 keeps one table in the first layer of each stack, UMT5 one in every layer."""
    found: dict[str, tuple[Buckets, ...]] = {}
    for module in loaded.model.modules():
        table: Any = getattr(module, "relative_attention_bias", None)
        if isinstance(table, nn.Embedding):
            farthest = int(getattr(module, "relative_attention_max_distance", 128))
            one = Buckets(_array(table.weight), farthest, not getattr(module, "is_decoder", False))
            side = side_of(loaded, module)
            found[side] = (*found.get(side, ()), one)
    return found


def _array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().float().cpu().numpy()
    return array
