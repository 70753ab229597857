"""The linear layers of a model by what they are in their layer, and what each reads while the model reads texts.

A layer's matrices are told apart by what they gave in a short pass (projections.py), not by name. One pass over the
texts catches what the same part of every layer reads, so that another layer needs no pass. Rows are kept in FP32, at
most KEPT_BYTES of them for all models together: the least recently asked for give way.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from tfviz.introspection.layer_calls import Attended, LayerCall, Step, observe
from tfviz.introspection.layer_parts import Parts, find_activation
from tfviz.introspection.projections import Projections, read_projections
from tfviz.model.attention_call import AttentionCall
from tfviz.sources.base import LoadedModel, Prompt

PARTS = ("q", "k", "v", "o", "up", "gate", "down")
MOST_ROWS = 2560  # of one module and one set of texts
KEPT_BYTES = 512 * 2**20  # SmolLM2's widest inputs (30 layers, 1,536 channels, 1,600 tokens) are 280 MiB
SHORT = 8  # tokens of the pass that finds a layer's matrices


@dataclass(frozen=True)
class Linear:
    """One linear layer, and the first part of its layer that reads the same (W_Q for W_K and W_V)."""

    module: nn.Module
    reader: nn.Module
    n_in: int


Layers = tuple[Mapping[str, Linear], ...]
Rows = Float[Tensor, "row in"]


def linears(loaded: LoadedModel, kind: str) -> Layers:
    """Of every layer its linear layers by part, in the order of PARTS; with a `kind` "cross" those of the decoder's."""
    second = "The animal" if loaded.family == "encoder-decoder" else None
    short = loaded.prompt("The animal", second, limit=SHORT)
    side, at = ("decoder", 1) if kind == "cross" else (kind, 0)
    calls = sorted((one for one in observe(loaded, short) if one.side == side), key=lambda one: one.index)
    return tuple(_of_layer(call, at) for call in calls)


def _of_layer(call: LayerCall, at: int) -> dict[str, Linear]:
    attentions = read_projections(call)
    found = _of_attention(list(attentions.values())[at]) | _of_feed_forward(call, attentions)
    steps = [(part, found[part]) for part in PARTS if part in found]
    readers = {part: next(one for _, one in steps if one is step or _same_rows(one, step)) for part, step in steps}
    return {part: Linear(step.module, readers[part].module, _width(step)) for part, step in steps}


def _width(step: Step) -> int:
    return int((weight_of(step.module) if step.before is None else step.before).shape[1])


def _same_rows(one: Step, other: Step) -> bool:
    return one.before is not None and one.before is other.before


def _of_attention(found: Projections) -> dict[str, Step]:
    """W_Q, W_K, W_V by what they gave, and W_O; fused projections stand for all that lie in them."""
    steps = list(found.linears)
    if len(steps) == 3 and found.inputs is not None:
        given = zip(found.inputs, steps, strict=True)
        steps = [next((one for one in steps if one.after is rows), other) for rows, other in given]
    by_count = {1: [0, 0, 0], 2: [0, 1, 1], 3: [0, 1, 2]}
    named = {part: steps[i] for part, i in zip("qkv", by_count.get(len(steps), []), strict=False)}
    return named | ({"o": found.out} if found.out is not None else {})


def _of_feed_forward(call: LayerCall, attentions: dict[Attended, Projections]) -> dict[str, Step]:
    """The network's last matrix is `down`; of two before it the gate is the one that the activation reads."""
    parts = Parts(call, attentions)
    if parts.down is None:
        return {}
    before = [step for step in parts.feed_forward if step is not parts.down]
    named = {"down": parts.down} | ({"up": before[-1]} if before else {})
    bent, through, _ = find_activation(parts, parts.down.before)
    if through is not None:
        named |= {
            name: step for name, rows in (("gate", bent), ("up", through)) for step in before if step.after is rows
        }
        if len(before) == 1:  # both in one matrix
            named |= {"gate": before[0], "up": before[0]}
    return named


def weight_of(module: Any) -> Float[Tensor, "out in"]:
    """FP32 [out, in] on the CPU; of an INT8 or INT4 layer what its table stands for."""
    made = module.dequantised() if hasattr(module, "dequantised") else module.weight.detach()
    made = made.float().cpu()
    return made.T if hasattr(module, "nf") else made  # transformers' Conv1D: [in, out]


def prompts(loaded: LoadedModel, texts: Sequence[str]) -> list[Prompt]:
    """The decoder of an encoder-decoder reads the same text."""
    return [loaded.prompt(text, text if loaded.family == "encoder-decoder" else None) for text in texts]


