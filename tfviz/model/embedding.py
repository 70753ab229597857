"""Token ids to what the first layer reads. Vaswani et al. 2017, section 3.4, https://arxiv.org/abs/1706.03762

The rows are drawn with variance 1 / d_model, so that the same matrix can serve as output projection; times
sqrt(d_model) they have the size of the positions that are added to them.
"""

import math

from jaxtyping import Float, Int
from torch import Tensor, nn

from tfviz.config import TransformerConfig
from tfviz.model.attention_call import report
from tfviz.model.norm import NORMS
from tfviz.model.positions import POSITIONS
from tfviz.registry import choose


class TokenEmbedding(nn.Module):
    """A table of `vocab_size` vectors, times sqrt(d_model) if `scaled`."""

    def __init__(self, vocab_size: int, d_model: int, *, scaled: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.table.weight, std=d_model**-0.5)
        self.scale = math.sqrt(d_model) if scaled else 1.0

    def forward(self, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        return self.table(ids) * self.scale


class InputEmbedding(nn.Module):
    """Tokens, then positions, then (BERT) a norm, then dropout. `tokens` may be shared with other stacks."""

    def __init__(self, config: TransformerConfig, tokens: TokenEmbedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = choose(POSITIONS, config.positions, "positions")(config)
        norm = choose(NORMS, config.norm, "norm")
        self.norm = norm(config.d_model, config.norm_eps) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, ids: Int[Tensor, "batch pos"], positions: Int[Tensor, "#batch pos"]
    ) -> Float[Tensor, "batch pos d_model"]:
        x = self.positions.add(self.tokens(ids), positions)
        x = self.dropout(self.norm(x))
        report(self, "embedded", x)
        return x
