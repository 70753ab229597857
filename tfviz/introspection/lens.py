"""The logit lens: what the model would say if it had to answer after each layer.

    logits_l = head(norm(resid_post_l))        the model's own final norm and its own output head
    KL(final || l) = sum_v p_final(v) (ln p_final(v) - ln p_l(v))        nats

nostalgebraist 2020, https://www.lesswrong.com/posts/AcKRB8wDpdaN6v6ru ; why early layers mislead: the tuned lens,
https://arxiv.org/abs/2303.08112

What lies between the last layer and the logits (a norm, a transform, scales, caps, biases) is not rebuilt here: the
model's own code runs. Of transformers' models a pass over one token is made, its last layer's output is replaced by the
rows that are asked about, and the model goes on from there; ours are called by their parts. The last layer's lens is
then the model's own answer, which is checked.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from tfviz.config import MIB
from tfviz.errors import UnsupportedHere, WrongModel
from tfviz.introspection.layer_calls import is_norm, layers_of
from tfviz.model.attention_call import AttentionCall, AttentionRecord
from tfviz.model.transformer import Transformer
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.module_calls import own_weights
from tfviz.sources.tokens import describe

Array = np.ndarray
TOP = 10
CHUNK = 64 * MIB  # of logits in FP32 that are there at once
WHOLE = 1024  # tokens up to which the model's own logits are kept for every position, to compare with


@dataclass(frozen=True, eq=False)
class Lens:
    """Rows: the embedding, then after each layer; while it is computed only the last few of them are there."""

    n_rows: int
    first: int  # position of the first column
    ids: Int[Array, "row pos top"]  # most probable first
    log_probs: Float[Array, "row pos top"]  # natural logarithms
    final: Int[Array, " pos"]  # what the last row says: its most probable token
    final_log_probs: Float[Array, "row pos"]  # of that token in every row
    ranks: Int[Array, "row pos"]  # of that token; 1: the most probable
    kl: Float[Array, "row pos"]  # KL(final || row), nats
    entropy: Float[Array, "row pos"]  # nats
    own_ids: Int[Array, "own top"]  # the model's own answer at the last so many columns
    own_log_probs: Float[Array, "own top"]
    gap: float  # largest |logit of the last row - the model's own|, relative to its largest logit
    layers: tuple[int | None, ...]  # of each row after the embedding, from below: its number in a trace, if it attends
    normed: bool  # every layer ends with a norm, so that nothing in the stream is left to be normed
    after: tuple[str, ...]  # the modules with weights that run from the last layer to the logits
    labels: dict[int, str] = field(repr=False)  # of every id above, a space before it as ␣

    @property
    def begun(self) -> int:
        """The first row that is there."""
        return self.n_rows - len(self.kl)

    @property
    def done(self) -> bool:
        return self.begun == 0

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in vars(self).values() if isinstance(one, np.ndarray)) + 100 * len(self.labels)


@dataclass
class _Pass:
    """What one pass of the prompt left behind."""

    rows: list[Tensor]  # [pos, d_model] of the columns: the embedding, then after each layer
    layers: tuple[int | None, ...]
    last: nn.Module
    runs: int  # calls of `last` in a pass: a shared layer has many, and its last one counts
    normed: bool
    after: tuple[str, ...]
    own: Tensor  # [own, vocabulary]: the model's own logits of the last columns


def lens_steps(
    loaded: LoadedModel, prompt: Prompt, first: int, end: int, kernel: str = "flash", had: Lens | None = None
) -> Iterator[Lens]:
    """Positions `first` to `end` from the last layer down to the embedding, a few layers a step.

    Of an encoder-decoder the decoder's side. `had`: the same lens as far as it was computed; it goes on from there.
    `WrongModel` without a head, `UnsupportedHere` if no layer is found.
    """
    if not loaded.has_logits:
        raise WrongModel("generate.lens.error.no_head", model=loaded.label)
    seen = _look(loaded, prompt, (first, end), kernel)
    last, own = _through(loaded, prompt, seen, seen.rows[-1], kernel).float(), seen.own.float()
    gap, final = _gap(last, own), last.log_softmax(-1)
    told, top = [_tell(final, final)] if had is None else _rows(had), _top(own.log_softmax(-1))
    rest, each = list(reversed(seen.rows[: -len(told)])), max(1, CHUNK // (4 * last.numel()))
    labels: dict[int, str] = {}
    while True:
        _name(loaded, np.concatenate([top[0].ravel(), *(one[0].ravel() for one in told)]), labels)
        yield _lens(seen, told, final, top, gap, first, labels)
        if not rest:
            return
        now, rest = rest[:each], rest[each:]
        logits = _through(loaded, prompt, seen, torch.cat(now), kernel).float()
        told = [*reversed([_tell(one.log_softmax(-1), final) for one in logits.split(len(last))]), *told]


def _rows(lens: Lens) -> list[tuple[Array, ...]]:
    """What `_tell` said of each row that is there."""
    arrays = (lens.ids, lens.log_probs, lens.final_log_probs, lens.ranks, lens.kl, lens.entropy)
    return list(zip(*arrays, strict=True))


def _lens(
    seen: _Pass, told: Sequence[tuple[Array, ...]], final: Tensor, top: tuple[Array, Array], gap: float, first: int,
    labels: dict[int, str],
) -> Lens:  # fmt: skip
    ids, log_probs, final_log_probs, ranks, kl, entropy = (np.stack(arrays) for arrays in zip(*told, strict=True))
    best = final.argmax(-1).cpu().numpy().astype(np.int32)
    return Lens(
        n_rows=len(seen.rows), first=first, ids=ids, log_probs=log_probs, final=best, final_log_probs=final_log_probs,
        ranks=ranks, kl=kl, entropy=entropy, own_ids=top[0], own_log_probs=top[1], gap=gap, layers=seen.layers,
        normed=seen.normed, after=seen.after, labels=dict(labels),
    )  # fmt: skip


# ---- numbers


def _tell(log_probs: Tensor, final: Tensor) -> tuple[Array, ...]:
    """Of one row [pos, vocabulary]: ids and log-probabilities of the top, then of the final token, its rank, KL, H."""
    best = final.argmax(-1, keepdim=True)
    of_final = log_probs.gather(-1, best)
    ranks = 1 + (log_probs > of_final).sum(-1)
    p = final.exp()
    kl = (p * (final - log_probs)).masked_fill(p == 0, 0).sum(-1)  # a head may rule tokens out: 0 ln 0 = 0
    entropy = torch.special.entr(log_probs.exp()).sum(-1)
    found = (of_final[:, 0], ranks.int(), kl, entropy)
    return (*_top(log_probs), *(one.cpu().numpy() for one in found))


def _top(log_probs: Tensor) -> tuple[Array, Array]:
    top = log_probs.topk(min(TOP, log_probs.shape[-1]), dim=-1)
    return top.indices.int().cpu().numpy(), top.values.cpu().numpy()


def _gap(last: Tensor, own: Tensor) -> float:
    """Of the last columns, those whose own logits are known."""
    shown = last[len(last) - len(own) :]
    if not len(own):
        return 0.0
    gap = (shown - own).abs().masked_fill(shown == own, 0)  # tokens that a head rules out are -inf in both
    return float(gap.max() / own[own.isfinite()].abs().max().clamp_min(1e-30))


def _name(loaded: LoadedModel, ids: Array, labels: dict[int, str]) -> None:
    """A label for each id that has none yet; they are no text, so no two are joined to one character."""
    new = sorted(set(ids.tolist()) - labels.keys())
    with loaded.tokenizer_lock:
        tokens = describe(loaded.tokenizer, new, [i % 2 for i in range(len(new))])
    labels.update((one, token.raw) for one, token in zip(new, tokens, strict=True))


# ---- the model


def _look(loaded: LoadedModel, prompt: Prompt, columns: tuple[int, int], kernel: str) -> _Pass:
    """One pass of the prompt: the stream after every layer, and the model's own logits."""
    watcher = _Watcher(loaded, slice(*columns))
    n = len(prompt.target) or prompt.n_tokens
    handle = register_module_forward_hook(watcher.after, with_kwargs=True)
    try:
        logits = loaded.forward(prompt, AttentionCall(kernel, watcher.attended), all_logits=n <= WHOLE)[0]
    finally:
        handle.remove()
    return watcher.result(logits, n)


