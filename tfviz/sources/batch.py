"""Several texts as one padded batch of a model's tokenizer: a rectangle of ids in which short rows are filled up.

    right   The animal slept      left    The animal slept
            Hello PAD    PAD              PAD PAD    Hello

Padding is seen by nobody (the attention mask says where it is), and positions count real tokens only, so that each row
gives what it gives alone. An empty line is a row of padding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tfviz.checks import require
from tfviz.errors import BadText
from tfviz.model.masks import count_positions
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.tokens import Token

MAX_ROWS = 6
MAX_TOKENS = 32  # of a row; longer texts are cut
PAD = "PAD"
SIDES = ("right", "left")


@dataclass(frozen=True)
class Side:
    """What one stack of the model reads: a rectangle of tokens, all rows of one length."""

    tokens: tuple[tuple[Token, ...], ...]
    padding: np.ndarray  # bool [row, position]


@dataclass(frozen=True)
class Batch:
    """The tensors of one forward call over all rows, and what stands where."""

    inputs: dict[str, Tensor]
    prompts: tuple[Prompt | None, ...]  # each row alone; None for an empty line
    source: Side
    target: Side | None  # the decoder's side of an encoder-decoder

    def sides(self, kind: str) -> tuple[Side, Side]:
        """(queries, keys) of a kind of attention."""
        target = self.target or self.source
        return {"decoder": (target, target), "cross": (target, self.source)}.get(kind, (self.source, self.source))


def read_rows(
    loaded: LoadedModel, first: Prompt, text: tuple[str, str | None], lines: Sequence[str]
) -> list[Prompt | None]:
    """The page's own prompt and one for each line, cut to `MAX_TOKENS`; None for a line with nothing in it."""
    fits = max(first.n_tokens, len(first.target)) <= MAX_TOKENS
    rows: list[Prompt | None] = [first if fits else loaded.prompt(*text, limit=MAX_TOKENS)]
    return rows + [loaded.prompt(line, limit=MAX_TOKENS) if line.strip() else None for line in lines]


def make_batch(loaded: LoadedModel, prompts: Sequence[Prompt | None], side: str = "right") -> Batch:
    """Fills the rows up on one side. `BadText` for more than `MAX_ROWS` rows, or none with a token."""
    if len(prompts) > MAX_ROWS:
        raise BadText("masks.error.rows", n=len(prompts), most=MAX_ROWS)
    require(side in SIDES, "side", side, "allowed.either", one=SIDES[0], other=SIDES[1])
    if not any(prompts):
        raise BadText("masks.error.empty")

    def fill(name: str, value: int) -> Tensor:
        return _fill([_row(prompt, name) for prompt in prompts], value, side, loaded.device)

    inputs = {"input_ids": fill("input_ids", loaded.pad_id), "attention_mask": fill("attention_mask", 0)}
    if any(prompt and "token_type_ids" in prompt.inputs for prompt in prompts):
        inputs["token_type_ids"] = fill("token_type_ids", 0)
    padding = inputs["attention_mask"] == 0
    inputs |= loaded.place(count_positions(padding, padding.shape[1], loaded.device))
    source = _side(loaded, prompts, padding, lambda prompt: prompt.source.tokens)
    if loaded.family != "encoder-decoder":
        return Batch(inputs, tuple(prompts), source, None)
    inputs["decoder_input_ids"] = fill("decoder_input_ids", loaded.pad_id)
    real = [torch.ones(len(prompt.target) if prompt else 0, dtype=torch.long) for prompt in prompts]
    inputs["decoder_attention_mask"] = _fill(real, 0, side, loaded.device)
    target = _side(loaded, prompts, inputs["decoder_attention_mask"] == 0, lambda prompt: prompt.target)
    return Batch(inputs, tuple(prompts), source, target)


def _row(prompt: Prompt | None, name: str) -> Tensor:
    return torch.zeros(0, dtype=torch.long) if prompt is None else prompt.inputs[name][0].cpu()


def _fill(rows: Sequence[Tensor], value: int, side: str, device: torch.device) -> Tensor:
    """[row, longest], the rest of each row `value`."""
    length = max(len(row) for row in rows)
    filled = torch.full((len(rows), length), value, dtype=torch.long)
    for place, row in zip(filled, rows, strict=True):
        (place[: len(row)] if side == "right" else place[length - len(row) :]).copy_(row)
    return filled.to(device)


def _side(
    loaded: LoadedModel,
    prompts: Sequence[Prompt | None],
    padding: Tensor,
    of: Callable[[Prompt], tuple[Token, ...]],
) -> Side:
    """The tokens of all rows, `PAD` in the places of the padding."""
    pad, rows = Token(loaded.pad_id, PAD, PAD, special=True), []
    for prompt, blanks in zip(prompts, padding.tolist(), strict=True):
        tokens = iter(of(prompt) if prompt is not None else ())
        rows.append(tuple(pad if blank else next(tokens) for blank in blanks))
    return Side(tuple(rows), padding.cpu().numpy())
