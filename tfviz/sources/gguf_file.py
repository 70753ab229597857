"""The header of a GGUF file: settings, and where each tensor lies. Nothing in it is believed before it is checked.

GGUF (github.com/ggml-org/ggml, docs/gguf.md): magic, version, counts; then key-value metadata (the configuration and
the tokenizer); then a table of tensors; then their data, mostly in blocks of 4 to 8 bits.
"""

import mmap
import struct
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from tfviz.errors import ModelUnavailable

# ggml's metadata types by number; 8 is a string, 9 an array
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
MOST_ENTRIES = 100_000  # keys, and tensors; models have a few thousand
MOST_VALUES = 4_000_000  # of an array; the largest vocabularies have 300,000 tokens and twice as many merges
LONGEST_STRING = 1 << 24
MOST_DIMENSIONS = 4
LARGEST_ALIGNMENT = 1 << 20


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies in the file; `shape` in torch order, `kind` the number of its ggml type."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int

    @property
    def numbers(self) -> int:
        return prod(self.shape)


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

    def whole(self, name: str, *default: int) -> int:
        """The same for a whole number from 1; `ModelUnavailable` names a value that is none."""
        value = self.key(name, *default)
        if type(value) is not int or value < 1:
            raise self.impossible(name, value)
        return value

    def number(self, name: str, *default: float) -> float:
        """The same for a number above 0."""
        value = self.key(name, *default)
        if type(value) not in {int, float} or not 0 < value < float("inf"):
            raise self.impossible(name, value)
        return float(value)

    def impossible(self, name: str, value: object) -> ModelUnavailable:
        said = str(value[:3] if isinstance(value, list) else value)[:40]
        return ModelUnavailable("error.gguf_value", file=self.name, name=name, value=said)


def read_header(path: Path) -> GgufFile:
    """Metadata and tensor table; `ModelUnavailable` for anything that is not a GGUF file of version 2 or 3."""
    try:
        with path.open("rb") as handle:
            buffer = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        return _parsed(path.name, buffer)
    except (OSError, struct.error, ValueError, KeyError, OverflowError) as damage:
        if isinstance(damage, ModelUnavailable):
            raise
        raise ModelUnavailable("error.gguf_damaged", file=path.name) from damage


def _parsed(name: str, buffer: mmap.mmap) -> GgufFile:
    magic, version, n_tensors, n_metadata = struct.unpack_from("<4sIQQ", buffer)
    if magic != b"GGUF" or version not in {2, 3}:
        raise ValueError(f"{name} is not a GGUF file of version 2 or 3")
    for n, what in ((n_tensors, "tensors"), (n_metadata, "metadata")):
        _check_number(name, what, n, MOST_ENTRIES)
    position, metadata = 24, {}
    for _ in range(n_metadata):
        key, position = _string(buffer, position)
        (kind,) = struct.unpack_from("<I", buffer, position)
        position += 4
        if kind == ARRAY:
            _check_number(name, key, struct.unpack_from("<Q", buffer, position + 4)[0], MOST_VALUES)
        metadata[key], position = _value(buffer, position, kind)

    table = []
    for _ in range(n_tensors):
        tensor, position = _string(buffer, position)
        (n_dims,) = struct.unpack_from("<I", buffer, position)
        if not 1 <= n_dims <= MOST_DIMENSIONS:
            raise ValueError(f"{tensor} has {n_dims} dimensions")
        *dims, kind, offset = struct.unpack_from(f"<{n_dims}QIQ", buffer, position + 4)
        position += 4 + 8 * n_dims + 12
        table.append((tensor, tuple(reversed(dims)), kind, offset))
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= LARGEST_ALIGNMENT:
        raise ValueError(f"alignment {alignment}")
    start = -(-position // alignment) * alignment
    tensors = [StoredTensor(tensor, shape, kind, start + offset) for tensor, shape, kind, offset in table]
    if not isinstance(metadata.get("general.architecture"), str) or not tensors:
        raise ValueError(f"{name} describes no model")
    if len(metadata) != n_metadata or len({tensor.name for tensor in tensors}) != n_tensors:
        raise ValueError(f"{name} says something twice")
    _check_places(tensors, len(buffer))
    return GgufFile(name, metadata, tensors, buffer)


def _check_number(file: str, name: str, n: int, most: int) -> None:
    if n > most:
        raise ModelUnavailable("error.gguf_long", file=file, name=name[:60], n=n, most=most)


def _check_places(tensors: list[StoredTensor], size: int) -> None:
    """No two tensors share bytes, and all lie in the file: what is written out is bounded by what is there."""
    places = sorted((tensor.offset, tensor.offset + packed_bytes(tensor), tensor.name) for tensor in tensors)
    if places[-1][1] > size or any(before[1] > after[0] for before, after in pairwise(places)):
        raise ValueError("tensors beyond the end of the file, or over one another")


def packed_bytes(tensor: StoredTensor) -> int:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.kind)]  # so many values in so many bytes
    if 0 in tensor.shape or tensor.shape[-1] % block:
        raise ValueError(f"{tensor.name} has no whole blocks")
    return tensor.numbers // block * size


def _string(buffer: mmap.mmap, position: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", buffer, position)
    end = position + 8 + length
    if length > LONGEST_STRING or end > len(buffer):
        raise ValueError(f"a string of {length} bytes")
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
    if kind != STRING:
        raise ValueError("an array of arrays")
    values = []
    for _ in range(count):
        value, position = _string(buffer, position)
        values.append(value)
    return values, position
