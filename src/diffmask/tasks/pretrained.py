"""Loading a classifier and its tokenizer, from a folder, from the hub or from the reader's own hands."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from diffmask.errors import InputError, SiteError

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


@contextmanager
def quietly() -> Iterator[None]:
    """Within this block `transformers` draws no progress bars and does not remark that a new head is new."""
    from transformers.utils import logging as library

    level, bars = library.get_verbosity(), library.is_progress_bar_enabled()
    library.set_verbosity_error()
    library.disable_progress_bar()
    try:
        yield
    finally:
        library.set_verbosity(level)
        if bars:
            library.enable_progress_bar()


@contextmanager
def keeping_attention(model: Any) -> Iterator[None]:
    """Within this block a transformer keeps its attention weights, which the faster kernels never hold."""
    kernel = getattr(model.config, "_attn_implementation", "eager")
    if kernel == "eager" or not hasattr(model, "set_attn_implementation"):
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(kernel)


def _from_pretrained(kind: Any, name: str | Path, **options: Any) -> Any:
    try:
        with quietly():
            return kind.from_pretrained(str(name), **options)
    except (OSError, ValueError) as error:
        raise InputError(f"'{name}' cannot be loaded as a folder or a hub id: {str(error).splitlines()[0]}") from error


def input_embedding(model: Any) -> Any:
    """The module that turns token ids into vectors."""
    try:
        return model.get_input_embeddings()
    except (AttributeError, NotImplementedError) as error:
        raise SiteError(f"{type(model).__name__} has no token embedding: {error}") from error


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
