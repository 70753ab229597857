"""A model as far as memory goes: its matrices, what passes through its layers; and what is asked of it, a load."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tfviz.inference.cache_size import CacheShape
from tfviz.inference.precision.int4 import GROUP, OUTPUTS
from tfviz.inference.precision.int8 import block_size

KINDS = ("embedding", "attention", "feed_forward", "experts", "norm", "head", "other")
FLOAT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
REST_BYTES = {**FLOAT_BYTES, "int8": 4, "int8_weights": 2, "int4": 2}  # of what is not quantised; of activations too


@dataclass(frozen=True)
class Matrix:
    """`n` weights of one shape; a linear layer's is [out, in]."""

    kind: str  # one of KINDS
    role: str  # linear | shared (an output head, or tied with a table) | table (large look-up) | plain (stays a float)
    shape: tuple[int, ...]
    n: int = 1
    stays: tuple[str, ...] = ()  # float precisions in which the model keeps it FP32 all the same

    @property
    def count(self) -> int:
        return self.n * prod(self.shape)

    def nbytes(self, precision: str) -> int:
        rest = 4 if precision in self.stays else REST_BYTES[precision]
        if precision in FLOAT_BYTES or self.role == "plain":
            return rest * self.count
        n_out, n_in = self.shape
        if precision == "int8":
            return self.count + 4 * self.n * n_out  # levels, and an FP32 scale a row
        if precision == "int8_weights" or self.role != "linear":
            return self.count + 2 * self.n * n_out  # a BF16 scale a row
        if n_out % OUTPUTS or n_in % GROUP:
            return rest * self.count
        return self.count // 2 + 4 * self.n * n_out * (n_in // GROUP)  # scale and middle of each group, BF16


@dataclass(frozen=True)
class Weights:
    """All that a model holds when nothing runs; what is shared stands once."""

    matrices: tuple[Matrix, ...]
    float_buffers: int = 0  # numbers that are saved with the weights and change their precision with them
    fixed_bytes: int = 0  # of other buffers: whole numbers, RoPE's frequencies
    formula: bool = False  # counted from the config's numbers, not from the model's own modules

    @property
    def parameters(self) -> int:
        return sum(one.count for one in self.matrices)

    def nbytes(self, precision: str) -> int:
        turned = 0
        if precision == "int8":  # one rotation for each block size, shared by all layers
            blocks = {block_size(one.shape[1]) for one in self.matrices if one.role != "plain"} - {1}
            turned = sum(4 * block * block for block in blocks)
        rest = REST_BYTES[precision] * self.float_buffers + self.fixed_bytes
        return sum(one.nbytes(precision) for one in self.matrices) + rest + turned

    def by_kind(self) -> dict[str, int]:
        """Parameters of each kind that there is."""
        counts = {kind: sum(one.count for one in self.matrices if one.kind == kind) for kind in KINDS}
        return {kind: count for kind, count in counts.items() if count}


@dataclass(frozen=True)
class LayerShape:
    """Numbers of one position that pass through one layer."""

    d_model: int
    heads: int  # of queries; 0: no attention
    query: int  # heads x d_k
    key: int  # kv heads x d_k
    value: int  # kv heads x d_v
    widened: int  # of the feed-forward: outputs of its first products together (gated: two of them)
    hidden: int  # what its last product reads
    norms: int = 2
    rms: bool = False  # RMSNorm as transformers writes it: keeps its input in FP32 and the normalised numbers
    pre: bool = False  # norms stand before attention and FFN: norm(x) waits beside x
    rope: int = 0  # numbers of a position's cosines and sines
    bent: int = 1  # tensors that the activation function keeps beside its output: ReLU 0, fused ones 1 (their input)
    alive: int = 2  # tensors alive at once while it is computed, input and output among them
    beside: int = 0  # numbers of a position that wait outside: learned positions that were added
    headed: bool = False  # Qwen3: query and key are normalised, each head's by itself
    given: int = 0  # GPT-2: what attention gave waits to the layer's end
    biased: bool = False  # T5: a learned number for each head and pair of positions is added to the scores
    stack: str = "self"  # self | encoder | decoder
    cross: bool = False  # a second attention that reads the encoder's output

    @property
    def shares(self) -> bool:
        return self.key < self.query

    @property
    def read(self) -> int:
        """Numbers of the attention's output."""
        return self.query * self.value // max(self.key, 1)


@dataclass(frozen=True)
class Forward:
    """What a pass runs through: layers with how many there are of each, and the head."""

    layers: tuple[tuple[LayerShape, int], ...]
    d_model: int
    vocabulary: int  # outputs of the head; 0: there is none
    table: int = 0  # numbers of the table in which tokens are looked up
    tied: bool = False  # the head is that table
    shifted: bool = False  # BART: a bias is added to the logits, which makes them twice


@dataclass(frozen=True)
class Model:
    """A model as far as memory goes."""

    label: str
    weights: Weights
    forward: Forward
    cache: CacheShape


@dataclass(frozen=True)
class Load:
    """What is asked of it."""

    context: int
    batch: int = 1
    source: int = 0  # positions that an encoder-decoder's encoder reads
    precision: str = "bf16"  # of the weights: fp32 | fp16 | bf16 | int8 | int8_weights | int4
    cache: str = "fp16"  # of the cache: a key of CACHE_PRECISIONS
    kernel: str = "flash"  # naive: n x n scores exist
    training: bool = False
    recompute: bool = False  # keep each layer's input only, run the layer again in the backward pass
    optimizer: str = "adam"  # adam | sgd
    all_logits: bool = False  # running: the head for every position, not for the last alone

    @property
    def element(self) -> int:
        """Bytes of one number between layers."""
        return REST_BYTES[self.precision]

    @property
    def trained(self) -> str:
        """In which precision it is trained: levels of 8 or 4 bits have no gradient, so then it is 16 bits."""
        return self.precision if self.precision in FLOAT_BYTES else "bf16"


def counted(matrices: Sequence[Matrix]) -> tuple[Matrix, ...]:
    """Equal ones together."""
    found: dict[Matrix, int] = {}
    for one in matrices:
        alone = replace(one, n=1)
        found[alone] = found.get(alone, 0) + one.n
    return tuple(replace(one, n=n) for one, n in found.items())
