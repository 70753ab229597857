"""What a generation is told and what it leaves: a plan, one step for each new token, and all of them as a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfviz.checks import is_whole, require, whole
from tfviz.inference.sampling import GREEDY, STAGES, Sampling
from tfviz.messages import text
from tfviz.model.attention import ATTENTION_KERNELS
from tfviz.registry import choose
from tfviz.sources.decoding import StepSeen
from tfviz.sources.tokens import Token

STAGE_NAMES = ("model", *STAGES)


@dataclass(frozen=True)
class Plan:
    """How a text goes on. Refused with name, value and what is allowed."""

    max_new_tokens: int = 24  # those of `path` included; a longer path is taken up to here
    sampling: Sampling = GREEDY
    seed: int = 0
    path: tuple[int, ...] = ()  # ids taken by hand or kept from before; then the model goes on by itself
    use_cache: bool = True
    kernel: str = "flash"
    chat: bool = False  # the prompt stands in the model's chat template

    def __post_init__(self) -> None:
        whole("max_new_tokens", self.max_new_tokens, 1)
        require(is_whole(self.seed, 0) and self.seed < 2**63, "seed", self.seed, "allowed.seed_number")
        ids = isinstance(self.path, tuple) and all(is_whole(one, 0) for one in self.path)
        require(ids, "path", self.path, "allowed.ids")
        choose(ATTENTION_KERNELS, self.kernel, "kernel")


@dataclass(frozen=True)
class Candidate:
    """One token that might have come next: its probability over the whole vocabulary at each of STAGE_NAMES."""

    id: int
    label: str
    probs: Mapping[str, float]
    cut: str | None = None  # the stage that left it out; None: none did, even where FP32 rounds its probability to 0
    pieces: str = ""  # the bytes of the character that it would end, those before it first: E8 83 8C
    whole: str = ""  # that character


@dataclass(frozen=True, eq=False)
class TokenStep:
    """One new token: how it was chosen, and what that took."""

    index: int
    token: Token  # its label as part of the text so far; a character in pieces is whole once the last one is there
    id: int
    drawn: int  # what sampling gave here; another than `id` only if that was taken by hand
    forced: bool  # it stood in the plan's path
    prob: float  # what the model itself gave it: softmax over the whole vocabulary
    drawn_prob: float  # after penalty, temperature and cuts
    entropy: float  # nats, of the model's own distribution
    surprise: float  # nats, -ln prob
    top: tuple[Candidate, ...]  # the most probable by the model; last the taken one, if it is none of them
    kept: Mapping[str, int]  # tokens left after each stage
    rest: Mapping[str, float]  # probability of all that `top` does not list, at each stage
    text: str  # all new tokens so far, as text without special tokens; a character once it is whole
    said: tuple[Token, ...]  # all new tokens so far, labelled as one text; the last is `token`
    read: tuple[Token, ...]  # what the decoder read in this step: the prompt (its start token) first, then one token
    seconds: float  # wall time of the whole step; tokens of a path share one pass, counted with the first
    forward_seconds: float  # of that, the model's own pass
    cache_bytes: int  # keys and values held after this step's pass; 0 without a cache
    stopped: str | None = None  # why the text ends here: end | max_new_tokens | max_positions
    limit: int | None = None  # the number of new tokens or positions that it ran into
    seen: StepSeen | None = field(default=None, repr=False)  # what each attention read, on the CPU; if recorded

    def reason(self, language: str = "en") -> str:
        """`stopped` as a sentence; empty if the text goes on."""
        if self.stopped is None:
            return ""
        return text(f"generation.ended.{self.stopped}", language, limit=self.limit)


@dataclass(eq=False)
class Run:
    """The steps of one plan so far."""

    plan: Plan
    steps: list[TokenStep] = field(default_factory=list)

    @property
    def prompt(self) -> tuple[Token, ...]:
        """What the decoder had read before the first new token."""
        return self.steps[0].read if self.steps else ()

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The new ones."""
        return self.steps[-1].said if self.steps else ()

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(step.id for step in self.steps)

    @property
    def text(self) -> str:
        return self.steps[-1].text if self.steps else ""

    @property
    def finished(self) -> bool:
        return bool(self.steps) and self.steps[-1].stopped is not None

    @property
    def seen(self) -> list[StepSeen]:
        """Of the prompt's step and each later one; empty if nothing was recorded."""
        return [step.seen for step in self.steps if step.seen is not None]

    @property
    def nbytes(self) -> int:
        rows = [row for seen in self.seen for row in seen.values()]
        tensors = [t for row in rows for t in (row.query, row.key, row.value, row.mask, row.rule.bias) if t is not None]
        listed = sum(len(step.top) for step in self.steps)
        return sum({id(t): t.numel() * t.element_size() for t in tensors}.values()) + 700 * listed
