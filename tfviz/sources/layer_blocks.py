"""One layer's calls, sorted into its parts: norms, attentions, feed-forwards, additions, in the order of the run.

An attention is known because it reported itself; what else runs inside its module, or right after it in the module
around it (BERT's output projection), belongs to it. A norm is known by its class and by giving d_model features.
What remains between these is a feed-forward if it maps d_model to d_model by at least two matrices, else "other".
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from tfviz.sources.blocks import INPUT, Block, Layer, Ledger
from tfviz.sources.module_calls import AttentionRun, ModuleCall, Value, own_weights
from tfviz.sources.residual_flow import Flow, find_flow


@dataclass
class Part:
    """Calls that belong together; `cover` is the one module that contains them and nothing else."""

    kind: str
    calls: list[ModuleCall] = field(default_factory=list)
    run: AttentionRun | None = None
    cover: ModuleCall | None = None

    @property
    def read(self) -> Value:
        return (self.cover or self.calls[0]).read

    @property
    def gave(self) -> Value:
        return (self.cover or self.calls[-1]).gave


def is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower() and not list(module.children())


def owns(module: nn.Module) -> bool:
    """Whether it has weights of its own, or is a norm without any."""
    return is_norm(module) or next(own_weights(module), None) is not None


def layer_of(
    call: ModuleCall,
    inside: Sequence[ModuleCall],
    runs: Sequence[AttentionRun],
    numbers: Sequence[int],
    ledger: Ledger,
    tables: set[str],
) -> Layer:
    """`inside`: the calls within `call`; `runs`: its attentions, with their `numbers` in a trace; `tables`: paths of
    position tables, which are counted elsewhere."""
    owners = [one for one in inside if owns(one.module) and one.path not in tables]
    width = call.gave.shape[-1] if call.gave.shape else 0
    parts = _parts(call, owners, inside, runs, width)
    for part in parts:
        part.cover = _cover(part, call, owners, inside)
    flow = find_flow(call.read.rows, [(p.read.rows, p.gave.rows) for p in parts], call.gave.rows)
    blocks = _blocks(parts, flow, call, inside, ledger, tables, width)
    own, cross = (*numbers, None, None)[:2]
    return Layer(call.path, tuple(blocks), own, cross, flow.gap)


def _parts(
    layer: ModuleCall,
    owners: Sequence[ModuleCall],
    inside: Sequence[ModuleCall],
    runs: Sequence[AttentionRun],
    width: int,
) -> list[Part]:
    called = {one.path for one in inside}
    parts: list[Part] = []
    attentions = [Part("attention" if i == 0 else "cross", run=run) for i, run in enumerate(runs)]
    for call in owners:
        home = next((p for p in attentions if p.run and _belongs(call, p.run, parts, p, called, layer.path)), None)
        normal = is_norm(call.module) and call.gave.shape[-1:] == (width,)
        if normal and (home is None or home.run is None or call.start > home.run.at):
            parts.append(Part("norm", [call]))
        elif home is not None:
            home.calls.append(call)
            if home not in parts:
                parts.append(home)
        elif parts and parts[-1].kind == "feed_forward":
            parts[-1].calls.append(call)
        else:
            parts.append(Part("feed_forward", [call]))
    return parts


def _belongs(
    call: ModuleCall, run: AttentionRun, parts: Sequence[Part], part: Part, called: set[str], layer: str
) -> bool:
    """Inside the attention's module; or next after it, with a module of this layer around both."""
    if call.path == run.path or call.path.startswith(f"{run.path}."):
        return True
    around = _common(call.path, run.path)
    near = around in called and len(around) > len(layer)
    return near and call.start > run.at and bool(parts) and parts[-1] is part


def _common(one: str, other: str) -> str:
    """The path of the innermost module around both."""
    shared = []
    for left, right in zip(one.split("."), other.split("."), strict=False):
        if left != right:
            break
        shared.append(left)
    return ".".join(shared)


def _cover(
    part: Part, layer: ModuleCall, owners: Sequence[ModuleCall], inside: Sequence[ModuleCall]
) -> ModuleCall | None:
    """The smallest called module that holds this part whole and nothing of another (not for attentions: they read
    what their projections read)."""
    if part.kind != "feed_forward":
        return None
    others = [call for call in owners if call not in part.calls]
    for call in sorted(inside, key=lambda one: -len(one.path)):
        holds = all(call.start <= one.start and one.end <= call.end for one in part.calls)
        if holds and call is not layer and not any(call.start < one.start and one.end < call.end for one in others):
            return call
    return None


def _blocks(
    parts: Sequence[Part],
    flow: Flow,
    layer: ModuleCall,
    inside: Sequence[ModuleCall],
    ledger: Ledger,
    tables: set[str],
    width: int,
) -> list[Block]:
    """Parts and joints in one row; what they read in terms of that row."""
    blocks: list[Block] = []
    index: dict[int, int] = {INPUT: INPUT}  # node of the flow -> place in the row
    for i in range(len(parts) + 1):
        for k, joint in enumerate(flow.joints):
            if joint.before == i:
                index[len(parts) + k] = len(blocks)
                reads = tuple(index[node] for node in joint.of)
                detail = {"gap": joint.gap, "factor": joint.factor}
                blocks.append(Block("add", layer.path, shape=layer.gave.shape, reads=reads, detail=detail))
        if i < len(parts):
            node = flow.reads[i]
            reads = (len(blocks) - 1,) if node is None else (index[node],)
            index[i] = len(blocks)
            blocks.append(_block(parts[i], reads, inside, ledger, tables, width))
    return blocks


def _block(
    part: Part, reads: tuple[int, ...], inside: Sequence[ModuleCall], ledger: Ledger, tables: set[str], width: int
) -> Block:
    first = part.calls[0]
    root = part.cover or first
    path = part.run.path if part.run else root.path
    modules = {call.path: call.module for call in part.calls}
    if part.cover is not None:  # weights that are used without calling their module
        modules |= {f"{path}.{name}".rstrip("."): module for name, module in part.cover.module.named_modules()}
    weights = ledger.weights((name, module) for name, module in modules.items() if name not in tables)
    kind = part.kind
    matrices = [weight for weight in weights if len(weight.shape) > 1]
    if kind == "feed_forward" and (len(matrices) < 2 or part.gave.shape[-1:] != (width,)):
        kind = "other"
    return Block(kind, path, weights, part.gave.shape, reads, _detail(kind, part, inside, matrices))


def _detail(kind: str, part: Part, inside: Sequence[ModuleCall], matrices: Sequence[Any]) -> dict[str, Any]:
    if part.run is not None:
        run = part.run
        sizes = {"heads": run.n_heads, "kv_heads": run.n_kv_heads, "head_dim": run.head_dim, "value_dim": run.value_dim}
        return sizes | {"n_query": run.n_query, "n_key": run.n_key, "biased": run.biased}
    kind_of = type(part.calls[0].module).__name__
    if kind == "feed_forward":
        start, end = part.calls[0].start, part.calls[-1].end
        plain = [one for one in inside if start < one.start and one.end < end and not list(one.module.children())]
        curves = [type(one.module).__name__ for one in plain if not owns(one.module)]
        names = [name for name in curves if name not in {"Dropout", "Identity"}]
        experts = max((weight.shape[0] for weight in matrices if len(weight.shape) == 3), default=0)
        hidden = part.calls[-1].read.shape[-1:] if not experts else (matrices[-1].shape[-1],)
        named = names[0].removesuffix("Activation") if names else ""
        return {"hidden": hidden[0], "activation": named, "matrices": len(matrices), "experts": experts}
    return {"class": kind_of}
