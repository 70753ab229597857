"""How many bytes a model takes, from its shapes alone: to run it and to train it, before anything is loaded.

    inference = weights + cache + activations
    training  = weights + gradients + optimizer + activations

    weights       one matrix at a time, as tfviz converts it (tfviz.inference.precision)
    activations   running: the most that is alive at once; training: what the backward pass will read (`kept_bytes`)
    optimizer     Adam: m and v in FP32; with 16-bit weights an FP32 copy of the weights beside them

With Adam both ways of training come to 16 bytes a parameter: 4 + 4 + 8 in FP32, 2 + 2 + 12 in mixed precision
(ZeRO, arXiv 1910.02054, section 3.1). Recomputing layers: arXiv 1604.06174. Activations of a layer: arXiv 2205.05198;
here they are counted for layers as transformers writes them, without dropout.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from tfviz.inference.cache_size import CACHE_PRECISIONS, CacheShape, cache_bytes
from tfviz.inference.precision.int4 import GROUP, MANY_ROWS, OUTPUTS
from tfviz.inference.precision.int8 import block_size
from tfviz.inference.precision.int8_weights import FEW_ROWS

KINDS = ("embedding", "attention", "feed_forward", "experts", "norm", "head", "other")
PARTS = ("weights", "cache", "activations", "gradients", "optimizer")
FLOAT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
REST_BYTES = {**FLOAT_BYTES, "int8": 4, "int8_weights": 2, "int4": 2}  # of what is not quantised; of activations too
MOST = 1 << 40  # of tokens or rows: beyond this anything fits


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
    bent: int = (
        1  # tensors that the activation function keeps: ReLU its output only (0 beside that), others their input
    )
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


def plan(model: Model, load: Load) -> dict[str, int]:
    """Bytes of each of PARTS that this load has."""
    if not load.training:
        cached = cache_bytes(model.cache, load.context, load.batch, CACHE_PRECISIONS[load.cache], load.source)
        weights = model.weights.nbytes(load.precision)
        return {"weights": weights, "cache": cached, "activations": live_bytes(model.forward, load)}
    load = replace(load, precision=load.trained)
    count = model.weights.parameters
    return {
        "weights": model.weights.nbytes(load.precision),
        "gradients": count * load.element,
        "optimizer": count * optimizer_bytes(load),
        "activations": training_bytes(model.forward, load),
    }


def optimizer_bytes(load: Load) -> int:
    """A parameter's, beside its weight and its gradient."""
    states = 8 if load.optimizer == "adam" else 0  # m and v
    master = 0 if load.trained == "fp32" else 4
    return states + master


def positions(layer: LayerShape, load: Load) -> int:
    """How long the text is that this layer reads."""
    return load.source if layer.stack == "encoder" else load.context


def live_bytes(forward: Forward, load: Load) -> int:
    """Running: the largest of these moments. Beside each wait the embedded text and the layer's input, 2 d, and in a
    decoder with an encoder the encoder's output.

        attention   norm(x), q, k, v, cosines and sines, then the output; naive: scores and weights, n x n a head
        FFN         x after attention, its norm, and act(gate), up and their product (plain: what goes into act and
                    what comes out); naive: the weights, which the layer lets go only at its end
        head        logits
    """
    peak = load.batch * (load.context if load.all_logits else 1) * forward.vocabulary
    peak += load.batch * load.context * forward.d_model
    for layer, _ in forward.layers:
        n, waiting = positions(layer, load), (2 + layer.pre) * layer.d_model
        squares = layer.heads * n * (max(n, load.source) if layer.cross else n) if load.kernel == "naive" else 0
        attention = n * (waiting + layer.query + layer.key + layer.value + layer.rope)
        attention += max(2 * squares, squares + n * layer.query * (1 + layer.shares) if squares else n * layer.read)
        streams = n * (waiting + layer.d_model + layer.rope) + squares
        feed_forward = streams + max(n * _bent(layer, load), _restored(layer, load, n))
        memory = load.source * layer.d_model if layer.stack == "decoder" else 0
        peak = max(peak, load.batch * (max(attention, feed_forward) + memory))
    return load.element * peak


def _bent(layer: LayerShape, load: Load) -> int:
    """Numbers of a position in the middle of the FFN. INT8 products add up whole numbers, which become floats, which
    are scaled: three of the widest, and the input once more with its levels."""
    gate = layer.hidden * (layer.widened > layer.hidden)
    if load.precision == "int8":
        return gate + 3 * layer.hidden + 5 * layer.d_model // 4
    return gate + 2 * layer.hidden


