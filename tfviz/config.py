"""What is chosen before anything runs: the shape of a Transformer of ours (`TransformerConfig`, `PRESETS`), and the
settings of a running tfviz, read once from TFVIZ_* environment variables (README lists them).
"""

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from tfviz.checks import above, divides, from_below, is_number, is_whole, require, whole
from tfviz.errors import Phrase, TfvizError

MIB = 1024 * 1024


@dataclass(frozen=True)
class RopeScaling:
    """How RoPE is stretched beyond the length it was trained on, `original` positions, by `factor`.

    `linear`: positions are divided (arXiv 2306.15595); `ntk`: the base grows, so that fast dimensions stay and slow
    ones are stretched; `yarn`: each dimension by its wavelength, and scores sharpened a little (arXiv 2309.00071).
    """

    kind: str  # a key of tfviz.model.positions.rope.SCALINGS
    factor: float
    original: int = 2048
    fast: float = 32.0  # yarn: dimensions that turn at least so often within `original` stay as they are
    slow: float = 1.0  # yarn: dimensions that turn at most so often are stretched in full

    @property
    def possible(self) -> bool:
        """Whether its numbers are numbers and make sense; which kinds there are is known to tfviz.model only."""
        numbers = isinstance(self.kind, str) and all(map(is_number, (self.factor, self.fast, self.slow)))
        return numbers and self.factor >= 1 and is_whole(self.original, 1) and self.fast > self.slow > 0


