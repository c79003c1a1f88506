"""Loading a classifier and its tokenizer, from a folder, from the hub or from the reader's own hands.

Where a classifier came from: the encoder and the choices with which it is trained again from the start.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import nn

from diffmask.core.training import seeded
from diffmask.datasets.loading import packaged_encoder
from diffmask.errors import InputError, SiteError, TrainingWarning
from diffmask.tasks.text.finetuning import FineTuning

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
def quiet_transformers() -> Iterator[None]:
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
def eager_attention(model: Any) -> Iterator[None]:
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
        with quiet_transformers():
            return kind.from_pretrained(str(name), **options)
    except (OSError, ValueError) as error:
        raise InputError(f"'{name}' cannot be loaded as a folder or a hub id: {str(error).splitlines()[0]}") from error


def token_embedding(model: Any) -> Any:
    """The module that turns token ids into vectors."""
    try:
        return model.get_input_embeddings()
    except (AttributeError, NotImplementedError) as error:
        raise SiteError(f"{type(model).__name__} has no token embedding: {error}") from error


def max_input_tokens(model: Any, tokenizer: Any) -> int | None:
    """The most tokens a row may have: what the tokenizer states and the position embeddings hold."""
    stated = [tokenizer.model_max_length] if tokenizer.model_max_length < UNLIMITED else []
    held = [
        # Where padding has a position of its own, real positions start after it.
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding) and path.rpartition(".")[2] in ("position_embeddings", "wpe")
    ]
    return min([*stated, *held], default=None)


NOTED = "diffmask_origin"
"""Where a classifier's configuration, and so every saved classifier, names its origin."""
AS_A_RULE = FineTuning()


@dataclass(frozen=True)
class FineTuningSource:
    """An encoder, where it is known, and how it becomes a classifier."""

    encoder: str | None = None
    """Folder, hub id or short name; where there is none, training begins with the classifier's own body."""
    tuning: FineTuning = AS_A_RULE

    @staticmethod
    def of(config: Any) -> "FineTuningSource":
        """What a configuration says of it."""
        noted = getattr(config, NOTED, None)
        if not isinstance(noted, Mapping):
            return FineTuningSource()
        chosen = {field.name: noted[field.name] for field in fields(FineTuning) if field.name in noted}
        return FineTuningSource(noted.get("encoder"), FineTuning(**chosen))

    def to_dict(self) -> dict[str, Any]:
        """Plain values only."""
        return {"encoder": self.encoder, **asdict(self.tuning)}

    def classifier(self, names: Sequence[str], problem: str | None, seed: int) -> Any:
        """The encoder with an untrained head for outcomes of these names; it knows where it came from."""
        from transformers import AutoModelForSequenceClassification

        with seeded(seed, "classifier"), quiet_transformers():
            model = AutoModelForSequenceClassification.from_pretrained(
                packaged_encoder(str(self.encoder)),
                num_labels=len(names),
                id2label=dict(enumerate(names)),
                label2id={name: place for place, name in enumerate(names)},
                problem_type=problem,
            )
        setattr(model.config, NOTED, self.to_dict())
        return model

    def untrained(self, model: Any, tokenizer: Any, names: Sequence[str], seed: int) -> Any:
        """A classifier like this one as it was before it learned anything of its task, as far as that is known."""
        if self.encoder is None:
            return with_new_head(model, seed)
        if load_tokenizer(packaged_encoder(self.encoder)).get_vocab() != tokenizer.get_vocab():
            raise InputError(
                f"the encoder '{self.encoder}' has another vocabulary than the classifier; give the one that it was "
                "fine-tuned from"
            )
        return self.classifier(names, model.config.problem_type, seed).to(next(model.parameters()).device)


def with_new_head(model: nn.Module, seed: int) -> nn.Module:
    """A copy whose modules outside its body have random weights; all of them, where no body is told from the head."""
    fresh = deepcopy(model)
    body = getattr(fresh, "base_model", fresh)
    kept = set() if body is fresh else set(body.modules())
    if kept:
        warnings.warn(
            f"it is not known from which encoder {type(model).__name__} was fine-tuned: trained again, it begins with "
            "its present body and a new head; name the encoder (encoder=...) to begin where it began",
            TrainingWarning,
            stacklevel=2,
        )
    with seeded(seed, "classifier"):
        for module in fresh.modules():
            reset = getattr(module, "reset_parameters", None)
            if module not in kept and callable(reset):
                reset()
    return fresh
