"""Tiny random language models of several families, with a word tokenizer and a chat template."""

from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

WORDS = [
    "ann",
    "bob",
    "lives",
    "in",
    "oslo",
    "lima",
    "works",
    "as",
    "a",
    "baker",
    "pilot",
    "where",
    "does",
    "live",
    "what",
    "is",
    "the",
    "answer",
    "yes",
    "no",
    "system",
    "user",
]
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
TEMPLATE = (
    "{% if tools %}<s> system {% for tool in tools %}{{ tool | tojson }} {% endfor %}</s> {% endif %}"
    "{% for message in messages %}<s> {{ message['role'] }} {{ message['content'] }} </s> {% endfor %}"
    "{% if add_generation_prompt %}<s> answer {% endif %}"
)
SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 48}
KEYS = {**SIZES, "num_key_value_heads": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": KEYS,
    "qwen2": KEYS,
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 2},
    "mistral": {**KEYS, "sliding_window": None},
    "gemma": {**KEYS, "head_dim": 16},
    "phi": SIZES,
}

FURTHER: dict[str, dict[str, Any]] = {
    "qwen3": {**KEYS, "head_dim": 16},
    "gemma2": {**KEYS, "head_dim": 16},
    "gpt_neox": SIZES,
    "opt": {**SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "bloom": {"hidden_size": 32, "n_layer": 3, "n_head": 2},
}
"""Families that only the table of models goes through."""


def word_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """One token per word or punctuation mark; a word of its own for everything that the tests write."""
    words = [*SPECIAL, *WORDS, *'.,?{}:"[]_', "type", "function", "name", "weather"]
    raw = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = template
    return tokenizer


def tiny_language_model(kind: str, seed: int = 0, **options: Any) -> Any:
    """A random decoder with large weights, so that its answers depend on its prompt."""
    choices = {
        "vocab_size": 64,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "max_position_embeddings": 128,
    }
    config = AutoConfig.for_model(kind, **{**choices, **{**FAMILIES, **FURTHER}[kind], **options})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        for value in model.parameters():
            if value.ndim > 1:
                value.data.normal_(std=0.25)
    return model.eval()


def tiny_encoder_decoder(seed: int = 0) -> Any:
    """A random T5 with large weights."""
    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 3, "num_heads": 2}
    marks = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 0}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("t5", **sizes, **marks))
        for value in model.parameters():
            if value.ndim > 1:
                value.data.normal_(std=0.25)
    return model.eval()
