"""A loaded model's memory, measured: its weights, its cache, the peak of a pass, and what training holds.

Beside each stands what the planner says (tfviz.inference.memory_plan). The text is what was typed, repeated. Training
is one forward and one backward pass on a copy that shares the weights' memory: the resident model is not touched.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from tfviz.errors import TfvizError, UnsupportedHere
from tfviz.inference.cache_size import CACHE_PRECISIONS, CacheShape, cache_bytes
from tfviz.inference.free_memory import free_bytes
from tfviz.inference.measure import latency, peak_extra_bytes
from tfviz.inference.memory_activations import kept_bytes, live_bytes, training_bytes
from tfviz.inference.memory_shapes import FLOAT_BYTES, Forward, Load
from tfviz.inference.precision import weight_bytes
from tfviz.introspection.cache_cost import cache_bytes_at, inputs_of_length
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.parameters import model_of

TOKENS, FEWEST, TRAINED = 512, 32, 64  # of the text that is run: at most, at least; of the one that is trained on
SECONDS = 1.2  # that one pass over it may take
ROOM = 1.5  # of the predicted bytes must be free before a training step


@dataclass(frozen=True)
class Check:
    """One quantity, in bytes. `exact`: the formula has to meet it; the others are estimates."""

    name: str  # weights | cache | naive | flash | kept | gradients | training
    tokens: int
    predicted: int
    measured: int
    exact: bool = False

    @property
    def error(self) -> float:
        """How far the formula is off, as a share of what was measured."""
        return self.predicted / self.measured - 1 if self.measured else float(self.predicted != 0)


@dataclass(frozen=True, eq=False)
class Checks:
    """What was found so far, of a number of steps."""

    found: tuple[Check, ...]
    part: float
    left_out: str = ""  # why there is no training step: a key's last word


def weights_check(loaded: LoadedModel) -> Check:
    """The bytes that lie on the device, against those of the config on paper."""
    predicted = model_of(loaded).weights.nbytes(loaded.precision)
    return Check("weights", 0, predicted, weight_bytes(loaded.model), exact=True)


def first_check(loaded: LoadedModel, prompt: Prompt) -> Check:
    """A job for `Scene.examine`: costs next to nothing."""
    return weights_check(loaded)


def checks(loaded: LoadedModel, prompt: Prompt) -> Iterator[Checks]:
    """A job for `Scene.stream`: one quantity a step."""
    model, found = model_of(loaded), [weights_check(loaded)]
    yield Checks(tuple(found), 0.02)
    kernel = _usable(loaded, prompt)
    n, few = _affordable(loaded, prompt, kernel), min(TRAINED, loaded.token_limit - 1)
    source = prompt.n_tokens if loaded.family == "encoder-decoder" else 0
    load = Load(n, 1, source, loaded.precision, all_logits=not _last_only(loaded))
    trained = replace(load, context=few, kernel=kernel)
    left_out = _left_out(loaded, model.forward, trained)
    steps: list[Callable[[], list[Check]]] = []
    if loaded.family != "encoder" and loaded.has_logits:
        steps.append(partial(_cache, loaded, prompt, model.cache, replace(load, kernel=kernel)))
    for one in ("naive", "flash"):
        steps.append(partial(_pass, loaded, prompt, model.forward, replace(load, kernel=one)))
    if not left_out:
        steps.append(partial(_training, loaded, prompt, model.forward, trained))
    for i, step in enumerate(steps):
        yield Checks(tuple(found), (i + 0.5) / (len(steps) + 0.5), left_out)
        try:
            found += step()
        except TfvizError:  # a kernel that this model does not take
            continue
    yield Checks(tuple(found), 1.0, left_out)


def _usable(loaded: LoadedModel, prompt: Prompt) -> str:
    """flash, if this model's scores can be computed by it: Gemma-2 caps them."""
    try:
        loaded.run(inputs_of_length(loaded, prompt, 2), AttentionCall("flash"))
    except UnsupportedHere:
        return "naive"
    return "flash"


