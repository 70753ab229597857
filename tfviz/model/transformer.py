"""The whole Transformer (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762), and its kin of one stack only.

encoder-decoder   P(target | source)        the paper, T5
encoder           logits at every position  BERT
decoder           P(next | before)          GPT, LLaMA
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfviz.config import TransformerConfig
from tfviz.errors import TfvizError
from tfviz.model.decoder import Decoder, Memory, MemoryMask
from tfviz.model.embedding import TokenEmbedding
from tfviz.model.encoder import Encoder
from tfviz.model.kv_cache import KVCache

Ids = Int[Tensor, "batch source"]
TargetIds = Int[Tensor, "batch target"]
Logits = Float[Tensor, "batch target vocab"]


class Transformer(nn.Module):
    """What the config says: which stacks there are, and which matrices they share."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config

        def tokens(vocab_size: int) -> TokenEmbedding:
            return TokenEmbedding(vocab_size, config.d_model, scaled=config.scale_embedding)

        source = tokens(config.vocab_size) if config.n_encoder_layers else None
        one_table = config.tie_embeddings and config.target_vocabulary == config.vocab_size
        target = source if source is not None and (one_table or not config.n_decoder_layers) else None
        target = tokens(config.target_vocabulary) if target is None else target
        self.encoder = Encoder(config, source) if source is not None else None
        self.decoder = Decoder(config, target) if config.n_decoder_layers else None
        self.output = nn.Linear(config.d_model, target.table.num_embeddings, bias=False)
        if config.tie_embeddings:
            self.output.weight = target.table.weight
        self._initialise()

    def encode(self, source_ids: Ids) -> tuple[Memory, MemoryMask | None]:
        """(memory [batch, source, d_model], mask of the padding in it, True = blocked, or None if there is none)."""
        if self.encoder is None:
            raise TfvizError("error.no_encoder")
        return self.encoder(source_ids)

    def decode(
        self,
        target_ids: TargetIds,
        memory: Memory | None = None,
        memory_mask: Bool[Tensor, "batch 1 1 source"] | None = None,
        *,
        cache: KVCache | None = None,
    ) -> Logits:
        """Logits of the token after each of `target_ids`, which the decoder reads from its start token on.

        With a cache only the tokens that it has not seen are given, and only their logits come back.
        """
        if self.decoder is None:
            raise TfvizError("error.no_decoder")
        if self.encoder is None and memory is not None:
            raise TfvizError("error.unread_memory")
        return self.output(self.decoder(target_ids, memory, memory_mask, cache))

    def forward(self, source_ids: Ids, target_ids: TargetIds | None = None) -> Float[Tensor, "batch pos vocab"]:
        """Logits of the whole pass. Only an encoder-decoder takes `target_ids`."""
        if (self.encoder is None or self.decoder is None) and target_ids is not None:
            raise TfvizError("error.unread_target", family=self.config.family)
        if self.encoder is None:
            return self.decode(source_ids)
        if self.decoder is None:
            return self.output(self.encode(source_ids)[0])
        if target_ids is None:
            raise TfvizError("error.no_target")
        return self.decode(target_ids, *self.encode(source_ids))

    def new_cache(self) -> KVCache:
        """An empty cache for `decode`."""
        return KVCache(self.config.n_decoder_layers)

    def _initialise(self) -> None:
        """Xavier for every projection (Glorot & Bengio 2010), zero biases; the embeddings have drawn their own."""
        tied = self.output if self.config.tie_embeddings else None
        for module in self.modules():
            if isinstance(module, nn.Linear) and module is not tied:
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
