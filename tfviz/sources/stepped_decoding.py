"""What decodings have in common: how far the cache has read, what each step's attentions saw, where positions end.

    logits   cut the cache to what still holds, read the ids after it, remember what was seen

A subclass reads (`read`), forgets (`cut`) and shows its cache; it need not know why.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfviz.checks import from_to
from tfviz.errors import TfvizError
from tfviz.model.attention_call import AttentionCall, AttentionRecord, current_call
from tfviz.sources.base import LoadedModel
from tfviz.sources.decoding import Decoding, RowSeen
from tfviz.sources.finite import finite_output

FAR = 1_000_000  # a limit beyond is none: so says a tokenizer that knows of no limit


class SteppedDecoding(Decoding):
    """The steps of one generation; `record` needs the cache, for without it nothing is computed row by row."""

    def __init__(
        self,
        loaded: LoadedModel,
        ids: Int[Tensor, "batch length"],
        padding: Bool[Tensor, "batch length"] | None,
        use_cache: bool,
        record: bool,
    ) -> None:
        if padding is not None and bool(padding[:, -1].any()):
            raise TfvizError("error.generation.padded_end", row=int(padding[:, -1].nonzero()[0]))
        self.loaded, self.use_cache, self.record = loaded, use_cache, record and use_cache
        self.ids, self.padding, self.prompt_length = ids, padding, ids.shape[1]
        self.last_position = loaded.token_limit if loaded.token_limit < FAR else None
        self.encoder = loaded.encoder_modules() if record else set()
        self.seen = []
        self._ends: list[int] = []  # for each of `seen`, how many ids had been read after it
        self._n_read = 0  # ids whose keys and values are in the cache

    @abstractmethod
    def read(self, start: int, stop: int) -> Float[Tensor, "batch vocab"]:
        """Logits after ids[:, start:stop]; the cache, if there is one, has read those before and reads these."""

    @abstractmethod
    def cut(self, length: int) -> int:
        """Makes the cache forget what came after its first `length` ids; how many it still has read after that."""

    @torch.inference_mode()
    def logits(self) -> Float[Tensor, "batch vocab"]:
        n, call = self.ids.shape[1], replace(current_call(), turned={})  # layers share masks within a step only
        if self.last_position is not None and n > self.last_position:
            raise TfvizError("error.generation.positions", model=self.loaded.label, n=n, limit=self.last_position)
        if not self.use_cache:
            return self._read(0, n, call)
        self._forget(n - 1)  # the last one at least is read
        known = min(self._ends[-1], n - 1) if self._ends else 0
        if self._n_read < known:  # what was cut too far has been seen already
            self._read(self._n_read, known, replace(call, watch=None))
        watcher = StepWatcher(self.encoder, not self.seen, call.watch)
        logits = self._read(self._n_read, n, replace(call, watch=watcher) if self.record else call)
        if self.record and (not self._ends or self._ends[-1] < n):
            self.seen.append(watcher.rows)
            self._ends.append(n)
        return logits

    def _read(self, start: int, stop: int, call: AttentionCall) -> Float[Tensor, "batch vocab"]:
        try:
            logits = finite_output(self.loaded, call, lambda: self.read(start, stop), lambda: self._anew(stop))
        except BaseException:
            self._n_read = self.cut(0)  # some layers have read the new ids, others have not
            raise
        self._n_read = stop if self.use_cache else 0
        return logits

    def _anew(self, stop: int) -> Float[Tensor, "batch vocab"]:
        """Everything up to `stop` once more, as a prompt is read."""
        self._n_read = self.cut(0)
        return self.read(0, stop)

    def _forget(self, length: int) -> None:
        if length < self._n_read:
            self._n_read = self.cut(length)

    def append(self, ids: Int[Tensor, " batch"]) -> None:
        self.ids = torch.cat([self.ids, ids[:, None].to(self.ids)], dim=1)
        if self.padding is not None:
            self.padding = torch.cat([self.padding, self.padding.new_zeros(len(self.padding), 1)], dim=1)

    @torch.inference_mode()
    def rewind(self, length: int) -> None:
        from_to("length", length, self.prompt_length, self.ids.shape[1])
        self.ids = self.ids[:, :length]
        self.padding = None if self.padding is None else self.padding[:, :length]
        while self._ends and self._ends[-1] > length:
            self._ends.pop()
            self.seen.pop()
        self._forget(self._ends[-1] if self._ends else length)  # ids that no step in `seen` has read are read again

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        self.ids = self.ids[rows]
        self.padding = None if self.padding is None else self.padding[rows]


@dataclass
class StepWatcher:
    """Sorts the attentions of one step into kinds, as `introspection.capture.Watcher` does, and keeps batch row 0."""

    encoder: set[nn.Module]  # all modules of the encoder; empty for a decoder alone
    first: bool  # whether this step computes the memory's keys and values
    also: Callable[[AttentionRecord], None] | None = None  # who watches this call besides
    rows: dict[tuple[str, int], RowSeen] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: {"self": 0, "decoder": 0, "cross": 0})

    def __call__(self, record: AttentionRecord) -> None:
        if self.also is not None:
            self.also(record)
        if record.module in self.encoder:
            return
        turn = "decoder" if self.counts["decoder"] == self.counts["cross"] else "cross"  # a layer: itself, the memory
        kind = turn if self.encoder else "self"
        n_new_keys = record.query.shape[2] if kind != "cross" else record.key.shape[2] if self.first else 0
        self.rows[kind, self.counts[kind]] = _row(record, n_new_keys)
        self.counts[kind] += 1


def _row(record: AttentionRecord, n_new_keys: int) -> RowSeen:
    """Copies: a slice would keep the whole cache of its step alive."""
    held, mask, rule = record.key.shape[2], record.mask, record.rule
    return RowSeen(
        query=record.query[0].clone(),
        key=record.key[0, :, held - n_new_keys :].clone(),
        value=record.value[0, :, held - n_new_keys :].clone(),
        held=held,
        mask=None if mask is None else mask[0].expand(-1, record.query.shape[2], held),
        rule=rule if rule.bias is None else replace(rule, bias=rule.bias[:1]),
    )
