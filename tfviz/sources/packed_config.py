"""What a config says of the file beside it: by which method its weights are packed, and in how many bits each.

Every method has entries of its own under `quantization_config`; how many bits there are is said by a number named for
them, by a switch (bitsandbytes), or in a format's name (FP8, MXFP4, "int4_weight_only").
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tfviz.inference.cache_size import Packed

COUNTS = {"bits", "num_bits", "w_bit", "nbits", "weight_bits", "wbits"}
SWITCH = re.compile(r"load_in_(\d)bit")
FORMAT = re.compile(r"(?:fp|nf|int|uint|float|w)(\d+)", re.IGNORECASE)
DEEPEST = 4


def packed(config: Mapping[str, Any]) -> Packed | None:
    """None where the file holds plain numbers, or does not say."""
    said = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(said, Mapping) or not said:
        return None
    entries = list(_entries(said))
    bits = next((value for name, value in entries if name in COUNTS and _is_width(value)), None)
    switched = (found for name, value in entries if value is True and (found := SWITCH.fullmatch(name)))
    formats = (found for _, value in entries if isinstance(value, str) and (found := FORMAT.search(value[:60])))
    named = next((int(found[1]) for found in (*switched, *formats) if _is_width(int(found[1]))), None)
    method = said.get("quant_method")
    return Packed(method[:40] if isinstance(method, str) else "", bits or named)


def _is_width(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 8


def _entries(said: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every name and value, those inside others among them, but for what is said of activations."""
    if depth > DEEPEST:
        return
    for name, value in said.items() if isinstance(said, Mapping) else (("", one) for one in said):
        if isinstance(value, Mapping | list):
            yield from () if "activation" in str(name) else _entries(value, depth + 1)
        else:
            yield str(name), value
