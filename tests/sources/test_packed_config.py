"""What a config says of its own file: by which method it is quantised and in how many bits."""

from typing import Any

import pytest

from tfviz.inference.cache_size import Packed
from tfviz.sources.packed_config import packed

SAID: dict[str, tuple[dict[str, Any], Packed]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, Packed("gptq", 4)),
    "awq": ({"quant_method": "awq", "w_bit": 4}, Packed("awq", 4)),
    "bitsandbytes, a switch": (
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False, "compute_dtype": "bfloat16"},
        Packed("bitsandbytes", 8),
    ),
    "fp8": ({"quant_method": "fp8", "activation_scheme": "dynamic"}, Packed("fp8", 8)),
    "mxfp4": ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, Packed("mxfp4", 4)),
    "compressed-tensors": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"input_activations": {"num_bits": 8}, "weights": {"num_bits": 4}}},
        },
        Packed("compressed-tensors", 4),
    ),
    "torchao": ({"quant_method": "torchao", "quant_type": "int4_weight_only"}, Packed("torchao", 4)),
    "nothing said": ({"quant_method": "eetq"}, Packed("eetq", None)),
    "odd": ({"quant_method": ["x"], "bits": 1e9, "a": {"b": {"c": {"d": {"e": {"bits": 3}}}}}}, Packed("", None)),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_method_and_bits(name: str) -> None:
    said, right = SAID[name]
    assert packed({"quantization_config": said}) == right


@pytest.mark.parametrize(
    "config", [{}, {"quantization_config": None}, {"quantization_config": {}}, {"quantization_config": 4}]
)
def test_a_plain_file_says_nothing(config: dict[str, Any]) -> None:
    assert packed(config) is None
