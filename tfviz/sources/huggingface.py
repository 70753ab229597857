"""A folder in Hugging Face's layout to a `LoadedModel`: safetensors only, remote code never.

Which class to load is read from the config: encoder-decoders with their head, decoders as causal language models,
encoders with their masked-word head if the checkpoint carries one.
"""

import inspect
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES
from transformers.utils.logging import disable_progress_bar

from tfviz.errors import ModelUnavailable, Overtaken, TfvizError, UnsupportedHere, WrongModel
from tfviz.inference.precision import weight_bytes
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.sources.attention_bridge import NAME, register, write_masks_out
from tfviz.sources.base import MAX_TARGET, LoadedModel
from tfviz.sources.building import bounded
from tfviz.sources.catalog import CATALOG
from tfviz.sources.checkpoint_config import cache_holds_decoder, end_ids, has_scores, start_id, without_empty_windows
from tfviz.sources.checkpoint_files import stored_tensors
from tfviz.sources.decoding import Decoding
from tfviz.sources.flat_decoding import flat_decoding
from tfviz.sources.heads import NextSentence, next_sentence
from tfviz.sources.transformers_decoding import TransformersDecoding

logger = logging.getLogger(__name__)
disable_progress_bar()  # loading from disk takes less time than reading the bar
TRIED = "a 猫 🧸"  # the last two are unknown to many tokenizers
FAR = 1_000_000  # tokenizers without a limit say 1e30


@dataclass(frozen=True)
class HuggingFaceModel(LoadedModel):
    """One of transformers' models, its attention going through the bridge."""

    next_sentence: NextSentence | None = None  # BERT's head for pairs, where the checkpoint has it

    @property
    def other_layers(self) -> int:
        config: Any = self.model.config.get_text_config()  # type: ignore[operator, union-attr]
        return sum(not has_scores(one) for one in getattr(config, "layer_types", None) or ())

    @property
    def n_embeddings(self) -> int:
        embedding: Any = self.model.get_input_embeddings()  # type: ignore[operator]
        return int(embedding.weight.shape[0])

    @property
    def start_id(self) -> int:
        start = start_id(self.model)
        assert start is not None, "load_folder refuses an encoder-decoder without one"
        return start

    @property
    def end_ids(self) -> frozenset[int]:
        return end_ids(self.model, self.tokenizer)

    @property
    def pad_id(self) -> int:
        ids = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        return next(one for one in ids if one is not None and one < self.n_embeddings)

    def place(self, positions: Tensor) -> dict[str, Tensor]:
        """Decoders count positions from the left end, padding included, unless they are told."""
        if "position_ids" not in inspect.signature(self.model.forward).parameters:
            return {}
        first = [table.padding_idx + 1 for table in _position_tables(self.model) if table.padding_idx is not None]
        return {"position_ids": positions + (first[0] if first else 0)}

    def window(self, kind: str, layer: int) -> int | None:
        config: Any = self.model.config.get_text_config()  # type: ignore[operator, union-attr]
        kinds = [one for one in getattr(config, "layer_types", None) or [] if has_scores(one)]
        sliding = layer >= len(kinds) or kinds[layer] == "sliding_attention"
        width = getattr(config, "sliding_window", None) if sliding and kind != "cross" else None
        looks_both_ways = kind == "encoder" or self.family == "encoder"
        return width + 1 if width and looks_both_ways else width  # transformers counts an encoder's own position apart

    def decoding(
        self, inputs: dict[str, Tensor], *, use_cache: bool = True, record: bool = False, fast: bool = True
    ) -> Decoding:
        if self.family == "encoder" or not self.has_logits:
            raise WrongModel("error.no_generation", model=self.label)
        written_out = flat_decoding(self, inputs, record) if fast and use_cache else None
        return TransformersDecoding(self, inputs, use_cache, record) if written_out is None else written_out

    def _run(self, inputs: dict[str, Tensor], all_logits: bool) -> Tensor:
        options: dict[str, Any] = {} if self.family == "encoder" else {"use_cache": False}
        if not all_logits and self.family == "decoder":
            options["logits_to_keep"] = 1
        output = self.model(**inputs, **options)
        return output.logits if self.has_logits else output[0]

    def _encoder(self) -> nn.Module:
        encoder: nn.Module = self.model.get_encoder()  # type: ignore[operator]
        return encoder

    def _write_target(self, inputs: dict[str, Tensor], limit: int) -> list[int]:
        with torch.inference_mode(), attention_call(AttentionCall("naive")):  # every model can run naive
            ids: list[int] = self.model.generate(  # type: ignore[operator]
                **inputs,
                max_new_tokens=max(1, min(MAX_TARGET, limit - 1)),
                do_sample=False,
                num_beams=1,
                use_cache=cache_holds_decoder(self.model.config),
                decoder_start_token_id=self.start_id,
                eos_token_id=sorted(self.end_ids) or None,
            )[0].tolist()
        return ids[:-1] if len(ids) > 1 and ids[-1] in self.end_ids else ids


def load_folder(
    folder: Path, *, model_id: str, revision: str, device: torch.device, unwanted: Callable[[], bool] = lambda: False
) -> LoadedModel:
    """The FP32 model of a local folder.

    `ModelUnavailable` in one sentence for whatever cannot be read; `Overtaken` soon after `unwanted()`.
    """
    try:
        loaded = _loaded(folder, model_id, revision, device, unwanted)
        _try_out(loaded)
        return loaded
    except (TfvizError, Overtaken):
        raise
    except KeyError as error:
        if error.args != (NAME,):
            raise ModelUnavailable("error.cannot_load", model=model_id, reason=repr(error)) from error
        raise UnsupportedHere("error.no_attention", model=Path(model_id).name) from error  # it has its own attention
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise ModelUnavailable("error.cannot_load", model=model_id, reason=_first_sentence(error)) from error
        raise ModelUnavailable("error.weights_misfit", model=model_id) from error
    except Exception as error:  # transformers raises many kinds for a broken folder; the reason goes to the log
        logger.warning("cannot load %s", model_id, exc_info=True)
        raise ModelUnavailable("error.cannot_load", model=model_id, reason=_first_sentence(error)) from error


