"""What the decoder of an encoder-decoder says: each predicted token with its probability, and other whole answers."""

import numpy as np
import torch
from torch import Tensor

from tfviz.introspection.trace import Answer, Candidate
from tfviz.sources.base import LoadedModel, Prompt

ALTERNATIVES = 5
BEAMS = 5


def answer_of(loaded: LoadedModel, prompt: Prompt, logits: Tensor) -> Answer | None:
    """The decoder's predictions from `logits` (1, target, vocabulary) of the pass over `prompt`.

    None for models without a decoder that reads an encoder, without an output head, or that nobody trained.
    """
    if loaded.family != "encoder-decoder" or not loaded.has_logits or loaded.random:
        return None
    log_probs = logits[0].float().log_softmax(dim=-1)
    ids = [token.id for token in prompt.target[1:]]
    # After the whole target comes the end; where the model wrote it and had no room to end, whatever it says next.
    end = loaded.tokenizer.eos_token_id
    ids.append(int(log_probs[-1].argmax()) if prompt.target_written or end is None else end)
    probs = log_probs[torch.arange(len(ids)), torch.tensor(ids, device=log_probs.device)].exp()
    top = log_probs.topk(min(ALTERNATIVES, log_probs.shape[-1]), dim=-1)
    labels = [token.label for token in loaded.describe(top.indices.flatten().tolist())]
    chances = top.values.exp().flatten().tolist()
    n = top.indices.shape[1]
    return Answer(
        text=loaded.decode(ids),
        tokens=tuple(loaded.describe(ids)),
        probs=probs.cpu().numpy().astype(np.float32),
        alternatives=tuple(
            tuple(zip(labels[i : i + n], chances[i : i + n], strict=True)) for i in range(0, len(labels), n)
        ),
        written=prompt.target_written,
    )


def candidates_of(loaded: LoadedModel, prompt: Prompt, kernel: str) -> tuple[Candidate, ...]:
    """The best whole answers by beam search, each with its probability; empty where the model offers none."""
    found = loaded.beams(prompt, BEAMS, kernel)
    if not found:
        return ()
    greedy = loaded.beams(prompt, 1, kernel)[0].ids
    return tuple(Candidate(loaded.decode(one.ids), one.log_prob, one.finished, one.ids == greedy) for one in found)
