"""Multi-head attention: Vaswani et al. 2017, section 3.2.2, https://arxiv.org/abs/1706.03762

    head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)
    MultiHead(Q, K, V) = Concat(head_1 ... head_h) W^O

The projections of all heads lie side by side in one matrix each. With fewer key/value heads than query heads it is
grouped-query attention (https://arxiv.org/abs/2305.13245), with one multi-query attention.
"""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from tfviz.checks import divides, whole
from tfviz.model.attention import ScoreRule
from tfviz.model.attention_call import attend
from tfviz.model.kv_cache import AttentionCache, MemoryCache
from tfviz.model.positions.rotation import Rotation

Queries = Float[Tensor, "batch query d_model"]
Others = Float[Tensor, "batch key d_model"]
Mask = Bool[Tensor, "#batch #head #query key"] | Bool[Tensor, "#query key"]  # True = blocked


class MultiHeadAttention(nn.Module):
    """`attention(x)` is self-attention, `attention(x, memory)` cross-attention; (batch, position, d_model) in and out.

    The kernel, and whoever wants to see the weights, come with the call (tfviz.model.attention_call). `TfvizError` for
    heads that do not divide d_model (unless head_dim is given) or that cannot share the key/value heads.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = False,
        dropout: float = 0.0,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        whole("d_model", d_model, 1)
        whole("n_heads", n_heads, 1)
        whole("n_kv_heads", n_heads if n_kv_heads is None else n_kv_heads, 1)
        self.n_heads, self.n_kv_heads = n_heads, n_heads if n_kv_heads is None else n_kv_heads
        if head_dim is None:
            divides("n_heads", n_heads, "d_model", d_model)
        divides("n_kv_heads", self.n_kv_heads, "n_heads", n_heads)
        self.head_dim = head_dim or d_model // n_heads
        self.w_q = nn.Linear(d_model, n_heads * self.head_dim, bias=bias)
        self.w_k = nn.Linear(d_model, self.n_kv_heads * self.head_dim, bias=bias)
        self.w_v = nn.Linear(d_model, self.n_kv_heads * self.head_dim, bias=bias)
        self.w_o = nn.Linear(n_heads * self.head_dim, d_model, bias=bias)
        self.dropout, self.scale = dropout, scale  # scale None: 1 / sqrt(head_dim)

    def forward(
        self,
        query: Queries,
        key: Others | None = None,
        value: Others | None = None,
        mask: Mask | None = None,
        *,
        causal: bool = False,
        rotation: Rotation | None = None,
        bias: Float[Tensor, "#batch #head query key"] | None = None,
        cache: AttentionCache | MemoryCache | None = None,
    ) -> Queries:
        """`mask` (True = blocked) and `causal` add up; `rotation` turns q and the new k; `bias` is added to the scores.

        Without `key` the queries look at themselves, without `value` it is `key`. A complete cache replaces both.
        """
        q = self._split(self.w_q(query), self.n_heads)
        if rotation is not None:
            q = rotation(q)
        if cache is not None and cache.complete:
            k, v = cache.read()
        else:
            key = query if key is None else key
            k = self._split(self.w_k(key), self.n_kv_heads)
            v = self._split(self.w_v(key if value is None else value), self.n_kv_heads)
            k = k if rotation is None else rotation(k)
            k, v = (k, v) if cache is None else cache.extend(k, v)
        mask = mask[None, None] if mask is not None and mask.dim() == 2 else mask
        rule = ScoreRule(scale=self.scale, causal=causal, bias=bias)
        heads, _ = attend(self, q, k, v, mask, rule, self.dropout if self.training else 0.0)
        return self.w_o(heads.transpose(1, 2).flatten(2))  # [batch, query, head, dim] -> [batch, query, head x dim]

    def _split(self, x: Float[Tensor, "batch pos features"], n_heads: int) -> Float[Tensor, "batch head pos dim"]:
        """[batch, position, head x dim] -> [batch, head, position, dim]"""
        return x.view(*x.shape[:2], n_heads, self.head_dim).transpose(1, 2)