def _restored(layer: LayerShape, load: Load, n: int) -> int:
    """The same where levels become floats for one product: many rows of INT8 or INT4 weights."""
    if load.batch * n <= {"int8_weights": FEW_ROWS, "int4": MANY_ROWS - 1}.get(load.precision, MOST):
        return 0
    gate = layer.hidden * (layer.widened > layer.hidden)
    return n * (gate + layer.hidden) + layer.hidden * layer.d_model // load.batch


def layer_kept_bytes(layer: LayerShape, load: Load) -> int:
    """What the backward pass of one layer reads.

    norms       each its input and its output, RMSNorm the normalised numbers too       (2 or 3) d
    attention   q, k, v and what goes into W_o; naive: n weights a head                 q + k + v + h d_v + h n
    FFN         what is bent, what comes of it, and for gates the other branch and the product
    """
    n = positions(layer, load)
    normed = layer.norms * layer.d_model * (4 + 2 * load.element if layer.rms else 2 * load.element)  # bytes
    numbers = 0
    if layer.heads:
        repeated = load.kernel == "naive" and layer.shares  # then each query head has a copy
        keys, values = (layer.query, layer.read) if repeated else (layer.key, layer.value)
        numbers += (1 + layer.cross) * (layer.query + layer.read) + keys + values
        numbers += layer.heads * n if load.kernel == "naive" else 0
    numbers += layer.widened + layer.hidden * (1 + (layer.widened > layer.hidden))
    numbers -= 0 if layer.bent else layer.hidden
    total = load.element * n * numbers + n * normed
    if layer.cross:
        seen = keys + values + (layer.heads * n if load.kernel == "naive" else 0)
        total += load.element * load.source * seen
    return load.batch * total


def kept_bytes(forward: Forward, load: Load) -> int:
    """Between the forward and the backward pass: all layers, the last norm, and log-probabilities in FP32."""
    each = [(layer_kept_bytes(layer, load), layer, n) for layer, n in forward.layers]
    if load.recompute:
        inputs = sum(n * load.batch * positions(layer, load) * layer.d_model for _, layer, n in each)
        total = load.element * inputs + max((kept for kept, _, _ in each), default=0)
    else:
        total = sum(kept * n for kept, _, n in each)
    rows = load.batch * load.context
    return total + rows * (2 * load.element * forward.d_model + 4 * forward.vocabulary)


def training_bytes(forward: Forward, load: Load) -> int:
    """The largest of three moments of the backward pass, beside weights and gradients.

    begins   what is kept, and the gradient of the logits in FP32
    head     its weight's gradient is made, before it is added to the others
    ends     the table's gradient is made, all rows of it; tied: that and the head's, and their sum
    """
    kept, logits = kept_bytes(forward, load), load.batch * load.context * forward.vocabulary
    head = forward.vocabulary * forward.d_model
    table = forward.table * (3 if forward.tied else 1)
    return max(kept + 4 * logits, kept + load.element * (logits + head) - 4 * logits, load.element * table)


def total(model: Model, load: Load) -> int:
    return sum(plan(model, load).values())


def largest_load(model: Model, load: Load, memory: float) -> tuple[int, int]:
    """(context, batch): how far either may grow, the other as it is, within `memory` bytes; MOST: without end."""

    def with_context(n: int) -> int:
        return total(model, replace(load, context=n, source=n if load.source else 0))

    return _largest(with_context, memory), _largest(lambda n: total(model, replace(load, batch=n)), memory)


def _largest(nbytes: Callable[[int], int], memory: float) -> int:
    """The largest n with nbytes(n) <= memory, for bytes that never fall; 0: not even one."""
    if nbytes(MOST) <= memory:
        return MOST
    low, high = 0, MOST  # `low` fits (or is 0), `high` does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if nbytes(middle) <= memory else (low, middle)
    return low


def counted(matrices: Sequence[Matrix]) -> tuple[Matrix, ...]:
    """Equal ones together."""
    found: dict[Matrix, int] = {}
    for one in matrices:
        alone = replace(one, n=1)
        found[alone] = found.get(alone, 0) + one.n
    return tuple(replace(one, n=n) for one, n in found.items())
