"""A Llama-architecture GGUF file, rewritten once as an ordinary Hugging Face folder with FP32 weights.

transformers loads such files too, slowly and with accelerate only; here the header is parsed in one pass
(tfviz.sources.gguf_file) and the weights are streamed to disk.
"""

import json
import logging
import re
import struct
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfviz.errors import ModelUnavailable
from tfviz.sources.gguf_file import GgufFile, StoredTensor, read_header
from tfviz.sources.gguf_keys import check_keys, rope_parameters
from tfviz.sources.wheels import Progress, publish

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer

CONTROL_TOKEN, USER_TOKEN = 3, 4  # values in tokenizer.ggml.token_type
AS_READ_HERE = 2  # counts up when the same file gives another folder, so that an older one in the cache is not used

log = logging.getLogger(__name__)

TENSOR_NAMES = {
    r"token_embd\.weight": "model.embed_tokens.weight",
    r"output_norm\.weight": "model.norm.weight",
    r"output\.weight": "lm_head.weight",
    r"blk\.(\d+)\.attn_norm\.weight": r"model.layers.\1.input_layernorm.weight",
    r"blk\.(\d+)\.attn_([qkv])\.weight": r"model.layers.\1.self_attn.\2_proj.weight",
    r"blk\.(\d+)\.attn_output\.weight": r"model.layers.\1.self_attn.o_proj.weight",
    r"blk\.(\d+)\.ffn_norm\.weight": r"model.layers.\1.post_attention_layernorm.weight",
    r"blk\.(\d+)\.ffn_(gate|up|down)\.weight": r"model.layers.\1.mlp.\2_proj.weight",
}


def convert(gguf: Path, folder: Path, progress: Progress | None = None) -> Path:
    """`folder` with config, FP32 safetensors and tokenizer made from `gguf`; kept as it is if it is there and whole."""
    return publish(folder, lambda temporary: write_folder(gguf, temporary, progress))


def write_folder(gguf: Path, folder: Path, progress: Progress | None = None) -> None:
    """Writes the files of `convert` into an existing folder. `ModelUnavailable` for a file of another kind."""
    file = read_header(gguf)
    architecture = file.metadata["general.architecture"]
    if architecture != "llama":
        raise ModelUnavailable("error.gguf_architecture", file=gguf.name, architecture=architecture[:60])
    try:
        (folder / "config.json").write_text(json.dumps(llama_config(file), indent=2), encoding="utf-8")
        write_tokenizer(file, gguf, folder)
    except (ModelUnavailable, OSError):
        raise
    except Exception as damage:  # settings of other kinds than they should be; the tokenizers library has no errors
        log.warning("cannot read %s", gguf.name, exc_info=True)
        raise ModelUnavailable("error.gguf_damaged", file=gguf.name) from damage
    write_weights(file, folder / "model.safetensors", progress)


