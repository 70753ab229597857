"""Beam search with everything written down: the whole tree, also what was cut, step by step, for any model that writes.

    candidates   every open text times every token;   log P(text + token) = log P(text) + log P(token | text)
    a step       the n best that do not end stay open; one that ends is kept aside if it is among the n best of all
    the end      n have ended and no open one can still score better, or there is no room left
    score        log P / length^penalty

The algorithm is that of tfviz.inference.generate.beam_search, and of transformers' generate(early_stopping="never").
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from tfviz.checks import from_to, whole
from tfviz.errors import BadText
from tfviz.inference.sampling import largest
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.decoding import Decoding

CUT = 2  # more than n_beams of the candidates that did not make it are kept for show at every step


@dataclass(frozen=True)
class Node:
    """One token of the tree. The root (id 0) is the prompt."""

    id: int
    parent: int  # -1: the root
    step: int  # 0: the root
    token: int
    label: str
    log_prob: float  # of the token, given what stands before it
    total: float  # log P of all new tokens up to this one
    state: str  # kept | ended | dropped
    rank: int  # 0: the most probable candidate of its step
    ends: bool  # whether the token ends a text


@dataclass(frozen=True)
class Found:
    """One text as it stands: ended, or still open."""

    node: int
    ids: tuple[int, ...]
    text: str
    log_prob: float
    score: float
    finished: bool


@dataclass(frozen=True, eq=False)
class Tree:
    """The search after so many steps."""

    n_beams: int
    length_penalty: float
    limit: int  # steps that there is room for
    step: int
    nodes: tuple[Node, ...]  # in the order in which they were made
    found: tuple[Found, ...]  # best score first; of a search under way the open ones as they are
    stopped: str | None = None  # enough | all_ended | max_new_tokens | max_positions
    greedy: Found | None = None  # by a loop of its own that takes the most probable token each time
    forced: tuple[float, ...] = ()  # log P of each of `found` from one pass over the whole text, no cache

    @property
    def nbytes(self) -> int:
        return 300 * len(self.nodes)

    @property
    def done(self) -> bool:
        return bool(self.forced)

    def path(self, node: int) -> list[Node]:
        """From the first new token to `node`."""
        way: list[Node] = []
        while node > 0:
            way.append(self.nodes[node])
            node = self.nodes[node].parent
        return way[::-1]


def beam_steps(
    loaded: LoadedModel,
    prompt: Prompt,
    n_beams: int = 4,
    max_new_tokens: int = 12,
    length_penalty: float = 0.0,
    kernel: str = "flash",
) -> Iterator[Tree]:
    """The tree after each step, and once more with the greedy text and the checks of what was found.

    An encoder-decoder starts at its start token. `TfvizError` for a model that writes no text, for a prompt without
    room, and for numbers out of range.
    """
    whole("n_beams", n_beams, 1)
    whole("max_new_tokens", max_new_tokens, 1)
    from_to("length_penalty", length_penalty, -10, 10)
    search = _Search(loaded, prompt, n_beams, max_new_tokens, length_penalty, AttentionCall(kernel))
    while search.stopped is None:
        search.advance()
        yield search.tree()
    tree = search.tree()
    greedy = search.greedy()
    yield replace(tree, greedy=greedy, forced=tuple(search.forced(one.ids) for one in tree.found))


class _Search:
    """A search between two steps. No context is held between them: each may run in another thread."""

    def __init__(
        self, loaded: LoadedModel, prompt: Prompt, n_beams: int, steps: int, penalty: float, call: AttentionCall
    ) -> None:
        self.loaded, self.n_beams, self.penalty, self.call = loaded, n_beams, penalty, call
        self.inputs = {name: one for name, one in prompt.inputs.items() if name != "decoder_input_ids"}
        self.ends = loaded.end_ids
        self.decoding = self._start()
        room = self.decoding.room
        if room == 0:
            raise BadText("error.generation.no_room", model=loaded.label, limit=self.decoding.last_position)
        self.limit = steps if room is None else min(steps, room)
        self.limited_by = "max_new_tokens" if self.limit == steps else "max_positions"
        with torch.inference_mode():
            before = self.decoding.ids[0].tolist()
        label = loaded.describe(before[-8:])[-1].label
        self.nodes = [Node(0, -1, 0, before[-1], label, 0.0, 0.0, "kept", 0, False)]
        self.open: list[tuple[Node, tuple[int, ...]]] = [(self.nodes[0], ())]  # most probable first
        self.ended: list[Found] = []
        self.step, self.stopped = 0, None  # type: int, str | None

    def _start(self) -> Decoding:
        with torch.inference_mode(), attention_call(self.call):
            return self.loaded.decoding(self.inputs)

    def advance(self) -> None:
        with torch.inference_mode(), attention_call(self.call):
            if self.step:
                last = [node.token for node, _ in self.open]
                self.decoding.append(torch.tensor(last, device=self.decoding.ids.device))
            log_probs = self.decoding.logits().float().log_softmax(dim=-1)
            totals = log_probs + log_probs.new_tensor([[node.total] for node, _ in self.open])  # [beam, vocab]
            ranked = _ranked(totals, self.n_beams * (2 + len(self.ends)) + CUT)
            of_token = [float(log_probs[row, token]) for row, token, _ in ranked]
        self.step += 1
        rows = self._sort(ranked, of_token)
        self.ended = sorted(self.ended, key=lambda one: -one.score)[: self.n_beams]
        self.stopped = self._over()
        if self.stopped is None:
            with torch.inference_mode():
                self.decoding.keep(torch.tensor(rows, device=self.decoding.ids.device))

    def _sort(self, ranked: Sequence[tuple[int, int, float]], of_token: Sequence[float]) -> list[int]:
        """Makes the nodes of a step; gives the rows that the open ones grew from."""
        before, rows, n_cut = self.open, [], 0
        self.open = []
        for rank, ((row, token, total), log_prob) in enumerate(zip(ranked, of_token, strict=True)):
            parent, ids = before[row][0], (*before[row][1], token)
            ends = token in self.ends
            state = "ended" if ends and rank < self.n_beams else "dropped"
            if not ends and len(self.open) < self.n_beams:
                state = "kept"
            n_cut += state == "dropped"
            if state == "dropped" and (n_cut > self.n_beams + CUT or log_prob == -torch.inf):
                continue
            label = self.loaded.describe(ids)[-1].label
            node = Node(len(self.nodes), parent.id, self.step, token, label, log_prob, total, state, rank, ends)
            self.nodes.append(node)
            if state == "kept":
                self.open.append((node, ids))
                rows.append(row)
            elif state == "ended":
                self.ended.append(self._found(node, ids, True))
        return rows

    def _over(self) -> str | None:
        if not self.open:
            return "all_ended"
        best = self.open[0][0].total  # it can only lose log-probability
        best = max(self._score(best, self.step), self._score(best, self.limit))
        if self.step < self.limit:
            return "enough" if len(self.ended) == self.n_beams and best <= self.ended[-1].score else None
        return self.limited_by

    def _score(self, log_prob: float, length: int) -> float:
        return log_prob / length**self.penalty

    def _found(self, node: Node, ids: tuple[int, ...], finished: bool) -> Found:
        score = self._score(node.total, len(ids))
        return Found(node.id, ids, self.loaded.decode(ids), node.total, score, finished)

    def tree(self) -> Tree:
        still = [] if self.stopped == "enough" else [self._found(node, ids, False) for node, ids in self.open]
        found = sorted([*self.ended, *still], key=lambda one: -one.score)[: self.n_beams]
        nodes = tuple(self.nodes)
        return Tree(self.n_beams, self.penalty, self.limit, self.step, nodes, tuple(found), self.stopped)

    def greedy(self) -> Found:
        """The most probable token each time, by itself: nothing of the search is used."""
        decoding, ids, log_prob = self._start(), list[int](), 0.0
        while len(ids) < self.limit and not (ids and ids[-1] in self.ends):
            with torch.inference_mode(), attention_call(self.call):
                if ids:
                    decoding.append(torch.tensor(ids[-1:], device=decoding.ids.device))
                log_probs = decoding.logits()[0].float().log_softmax(dim=-1)
                ids.append(int(log_probs.argmax()))
                log_prob += float(log_probs[ids[-1]])
        score, finished = self._score(log_prob, len(ids)), ids[-1] in self.ends
        return Found(-1, tuple(ids), self.loaded.decode(ids), log_prob, score, finished)

    def forced(self, ids: Sequence[int]) -> float:
        """log P of these new tokens from one pass over all of them (teacher forcing)."""
        start = self.decoding.ids[:1, : self.decoding.prompt_length]
        target = torch.tensor([ids], device=start.device)
        name = "decoder_input_ids" if self.loaded.family == "encoder-decoder" else "input_ids"
        inputs = self.inputs | {name: torch.cat([start, target[:, :-1]], dim=1)}
        if name == "input_ids":
            inputs["attention_mask"] = torch.ones_like(inputs[name])
        logits = self.loaded.run(inputs, self.call)[0, start.shape[1] - 1 :].float()
        return float(logits.log_softmax(dim=-1).gather(-1, target[0, :, None]).sum())


def _ranked(totals: Float[Tensor, "beam vocab"], n: int) -> list[tuple[int, int, float]]:
    """The n largest as (row, column, value), largest first; of equal ones the first."""
    flat = totals.flatten()
    places = largest(flat[None], min(n, len(flat)))[0].nonzero()[:, 0]
    values, order = flat[places].sort(descending=True, stable=True)
    places = places[order]
    rows, columns = places // totals.shape[1], places % totals.shape[1]
    return list(zip(rows.tolist(), columns.tolist(), values.tolist(), strict=True))
