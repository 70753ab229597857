"""Learned absolute positions, one vector each, added to the embeddings: BERT (arXiv 1810.04805), GPT-2."""

from torch import nn

from tfviz.config import TransformerConfig
from tfviz.model.positions.base import Positions, PositionScheme, Vectors


class Learned(PositionScheme):
    """A table of `max_seq_len` vectors: what lies beyond was never learned, so it is refused."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.table = nn.Embedding(config.max_seq_len, config.d_model)
        nn.init.normal_(self.table.weight, std=0.02)

    def add(self, x: Vectors, positions: Positions) -> Vectors:
        return x + self.table(positions)

    @property
    def longest(self) -> int:
        return self.config.max_seq_len
