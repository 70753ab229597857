"""The encoder: every position sees every other. Vaswani et al. 2017, section 3.1; alone it is BERT.

x = x + self-attention(x);  x = x + FFN(x)        with a norm before or after each (residual.py)
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfviz.config import TransformerConfig
from tfviz.model.attention_call import report
from tfviz.model.embedding import InputEmbedding, TokenEmbedding
from tfviz.model.feed_forward import FEED_FORWARDS
from tfviz.model.masks import block_distant, combine_masks, count_positions, find_padding
from tfviz.model.multi_head import Mask, MultiHeadAttention
from tfviz.model.norm import NORMS
from tfviz.model.positions import Rotation
from tfviz.model.residual import PLACEMENTS
from tfviz.registry import choose

Stream = Float[Tensor, "batch pos d_model"]


def attention_of(config: TransformerConfig) -> MultiHeadAttention:
    """One attention with the config's heads, self or cross."""
    return MultiHeadAttention(
        config.d_model,
        config.n_heads,
        n_kv_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        bias=config.attention_bias,
        dropout=config.dropout,
    )


def final_norm(config: TransformerConfig) -> nn.Module:
    """With the norm on the branches nothing has normalised the stream at the end of the stack."""
    ends = config.placement == "pre"
    return choose(NORMS, config.norm, "norm")(config.d_model, config.norm_eps) if ends else nn.Identity()


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each with its residual connection and norm."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        residual = choose(PLACEMENTS, config.placement, "placement")
        self.attention = attention_of(config)
        self.attention_residual = residual(config)
        self.feed_forward = choose(FEED_FORWARDS, config.feed_forward, "feed_forward")(config)
        self.feed_forward_residual = residual(config)

    def forward(
        self,
        x: Stream,
        mask: Mask | None = None,
        *,
        rotation: Rotation | None = None,
        bias: Float[Tensor, "#batch #head pos pos"] | None = None,
    ) -> Stream:
        """`mask`: True = blocked."""

        def attend(y: Tensor) -> Tensor:
            out = self.attention(y, mask=mask, rotation=rotation, bias=bias)
            report(self, "attention_out", out)
            return out

        def feed(y: Tensor) -> Tensor:
            out = self.feed_forward(y)
            report(self, "feed_forward_out", out)
            return out

        report(self, "resid_pre", x)
        x = self.attention_residual(x, attend)
        report(self, "resid_mid", x)
        x = self.feed_forward_residual(x, feed)
        report(self, "resid_post", x)
        return x


class Encoder(nn.Module):
    """Embedding and `n_encoder_layers` layers: ids in, memory out."""

    def __init__(self, config: TransformerConfig, tokens: TokenEmbedding) -> None:
        super().__init__()
        self.config = config
        self.embedding = InputEmbedding(config, tokens)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.n_encoder_layers))
        self.norm = final_norm(config)

    def forward(self, ids: Int[Tensor, "batch pos"]) -> tuple[Stream, Bool[Tensor, "batch 1 1 pos"] | None]:
        """(memory, mask of its padding or None). Positions count real tokens only; padding is seen by nobody."""
        n, window = ids.shape[1], self.config.window
        scheme = self.embedding.positions
        scheme.check(n)
        padding = find_padding(ids, self.config.pad_id)
        padding_mask = None if padding is None else padding[:, None, None, :]
        positions = count_positions(padding, n, ids.device)
        distant = None if window is None else block_distant(positions, positions, window)
        mask = combine_masks(padding_mask, distant)
        rotation, bias = scheme.rotation(positions), scheme.bias(positions, positions)
        x = self.embedding(ids, positions)
        for layer in self.layers:
            x = layer(x, mask, rotation=rotation, bias=bias)
        return self.norm(x), padding_mask