def inputs(loaded: LoadedModel, modules: Sequence[nn.Module], asked: Sequence[Prompt]) -> dict[nn.Module, Rows]:
    """What each of these modules reads, one row a token, over these prompts; the first MOST_ROWS rows."""
    rows: dict[nn.Module, list[Tensor]] = {module: [] for module in modules}
    thread = threading.get_ident()

    def before(called: nn.Module, args: tuple[Any, ...]) -> None:
        if called in rows and threading.get_ident() == thread and sum(map(len, rows[called])) < MOST_ROWS:
            rows[called].append(args[0].reshape(-1, args[0].shape[-1]).float().cpu().clone())

    handle = register_module_forward_pre_hook(before)
    try:
        for prompt in asked:
            loaded.forward(prompt, AttentionCall("naive"), all_logits=False)  # which every model can
    finally:
        handle.remove()
    # Popped, so that no more than one is there twice; cloned outside inference mode: tensors like any others
    return {module: torch.cat(rows.pop(module))[:MOST_ROWS].clone() for module in dict.fromkeys(modules)}


class Readings:
    """What modules read over the texts, kept as long as their model is. For one job on the device at a time."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        self.most = most
        self._layers: WeakKeyDictionary[nn.Module, dict[str, Layers]] = WeakKeyDictionary()
        self._rows: WeakKeyDictionary[nn.Module, tuple[Rows, ...]] = WeakKeyDictionary()

    @property
    def nbytes(self) -> int:
        return sum(sum(map(_bytes, rows)) for rows in self._rows.values())

    def layers(self, loaded: LoadedModel, kind: str) -> Layers:
        kinds = self._layers.setdefault(loaded.model, {})
        if kind not in kinds:
            kinds[kind] = linears(loaded, kind)
        return kinds[kind]

    def rows(
        self, loaded: LoadedModel, kind: str, layer: int, part: str, texts: Sequence[Sequence[str]]
    ) -> tuple[Rows, ...]:
        """What this part reads over each of these sets of texts: the sets are the same at every call."""
        for _ in self.reading(loaded, kind, layer, part, texts):
            pass
        asked = self.layers(loaded, kind)[layer][part].reader
        self._rows[asked] = found = self._rows.pop(asked)  # the newest is last
        return found

    def reading(
        self, loaded: LoadedModel, kind: str, layer: int, part: str, texts: Sequence[Sequence[str]]
    ) -> Iterator[tuple[int, int]]:
        """Reads what `rows` gives, a text a step: (texts read, of how many). No step where it is known.

        In one pass for the same part of as many layers as there is room for, the nearest first.
        """
        if self.layers(loaded, kind)[layer][part].reader in self._rows:
            return
        asked = [prompts(loaded, one) for one in texts]
        modules = self._make_room(loaded, kind, layer, part, asked)
        found: list[dict[nn.Module, list[Tensor]]] = [{module: [] for module in modules} for _ in asked]
        every = [(prompt, rows) for some, rows in zip(asked, found, strict=True) for prompt in some]
        for i, (prompt, rows) in enumerate(every):
            for module, one in inputs(loaded, modules, [prompt]).items():
                rows[module].append(one)
            yield i + 1, len(every)
        for module in reversed(modules):  # popped, so that no more than one is there twice
            self._rows[module] = tuple(torch.cat(rows.pop(module))[:MOST_ROWS] for rows in found)

    def _make_room(
        self, loaded: LoadedModel, kind: str, layer: int, part: str, asked: Sequence[Sequence[Prompt]]
    ) -> list[nn.Module]:
        """The modules to read, the nearest layer first; rows of others give way."""
        n_rows = sum(min(MOST_ROWS, sum(max(one.n_tokens, len(one.target)) for one in some)) for some in asked)
        near = sorted(enumerate(self.layers(loaded, kind)), key=lambda one: abs(one[0] - layer))
        modules, needed = list[nn.Module](), 0
        for _, parts in near:
            reader = parts[part].reader if part in parts else None
            if reader is None or reader in self._rows:
                continue
            more = 4 * n_rows * parts[part].n_in
            if modules and needed + more > self.most:
                break
            modules.append(reader)
            needed += more
        while self._rows and self.nbytes + needed > self.most:
            del self._rows[next(iter(self._rows.keys()))]
        return modules


def _bytes(rows: Rows) -> int:
    return rows.numel() * rows.element_size()


READINGS = Readings()