@dataclass(frozen=True)
class TransformerConfig:
    """The shape of one Transformer, refused with name, value and what is allowed if it makes no sense.

    Without decoder layers it is an encoder (BERT), without encoder layers a decoder (GPT). The defaults are the base
    model of the paper, arXiv 1706.03762, table 3, apart from the vocabulary.
    """

    vocab_size: int  # of the source; of the target too unless that is given
    target_vocab_size: int | None = None
    d_model: int = 512
    d_ff: int = 2048
    n_heads: int = 8
    n_kv_heads: int | None = None  # None: as many as query heads; fewer: grouped-query attention; 1: multi-query
    head_dim: int | None = None  # None: d_model / n_heads
    n_encoder_layers: int = 6
    n_decoder_layers: int = 6
    max_seq_len: int = 512
    dropout: float = 0.1
    positions: str = "sinusoidal"  # sinusoidal | learned | rope | alibi | none
    norm: str = "layer_norm"  # layer_norm | rms_norm
    norm_eps: float = 1e-5
    placement: str = "post"  # post (the paper) | pre
    feed_forward: str = "relu"  # relu | gelu | gelu_tanh | swiglu
    attention_bias: bool = False
    feed_forward_bias: bool = True
    tie_embeddings: bool = True  # one matrix for encoder, decoder and output, as far as vocabularies are shared
    scale_embedding: bool = True  # times sqrt(d_model)
    embedding_norm: bool = False  # a norm after embedding and positions (BERT)
    window: int | None = None  # self attention sees this many tokens (itself counted) on each side it may look to
    rope_base: float = 10000.0
    rope_dims: int | None = None  # dimensions of a head that are rotated; None: all
    rope_pairs: Literal["halves", "interleaved"] = "halves"
    rope_scaling: RopeScaling | None = None
    pad_id: int | None = 0  # None: nothing is padding
    start_id: int = 1
    end_id: int = 2

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "d_ff", "n_heads", "max_seq_len"):
            whole(name, getattr(self, name), 1)
        for name in ("target_vocab_size", "n_kv_heads", "head_dim", "window", "rope_dims"):
            value = getattr(self, name)
            require(value is None or is_whole(value, 1), name, value, "allowed.whole_or_none", low=1)
        for name in ("n_encoder_layers", "n_decoder_layers"):
            whole(name, getattr(self, name), 0)
        for name in ("attention_bias", "feed_forward_bias", "tie_embeddings", "scale_embedding", "embedding_norm"):
            require(isinstance(getattr(self, name), bool), name, getattr(self, name), "allowed.flag")
        for name in ("positions", "norm", "feed_forward"):
            require(isinstance(getattr(self, name), str), name, getattr(self, name), "allowed.name")
        from_below("dropout", self.dropout, 0, 1)
        above("norm_eps", self.norm_eps, 0)
        _either("placement", self.placement, "pre", "post")
        some = self.n_encoder_layers + self.n_decoder_layers > 0
        require(some, "n_decoder_layers", self.n_decoder_layers, "allowed.some_layer")
        no_target = self.n_decoder_layers > 0 or self.target_vocab_size is None
        require(no_target, "target_vocab_size", self.target_vocab_size, "allowed.no_target_vocabulary")
        if self.head_dim is None:
            divides("n_heads", self.n_heads, "d_model", self.d_model)
        divides("n_kv_heads", self.kv_heads, "n_heads", self.n_heads)
        if self.positions == "rope":
            self._check_rope()
        last = min(self.vocab_size, self.target_vocabulary) - 1
        for name in ("pad_id", "start_id", "end_id"):
            value = getattr(self, name)
            holds = (name == "pad_id" and value is None) or (is_whole(value, 0) and value <= last)
            require(holds, name, value, "allowed.id", last=last)
        apart = self.pad_id not in {self.start_id, self.end_id}
        require(apart, "pad_id", self.pad_id, "allowed.no_other_duty")

    def _check_rope(self) -> None:
        above("rope_base", self.rope_base, 1)
        _either("rope_pairs", self.rope_pairs, "halves", "interleaved")
        if self.rope_dims is None:
            require(self.width % 2 == 0, "head_dim", self.width, "allowed.even")
        else:
            fits = 2 <= self.rope_dims <= self.width and self.rope_dims % 2 == 0
            require(fits, "rope_dims", self.rope_dims, "allowed.even_to", high=self.width)
        scaling = self.rope_scaling
        possible = scaling is None or (isinstance(scaling, RopeScaling) and scaling.possible)
        require(possible, "rope_scaling", scaling, "allowed.rope_scaling")

    @property
    def family(self) -> str:
        """encoder-decoder | encoder | decoder."""
        if self.n_encoder_layers and self.n_decoder_layers:
            return "encoder-decoder"
        return "encoder" if self.n_encoder_layers else "decoder"

    @property
    def target_vocabulary(self) -> int:
        return self.vocab_size if self.target_vocab_size is None else self.target_vocab_size

    @property
    def kv_heads(self) -> int:
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def width(self) -> int:
        """Dimensions of one head."""
        return self.d_model // self.n_heads if self.head_dim is None else self.head_dim

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold, and `from_dict` reads again."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TransformerConfig":
        """`TfvizError` for a field that does not exist, or no vocab_size."""
        scaling = values.get("rope_scaling")
        if isinstance(scaling, Mapping):
            _refuse_unknown(RopeScaling, scaling)
            scaling = RopeScaling(**{"kind": None, "factor": None, **scaling})
        _refuse_unknown(cls, values)
        return cls(**{"vocab_size": None, **values, "rope_scaling": scaling})


def _refuse_unknown(kind: type, values: Mapping[str, Any]) -> None:
    known = {field.name for field in fields(kind)}
    for name in values:
        if name not in known:
            raise TfvizError("error.config_field", name=name, allowed=", ".join(sorted(known)))


def _either(name: str, value: object, one: str, other: str) -> None:
    require(value in (one, other), name, value, "allowed.either", one=one, other=other)


_PAPER_BASE = TransformerConfig(vocab_size=37_000, max_seq_len=5000)  # sinusoids have no last position

