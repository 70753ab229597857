"""Bytes of the numbers between layers: the most that is alive at once, and what a backward pass reads.

Counted for layers as transformers writes them, without dropout. Activations of a layer: arXiv 2205.05198; recomputing
layers: arXiv 1604.06174.
"""

from tfviz.inference.memory_shapes import Forward, LayerShape, Load
from tfviz.inference.precision.int4 import MANY_ROWS
from tfviz.inference.precision.int8_weights import FEW_ROWS


def positions(layer: LayerShape, load: Load) -> int:
    """How long the text is that this layer reads."""
    return load.source if layer.stack == "encoder" else load.context


def live_bytes(forward: Forward, load: Load) -> int:
    """Running: the largest of these moments. Beside each wait the embedded text and the layer's input, 2 d, and in a
    decoder with an encoder the encoder's output.

        attention   norm(x), q, k, v, cosines and sines, then the output; naive: scores and weights, n x n a head
        FFN         x after attention, its norm, and act(gate), up and their product (plain: what goes into act and
                    what comes out); naive: the weights, which the layer lets go only at its end
        bias        T5: n x n a head, once for all rows and layers; before it the distances that it is looked up by
        head        logits
    """
    peak = load.batch * (load.context if load.all_logits else 1) * forward.vocabulary * (1 + forward.shifted)
    peak = load.element * (peak + load.batch * load.context * forward.d_model)
    for layer, _ in forward.layers:
        n, waiting = positions(layer, load), (2 + layer.pre) * layer.d_model + layer.beside
        squares = layer.heads * n * (max(n, load.source) if layer.cross else n) if load.kernel == "naive" else 0
        entered = n * (waiting + layer.query + layer.key + layer.value + layer.rope)
        attention = max(2 * squares, squares + n * layer.query * (1 + layer.shares) if squares else n * layer.read)
        streams = n * (waiting + layer.d_model + layer.given + layer.rope) + squares
        feed_forward = streams + max(n * _bent(layer, load), _restored(layer, load, n))
        memory = load.source * layer.d_model if layer.stack == "decoder" else 0
        rows = load.element * load.batch
        distances, bias, masked = _bias_bytes(layer, load)
        peak = max(
            peak,
            rows * (entered + memory) + distances,
            rows * (entered + attention + memory) + bias + masked,
            rows * (feed_forward + memory) + bias,
        )
    return peak


def _bias_bytes(layer: LayerShape, load: Load) -> tuple[int, int, int]:
    """(distances of all pairs while they become buckets, the biases that a stack keeps, flash: those with a mask in)

    Whole numbers of 8 bytes: distances, their size, the buckets of near and of far ones, a limit; in an encoder the
    sign as well; and a switch.
    """
    if not layer.biased:
        return 0, 0, 0
    n, causal = positions(layer, load), layer.stack == "decoder"
    own, across = (load.element * layer.heads * n * m for m in (n, load.source if layer.cross else 0))
    masked = own + n * n if causal and load.kernel == "flash" else 0
    return n * n * (5 * 8 + 1 + 8 * (not causal)), own + across, masked


def _bent(layer: LayerShape, load: Load) -> int:
    """Numbers of a position in the middle of the FFN. INT8 products add up whole numbers, which become floats, which
    are scaled: three of the widest, and the input once more with its levels."""
    gate = layer.hidden * (layer.widened > layer.hidden)
    if load.precision == "int8":
        return gate + 3 * layer.hidden + 5 * layer.d_model // 4
    return max(gate + 2 * layer.hidden, layer.alive * layer.hidden)


def _restored(layer: LayerShape, load: Load, n: int) -> int:
    """The same where levels become floats for one product: many rows of INT8 or INT4 weights."""
    if load.batch * n <= {"int8_weights": FEW_ROWS, "int4": MANY_ROWS - 1}.get(load.precision, load.batch * n):
        return 0
    gate = layer.hidden * (layer.widened > layer.hidden)
    return n * (gate + layer.hidden) + layer.hidden * layer.d_model // load.batch


def layer_kept_bytes(layer: LayerShape, load: Load) -> int:
    """What the backward pass of one layer reads.

    norms       each its input and its output, RMSNorm the normalised numbers too       (2 or 3) d
    attention   q, k, v and what goes into W_o; naive: n weights a head                 q + k + v + h d_v + h n
                T5's bias takes a gradient, which the flash kernel has none for: there the weights are kept as well
    FFN         what is bent, what comes of it, and for gates the other branch and the product
    """
    n = positions(layer, load)
    normed = layer.norms * layer.d_model * _norm_bytes(layer.rms, load)
    if layer.headed:  # what comes out is turned by RoPE, and not kept
        normed += (layer.query + layer.key) * (_norm_bytes(layer.rms, load) - load.element)
    numbers = 0
    naive, copies = load.kernel == "naive", 1 + layer.biased  # with a bias: before and after rows of nothing are zeros
    if layer.heads:
        repeated = naive and layer.shares  # then each query head has a copy
        keys, values = (layer.query, layer.read) if repeated else (layer.key, layer.value)
        numbers += (1 + layer.cross) * (layer.query + layer.read * (1 if naive else copies)) + keys + values
        numbers += layer.heads * n * (copies if naive else int(layer.biased))
    numbers += layer.widened + layer.hidden * (1 + (layer.widened > layer.hidden))
    numbers += (layer.bent - 1) * layer.hidden
    total = load.element * n * numbers + n * normed
    if layer.cross:
        seen = keys + values + layer.heads * n * (copies if naive else int(layer.biased))
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
    total += sum({layer.stack: 8 * positions(layer, load) ** 2 for _, layer, _ in each if layer.biased}.values())
    last = _norm_bytes(any(layer.rms for _, layer, _ in each), load)
    return total + rows * (last * forward.d_model + 4 * forward.vocabulary)


def _norm_bytes(rms: bool, load: Load) -> int:
    """Of each number that a norm reads: what goes in and what comes out; RMSNorm: in FP32, normalised, scaled."""
    return (4 if rms else 0) + 2 * load.element


def training_bytes(forward: Forward, load: Load) -> int:
    """The largest of three moments of the backward pass, beside weights and gradients.

    begins   what is kept, and gradients of the log-probabilities and of the logits, in FP32
    head     its weight's gradient is made, before it is added to the others
    ends     the table's gradient is made, all rows of it; tied: that and the head's, and their sum
    """
    kept, logits = kept_bytes(forward, load), load.batch * load.context * forward.vocabulary
    head = forward.vocabulary * forward.d_model
    table = forward.table * (3 if forward.tied else 1)
    return max(kept + 8 * logits, kept + load.element * (logits + head) - 4 * logits, load.element * table)
