"""What attentions read in one step, made to last: copies on the CPU, and a pass over several tokens told one by one."""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from tfviz.sources.decoding import RowSeen, StepSeen


def settle(seen: StepSeen, first: bool) -> StepSeen:
    """On the CPU, with no more memory than the step's own rows take; what layers share stays shared.

    A cross attention reads the same memory at every step: kept at the `first` one only.
    """
    copies: dict[tuple[int, ...], Tensor] = {}

    def copy(tensor: Tensor) -> Tensor:
        """Each layer has a view of its own of what they share: told by where it lies."""
        place = (tensor.data_ptr(), *tensor.shape, *tensor.stride())
        if place not in copies:
            whole = tensor.device.type == "cpu" and tensor.untyped_storage().nbytes() <= tensor.nbytes
            copies[place] = tensor if whole else tensor.detach().to("cpu", copy=True).contiguous()
        return copies[place]

    return {
        place: replace(
            row,
            query=copy(row.query),
            key=copy(row.key if first or place[0] != "cross" else row.key[:, :0]),
            value=copy(row.value if first or place[0] != "cross" else row.value[:, :0]),
            mask=None if row.mask is None else copy(row.mask),
            rule=row.rule if row.rule.bias is None else replace(row.rule, bias=copy(row.rule.bias)),
        )
        for place, row in seen.items()
    }


def parts(seen: StepSeen, n: int) -> Iterator[StepSeen]:
    """A pass as `n` steps: all but its last n - 1 tokens, then these one after another."""
    if n == 1:
        yield seen
        return
    new = next(iter(seen.values())).query.shape[1]
    for stop in range(new - n + 1, new + 1):
        start = 0 if stop == new - n + 1 else stop - 1
        shared: dict[int, Tensor] = {}
        yield {place: _part(place[0], row, start, stop, shared) for place, row in seen.items()}


def _part(kind: str, row: RowSeen, start: int, stop: int, shared: dict[int, Tensor]) -> RowSeen:
    """The rows start..stop of a pass, with what had been read when the last of them was."""
    new = row.query.shape[1]
    memory = kind == "cross"
    held = row.held if memory else row.held - (new - stop)
    keys = slice(None) if memory and start == 0 else slice(0, 0) if memory else slice(start, stop)

    def cut(table: Tensor) -> Tensor:
        if id(table) not in shared:
            rows = table if table.shape[-2] == 1 else table[..., start:stop, :]
            shared[id(table)] = rows if table.shape[-1] == 1 else rows[..., :held]
        return shared[id(table)]

    return RowSeen(
        query=row.query[:, start:stop],
        key=row.key[:, keys],
        value=row.value[:, keys],
        held=held,
        mask=None if row.mask is None else cut(row.mask),
        rule=row.rule if row.rule.bias is None else replace(row.rule, bias=cut(row.rule.bias)),
    )