def _loaded(
    folder: Path, model_id: str, revision: str, device: torch.device, unwanted: Callable[[], bool]
) -> "HuggingFaceModel":
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    auto, family, has_logits = _classes(config)
    if family != "encoder":
        without_empty_windows(config, model_id)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with bounded(stored_tensors(folder), model_id, unwanted):
        model, loading = auto.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            attn_implementation=register(),
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    lacking = [key for key in loading["missing_keys"] if not _is_spare(model, key)]
    if lacking:
        raise ModelUnavailable("error.weights_missing", model=model_id, n=len(lacking))
    if not _reads_tokens(model):
        raise UnsupportedHere("error.no_attention", model=Path(model_id).name)
    if family == "encoder-decoder" and start_id(model) is None:
        raise ModelUnavailable("error.no_start_token", model=model_id)
    model = model.eval().requires_grad_(False).to(device)
    write_masks_out(model)
    entry = CATALOG.get(model_id)
    return HuggingFaceModel(
        id=model_id,
        label=entry.label if entry else Path(model_id).name,
        revision=revision,
        family=family,
        precision="fp32",
        device=device,
        model=model,
        tokenizer=tokenizer,
        token_limit=token_limit(model, tokenizer),
        has_logits=has_logits and not _head_is_missing(model, loading["missing_keys"]),
        n_parameters=sum(p.numel() for p in model.parameters()),
        weight_bytes=weight_bytes(model),
        next_sentence=next_sentence(folder, config.model_type, getattr(config, "hidden_size", 0), device),
    )


def _try_out(loaded: LoadedModel) -> None:
    """A first short pass: settings that no layer can run with are known before anyone sees the model."""
    seen: list[object] = []
    call = AttentionCall("naive", lambda record: seen.append(record.module))
    try:
        for target in (None, "a") if loaded.family == "encoder-decoder" else (None,):  # its own answer, and a typed one
            loaded.forward(loaded.prompt(TRIED, target, limit=4), call, all_logits=False)
    except AttributeError as error:
        if seen:
            raise
        raise UnsupportedHere("error.no_attention", model=loaded.label) from error  # it stumbles over our mask
    except TfvizError as error:  # of this one text, or said again to whoever asks for a view
        logger.debug("%s: %s", loaded.id, error)


def _reads_tokens(model: nn.Module) -> bool:
    """Whether what it reads first is a table of tokens: Perceiver has a bare parameter there."""
    return isinstance(model.get_input_embeddings(), nn.Module)  # type: ignore[operator]


def _is_spare(model: nn.Module, key: str) -> bool:
    """Whether no attention depends on this tensor: an output head, a pooler, a bias of the logits."""
    head: nn.Module | None = model.get_output_embeddings()  # type: ignore[operator]
    heads = [name for name, module in model.named_modules() if module is head and name]
    return any(key.startswith(f"{name}.") for name in heads) or any(
        part in key for part in ("pooler", "lm_head", "cls.", "final_logits_bias")
    )


def _head_is_missing(model: nn.Module, missing: Collection[str]) -> bool:
    """Whether the output matrix was made up at random because the checkpoint has none."""
    head: nn.Module | None = model.get_output_embeddings()  # type: ignore[operator]
    names = {name for name, module in model.named_modules() if module is head}
    return any(f"{name}.weight" in missing for name in names)


def _classes(config: Any) -> tuple[Any, str, bool]:
    """(auto class, family, has a head), from what the checkpoint says it is."""
    named = (getattr(config, "architectures", None) or [""])[0]
    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM, "encoder-decoder", True
    if named.endswith(("CausalLM", "LMHeadModel")) or _only_causal(config.model_type):
        return AutoModelForCausalLM, "decoder", True
    if named in {MODEL_FOR_MASKED_LM_MAPPING_NAMES.get(config.model_type), "BertForPreTraining"}:
        return AutoModelForMaskedLM, "encoder", True
    return AutoModel, "encoder", False


def _only_causal(model_type: str) -> bool:
    """GPT2Model and LlamaModel are decoders too, though their checkpoint came without a head."""
    return model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES


def token_limit(model: nn.Module, tokenizer: Any) -> int:
    """The longest input: what the tokenizer says, the config says, and a learned position table can hold."""
    config: Any = model.config
    said = [tokenizer.model_max_length, getattr(config, "max_position_embeddings", None) or FAR]
    for table in _position_tables(model):
        if table.padding_idx is not None:
            said.append(table.num_embeddings - table.padding_idx - 1)  # RoBERTa counts from after the padding index
    return int(min(limit for limit in said if limit > 0))  # -1: XLNet's way to say that there is none


def _position_tables(model: nn.Module) -> list[nn.Embedding]:
    named = model.named_modules()
    return [one for name, one in named if name.endswith("position_embeddings") and isinstance(one, nn.Embedding)]


def _first_sentence(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    if first.endswith(":") and len(lines) > 1:  # what is wrong stands in the next line
        first = f"{first} {lines[1]}"
    return first.split(". ")[0][:160]
