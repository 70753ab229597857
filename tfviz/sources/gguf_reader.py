"""A Llama-architecture GGUF file, rewritten once as an ordinary Hugging Face folder with FP32 weights.

GGUF (github.com/ggml-org/ggml, docs/gguf.md): magic, version, counts; then key-value metadata (the configuration and
the tokenizer); then a table of tensors; then their data, mostly in blocks of 4 to 8 bits. transformers loads such files
too, slowly and with accelerate only; here the header is parsed in one pass and the weights are streamed to disk.
"""

import json
import mmap
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfviz.errors import ModelUnavailable
from tfviz.sources.wheels import Progress, publish

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer

# ggml's metadata types by number; 8 is a string, 9 an array
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
CONTROL_TOKEN, USER_TOKEN = 3, 4  # values in tokenizer.ggml.token_type

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


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies in the file; `shape` in torch order, `kind` the number of its ggml type."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class GgufFile:
    """A parsed header over the memory-mapped file; the tensors' bytes are read only when asked for."""

    name: str
    metadata: dict[str, Any]
    tensors: list[StoredTensor]
    buffer: mmap.mmap

    def key(self, name: str, *default: Any) -> Any:
        """Metadata of the architecture, e.g. `key("block_count")` for `llama.block_count`."""
        full = f"{self.metadata['general.architecture']}.{name}"
        return self.metadata.get(full, *default) if default else self.metadata[full]


def convert(gguf: Path, folder: Path, progress: Progress | None = None) -> Path:
    """`folder` with config, FP32 safetensors and tokenizer made from `gguf`; kept as it is if it is there and whole."""
    return publish(folder, lambda temporary: write_folder(gguf, temporary, progress))


def write_folder(gguf: Path, folder: Path, progress: Progress | None = None) -> None:
    """Writes the files of `convert` into an existing folder. `ModelUnavailable` for a file of another kind."""
    file = read_header(gguf)
    architecture = file.metadata["general.architecture"]
    if architecture != "llama":
        raise ModelUnavailable("error.gguf_architecture", file=gguf.name, architecture=architecture)
    try:
        (folder / "config.json").write_text(json.dumps(llama_config(file), indent=2), encoding="utf-8")
        write_tokenizer(file, gguf, folder)
    except KeyError as missing:
        raise ModelUnavailable("error.gguf_damaged", file=gguf.name) from missing
    write_weights(file, folder / "model.safetensors", progress)


def read_header(path: Path) -> GgufFile:
    """Metadata and tensor table; `ModelUnavailable` for anything that is not a GGUF file of version 2 or 3."""
    try:
        with path.open("rb") as handle:
            buffer = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        return _parsed(path.name, buffer)
    except (struct.error, ValueError, KeyError) as damage:
        raise ModelUnavailable("error.gguf_damaged", file=path.name) from damage


def _parsed(name: str, buffer: mmap.mmap) -> GgufFile:
    magic, version, n_tensors, n_metadata = struct.unpack_from("<4sIQQ", buffer)
    if magic != b"GGUF" or version not in {2, 3}:
        raise ValueError(f"{name} is not a GGUF file of version 2 or 3")
    position, metadata = 24, {}
    for _ in range(n_metadata):
        key, position = _string(buffer, position)
        (kind,) = struct.unpack_from("<I", buffer, position)
        metadata[key], position = _value(buffer, position + 4, kind)

    table = []
    for _ in range(n_tensors):
        tensor, position = _string(buffer, position)
        (n_dims,) = struct.unpack_from("<I", buffer, position)
        *dims, kind, offset = struct.unpack_from(f"<{n_dims}QIQ", buffer, position + 4)
        position += 4 + 8 * n_dims + 12
        table.append((tensor, tuple(reversed(dims)), kind, offset))
    alignment = metadata.get("general.alignment", 32)
    start = -(-position // alignment) * alignment
    tensors = [StoredTensor(tensor, shape, kind, start + offset) for tensor, shape, kind, offset in table]
    if "general.architecture" not in metadata or not tensors:
        raise ValueError(f"{name} describes no model")
    return GgufFile(name, metadata, tensors, buffer)


def _string(buffer: mmap.mmap, position: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", buffer, position)
    end = position + 8 + length
    return buffer[position + 8 : end].decode("utf-8"), end


def _value(buffer: mmap.mmap, position: int, kind: int) -> tuple[Any, int]:
    if kind == STRING:
        return _string(buffer, position)
    if kind != ARRAY:
        layout = "<" + SCALARS[kind]
        return struct.unpack_from(layout, buffer, position)[0], position + struct.calcsize(layout)
    kind, count = struct.unpack_from("<IQ", buffer, position)
    position += 12
    if kind in SCALARS:
        layout = f"<{count}{SCALARS[kind]}"
        return list(struct.unpack_from(layout, buffer, position)), position + struct.calcsize(layout)
    values = []
    for _ in range(count):
        value, position = _value(buffer, position, kind)
        values.append(value)
    return values, position


def llama_config(file: GgufFile) -> dict[str, Any]:
    """The Hugging Face configuration that the metadata describes; scaled rotary positions are refused."""
    import numpy as np

    if file.key("rope.scaling.type", "none") != "none":
        raise ModelUnavailable("error.gguf_part", file=file.name, part="rope.scaling")
    tensors = {tensor.name: tensor for tensor in file.tensors}
    vocab_size, d_model = tensors["token_embd.weight"].shape
    n_heads = file.key("attention.head_count")
    head_dim = file.key("attention.key_length", d_model // n_heads)
    if file.key("rope.dimension_count", head_dim) != head_dim:
        raise ModelUnavailable("error.gguf_part", file=file.name, part="rope.dimension_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": vocab_size,
        "hidden_size": d_model,
        "intermediate_size": file.key("feed_forward_length"),
        "num_hidden_layers": file.key("block_count"),
        "num_attention_heads": n_heads,
        "num_key_value_heads": file.key("attention.head_count_kv", n_heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": file.key("context_length"),
        "rms_norm_eps": float(str(np.float32(file.key("attention.layer_norm_rms_epsilon")))),  # 1e-05, not 9.99...e-06
        "rope_parameters": {"rope_type": "default", "rope_theta": file.key("rope.freq_base", 10000.0)},
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
        start, end = end, end + 4 * prod(tensor.shape)
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
            packed = rows_unpermuted(packed, file.key(count, file.key("attention.head_count")))
        return np.ascontiguousarray(dequantize(packed, kind), np.float32).reshape(tensor.shape)
    except (ValueError, NotImplementedError) as damage:
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
    if metadata.get("tokenizer.ggml.add_bos_token"):
        bos = metadata["tokenizer.ggml.bos_token_id"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[tokens[bos], "$A"],
            pair=[tokens[bos], "$A", tokens[bos], "$B:1"],
            special_tokens=[(tokens[bos], bos)],
        )
    return tokenizer


BYTE_LEVEL_TOKENIZERS: dict[tuple[Any, Any], Callable[[dict[str, Any]], "Tokenizer"]] = {
    ("gpt2", "smollm"): smollm_tokenizer,
}
