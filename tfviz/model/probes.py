"""Looking inside a model of ours while it runs: probes that one context manager puts on and takes off.

    with probes(model, "resid_mid", "weights") as seen:
        model(source_ids, target_ids)
    seen["encoder.layers.0.resid_mid"]          # [batch, position, d_model]
    seen["decoder.layers.1.cross_attention.weights"]  # [batch, head, query, key]

Modules keep nothing: they `report` to the call that is going on, in its own thread, and to nobody when none is tapped.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor, nn

from tfviz.model.attention import attention_scores, attention_weights
from tfviz.model.attention_call import AttentionRecord, attention_call, current_call
from tfviz.registry import choose

REPORTED = (
    "embedded",  # token embeddings with positions: what the first layer reads
    "resid_pre",
    "attention_out",
    "resid_mid",
    "cross_out",
    "resid_cross",
    "feed_forward_hidden",
    "feed_forward_out",
    "resid_post",
)
OF_ATTENTION = ("query", "key", "value", "scores", "weights")  # rotation applied; scores after mask
PROBES = (*REPORTED, *OF_ATTENTION)


@contextmanager
def probes(model: nn.Module, *names: str) -> Iterator[dict[str, Tensor]]:
    """Collects the named values (all of PROBES if none is named) of every layer, by `<module>.<name>`.

    Tensors are those of the pass itself (not copied, gradients attached). A module that runs twice in one `with` keeps
    its last. `TfvizError` for a name that is no probe.
    """
    wanted = set(names or PROBES)
    for name in wanted:
        choose(dict.fromkeys(PROBES), name, "probe")
    around = current_call()
    paths = {id(module): path for path, module in model.named_modules()}
    seen: dict[str, Tensor] = {}

    def keep(module: nn.Module, name: str, value: Tensor) -> None:
        if name in wanted and id(module) in paths:
            path = paths[id(module)]
            seen[f"{path}.{name}" if path else name] = value

    def tap(module: nn.Module, name: str, value: Tensor) -> None:
        if around.tap is not None:
            around.tap(module, name, value)
        keep(module, name, value)

    def watch(record: AttentionRecord) -> None:
        if around.watch is not None:
            around.watch(record)
        q, k, v, mask, rule = record.query, record.key, record.value, record.mask, record.rule
        for name, value in (("query", q), ("key", k), ("value", v)):
            keep(record.module, name, value)
        if "scores" in wanted:
            keep(record.module, "scores", attention_scores(q, k, mask, rule))
        if "weights" in wanted:
            keep(record.module, "weights", attention_weights(q, k, mask, rule))

    watched = watch if wanted & set(OF_ATTENTION) else around.watch
    with attention_call(replace(around, tap=tap, watch=watched)):
        yield seen