def llama_config(file: GgufFile) -> dict[str, Any]:
    """The Hugging Face configuration that the metadata describes; what it cannot say is refused."""
    import numpy as np

    check_keys(file)
    tensors = {tensor.name: tensor for tensor in file.tensors}
    vocab_size, d_model = tensors["token_embd.weight"].shape
    n_heads = file.whole("attention.head_count")
    head_dim = file.whole("attention.key_length", d_model // n_heads)
    for name, only in {
        "embedding_length": d_model,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
    }.items():
        if file.key(name, only) != only:
            raise ModelUnavailable("error.gguf_part", file=file.name, part=name)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": vocab_size,
        "hidden_size": d_model,
        "intermediate_size": file.whole("feed_forward_length"),
        "num_hidden_layers": file.whole("block_count"),
        "num_attention_heads": n_heads,
        "num_key_value_heads": file.whole("attention.head_count_kv", n_heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": file.whole("context_length"),
        "rms_norm_eps": float(str(np.float32(file.number("attention.layer_norm_rms_epsilon")))),  # 1e-05, not 9.99e-06
        "rope_parameters": rope_parameters(file),
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
    }


def write_weights(file: GgufFile, path: Path, progress: Progress | None) -> None:
    """All tensors as FP32 safetensors (8 bytes of length, a JSON header, the data), one in memory at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in file.tensors:
        start, end = end, end + 4 * tensor.numbers
        header[_hf_name(file, tensor)] = {
            "dtype": "F32",
            "shape": tensor.shape,
            "data_offsets": [start, end],
        }
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    done = 0
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(encoded)) + encoded)
        for tensor in file.tensors:
            values = dequantized(file, tensor)
            out.write(values.data)
            done += values.nbytes
            if progress:
                progress(done, end)


def dequantized(file: GgufFile, tensor: StoredTensor) -> "np.ndarray":
    """The tensor in FP32, its rows in Hugging Face's order."""
    import numpy as np
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quant_shape_to_byte_shape

    try:
        kind = GGMLQuantizationType(tensor.kind)
        packed_shape = quant_shape_to_byte_shape(tensor.shape, kind)  # [..., bytes of one row]
        packed = np.frombuffer(file.buffer, np.uint8, prod(packed_shape), tensor.offset).reshape(packed_shape)
        if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            count = "attention.head_count_kv" if "attn_k" in tensor.name else "attention.head_count"
            packed = rows_unpermuted(packed, file.whole(count, file.whole("attention.head_count")))
        return np.ascontiguousarray(dequantize(packed, kind), np.float32).reshape(tensor.shape)
    except (ValueError, NotImplementedError, ArithmeticError, IndexError) as damage:
        raise ModelUnavailable("error.gguf_damaged", file=file.name) from damage


def rows_unpermuted(rows: "np.ndarray", n_heads: int) -> "np.ndarray":
    """GGUF keeps a head's rotary pairs side by side (0, d/2, 1, d/2+1 ...); transformers keeps halves (0 ... d-1)."""
    pairs = rows.reshape(n_heads, rows.shape[0] // n_heads // 2, 2, *rows.shape[1:])  # [head, pair, half, ...]
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _hf_name(file: GgufFile, tensor: StoredTensor) -> str:
    for pattern, replacement in TENSOR_NAMES.items():
        if match := re.fullmatch(pattern, tensor.name):
            return match.expand(replacement)
    raise ModelUnavailable("error.gguf_part", file=file.name, part=tensor.name)


def write_tokenizer(file: GgufFile, gguf: Path, folder: Path) -> None:
    """tokenizer.json and its config. Vocabularies other than SmolLM's go through transformers' slower converter."""
    kind = file.metadata["tokenizer.ggml.model"], file.metadata.get("tokenizer.ggml.pre")
    if kind not in BYTE_LEVEL_TOKENIZERS:
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(str(folder))
        return
    BYTE_LEVEL_TOKENIZERS[kind](file.metadata).save(str(folder / "tokenizer.json"))
    tokens = file.metadata["tokenizer.ggml.tokens"]
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: file.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": file.key("context_length"),
        "clean_up_tokenization_spaces": False,
        "chat_template": file.metadata.get("tokenizer.chat_template"),
    } | {name: tokens[index] for name, index in ids.items() if index is not None}
    text = json.dumps(config, ensure_ascii=False, indent=2)
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def smollm_tokenizer(metadata: dict[str, Any]) -> "Tokenizer":
    """Byte-level BPE over digits taken one by one, as SmolLM's own tokenizer.json has it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    marked = list(zip(tokens, kinds, strict=True))
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t, kind in marked if kind == CONTROL_TOKEN])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, kind in marked if kind == USER_TOKEN])
    added = {
        side: [metadata[f"tokenizer.ggml.{side}_token_id"]] if metadata.get(f"tokenizer.ggml.add_{side}_token") else []
        for side in ("bos", "eos")
    }
    before, after = ([tokens[index] for index in added[side]] for side in ("bos", "eos"))
    if before or after:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *before, "$B:1", *after],
            special_tokens=[(tokens[index], index) for index in (*added["bos"], *added["eos"])],
        )
    return tokenizer


BYTE_LEVEL_TOKENIZERS: dict[tuple[Any, Any], Callable[[dict[str, Any]], "Tokenizer"]] = {
    ("gpt2", "smollm"): smollm_tokenizer,
}
