"""What a checkpoint says of itself beside its weights: the tokens that begin and end a text, windows.

Read from config.json, generation_config.json and the tokenizer; where they leave something out, as transformers does.
"""

from typing import Any

from torch import nn

from tfviz.errors import ModelUnavailable

WINDOWS = {"sliding_window": "sliding_attention", "attention_chunk_size": "chunked_attention"}  # entry: type of layers


def start_id(model: nn.Module) -> int | None:
    """What a decoder reads first, by transformers' own rule; None: nothing names it."""
    settings: tuple[Any, ...] = (model.config, getattr(model, "generation_config", None))
    named = (getattr(one, name, None) for name in ("decoder_start_token_id", "bos_token_id") for one in settings)
    return next((int(one) for one in named if one is not None), None)


def end_ids(model: nn.Module, tokenizer: Any) -> frozenset[int]:
    """All tokens that end a text by one of the three: many chat models name theirs in one of them only.

    The default of the config's class, which no file need name, counts where nothing else is said.
    """
    config: Any = model.config
    settings = (getattr(model, "generation_config", None), config, tokenizer)
    said = [_ids(getattr(one, "eos_token_id", None)) for one in settings]
    default = _ids(getattr(type(config), "eos_token_id", None))
    named = [ids for ids in said[:2] if ids != default] + said[2:]
    return frozenset().union(*named) or frozenset(default)


def _ids(said: Any) -> set[int]:
    """One id, several or none, as configs and tokenizers name them."""
    if said is None:
        return set()
    return {int(said)} if isinstance(said, int) else {int(one) for one in said}


def without_empty_windows(config: Any, model: str) -> None:
    """A window of no positions is none. `ModelUnavailable` where layers slide by their type: they could see nothing."""
    text = config.get_text_config()
    for name, layer_type in WINDOWS.items():
        width = getattr(text, name, None)
        if not isinstance(width, int) or width > 0:
            continue
        kinds = getattr(text, "layer_types", None)
        if kinds is None:  # the window is that of every layer
            setattr(text, name, None)
        elif layer_type in kinds:
            raise ModelUnavailable("error.empty_window", model=model, name=name, width=width)


def cache_holds_decoder(config: Any) -> bool:
    """Whether transformers' cache has a place for each layer: T5's has as many as its encoder, whatever its decoder."""
    text = config.get_text_config(decoder=True)
    return (getattr(text, "num_decoder_layers", None) or 0) <= (getattr(text, "num_hidden_layers", None) or 0)


def has_scores(layer_type: str) -> bool:
    """Whether layers of this type have queries and keys: a linear attention, a convolution, a state space have none."""
    return layer_type.endswith("attention") and layer_type != "linear_attention"
