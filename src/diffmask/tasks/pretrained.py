"""Loading a classifier and its tokenizer, from a folder, from the hub or from the reader's own hands."""

from pathlib import Path
from typing import Any

from torch import nn

from diffmask.errors import InputError

UNLIMITED = 1_000_000
"""Tokenizers without a limit state one larger than this."""


def load_classifier(model: str | Path | nn.Module, tokenizer: Any) -> tuple[Any, Any]:
    """The model and its tokenizer; a name is a folder or a hub id."""
    if isinstance(model, nn.Module):
        if tokenizer is None:
            raise InputError(f"{type(model).__name__} came without its tokenizer; give TextClassification both")
        return model, load_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer
    from transformers import AutoModelForSequenceClassification

    found, report = _from_pretrained(AutoModelForSequenceClassification, model, output_loading_info=True)
    if report["missing_keys"]:
        raise InputError(
            f"'{model}' has no trained classifier: {', '.join(sorted(report['missing_keys']))} would be random; "
            f"train one with `diffmask train --model {model} --data ... --out ...`"
        )
    return found, load_tokenizer(model) if tokenizer is None else tokenizer


def load_tokenizer(name: str | Path) -> Any:
    """The tokenizer of a folder or a hub id."""
    from transformers import AutoTokenizer

    return _from_pretrained(AutoTokenizer, name)


def _from_pretrained(kind: Any, name: str | Path, **options: Any) -> Any:
    try:
        return kind.from_pretrained(str(name), **options)
    except (OSError, ValueError) as error:
        raise InputError(f"'{name}' cannot be loaded as a folder or a hub id: {str(error).splitlines()[0]}") from error


def longest_input(model: Any, tokenizer: Any) -> int | None:
    """The most tokens a row may have: what the tokenizer states and the position embeddings hold."""
    stated = [tokenizer.model_max_length] if tokenizer.model_max_length < UNLIMITED else []
    held = [
        # Where padding has a position of its own, real positions start after it.
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding) and path.rpartition(".")[2] in ("position_embeddings", "wpe")
    ]
    return min([*stated, *held], default=None)
