"""Which settings of a GGUF file are followed. Every other key of its architecture that would change a number is refused
by its name: a setting that is passed over gives a model that looks right and is not.

The keys are those of the format (github.com/ggml-org/ggml, docs/gguf.md; `gguf.constants.Keys`), without the name of
the architecture before them.
"""

from typing import Any

from tfviz.errors import ModelUnavailable
from tfviz.sources.gguf_file import GgufFile

FOLLOWED = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.type",
}
NO_NUMBER_HANGS_ON = {
    "attention.layer_norm_epsilon",  # of a norm with a mean; Llama's has none
    "pooling_type",  # how a sentence's vector is made of its tokens'
    "rope.scaling.finetuned",  # whether it was trained so; how it is computed stays the same
    "rope.scaling.original_context_length",  # read with YaRN only, which is refused by its type
    "tensor_data_layout",
    "vocab_size",  # the rows of the table
}
CHANGES_NOTHING: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),  # 0 stands for the usual 1 / sqrt(head_dim)
    "attention.shared_kv_layers": (0,),
    "attention.sliding_window": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_count": (0,),
    "expert_shared_count": (0,),
    "expert_used_count": (0,),
    "final_logit_softcapping": (0,),
    "leading_dense_block_count": (0,),
    "logit_scale": (0, 1),
    "nextn_predict_layers": (0,),
    "residual_scale": (0, 1),
    "rope.scaling.attn_factor": (1,),
    "use_parallel_residual": (False,),
}


def check_keys(file: GgufFile) -> None:
    """`ModelUnavailable` that names the first key which is neither followed nor without effect."""
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise ModelUnavailable("error.gguf_adapter", file=file.name, kind=str(kind)[:40])
    if file.metadata.get("split.count", 1) not in {0, 1}:
        raise ModelUnavailable("error.gguf_part", file=file.name, part="split.count")
    prefix = f"{file.metadata['general.architecture']}."
    for full, value in file.metadata.items():
        name = full.removeprefix(prefix)
        if name == full or name in FOLLOWED | NO_NUMBER_HANGS_ON:
            continue
        if name == "attention.sliding_window" and type(value) is int and value >= file.whole("context_length"):
            continue  # a window as long as the longest text hides nothing
        if isinstance(value, list) or value not in CHANGES_NOTHING.get(name, ()):
            raise ModelUnavailable("error.gguf_part", file=file.name, part=name[:60])


def rope_parameters(file: GgufFile) -> dict[str, Any]:
    """The base, and the factor that positions are divided by: linear where the file names no other type (the format's
    default); before it had types the factor was called `rope.scale_linear`. Other types are refused by name."""
    base = file.number("rope.freq_base", 10000.0)
    kind = file.key("rope.scaling.type", "linear")
    factor = file.key("rope.scaling.factor", file.key("rope.scale_linear", 1.0))
    if kind not in ("linear", "none"):
        raise ModelUnavailable("error.gguf_part", file=file.name, part=f"rope.scaling.type = {str(kind)[:40]}")
    if kind == "none" or factor in (0, 1):  # 0 stands for none
        return {"rope_type": "default", "rope_theta": base}
    if type(factor) not in {int, float} or not 0 < factor < float("inf"):
        raise file.impossible("rope.scaling.factor", factor)
    return {"rope_type": "linear", "rope_theta": base, "factor": float(factor)}
