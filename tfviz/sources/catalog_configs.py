"""The catalog's models as their config.json describes them: `cache_config.CONFIGS`, and what parameters need."""

from typing import Any

from tfviz.sources.cache_config import CONFIGS
from tfviz.sources.catalog import CatalogEntry

_BERT: dict[str, Any] = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
MORE: dict[str, dict[str, Any]] = {
    "smollm2-135m": {"vocab_size": 49152, "intermediate_size": 1536, "tie_word_embeddings": True},
    "minilm-l6": {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "num_hidden_layers": 6,
        "hidden_size": 384,
        "intermediate_size": 1536,
        "num_attention_heads": 12,
    },
    "gpt2": {"vocab_size": 50257, "architectures": ["GPT2LMHeadModel"]},
    "distilgpt2": {"vocab_size": 50257, "architectures": ["GPT2LMHeadModel"]},
    "HuggingFaceTB/SmolLM2-360M": {"vocab_size": 49152, "intermediate_size": 2560, "tie_word_embeddings": True},
    "Qwen/Qwen3-0.6B": {"vocab_size": 151936, "intermediate_size": 3072, "tie_word_embeddings": True},
    "bert-base-uncased": {**_BERT, "vocab_size": 30522},
    "bert-base-chinese": {**_BERT, "vocab_size": 21128},
    "roberta-base": {
        "model_type": "roberta",
        "architectures": ["RobertaForMaskedLM"],
        "vocab_size": 50265,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
    },
    "albert-base-v2": {
        "model_type": "albert",
        "architectures": ["AlbertModel"],  # with its pooler, as the hub counts it
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    },
    "google-t5/t5-small": {"vocab_size": 32128, "d_ff": 2048, "is_encoder_decoder": True},
    "google/flan-t5-small": {
        "vocab_size": 32128,
        "d_ff": 1024,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "is_encoder_decoder": True,
    },
    "Helsinki-NLP/opus-mt-en-zh": {
        "vocab_size": 65001,
        "encoder_ffn_dim": 2048,
        "decoder_ffn_dim": 2048,
        "pad_token_id": 65000,
        "is_encoder_decoder": True,
    },
    "facebook/bart-base": {
        "vocab_size": 50265,
        "encoder_ffn_dim": 3072,
        "decoder_ffn_dim": 3072,
        "is_encoder_decoder": True,
    },
}


def config_of(entry: CatalogEntry) -> dict[str, Any]:
    """Of an entry that is not ours."""
    return {**CONFIGS.get(entry.id, {}), **MORE[entry.id]}
