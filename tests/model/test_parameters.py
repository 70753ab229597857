"""Parameter counts: closed formulas of the published models, parts that add up, sharing counted once."""

from dataclasses import replace

import pytest
import torch

from tests.model.tiny import ENCODER_DECODER, FAMILIES, build
from tfviz.config import PRESETS, TransformerConfig
from tfviz.model.parameters import count_parts, count_parts_of


def total(config: TransformerConfig) -> int:
    return sum(part.count for part in count_parts_of(config))


def paper(vocabulary: int, d: int, d_ff: int, layers: int) -> int:
    """One tied matrix; no biases in attention; two norms in an encoder layer, three in a decoder layer."""
    attention, feed_forward, norm = 4 * d * d, 2 * d * d_ff + d_ff + d, 2 * d
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    return vocabulary * d + layers * (encoder + decoder)


def biased(vocabulary: int, d: int, layers: int, positions: int) -> int:
    """BERT and GPT-2: learned positions, biases everywhere, d_ff = 4 d, two norms a layer and one more."""
    layer = 4 * (d * d + d) + (8 * d * d + 5 * d) + 2 * 2 * d
    return vocabulary * d + positions * d + layers * layer + 2 * d


PUBLISHED = {
    "paper-base": (63_045_632, paper(37_000, 512, 2048, 6)),
    "paper-big": (214_171_648, paper(37_000, 1024, 4096, 6)),
    "gpt2-small": (124_439_808, biased(50_257, 768, 12, 1024)),
    "bert-base": (108_890_112, biased(30_522, 768, 12, 512)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_the_parameters_of_its_closed_formula(name: str) -> None:
    count, formula = PUBLISHED[name]
    assert total(PRESETS[name]) == count == formula


def test_bert_and_gpt2_count_as_transformers_own_do() -> None:
    import transformers as hf

    with torch.device("meta"):
        bert = hf.BertModel(hf.BertConfig(), add_pooling_layer=False)
        gpt2 = hf.GPT2LMHeadModel(hf.GPT2Config())
    token_types = bert.embeddings.token_type_embeddings.weight.numel()
    assert total(PRESETS["bert-base"]) == sum(p.numel() for p in bert.parameters()) - token_types
    assert total(PRESETS["gpt2-small"]) == sum(p.numel() for p in gpt2.parameters())


def test_the_parts_of_paper_base_are_where_the_paper_has_them() -> None:
    d, d_ff = 512, 2048
    feed_forward = 6 * (2 * d * d_ff + d_ff + d)
    assert {part.name: part.count for part in count_parts_of(PRESETS["paper-base"])} == {
        "embedding": 37_000 * d,
        "encoder.attention": 6 * 4 * d * d,
        "encoder.feed_forward": feed_forward,
        "encoder.norm": 6 * 2 * 2 * d,
        "decoder.attention": 6 * 4 * d * d,
        "decoder.cross_attention": 6 * 4 * d * d,
        "decoder.feed_forward": feed_forward,
        "decoder.norm": 6 * 3 * 2 * d,
    }


VARIANTS = {
    **FAMILIES,
    "untied, two vocabularies": replace(ENCODER_DECODER, tie_embeddings=False, target_vocab_size=9),
    "learned, pre-norm, norm of the embedding": replace(
        ENCODER_DECODER, positions="learned", placement="pre", embedding_norm=True, feed_forward="swiglu"
    ),
    **PRESETS,
}


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_parts_add_up_to_every_parameter_counted_once(config: TransformerConfig) -> None:
    from tfviz.model import Transformer

    with torch.device("meta"):
        model = Transformer(config)
    unique = {id(parameter): parameter.numel() for parameter in model.parameters()}
    parts = count_parts(model)
    assert sum(part.count for part in parts) == sum(unique.values())
    assert len({part.name for part in parts}) == len(parts) and all(part.count > 0 for part in parts)


@pytest.mark.parametrize("n_heads", [1, 2, 8, 64])
def test_attention_costs_four_d_model_squared_however_many_heads(n_heads: int) -> None:
    parts = {part.name: part.count for part in count_parts_of(replace(PRESETS["paper-base"], n_heads=n_heads))}
    assert parts["encoder.attention"] == 6 * 4 * 512**2


def test_grouped_heads_save_keys_and_values_only() -> None:
    config = PRESETS["llama-tiny"]
    full, grouped = (
        {part.name: part.count for part in count_parts_of(replace(config, n_kv_heads=heads))}["decoder.attention"]
        for heads in (8, 2)
    )
    assert full == 4 * 4 * 256**2 and full - grouped == 4 * 2 * 256 * (256 - 64)


def test_a_config_is_counted_as_its_model_is() -> None:
    assert count_parts_of(ENCODER_DECODER) == count_parts(build(ENCODER_DECODER))
