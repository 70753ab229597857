"""The three places where a Transformer can be told about positions.

Attention itself is permutation-equivariant: shuffle the tokens and the outputs are shuffled alike. A scheme overrides
the places it uses; every other place leaves things as they are.
"""

from jaxtyping import Float, Int
from torch import Tensor, nn

from tfviz.config import TransformerConfig
from tfviz.errors import TfvizError
from tfviz.model.positions.rotation import Rotation

Positions = Int[Tensor, "#batch pos"]
Vectors = Float[Tensor, "batch pos d_model"]


class PositionScheme(nn.Module):
    """Built from a config; computed once a forward pass and shared by all layers of a stack."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config

    def add(self, x: Vectors, positions: Positions) -> Vectors:
        """Place 1: a vector added to each token's embedding."""
        return x

    def rotation(self, positions: Positions) -> Rotation | None:
        """Place 2: a rotation of q and k in every self-attention."""
        return None

    def bias(
        self, query_positions: Int[Tensor, "#batch query"], key_positions: Int[Tensor, "#batch key"]
    ) -> Float[Tensor, "#batch head query key"] | None:
        """Place 3: a term added to the scores of every self-attention."""
        return None

    @property
    def longest(self) -> int | None:
        """How many positions there are; None: no last one."""
        return None

    def check(self, length: int) -> None:
        """Refuses a sequence of `length` positions that the scheme has no place for."""
        if self.longest is not None and length > self.longest:
            raise TfvizError("error.too_long", n=length, limit=self.longest)


class NoPositions(PositionScheme):
    """None of the three: a decoder still has its causal mask to tell early from late, an encoder has nothing."""
