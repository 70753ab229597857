"""A pasted config.json is data and nothing else: JSON within limits of size, of which only the numbers named here are
read, each checked; and one sentence for all that transformers' own classes refuse.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tfviz.errors import Phrase, TfvizError
from tfviz.sources.config_names import class_of, known_names, taken

LONGEST = 200_000  # letters of a config.json; real ones have a few thousand
MOST_LAYERS, LARGEST, DEEPEST = 1000, 1 << 34, 3
SYNONYMS = {  # the name that most configs use -> other names for the same number, in files of unknown model types
    one: others.split()
    for one, others in {
        "num_hidden_layers": """n_layer n_layers num_layers num_layer decoder_layers num_decoder_layers n_blocks
            num_blocks""",
        "num_attention_heads": """n_head n_heads num_heads num_head attention_heads decoder_attention_heads
            num_query_heads""",
        "num_key_value_heads": """num_kv_heads n_kv_heads n_kv_head n_head_kv n_heads_kv num_heads_kv num_head_kv
            num_query_groups n_query_groups num_attention_groups multi_query_group_num kv_n_heads kv_heads
            num_kv_attention_heads num_attention_kv_heads""",
        "head_dim": "kv_channels d_kv d_head dim_head attention_head_dim attention_head_size head_size head_width",
        "hidden_size": "n_embd n_embed d_model dim model_dim embed_dim embedding_dim n_hidden",
        "max_position_embeddings": """n_positions max_seq_len max_seq_length max_sequence_length seq_length seq_len
            n_ctx context_length block_size""",
        "sliding_window": "sliding_window_size window_size attention_window local_window_size local_attention_window",
    }.items()
}
PATTERN = "sliding_window_pattern"  # every how many layers one looks at everything
LAYER_COUNTS = {"num_hidden_layers", *SYNONYMS["num_hidden_layers"]}
WHOLE = {*SYNONYMS, "decoder_layers", "num_decoder_layers", "num_kv_heads"} | set(
    """encoder_layers encoder_attention_heads decoder_attention_heads attention_window_size
    attention_chunk_size kv_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim global_head_dim
    num_global_key_value_heads attn_layer_period mamba_n_heads mamba_d_head mamba_expand""".split()
)
NONE_AT_ZERO = {"head_dim", "sliding_window", *SYNONYMS["sliding_window"], "attention_chunk_size"}
GUESSED = WHOLE | {name for names in SYNONYMS.values() for name in names}
FROM_ZERO = {"num_kv_shared_layers", "max_window_layers", "attn_layer_offset", PATTERN}
SWITCHES = set(
    """is_encoder_decoder is_decoder use_sliding_window multi_query multi_query_attention new_decoder_architecture
    attention_k_eq_v""".split()
)
LISTS = set(
    """layer_types layers_block_type block_types full_attn_idxs attn_layer_indices no_rope_layers
    hybrid_layer_ids""".split()
)
NESTED = ("text_config", "decoder", "encoder", "llm_config", "language_config", "attn_config", "thinker_config")
TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")  # a text model inside
PER_LAYER = "per_layer_config"  # layers that differ: {"5": {"head_dim": 512}}
JSON_WORDS = {list: "list", str: "text", int: "number", float: "number", bool: "switch", type(None): "null"}
REFUSED = "ValueError: "  # how the last line begins when a config class checks its numbers


def parsed(text: str) -> dict[str, Any]:
    """The object that the text holds, unchecked. `TfvizError` in one sentence for what is no JSON object."""
    if len(text) > LONGEST:
        raise TfvizError("cache.planner.error.long", n=f"{len(text):,}", most=f"{LONGEST:,}")
    try:
        read = json.loads(text.removeprefix("\ufeff"), object_hook=_infinity)
    except json.JSONDecodeError as error:
        raise TfvizError("cache.planner.error.json", line=f"{error.lineno:,}", column=f"{error.colno:,}") from error
    except RecursionError as error:
        raise TfvizError("cache.planner.error.deep") from error
    except ValueError as error:  # Python reads no whole number of more than 4,300 digits
        raise TfvizError("cache.planner.error.digits") from error
    if not isinstance(read, dict):
        raise TfvizError("cache.planner.error.object", found=Phrase(f"cache.planner.json.{JSON_WORDS[type(read)]}", {}))
    return read


def _infinity(read: dict[str, Any]) -> Any:
    """transformers writes infinity as an object, since JSON has no such number."""
    infinite = {"Infinity": math.inf, "-Infinity": -math.inf}
    return infinite.get(str(read.get("__float__")), read) if "__float__" in read else read


def checked(config: Mapping[str, Any], cls: Any = None, depth: int = 0) -> dict[str, Any]:
    """The entries that matter, each of its right type and size; everything else is left behind, and what a model of
    `cls` (None: an unknown one) does not listen to."""
    kept: dict[str, Any] = {}
    whole = GUESSED
    if cls is not None:
        whole = WHOLE | (GUESSED & taken(cls)) | {own for name, own in cls.attribute_map.items() if name in WHOLE}
    for name, value in config.items():
        if name in NESTED and isinstance(value, Mapping) and depth < DEEPEST:
            kept[name] = checked(value, class_of(value.get("model_type"), cls, name), depth + 1)
        elif name == PER_LAYER and isinstance(value, Mapping) and depth < DEEPEST:
            items = list(value.items())[:MOST_LAYERS]
            kept[name] = {str(i): checked(own, cls, DEEPEST) for i, own in items if isinstance(own, Mapping)}
        elif name == "model_type" and isinstance(value, str):
            kept[name] = value[:60]
        elif cls is None or name in known_names(cls):
            kept |= _one_checked(name, value, whole)
    return kept


def _one_checked(name: str, value: Any, whole: set[str]) -> dict[str, Any]:
    """The entry, if it is one that a cache depends on; nothing otherwise."""
    if name in SWITCHES:
        if not isinstance(value, bool | None):
            raise TfvizError("cache.planner.error.switch", name=name, value=shown_value(value))
        return {name: value}
    if name in LISTS and value is not None:
        return {name: _list(name, value)}
    if name == PATTERN and isinstance(value, str):
        return {name: value[:100]}  # EXAONE: "LLLG"
    return {name: _number(name, value)} if name in whole or name in FROM_ZERO else {}


def _number(name: str, value: Any) -> int | None:
    low, high = int(name not in FROM_ZERO), MOST_LAYERS if name in LAYER_COUNTS else LARGEST
    if value is None or (value == 0 and value is not False and name in NONE_AT_ZERO):
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise TfvizError("cache.planner.error.number", name=name, value=shown_value(value), low=low)
    if value > high:
        raise TfvizError("cache.planner.error.large", name=name, value=shown_value(value), high=f"{high:,}")
    return value


def _list(name: str, value: Any) -> list[Any]:
    fine = isinstance(value, list) and len(value) <= MOST_LAYERS
    if not fine or not all(isinstance(one, str) or (isinstance(one, int) and 0 <= one <= LARGEST) for one in value):
        raise TfvizError("cache.planner.error.list", name=name, value=shown_value(value), most=f"{MOST_LAYERS:,}")
    return value


def shown_value(value: Any) -> str:
    said = json.dumps(value, ensure_ascii=False)
    return said if len(said) <= 40 else said[:39] + "…"


def named_model(config: Mapping[str, Any]) -> str:
    name = config.get("_name_or_path")
    return name[:60] if isinstance(name, str) else ""


@contextmanager
def in_a_sentence(kind: str) -> Iterator[None]:
    """transformers' classes raise many kinds of errors for numbers that do not fit together: all leave as one."""
    try:
        yield
    except TfvizError:
        raise
    except Exception as error:
        raise _misfit(kind, error) from error


def _misfit(kind: str, error: Exception) -> TfvizError:
    """In transformers' own words where they are a sentence about the config, not one about Python."""
    said = str(error).strip().split("\n")[-1].strip()
    if not said.startswith(REFUSED):
        return TfvizError("cache.planner.error.misfit", kind=kind)
    reason = said.removeprefix(REFUSED)
    reason = reason if len(reason) <= 160 else reason[:159] + "…"
    return TfvizError("cache.planner.error.config", kind=kind, reason=reason)
