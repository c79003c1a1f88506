"""Load a Hugging Face model and its tokenizer.

No function here runs Python code of a model repository unless the caller passes `trust_remote_code=True`. That choice
is never read from a file.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from diffmask.core.hooks import undone
from diffmask.core.progress import stage
from diffmask.errors import InputError
from diffmask.imports import paused_collector
from diffmask.tasks.text.unwrap import prepare, require_explainable, require_head, unwrap

NO_LIMIT = 1_000_000
"""Tokenizers without a length limit state one larger than this."""


def load_classifier(model: Any, tokenizer: Any = None, *, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """Return a sequence classifier and its tokenizer; a name is a folder or a hub id."""
    return load_model(
        "AutoModelForSequenceClassification",
        model,
        tokenizer,
        wanted_by="TextClassification",
        trust_remote_code=trust_remote_code,
    )


def load_model(
    auto_class: str,
    model: Any,
    tokenizer: Any = None,
    *,
    wanted_by: str,
    trust_remote_code: bool = False,
    device: Any = None,
) -> tuple[Any, Any]:
    """Return a model with the head of an auto class of `transformers`, and its tokenizer.

    `model` is a folder or hub id, a pipeline, a tuple `(model, tokenizer)`, or a module, also a compiled one. Models in
    half precision are converted to single precision; those of the caller are copied first.
    """
    model, tokenizer = unwrap(model, tokenizer)
    if isinstance(model, nn.Module):
        if tokenizer is None:
            raise InputError(f"{type(model).__name__} came without its tokenizer; give {wanted_by} both")
        loaded: Any = model
    else:
        with stage("load the model"):
            loaded = _load_trained(auto_class, model, trust_remote_code)
    require_explainable(loaded, auto_class)
    loaded = prepare(loaded, device, own=not isinstance(model, nn.Module))
    name = model if tokenizer is None else tokenizer
    if isinstance(name, str | Path):
        return loaded, load_tokenizer(name, trust_remote_code=trust_remote_code)
    return loaded, tokenizer


def _load_trained(auto_class: str, name: str | Path, trust_remote_code: bool) -> Any:
    """Load a model and refuse one with another head, or whose head would be random."""
    config = load_config(name, trust_remote_code=trust_remote_code) if _has_config(name) else None
    require_head((getattr(config, "architectures", None) or [""])[0], auto_class)
    model, report = from_pretrained(
        auto_class_named(auto_class), name, trust_remote_code=trust_remote_code, output_loading_info=True
    )
    if report["missing_keys"]:
        head = "classifier" if auto_class == "AutoModelForSequenceClassification" else f"{type(model).__name__} head"
        raise InputError(
            f"'{name}' has no trained {head}: {', '.join(sorted(report['missing_keys']))} would be random; "
            f"train one with `diffmask train --model {name} --data ... --out ...`"
        )
    return model


def _has_config(name: str | Path) -> bool:
    """Return whether a name is a model, rather than a folder with an adapter alone."""
    return not Path(name).is_dir() or (Path(name) / "config.json").is_file()


ADAPTER_FILE = "adapter_config.json"


def adapter_base(name: str | Path) -> str | None:
    """Return the model that an adapter's folder (PEFT, LoRA) was made for; None if the folder is no adapter alone."""
    file = Path(name) / ADAPTER_FILE
    if _has_config(name) or not file.is_file():
        return None
    try:
        base = json.loads(file.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} does not name its base model ({error})") from None
    return str(base)


def auto_class_named(name: str) -> Any:
    """Return a class of `transformers` by name, such as `AutoModelForMaskedLM`."""
    with paused_collector():
        import transformers

        return getattr(transformers, name)


def load_config(name: str | Path, *, trust_remote_code: bool = False) -> Any:
    """Return the configuration of a model's folder or hub id; of an adapter, that of its base model."""
    name = adapter_base(name) or name
    with paused_collector():
        from transformers import AutoConfig

    return from_pretrained(AutoConfig, name, trust_remote_code=trust_remote_code)


def load_tokenizer(name: str | Path, *, trust_remote_code: bool = False) -> Any:
    """Return the tokenizer of a folder or a hub id; an adapter without one has that of its base model."""
    if not (Path(name) / "tokenizer_config.json").is_file():
        name = adapter_base(name) or name
    with paused_collector():
        from transformers import AutoTokenizer

    return from_pretrained(AutoTokenizer, name, trust_remote_code=trust_remote_code)


def looks_like_path(name: str | Path) -> bool:
    """Return whether a name can only be a path: a hub id is `name` or `owner/name`.

    >>> looks_like_path("./clf"), looks_like_path("clf/"), looks_like_path("owner/name")
    (True, True, False)
    """
    text = str(name)
    return isinstance(name, Path) or text.startswith((".", "/", "~")) or text.endswith("/") or text.count("/") > 1


def from_pretrained(auto_class: Any, name: str | Path, *, trust_remote_code: bool, **options: Any) -> Any:
    """Load a class of `transformers` by folder or hub id, quietly and with a clear error."""
    # An explicit False: with None, transformers asks on stdin whether to run the repository's code.
    try:
        with paused_collector(), quiet_transformers():  # the class of the model is imported here
            return auto_class.from_pretrained(str(name), trust_remote_code=trust_remote_code, **options)
    except Exception as error:  # damaged files raise errors of many libraries
        if "trust_remote_code" in str(error):
            raise InputError(
                f"'{name}' comes with Python code of its own, which was not run; read the code, and if you trust it, "
                "pass trust_remote_code=True (command line: --trust-remote-code)"
            ) from None
        if looks_like_path(name) and not Path(name).exists():
            raise InputError(f"there is no folder '{name}'; give the folder of a model, or a hub id") from None
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"'{name}' cannot be loaded as a folder or a hub id: {reason}") from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide the progress bars of `transformers` and its warning that a new head is untrained."""
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
def eager_attention(model: Any) -> Iterator[None]:
    """Switch a transformer to the eager attention kernel, the only one that returns attention weights."""
    kernel = getattr(model.config, "_attn_implementation", "eager")
    if kernel == "eager" or not hasattr(model, "set_attn_implementation"):
        yield
        return
    with undone(lambda: model.set_attn_implementation(kernel)):
        model.set_attn_implementation("eager")
        yield


def max_input_tokens(model: Any, tokenizer: Any) -> int | None:
    """Return the largest number of tokens per row, the smaller of the tokenizer's limit and the position embeddings."""
    limit = tokenizer.model_max_length
    if not isinstance(limit, int | float):
        raise InputError(
            f"the tokenizer's model_max_length is {limit!r:.100}, not a number; mend tokenizer_config.json"
        )
    stated = [int(limit)] if limit < NO_LIMIT else []
    positions = [
        # If padding has a position of its own, real positions start after it.
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding) and path.rpartition(".")[2] in ("position_embeddings", "wpe")
    ]
    return min([*stated, *positions], default=None)
