"""BERT's second output head: does sentence B follow sentence A? (Devlin et al., 2019, section 3.1, task 2)

    logits = W_2 tanh(W_1 h_[CLS] + b_1) + b_2        class 0: B follows, class 1: B was taken from elsewhere

transformers leaves it out of the masked-word class, so its four tensors are read from the checkpoint beside the model.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor

ENDINGS = ("pooler.dense.weight", "pooler.dense.bias", "seq_relationship.weight", "seq_relationship.bias")


@dataclass(frozen=True, eq=False)
class NextSentence:
    """The pooler and the classifier, in FP32."""

    pooler: Float[Tensor, "d_model d_model"]
    pooler_bias: Float[Tensor, " d_model"]
    classifier: Float[Tensor, "2 d_model"]
    classifier_bias: Float[Tensor, " 2"]

    def __call__(self, first: Float[Tensor, "batch d_model"]) -> Float[Tensor, "batch 2"]:
        """P(B follows) and P(B does not), from the last hidden state of [CLS]."""
        pooled = torch.tanh(first.float() @ self.pooler.T + self.pooler_bias)
        return (pooled @ self.classifier.T + self.classifier_bias).softmax(dim=-1)


def next_sentence(folder: Path, model_type: str, d_model: int, device: torch.device) -> NextSentence | None:
    """The head of a BERT checkpoint; None where the folder has none, or not of this size."""
    if model_type != "bert":
        return None
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            keys = {ending: key for key in file.keys() for ending in ENDINGS if key.endswith(ending)}  # noqa: SIM118
            found |= {ending: file.get_tensor(key).float().to(device) for ending, key in keys.items()}
    if found.keys() != set(ENDINGS):
        return None
    shapes = [(d_model, d_model), (d_model,), (2, d_model), (2,)]
    tensors = [found[ending] for ending in ENDINGS]
    return NextSentence(*tensors) if [tuple(one.shape) for one in tensors] == shapes else None
