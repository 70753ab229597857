"""Tiny random checkpoints of many architectures, saved as a person has them: a folder of config, tokenizer, weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCABULARY = 400
TEXTS = [
    "The animal didn't cross the street because it was too tired",
    "the cat saw the other cat near the door",
    "法国的首都是巴黎",
] * 5


def byte_level_tokenizer() -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    end = "<|endoftext|>"
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=end, eos_token=end, unk_token=end, pad_token=end
    )


def word_piece_tokenizer() -> Any:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=64,
        unk_token="[UNK]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        mask_token="[MASK]",
    )


def sentence_piece_like_tokenizer() -> Any:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<pad>", "</s>", "<unk>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    tokenizer.train_from_iterator(
        TEXTS[:2], trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=512
    )


Small = dict[str, Any]
LLAMA_LIKE: Small = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)
BERT_LIKE: Small = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
)
BART_LIKE: Small = dict(
    vocab_size=VOCABULARY,
    d_model=32,
    encoder_layers=3,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=1,
    decoder_start_token_id=0,
    forced_eos_token_id=None,
)


def _gpt2() -> Any:
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=4))


def _bert() -> Any:
    return hf.BertModel(hf.BertConfig(**BERT_LIKE))


def _bert_with_head() -> Any:
    return hf.BertForMaskedLM(hf.BertConfig(**BERT_LIKE))


def _roberta() -> Any:
    return hf.RobertaForMaskedLM(hf.RobertaConfig(**BERT_LIKE | {"max_position_embeddings": 66, "pad_token_id": 1}))


def _albert() -> Any:
    return hf.AlbertForMaskedLM(hf.AlbertConfig(**BERT_LIKE, embedding_size=16))


def _llama() -> Any:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA_LIKE))


def _qwen3() -> Any:
    return hf.Qwen3ForCausalLM(hf.Qwen3Config(**LLAMA_LIKE, head_dim=16))


def _mistral() -> Any:
    return hf.MistralForCausalLM(hf.MistralConfig(**LLAMA_LIKE, sliding_window=4))


def _gemma2() -> Any:
    return hf.Gemma2ForCausalLM(hf.Gemma2Config(**LLAMA_LIKE, head_dim=8, sliding_window=4))


def _opt() -> Any:
    return hf.OPTForCausalLM(
        hf.OPTConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            ffn_dim=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=64,
            word_embed_proj_dim=32,
        )
    )


def _t5() -> Any:
    return hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=VOCABULARY,
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=3,
            num_decoder_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_id=1,
        )
    )


def _bart() -> Any:
    return hf.BartForConditionalGeneration(hf.BartConfig(**BART_LIKE))


def _marian() -> Any:
    return hf.MarianMTModel(hf.MarianConfig(**BART_LIKE))


ARCHITECTURES: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "gpt2": (_gpt2, byte_level_tokenizer, "decoder"),
    "llama": (_llama, byte_level_tokenizer, "decoder"),
    "qwen3": (_qwen3, byte_level_tokenizer, "decoder"),
    "mistral": (_mistral, byte_level_tokenizer, "decoder"),
    "gemma2": (_gemma2, byte_level_tokenizer, "decoder"),
    "opt": (_opt, byte_level_tokenizer, "decoder"),
    "bert": (_bert, word_piece_tokenizer, "encoder"),
    "bert-mlm": (_bert_with_head, word_piece_tokenizer, "encoder"),
    "roberta": (_roberta, word_piece_tokenizer, "encoder"),
    "albert": (_albert, word_piece_tokenizer, "encoder"),
    "t5": (_t5, sentence_piece_like_tokenizer, "encoder-decoder"),
    "bart": (_bart, sentence_piece_like_tokenizer, "encoder-decoder"),
    "marian": (_marian, sentence_piece_like_tokenizer, "encoder-decoder"),
}


def save(name: str, folder: Path, seed: int = 0) -> Path:
    """Makes the checkpoint `name` in `folder`."""
    build, tokenizer, _ = ARCHITECTURES[name]
    torch.manual_seed(seed)
    model = build()
    for parameter in model.parameters():  # default initialisation is so small that every map would look uniform
        parameter.data.mul_(3.0)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
