"""Transformers of ours (tfviz.model) as models of the page: the one that reads dates, and the paper's base model with
random weights.

A checkpoint is one safetensors file in assets/models: weights in FP16, and in its metadata the config, the vocabulary
and how it was trained. Nothing is fetched.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from tfviz.config import PRESETS, TransformerConfig
from tfviz.errors import ModelUnavailable, WrongModel
from tfviz.inference.generate import beam_search, generate
from tfviz.inference.precision import weight_bytes
from tfviz.inference.sampling import GREEDY
from tfviz.messages import ASSETS
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.model.transformer import Transformer
from tfviz.sources.base import MAX_TARGET, Hypothesis, LoadedModel, Prompt
from tfviz.sources.catalog import CatalogEntry
from tfviz.sources.decoding import Decoding
from tfviz.sources.scratch_decoding import ScratchDecoding

FOLDER = ASSETS / "models"
SEED = 0  # of random weights
SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


class ScratchModel(LoadedModel):
    """`model` is a tfviz.model.Transformer."""

    @property
    def transformer(self) -> Transformer:
        assert isinstance(self.model, Transformer), type(self.model)
        return self.model

    @property
    def n_embeddings(self) -> int:
        return self.transformer.config.vocab_size

    @property
    def start_id(self) -> int:
        return self.transformer.config.start_id

    @property
    def end_ids(self) -> frozenset[int]:
        return frozenset({self.transformer.config.end_id})

    @property
    def pad_id(self) -> int:
        return self.transformer.config.pad_id or 0

    def place(self, positions: Tensor) -> dict[str, Tensor]:
        return {}  # it counts the tokens that are no padding itself

    def window(self, kind: str, layer: int) -> int | None:
        return None if kind == "cross" else self.transformer.config.window

    def _decoded(self, ids: Sequence[int]) -> str:
        """What the vocabulary lacks stays visible as the unknown token."""
        config = self.transformer.config
        kept = [one for one in ids if one not in {config.pad_id, config.start_id, config.end_id}]
        text: str = self.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def beams(self, prompt: Prompt, n_beams: int, kernel: str = "flash") -> list[Hypothesis]:
        """Beam search over whole answers, with the cache."""
        if self.random:
            return []
        room = min(MAX_TARGET, self.token_limit - 1)
        with torch.inference_mode(), attention_call(AttentionCall(kernel)):
            found = beam_search(self.transformer, prompt.inputs["input_ids"], n_beams=n_beams, max_new_tokens=room)
        return [Hypothesis(tuple(one.ids), one.log_prob, one.finished) for one in found]

    def decoding(
        self, inputs: dict[str, Tensor], *, use_cache: bool = True, record: bool = False, fast: bool = True
    ) -> Decoding:
        if self.family == "encoder" or not self.has_logits:
            raise WrongModel("error.no_generation", model=self.label)
        return ScratchDecoding(self, inputs, use_cache, record, fast)

    def _run(self, inputs: dict[str, Tensor], all_logits: bool) -> Tensor:
        return self.model(inputs["input_ids"], inputs.get("decoder_input_ids"))

    def _encoder(self) -> nn.Module:
        assert self.transformer.encoder is not None
        return self.transformer.encoder

    def _write_target(self, inputs: dict[str, Tensor], limit: int) -> list[int]:
        room = max(1, min(MAX_TARGET, limit - 1))
        end = self.transformer.config.end_id
        with attention_call(AttentionCall("flash")):
            steps = generate(self.transformer, inputs["input_ids"], max_new_tokens=room, sampling=GREEDY)
            written = [int(step.ids[0]) for step in steps]
        return [self.start_id, *(written[:-1] if written[-1:] == [end] else written)]


def load(entry: CatalogEntry, device: torch.device) -> LoadedModel:
    """The FP32 model of a catalog entry that is ours. `ModelUnavailable` if its file is missing or damaged."""
    try:
        if entry.checkpoint is not None:
            model, tokenizer = _trained(FOLDER / entry.checkpoint / "model.safetensors")
        else:
            model, tokenizer = _random(PRESETS[str(entry.preset)], FOLDER / str(entry.preset) / "merges.txt")
    except Exception as error:  # safetensors, json and torch raise many kinds for a broken file
        raise ModelUnavailable("error.cannot_load", model=entry.label, reason=str(error).split("\n")[0]) from error
    model = model.eval().requires_grad_(False).to(device)
    return ScratchModel(
        id=entry.id,
        label=entry.label,
        revision="",
        family=model.config.family,
        precision="fp32",
        device=device,
        model=model,
        tokenizer=tokenizer,
        token_limit=model.config.max_seq_len,
        has_logits=True,
        n_parameters=sum(parameter.numel() for parameter in model.parameters()),
        weight_bytes=weight_bytes(model),
        random=entry.checkpoint is None,
    )


def _trained(path: Path) -> tuple[Transformer, Any]:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name).float() for name in file.keys()}
    model = Transformer(TransformerConfig.from_dict(json.loads(metadata["config"])))
    own = dict(model.named_parameters())  # a shared matrix comes once, here and in the file
    if own.keys() != tensors.keys():
        raise ValueError(f"{path.name} does not hold the weights that its config asks for")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])
    return model, character_tokenizer(json.loads(metadata["vocabulary"]))


def _random(config: TransformerConfig, merges: Path) -> tuple[Transformer, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = Transformer(config)
    lines = merges.read_text(encoding="utf-8").splitlines()
    return model, byte_pair_tokenizer([(left, right) for left, right in map(str.split, lines)], config.vocab_size)


def character_tokenizer(vocabulary: list[str]) -> Any:
    """One token a character; `vocabulary[id]` is its character, the first four are special.

    Full-width digits and letters, as Chinese keyboards type them, are read as the plain ones.
    """
    ids = {character: i for i, character in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=SPECIAL["unk_token"]))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return _wrapped(tokenizer)


def byte_pair_tokenizer(merges: list[tuple[str, str]], vocab_size: int) -> Any:
    """Byte-level BPE with the first merges that fit into `vocab_size` beside the special tokens and the 256 bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    kept = merges[: vocab_size - len(SPECIAL) - len(alphabet)]
    pieces = [*SPECIAL.values(), *alphabet, *(left + right for left, right in kept)]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, kept))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return _wrapped(tokenizer)


def _wrapped(tokenizer: Tokenizer) -> Any:
    """With transformers' interface, which tokens.py reads all models through; typed special tokens are plain text."""
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, split_special_tokens=True, **SPECIAL)
