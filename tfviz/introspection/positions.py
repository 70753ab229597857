"""What a model does with positions, watched in one pass of a text.

    the rows it added         x + PE(pos), and which rows of the table they are
    the queries it turned     as they were before: after a norm, where the model has one between projection and rotation

What its config and weights say is read by tfviz.sources.positions, and compared by position_checks.py.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import get_ident

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from tfviz.introspection.capture import Watcher
from tfviz.model.attention_call import AttentionCall, AttentionRecord
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.positions import PositionFacts, Table, position_tables, read, side_of
from tfviz.sources.scratch import ScratchModel

FIRST_ROWS = 4  # tables may start with rows for padding: RoBERTa's first position has row 2
QUERY_NORM = re.compile(r"(^|\.)(q_norm|query_norm|q_layernorm|q_ln)$")  # between the projection and the rotation
Place = tuple[str, int]  # kind of attention, layer


@dataclass(frozen=True)
class Added:
    """The rows of a table that the model added to a text's embeddings."""

    first: int  # row of the first token
    difference: float  # max |what was added - those rows|
    largest: float  # max |row|, to judge it by


@dataclass(frozen=True)
class PositionsSeen:
    """Facts of a model and what one pass of a text showed of them."""

    facts: PositionFacts
    added: Mapping[str, Added] = field(default_factory=dict)  # by side
    normed: Mapping[Place, Float[np.ndarray, "head query dim"]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        tables = sum(table.rows.nbytes for table in self.facts.tables.values())
        return tables + sum(array.nbytes for array in self.normed.values())


def look(loaded: LoadedModel, prompt: Prompt) -> PositionsSeen:
    """One watched pass: which rows were added, and the queries of models that normalise them before they are turned."""
    facts, watcher = read(loaded), Watcher(loaded.encoder_modules(), "self", (), False)
    added: dict[str, Added] = {}
    normed: dict[Place, np.ndarray] = {}
    outputs: dict[nn.Module, Tensor] = {}

    def watch(record: AttentionRecord) -> None:
        kind = watcher._kind(record)
        place = kind, watcher.counts.get(kind, 0)
        watcher(record)
        if record.module in norms:
            normed[place] = _by_head(outputs[norms[record.module]], record.query)

    def tap(module: nn.Module, name: str, value: Tensor) -> None:
        if name == "embedded" and facts.tables:
            side = side_of(loaded, module)
            added[side] = _added_by_ours(module, prompt, facts.tables[side], side, value)

    tables = {} if isinstance(loaded, ScratchModel) else {m: name for name, m, _ in position_tables(loaded)}
    norms = _query_norms(loaded.model)
    with _outputs_of([*tables, *norms.values()], outputs):
        loaded.forward(prompt, AttentionCall("naive", watch, tap), all_logits=False)
    for module in tables:
        side = side_of(loaded, module)
        if module in outputs and side in facts.tables:
            added[side] = find_rows(_rows(outputs[module]), facts.tables[side].rows)
    facts = replace(facts, angles=read(loaded).angles)  # "dynamic" ones follow the length of the last text
    return PositionsSeen(facts, added, normed)


def _query_norms(model: nn.Module) -> dict[nn.Module, nn.Module]:
    """Attention -> the norm between its projection of the queries and their rotation, where it has one."""
    names = [(name, module) for name, module in model.named_modules() if QUERY_NORM.search(name)]
    return {model.get_submodule(name.rpartition(".")[0]): module for name, module in names}


def _by_head(output: Tensor, query: Tensor) -> Float[np.ndarray, "head query dim"]:
    """A norm's output, whichever way round it is, as the attention has its query: a rotation keeps each length."""
    seen = query[0].float()
    n_heads, n, dim = seen.shape
    one = output[0].float()
    ways = [one.reshape(n, n_heads, dim).transpose(0, 1), one.reshape(n_heads, n, dim)]
    lengths = [float((way.norm(dim=-1) - seen.norm(dim=-1)).abs().max()) for way in ways]
    best: np.ndarray = ways[int(np.argmin(lengths))].cpu().numpy()
    return best


@contextmanager
def _outputs_of(modules: Sequence[nn.Module], outputs: dict[nn.Module, Tensor]) -> Iterator[None]:
    """What each module gives to this thread while inside."""
    mine = get_ident()

    def keep(module: nn.Module, _: object, output: Tensor) -> None:
        if get_ident() == mine:
            outputs[module] = output

    handles = [module.register_forward_hook(keep) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _rows(output: Tensor) -> Float[np.ndarray, "pos d_model"]:
    """(batch, pos, d_model) or (pos, d_model) as the rows of the first text."""
    rows: np.ndarray = output.reshape(-1, *output.shape[-2:])[0].float().cpu().numpy()
    return rows


def _added_by_ours(embedding: nn.Module, prompt: Prompt, table: Table, side: str, embedded: Tensor) -> Added:
    """norm(tokens + rows) against what the embedding of a model of ours gave."""
    ids = prompt.inputs["decoder_input_ids" if side == "decoder" else "input_ids"]
    rows = torch.from_numpy(table.rows[: ids.shape[1]]).to(embedded)
    said: Tensor = embedding.norm(embedding.tokens(ids) + rows)  # type: ignore[operator]
    return Added(0, float((embedded - said).abs().max()), float(embedded.abs().max()))


def find_rows(seen: Float[np.ndarray, "pos d_model"], rows: Float[np.ndarray, "row d_model"]) -> Added:
    """Where in the table the added rows stand: the start that fits best."""
    n = len(seen)
    starts = range(max(1, min(FIRST_ROWS, len(rows) - n + 1)))
    found = [float(np.abs(seen[: len(rows) - start] - rows[start : start + n]).max()) for start in starts]
    best = int(np.argmin(found))
    return Added(best, found[best], float(np.abs(seen).max()))
