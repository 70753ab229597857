"""The decoder: each position sees itself, what came before, and the encoder's memory. Vaswani et al. 2017, section 3.1.

    x = x + causal self-attention(x);  x = x + cross-attention(x, memory);  x = x + FFN(x)

Without an encoder the middle step falls away: GPT, LLaMA.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfviz.config import TransformerConfig
from tfviz.errors import TfvizError
from tfviz.model.attention_call import report
from tfviz.model.embedding import InputEmbedding, TokenEmbedding
from tfviz.model.encoder import attention_of, final_norm
from tfviz.model.feed_forward import FEED_FORWARDS
from tfviz.model.kv_cache import AttentionCache, KVCache, MemoryCache
from tfviz.model.masks import block_distant, combine_masks, count_positions, find_padding
from tfviz.model.multi_head import Mask
from tfviz.model.positions import Rotation
from tfviz.model.residual import PLACEMENTS
from tfviz.registry import choose

Stream = Float[Tensor, "batch pos d_model"]
Memory = Float[Tensor, "batch source d_model"]
MemoryMask = Bool[Tensor, "batch 1 1 source"]


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention (if there is an encoder) and feed-forward."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        residual = choose(PLACEMENTS, config.placement, "placement")
        self.attention = attention_of(config)
        self.attention_residual = residual(config)
        self.cross_attention = attention_of(config) if config.n_encoder_layers else None
        self.cross_residual = residual(config) if config.n_encoder_layers else None
        self.feed_forward = choose(FEED_FORWARDS, config.feed_forward, "feed_forward")(config)
        self.feed_forward_residual = residual(config)

    def forward(
        self,
        x: Stream,
        memory: Memory | None = None,
        mask: Mask | None = None,
        memory_mask: MemoryMask | None = None,
        *,
        rotation: Rotation | None = None,
        bias: Float[Tensor, "#batch #head pos key"] | None = None,
        caches: tuple[AttentionCache, MemoryCache] | tuple[None, None] = (None, None),
    ) -> Stream:
        """`mask` (True = blocked) comes on top of the causal triangle, which is always there."""

        def attend(y: Tensor) -> Tensor:
            out = self.attention(y, mask=mask, causal=True, rotation=rotation, bias=bias, cache=caches[0])
            report(self, "attention_out", out)
            return out

        def attend_memory(y: Tensor) -> Tensor:
            assert self.cross_attention is not None
            out = self.cross_attention(y, memory, mask=memory_mask, cache=caches[1])
            report(self, "cross_out", out)
            return out

        def feed(y: Tensor) -> Tensor:
            out = self.feed_forward(y)
            report(self, "feed_forward_out", out)
            return out

        if self.cross_attention is not None and memory is None and not (caches[1] is not None and caches[1].complete):
            raise TfvizError("error.no_memory")
        if memory is not None and len(memory) != len(x):
            raise TfvizError("error.rows", n=len(x), memory=len(memory))
        report(self, "resid_pre", x)
        x = self.attention_residual(x, attend)
        report(self, "resid_mid", x)
        if self.cross_residual is not None:
            x = self.cross_residual(x, attend_memory)
            report(self, "resid_cross", x)
        x = self.feed_forward_residual(x, feed)
        report(self, "resid_post", x)
        return x


class Decoder(nn.Module):
    """Embedding and `n_decoder_layers` layers: ids (and memory) in, the stream before the output projection out."""

    def __init__(self, config: TransformerConfig, tokens: TokenEmbedding) -> None:
        super().__init__()
        self.config = config
        self.embedding = InputEmbedding(config, tokens)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.n_decoder_layers))
        self.norm = final_norm(config)

    def forward(
        self,
        ids: Int[Tensor, "batch pos"],
        memory: Memory | None = None,
        memory_mask: MemoryMask | None = None,
        cache: KVCache | None = None,
    ) -> Stream:
        """With a cache, `ids` are the tokens it has not seen; it is extended by them."""
        n, device, window = ids.shape[1], ids.device, self.config.window
        total = n if cache is None else cache.length + n
        scheme = self.embedding.positions
        scheme.check(total)  # before the cache counts them, so that a refused step leaves it as it was
        memory_mask = memory_mask if cache is None else cache.keep_memory_mask(memory_mask)
        padding = find_padding(ids, self.config.pad_id)
        padding = padding if cache is None else cache.see(n, padding)
        key_positions = count_positions(padding, total, device)
        positions = key_positions[:, total - n :]
        distant = None if window is None else block_distant(positions, key_positions, window)
        mask = combine_masks(None if padding is None else padding[:, None, None, :], distant)
        rotation, bias = scheme.rotation(positions), scheme.bias(positions, key_positions)
        x = self.embedding(ids, positions)
        for i, layer in enumerate(self.layers):
            caches = (None, None) if cache is None else (cache.self_attention[i], cache.cross_attention[i])
            x = layer(x, memory, mask, memory_mask, rotation=rotation, bias=bias, caches=caches)
        return self.norm(x)
