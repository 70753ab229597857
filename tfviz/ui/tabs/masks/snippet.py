"""The mask on screen as code to take away: plain PyTorch that runs as pasted and ends with it in four conventions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CONVENTIONS = ("blocked", "allowed", "additive", "ones")  # also the names that the code gives them
ENDING = """
allowed = ~blocked  # F.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
additive = torch.zeros(blocked.shape).masked_fill(blocked, float("-inf"))  # (scores + additive).softmax(-1)
ones = allowed.long()  # 1 = may look
"""


@dataclass(frozen=True)
class Recipe:
    """What a mask is made of: a padded batch by its attention mask, or a packed row by its texts' lengths."""

    attention_mask: Sequence[Sequence[int]] = ()  # [row][key]
    n_query: int | None = None  # of cross attention
    lengths: Sequence[tuple[int, int]] = ()  # (queries, keys) of each packed text
    causal: bool = False
    prefix: int | None = None
    window: int | None = None


def mask_code(recipe: Recipe) -> str:
    """Code that defines `blocked`, `allowed`, `additive` and `ones`, each [row, 1, query, key]."""
    lines = ["import torch", "", *(_packed(recipe) if recipe.lengths else _padded(recipe))]
    if recipe.causal or recipe.prefix is not None or recipe.window is not None:
        lines.append("row, column = torch.arange(n)[:, None], torch.arange(n)[None, :]")
    if recipe.prefix is not None:
        late = f"(place >= {recipe.prefix})[:, None, None, :]"
        lines.append(f"blocked = blocked | ((column > row) & {late})  # the future, except for the prefix")
    elif recipe.causal:
        lines.append("blocked = blocked | (column > row)  # the future")
    if recipe.window is not None:
        lines.append(f"blocked = blocked | ((row - column).abs() >= {recipe.window})  # beyond the window")
    return "\n".join(lines) + "\n" + ENDING


def run_code(code: str) -> dict[str, Any]:
    """What the code defines, in a namespace of its own: a pasted snippet has no other."""
    namespace: dict[str, Any] = {}
    exec(code, namespace)  # made above, of whole numbers only
    return namespace


def _padded(recipe: Recipe) -> list[str]:
    rows = [f"    {[int(one) for one in row]!r}," for row in recipe.attention_mask]
    n_query = "n" if recipe.n_query is None else str(recipe.n_query)
    lines = ["attention_mask = torch.tensor([  # transformers' own: 1 = token, 0 = padding", *rows, "])"]
    lines += ["rows, n = attention_mask.shape"]
    if recipe.prefix is not None:
        lines.append("place = attention_mask.cumsum(dim=1) - 1  # of each token in its own text")
    return [*lines, f"blocked = (attention_mask == 0)[:, None, None, :].expand(rows, 1, {n_query}, n)  # padding"]


def _packed(recipe: Recipe) -> list[str]:
    queries, keys = ([pair[side] for pair in recipe.lengths] for side in (0, 1))
    lines = [f"lengths = torch.tensor({keys!r})  # of the texts in the row"]
    lines += ["document = torch.repeat_interleave(torch.arange(len(lengths)), lengths)", "n = len(document)"]
    asking = "document"
    if queries != keys:
        asking = "asking"
        lines.append(f"asking = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor({queries!r}))")
    if recipe.prefix is not None:
        lines.append(
            "place = torch.cat([torch.arange(int(one)) for one in lengths])[None]  # of each token in its own text"
        )
    return [*lines, f"blocked = ({asking}[:, None] != document[None, :])[None, None]  # other documents"]