@dataclass
class _Watcher:
    loaded: LoadedModel
    columns: slice
    thread: int = field(default_factory=threading.get_ident)

    def __post_init__(self) -> None:
        encoder = self.loaded.encoder_modules()
        self.blocks = {one for one in layers_of(self.loaded) if one not in encoder}
        self.paths = {module: path for path, module in self.loaded.model.named_modules()}
        self.attending: set[nn.Module] = set()
        self.calls: list[
            tuple[nn.Module, Tensor, Tensor, bool, bool]
        ] = []  # block, read, gave, it attends, ends normed
        self.normed: Tensor | None = None  # what the last norm gave
        self.attended_now, self.since = False, list[str]()

    def attended(self, record: AttentionRecord) -> None:
        self.attended_now = True

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if threading.get_ident() != self.thread:
            return
        gave = stream_of(output)
        if module in self.blocks:
            read = stream_of((*args, *kwargs.values()))
            if gave is not None and read is not None and gave.shape == read.shape:
                ends = self.normed is not None and self.normed.data_ptr() == gave.data_ptr()
                if self.attended_now:
                    self.attending.add(module)
                before, after = read[0, self.columns].clone(), gave[0, self.columns].clone()
                self.calls.append((module, before, after, self.attended_now, ends))
                self.attended_now, self.since = False, []
        elif not any(module.children()):
            self.normed = gave if is_norm(module) else self.normed
            if next(own_weights(module), None) is not None and module in self.paths:
                self.since.append(self.paths[module])

    def result(self, logits: Tensor, n: int) -> _Pass:
        lists = [set(one) for one in self.loaded.model.modules() if isinstance(one, nn.ModuleList)]
        homes = [one for one in lists if one & self.attending]
        calls = [call for call in self.calls if any(call[0] in home for home in homes)]
        if not calls:
            raise UnsupportedHere("error.no_layers", model=self.loaded.label)
        last, numbers = calls[-1][0], iter(range(len(calls)))
        first = max(self.columns.start, n - len(logits))  # the logits of the last position may be all there are
        return _Pass(
            rows=[calls[0][1], *(call[2] for call in calls)],
            layers=tuple(next(numbers) if call[3] else None for call in calls),
            last=last,
            runs=sum(call[0] is last for call in calls),
            normed=all(call[4] for call in calls),
            after=tuple(self.since),
            own=logits[first - (n - len(logits)) : max(0, self.columns.stop - (n - len(logits)))].clone(),
        )


