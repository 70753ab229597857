"""What the files of a checkpoint say, read without trust: anything odd is a `ValueError` or an `OSError`, soon.

A safetensors file (github.com/huggingface/safetensors) is 8 bytes of header length, the header in JSON, and then the
tensors' bytes, each directly after the last one's.
"""

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

MIB = 1 << 20
LONGEST_TEXT = 256 * MIB  # a tokenizer.json of 250,000 tokens takes 33
LONGEST_HEADER = 100_000_000  # the format's own limit
MOST_SHARDS = 4096
BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E8M0": 8} | {
    **dict.fromkeys(("F8_E5M2", "F8_E4M3", "F8_E5M2FNUZ", "F8_E4M3FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}


@dataclass(frozen=True)
class StoredTensor:
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        return prod(self.shape)


def read_json(path: Path, most: int = LONGEST_TEXT) -> dict[str, Any]:
    """The object that a file of at most `most` bytes holds."""
    if not path.is_file():  # opening a pipe would wait for whoever writes to it
        raise ValueError(f"{path.name} is no ordinary file")
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path.name} is longer than {most} bytes")
    return _object(data)


def stored_tensors(folder: Path) -> list[StoredTensor]:
    """Every tensor of the folder's safetensors, from their headers; the files are whole."""
    names: Iterable[str] = ["model.safetensors"]
    if not (folder / "model.safetensors").exists():
        places = read_json(folder / "model.safetensors.index.json")["weight_map"]
        if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
            raise ValueError("the index names no files")
        names = sorted(set(places.values()))
        if len(names) > MOST_SHARDS or any(Path(name).name != name for name in names):
            raise ValueError("the index names files elsewhere")
    return [tensor for name in names for tensor in _safetensors_header(folder / name)]


def _safetensors_header(path: Path) -> list[StoredTensor]:
    if not path.is_file():
        raise ValueError(f"{path.name} is no ordinary file")
    size = path.stat().st_size
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(LONGEST_HEADER, size - 8):
            raise ValueError(f"{path.name} is cut")
        header = _object(file.read(length))
    header.pop("__metadata__", None)
    tensors, places = [], [(0, 0)]
    for name, entry in header.items():
        tensor = StoredTensor(name, entry["dtype"], tuple(entry["shape"]))
        start, end = entry["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*tensor.shape, start, end)):
            raise ValueError(f"{name} has no possible shape or place")
        if (end - start) * 8 != tensor.numbers * BITS[tensor.dtype]:
            raise ValueError(f"{name} does not fill its place")
        tensors.append(tensor)
        places.append((start, end))
    places = [*sorted(places), (size - 8 - length, size - 8 - length)]
    if any(before[1] != after[0] for before, after in pairwise(places)):
        raise ValueError(f"{path.name} has tensors that overlap, or bytes of none")
    return tensors


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_each_once)
    except RecursionError as nested:
        raise ValueError("brackets within brackets without end") from nested
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON lets a name come twice, and readers disagree on which one counts."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name comes twice")
    return made
