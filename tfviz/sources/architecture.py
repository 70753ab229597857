"""The blocks of a loaded model in the order in which they run, with the shapes that pass and the parameters in each.

One pass is watched (module_calls.py) and read off: which modules ran, what each read and gave. Layers are sorted into
norms, attentions, feed-forwards and additions (layer_blocks.py); what runs before and after the layers is told apart
here. No model is known by its name, and what is not understood stays in sight as "other".

Vaswani et al. 2017, figure 1, https://arxiv.org/abs/1706.03762
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from tfviz.errors import UnsupportedHere
from tfviz.model.positions import POSITIONS, PositionScheme
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.blocks import Architecture, Block, Layer, Ledger, Side
from tfviz.sources.layer_blocks import is_norm, layer_of, owns
from tfviz.sources.module_calls import AttentionRun, ModuleCall, Pass, layer_paths, record_pass


def architecture(loaded: LoadedModel, prompt: Prompt) -> Architecture:
    """Runs the prompt once and says what the model is made of. `UnsupportedHere` if it has no list of layers."""
    seen, ledger = record_pass(loaded, prompt), Ledger()
    names = ("encoder", "decoder") if loaded.family == "encoder-decoder" else ("self",)
    lengths = (prompt.n_tokens, len(prompt.target))
    sides = []
    for name, calls, n in zip(names, _by_side(seen, loaded), lengths, strict=False):
        sides.append(_side(name, calls, seen.attentions, n, loaded, ledger))
    if not all(side.layers for side in sides):
        raise UnsupportedHere("error.no_layers", model=loaded.label)
    if loaded.has_logits:
        sides[-1] = replace(sides[-1], after=_with_head(sides[-1].after))
    rest = ((path, ledger.weights([(path, module)])) for path, module in loaded.model.named_modules())
    unused = [Block("other", path, new) for path, all_ in rest if (new := tuple(w for w in all_ if not w.shared))]
    d_model = next((layer.blocks[0].shape[-1] for side in sides for layer in side.layers if layer.blocks), 0)
    return Architecture(d_model, tuple(sides), tuple(unused), loaded.n_parameters)


def _by_side(seen: Pass, loaded: LoadedModel) -> list[list[ModuleCall]]:
    """The decoder's side begins when the encoder is done, whose call is the longest of its modules'."""
    encoder = loaded.encoder_modules()
    if not encoder:
        return [list(seen.calls)]
    done = max((one for one in seen.calls if one.module in encoder), key=lambda one: one.end - one.start).end
    return [[one for one in seen.calls if one.end <= done], [one for one in seen.calls if one.start > done]]


def _side(
    name: str,
    calls: Sequence[ModuleCall],
    attentions: Sequence[AttentionRun],
    n_tokens: int,
    loaded: LoadedModel,
    ledger: Ledger,
) -> Side:
    paths = layer_paths(loaded.model)

    def runs_in(call: ModuleCall) -> list[AttentionRun]:
        return [run for run in attentions if call.start < run.at < call.end]

    attending = {call.path.rpartition(".")[0] for call in calls if call.path in paths and runs_in(call)}
    layers = [call for call in calls if call.path in paths and call.path.rpartition(".")[0] in attending]
    tables = {one.path for layer in layers for one in calls if _inside(one, layer) and _is_table(one.module)}
    start = min((layer.start for layer in layers), default=0)
    outside = [one for one in calls if owns(one.module) and not any(_inside(one, layer) for layer in layers)]
    outside.sort(key=lambda one: one.end)  # of a module around others, what is left is counted
    before = _before([one for one in outside if one.end < start], calls, layers, tables, loaded, ledger)
    made, number = [], 0
    for layer in layers:
        runs = runs_in(layer)
        numbers = [number] * len(runs) if name == "decoder" else range(number, number + len(runs))
        inside = [one for one in calls if _inside(one, layer)]
        made.append(layer_of(layer, inside, runs, tuple(numbers), ledger, tables))
        number += 1 if name == "decoder" and runs else len(runs)
    after = [_plain(one, ledger) for one in outside if one.end > start]
    return Side(name, n_tokens, before, tuple(made), tuple(block for block in after if _has_a_say(block)))


def _has_a_say(block: Block) -> bool:
    """A module around others whose weights they all share is no block of its own."""
    return block.kind != "other" or block.parameters > 0


def _inside(call: ModuleCall, layer: ModuleCall) -> bool:
    return layer.start < call.start and call.end < layer.end


def _is_table(module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding)


def _before(
    outside: Sequence[ModuleCall],
    calls: Sequence[ModuleCall],
    layers: Sequence[ModuleCall],
    tables: set[str],
    loaded: LoadedModel,
    ledger: Ledger,
) -> tuple[Block, ...]:
    """What runs before the first layer: token table, positions, segments, a norm."""
    blocks = [_plain(one, ledger) for one in outside]
    first = next((i for i, block in enumerate(blocks) if block.kind != "norm"), None)
    if first is not None and isinstance(outside[first].module, nn.Embedding):
        blocks[first] = replace(blocks[first], kind="embedding")
    if not any(block.kind == "positions" for block in blocks):
        blocks += _other_positions(calls, layers, tables, loaded, ledger)[:1]
    return tuple(blocks)


def _other_positions(
    calls: Sequence[ModuleCall],
    layers: Sequence[ModuleCall],
    tables: set[str],
    loaded: LoadedModel,
    ledger: Ledger,
) -> list[Block]:
    """Positions that are no table among the embeddings: ours, a rotation, a table of biases inside the layers."""
    found = []
    modules = dict(loaded.model.named_modules())
    roots = {call.path for call in calls}
    for path, module in modules.items():
        if isinstance(module, PositionScheme) and path.rpartition(".")[0] in roots:
            scheme = next(name for name, kind in POSITIONS.items() if type(module) is kind)
            found.append(Block("positions", path, ledger.weights([(path, module)]), detail={"scheme": scheme}))
    if tables:
        path = min(tables)
        weights = ledger.weights((name, modules[name]) for name in sorted(tables))
        found.append(Block("positions", path, weights, detail={"scheme": "relative"}))
    turned = [call.path for call in calls if "rotary" in type(call.module).__name__.lower()]
    found += [Block("positions", path, detail={"scheme": "rope"}) for path in turned[:1]]
    return found


def _plain(call: ModuleCall, ledger: Ledger) -> Block:
    """A module outside the layers, by what it is."""
    weights, name = ledger.weights([(call.path, call.module)]), call.path.rpartition(".")[2].lower()
    kind, detail = "linear", {"class": type(call.module).__name__}
    if is_norm(call.module):
        kind = "norm"
    elif isinstance(call.module, nn.Embedding):
        kind = "positions" if "pos" in name or "wpe" in name else "segments" if "type" in name else "embedding"
        sinusoidal = "sinusoid" in detail["class"].lower()
        detail |= {"scheme": "sinusoidal" if sinusoidal else "learned"} if kind == "positions" else {}
    elif call.gave.shape[-1:] == () or not any(len(weight.shape) == 2 for weight in weights):
        kind = "other"
    return Block(kind, call.path, weights, call.gave.shape, detail=detail)


def _with_head(after: Sequence[Block]) -> tuple[Block, ...]:
    """The last matrix of the pass gives the logits."""
    last = max((i for i, block in enumerate(after) if block.kind == "linear"), default=None)
    return tuple(replace(block, kind="head") if i == last else block for i, block in enumerate(after))


__all__ = ["Architecture", "Block", "Layer", "Side", "architecture"]
