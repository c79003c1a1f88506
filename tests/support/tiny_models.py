"""Tiny random models of every family, and tokenizers made from a handful of words."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerFast

WORDS = ["the", "a", "film", "movie", "is", "was", "bad", "good", "great", "dull", "fun", "very", "not", "and", "but"]
WORDS += ["it", "i", "loved", "hated", "plot", "acting", "mess"]
PIECES = ["##s", "##ed", "##ly", "##able", "enjoy", "fast", "high", "act", "##ing", ",", ".", "!", "?"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48}
XLNET = {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 48}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2}
MARKS = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}


@dataclass(frozen=True)
class Family:
    """A model family and what its smallest configuration needs."""

    kind: str
    options: dict[str, Any]


FAMILIES = [
    Family("bert", SIZES),
    Family("roberta", SIZES),
    Family("distilbert", DISTILBERT),
    Family("electra", {**SIZES, "embedding_size": 16}),
    Family("albert", {**SIZES, "embedding_size": 16, "num_hidden_layers": 3}),
    Family("deberta-v2", {**SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}),
    Family("xlm-roberta", SIZES),
    Family("mpnet", SIZES),
    Family("longformer", {**SIZES, "attention_window": [4, 4]}),
    Family("modernbert", {**SIZES, **MARKS}),
    Family("xlnet", XLNET),
    Family("gpt2", {**GPT2, "bos_token_id": 2, "eos_token_id": 3}),
    Family("llama", {**SIZES, "num_key_value_heads": 2}),
    Family("qwen2", {**SIZES, "num_key_value_heads": 2}),
]

KEYS = {**SIZES, "num_key_value_heads": 2}
XLM = {"emb_dim": 32, "n_layers": 2, "n_heads": 2}
FUNNEL = {"d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 48, "block_sizes": [1, 1]}
BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "bos_token_id": 2, "eos_token_id": 3}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}

FURTHER = [
    Family("camembert", SIZES),
    Family("deberta", SIZES),
    Family("eurobert", SIZES),
    Family("rembert", {**SIZES, "input_embedding_size": 16, "output_embedding_size": 16}),
    Family("roformer", {**SIZES, "embedding_size": 32}),
    Family("mistral", KEYS),
    Family("gemma", {**KEYS, "head_dim": 16}),
    Family("qwen3", {**KEYS, "head_dim": 16}),
    Family("gpt_neox", SIZES),
    Family("opt", {**SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    Family("phi", SIZES),
    Family("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 2}),
    Family("bart", BART),
    Family("canine", SIZES),
    Family("fnet", SIZES),
    Family("funnel", FUNNEL),
    Family("xlm", XLM),
]
"""Families that the tests do not go through one by one."""


def tiny_model(
    kind: str, labels: int = 3, seed: int = 0, head: Any = AutoModelForSequenceClassification, **options: Any
) -> Any:
    """A random classifier, or another head, with large weights, so that its answers depend on its input."""
    family = next(family for family in [*FAMILIES, *FURTHER] if family.kind == kind)
    config = AutoConfig.for_model(
        kind, **{"vocab_size": len(vocabulary()), "pad_token_id": 0, "num_labels": labels, **family.options, **options}
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = head.from_config(config)
        for value in model.parameters():
            if value.ndim > 1:
                value.data.normal_(std=0.3)
    return model


def vocabulary() -> dict[str, int]:
    return {word: place for place, word in enumerate([*SPECIAL, *WORDS, *PIECES])}


def word_pieces(max_tokens: int = 64, segments: bool = False) -> PreTrainedTokenizerFast:
    """Lower-case word pieces with [CLS] and [SEP], as BERT has them."""
    raw = Tokenizer(models.WordPiece(vocabulary(), unk_token="[UNK]"))  # type: ignore[arg-type, call-arg]  # its stubs lag
    raw.normalizer = normalizers.BertNormalizer()
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = _wrap(raw, max_tokens, cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    tokenizer.model_input_names = ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]
    return tokenizer


def byte_pairs(max_tokens: int = 64) -> PreTrainedTokenizerFast:
    """Bytes with the spaces that GPT-2 and RoBERTa write as Ġ, merged to some words; no special tokens are added."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    merges = [("g", "o"), ("go", "o"), ("goo", "d"), ("Ġ", "good"), ("b", "a"), ("ba", "d"), ("Ġ", "bad")]
    tokens = ["[PAD]", "[UNK]", *sorted(alphabet), *("".join(pair) for pair in merges)]
    raw = Tokenizer(models.BPE({token: place for place, token in enumerate(tokens)}, merges, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return _wrap(raw, max_tokens)


def _wrap(raw: Tokenizer, max_tokens: int, **marks: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, model_max_length=max_tokens, pad_token="[PAD]", unk_token="[UNK]", **marks
    )


def save_encoder(folder: Path) -> None:
    """A tiny encoder without dropout, and its tokenizer, as `transformers` loads them."""
    model = tiny_model("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model.bert.save_pretrained(folder)
    word_pieces().save_pretrained(folder)