PRESETS: dict[str, TransformerConfig] = {
    "paper-base": _PAPER_BASE,
    "paper-big": replace(_PAPER_BASE, d_model=1024, d_ff=4096, n_heads=16, dropout=0.3),
    "bert-base": TransformerConfig(
        vocab_size=30_522,
        d_model=768,
        d_ff=3072,
        n_heads=12,
        n_encoder_layers=12,
        n_decoder_layers=0,
        positions="learned",
        feed_forward="gelu",
        norm_eps=1e-12,
        attention_bias=True,
        scale_embedding=False,
        embedding_norm=True,
        start_id=101,
        end_id=102,
    ),
    "gpt2-small": TransformerConfig(
        vocab_size=50_257,
        d_model=768,
        d_ff=3072,
        n_heads=12,
        n_encoder_layers=0,
        n_decoder_layers=12,
        max_seq_len=1024,
        positions="learned",
        placement="pre",
        feed_forward="gelu_tanh",
        attention_bias=True,
        scale_embedding=False,
        pad_id=None,
        start_id=50_256,
        end_id=50_256,
    ),
    "llama-tiny": TransformerConfig(
        vocab_size=32_000,
        d_model=256,
        d_ff=688,
        n_heads=8,
        n_kv_heads=4,
        n_encoder_layers=0,
        n_decoder_layers=4,
        max_seq_len=2048,
        dropout=0.0,
        positions="rope",
        norm="rms_norm",
        placement="pre",
        feed_forward="swiglu",
        feed_forward_bias=False,
        tie_embeddings=False,
        scale_embedding=False,
    ),
    "dates": TransformerConfig(
        vocab_size=129, d_model=128, d_ff=512, n_heads=4, n_encoder_layers=2, n_decoder_layers=2, max_seq_len=64
    ),
}


def _default_cache(env: Mapping[str, str]) -> Path:
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tfviz"


def _whole(env: Mapping[str, str], name: str, default: int) -> int:
    raw = env.get(name, "").strip()
    if not raw:
        return default
    try:
        value = int(raw)
    except ValueError:
        value = -1
    if value < 0:
        raise TfvizError("error.setting", name=name, value=raw, allowed=Phrase("allowed.whole", {"low": 0}))
    return value


def _flag(env: Mapping[str, str], name: str, default: bool) -> bool:
    raw = env.get(name, "").strip().lower()
    if raw in {"", "0", "1", "true", "false", "yes", "no", "on", "off"}:
        return default if not raw else raw in {"1", "true", "yes", "on"}
    raise TfvizError("error.setting", name=name, value=raw, allowed=Phrase("allowed.either", {"one": 0, "other": 1}))


def _device(env: Mapping[str, str]) -> str:
    """Only its form: whether the device is there is known once torch is."""
    device = env.get("TFVIZ_DEVICE", "").strip() or "auto"
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", device):
        raise TfvizError("error.setting", name="TFVIZ_DEVICE", value=device, allowed=Phrase("allowed.device", {}))
    return device


@dataclass(frozen=True)
class Settings:
    """One immutable record; sizes in bytes, lengths in tokens, 0 = no limit where a limit is optional."""

    cache: Path
    device: str  # auto | cpu | cuda | mps
    threads: int  # 0: torch's own choice
    model: str  # what the page opens with
    memory_budget: int  # bytes of resident weights before the least recently used model is dropped
    trace_budget: int  # bytes of traces kept for open pages
    max_tokens: int  # longest text the page traces
    allow_hub: tuple[str, ...] | None  # None: any hub id; otherwise only these
    allow_local: bool  # whether a typed path may name a folder of the server
    max_params: int  # 0: no limit

    @classmethod
    def from_environment(cls, env: Mapping[str, str] | None = None) -> "Settings":
        """Reads TFVIZ_*; a value that makes no sense is an error that names the variable."""
        env = os.environ if env is None else env
        hub = env.get("TFVIZ_ALLOW_HUB", "*").strip()
        return cls(
            cache=Path(env.get("TFVIZ_CACHE") or _default_cache(env)).expanduser(),
            device=_device(env),
            threads=_whole(env, "TFVIZ_THREADS", 0),
            model=env.get("TFVIZ_MODEL", "").strip() or "smollm2-135m",
            memory_budget=_whole(env, "TFVIZ_MEMORY_BUDGET", 4096) * MIB,
            trace_budget=_whole(env, "TFVIZ_TRACE_BUDGET", 1024) * MIB,
            max_tokens=_whole(env, "TFVIZ_MAX_TOKENS", 1024),
            allow_hub=None if hub == "*" else tuple(part.strip() for part in hub.split(",") if part.strip()),
            allow_local=_flag(env, "TFVIZ_ALLOW_LOCAL", default="SPACE_ID" not in env),
            max_params=_whole(env, "TFVIZ_MAX_PARAMS", 0),
        )
