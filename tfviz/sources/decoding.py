"""One generation in progress, of any model: what its decoder has read, its cache, and what a step leaves behind.

    logits()   of the next token; a step computes what is new (with a cache) or everything again (without)
    append     the next token of every row
    rewind     back to an earlier place, to go on from there another way
    keep       these rows only: beams

`LoadedModel.decoding` makes it; which class does the work (ours, transformers', or the flat one) is decided there.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from tfviz.model.attention import ScoreRule


@dataclass(frozen=True, eq=False)
class RowSeen:
    """What one attention read and computed in one step, batch row 0, as the model had it (its own dtype and device)."""

    query: Float[Tensor, "head new dim"]  # of the new tokens, positions applied
    key: Float[Tensor, "kv_head new dim"]  # of the new tokens; of the whole memory at a cross attention's first step
    value: Float[Tensor, "kv_head new value_dim"]
    held: int  # keys that the query could read: the last `held` of all positions (a window forgets the first ones)
    mask: Bool[Tensor, "#head new held"] | None  # True = blocked, beside causality; None: nothing
    rule: ScoreRule  # scale, softcap, bias [.., new, held], causal


StepSeen = Mapping[tuple[str, int], RowSeen]  # (kind, layer) -> row; kinds: self | decoder and cross


@dataclass(frozen=True, eq=False)
class HeldLayer:
    """One layer's cache as its tensors lie: views, good until the next step."""

    kind: str  # self | decoder | cross
    layer: int
    key: Float[Tensor, "batch kv_head held dim"]
    value: Float[Tensor, "batch kv_head held value_dim"]
    first: int  # position of the first key that is held: above 0 where a window has dropped some
    window: int | None  # positions that this layer looks back, its own included; None: all

    @property
    def nbytes(self) -> int:
        return sum(one.numel() * one.element_size() for one in (self.key, self.value))


class Decoding(ABC):
    """A model between two steps. Every method runs in inference mode; the caller sets the kernel (attention_call)."""

    ids: Int[Tensor, "batch length"]  # what the decoder reads: the prompt, or the start token, and what was appended
    padding: Bool[Tensor, "batch length"] | None  # True on the left of shorter rows; None: no row is padded
    prompt_length: int  # ids that were there before the first step
    last_position: int | None  # positions that the model has; None: no end
    seen: list[StepSeen]  # one for each step, if the decoding was made with record=True; `rewind` takes steps back

    @abstractmethod
    def logits(self) -> Float[Tensor, "batch vocab"]:
        """Of the token after `ids`, as the model gives them."""

    @abstractmethod
    def append(self, ids: Int[Tensor, " batch"]) -> None:
        """The next token of each row."""

    @abstractmethod
    def rewind(self, length: int) -> None:
        """Back to the first `length` ids (at least the prompt); the cache is cut, or made again where it cannot be."""

    @abstractmethod
    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Goes on with these rows, in this order; a row may be kept twice."""

    @abstractmethod
    def held(self) -> list[HeldLayer]:
        """What the cache holds now, layer by layer; empty without a cache."""

    @property
    def room(self) -> int | None:
        """New tokens that there still are positions for (the last one need not be read); None: no end."""
        return None if self.last_position is None else max(0, self.last_position - self.ids.shape[1] + 1)

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values in use, measured from the tensors."""
        return sum(layer.nbytes for layer in self.held())