def _affordable(loaded: LoadedModel, prompt: Prompt, kernel: str) -> int:
    """How many tokens one pass reads in about `SECONDS`: doubled for as long as that leaves time."""
    most = min(TOKENS, loaded.token_limit - 1)
    n = min(FEWEST, most)
    while n < most:
        run = partial(loaded.run, inputs_of_length(loaded, prompt, n), AttentionCall(kernel))
        took = latency(run, repeats=1, warmup=0)
        if 2 * took.median > SECONDS:
            break
        n = min(2 * n, most)
    return n


def _last_only(loaded: LoadedModel) -> bool:
    return loaded.family == "decoder" and not hasattr(loaded, "transformer")


def _cache(loaded: LoadedModel, prompt: Prompt, shape: CacheShape, load: Load) -> list[Check]:
    """Of the tensors that a prefill leaves behind."""
    n = load.context
    decoding = loaded.decoding(inputs_of_length(loaded, prompt, n))
    with attention_call(AttentionCall(load.kernel)):
        decoding.logits()
    layers = list(decoding.held())
    bits = 8 * layers[0].key.element_size()
    precision = next(one for one in CACHE_PRECISIONS.values() if one.bits == bits)
    predicted = cache_bytes(shape, n, 1, precision, load.source)
    return [Check("cache", n, predicted, cache_bytes_at(decoding, n)[0], exact=True)]


def _pass(loaded: LoadedModel, prompt: Prompt, forward: Forward, load: Load) -> list[Check]:
    """The most that is alive beside the weights in one pass."""
    inputs, call = inputs_of_length(loaded, prompt, load.context), AttentionCall(load.kernel)
    loaded.run(inputs_of_length(loaded, prompt, 2), call)  # what is made once is made before
    peak = peak_extra_bytes(lambda: loaded.run(inputs, call, all_logits=load.all_logits), loaded.device)
    return [Check(load.kernel, load.context, live_bytes(forward, load), peak)]


# ---- training


def _left_out(loaded: LoadedModel, forward: Forward, load: Load) -> str:
    """Why no training step is made; empty where one is."""
    if loaded.precision not in FLOAT_BYTES:
        return "quantised"
    needed = ROOM * (loaded.weight_bytes + training_bytes(forward, load))
    free = free_bytes(loaded.device)
    return "room" if free is not None and needed > free else ""


def _training(loaded: LoadedModel, prompt: Prompt, forward: Forward, load: Load) -> list[Check]:
    """What the backward pass reads, the gradients, and the peak of both passes beside weights and gradients."""
    load = replace(load, training=True)
    inputs, learner = inputs_of_length(loaded, prompt, load.context), replace(loaded, model=learning(loaded.model))
    held = sum(one.nbytes for one in gradients(learner.model))
    numbers = sum(one.numel() for one in learner.model.parameters())
    kept: dict[int, int] = {}
    peak = peak_extra_bytes(lambda: loss(learner, inputs, load.kernel, kept).backward(), loaded.device)
    return [
        Check("kept", load.context, kept_bytes(forward, load), sum(kept.values())),
        Check("training", load.context, training_bytes(forward, load), peak),
        Check("gradients", load.context, load.element * numbers, held, exact=True),
    ]


def gradients(model: nn.Module) -> list[Tensor]:
    """Made once, as an optimizer finds them from the second step on; a backward pass adds to them."""
    for one in model.parameters():
        one.grad = torch.zeros_like(one)
    return [one.grad for one in model.parameters() if one.grad is not None]


def learning(model: nn.Module) -> nn.Module:
    """The model again over the same memory, with parameters that take a gradient."""
    shared: dict[int, Any] = {id(one): nn.Parameter(one.detach()) for one in model.parameters()}
    shared |= {id(one): one for one in model.buffers()}
    return copy.deepcopy(model, shared)


def loss(loaded: LoadedModel, inputs: dict[str, Tensor], kernel: str, kept: dict[int, int]) -> Tensor:
    """Of predicting the text itself; bytes that are kept for the backward pass go into `kept`, by their storage."""
    held = {one.untyped_storage().data_ptr() for one in (*loaded.model.parameters(), *loaded.model.buffers())}

    def seen(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in held:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(seen, lambda tensor: tensor), attention_call(AttentionCall(kernel)):
        out = loaded._run(inputs, all_logits=True)
        if not loaded.has_logits:
            return out.float().square().mean()
        ids = inputs.get("decoder_input_ids", inputs["input_ids"])
        return F.cross_entropy(out[0].float(), ids[0])