def _through(loaded: LoadedModel, prompt: Prompt, seen: _Pass, rows: Tensor, kernel: str) -> Tensor:
    """[row, vocabulary]: the logits of these rows of the stream, by what the model does after its last layer."""
    if isinstance(loaded.model, Transformer):  # one of ours: its parts are known
        stack = loaded.model.decoder or loaded.model.encoder
        assert stack is not None, "a Transformer has a stack"
        with torch.inference_mode():
            ours: Tensor = loaded.model.output(stack.norm(rows[None]))[0]
        return ours
    inputs = {name: tensor[:, :1] for name, tensor in prompt.inputs.items()}
    with _instead(seen.last, seen.runs, rows):
        logits = loaded.run(inputs, AttentionCall(kernel))
    return logits.reshape(-1, logits.shape[-1])  # GPT-2 takes the rows for a batch


@contextmanager
def _instead(module: nn.Module, run: int, rows: Tensor) -> Iterator[None]:
    """The `run`-th call of `module` in this thread gives `rows`. The hook is the process's: the model is shared."""
    thread, calls = threading.get_ident(), 0

    def replace(one: nn.Module, args: Any, output: Any) -> Any:
        nonlocal calls
        if one is not module or threading.get_ident() != thread:
            return None
        calls += 1
        return _replaced(output, rows[None]) if calls == run else None

    handle = register_module_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()


def _replaced(output: Any, rows: Tensor) -> Any:
    if isinstance(output, Tensor):
        return rows
    stream = stream_of(output)
    return tuple(rows if one is stream else one for one in output)


def stream_of(value: Any) -> Tensor | None:
    """The first tensor of [batch, position, feature] in what a module was given or gave."""
    values = value if isinstance(value, tuple | list) else (value,)
    return next((one for one in values if isinstance(one, Tensor) and one.is_floating_point() and one.dim() == 3), None)
