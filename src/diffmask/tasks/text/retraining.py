"""Retraining, as ROAR does it: the encoder that a model was fine-tuned from, with a new head, on other rows."""

import warnings
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from safetensors import SafetensorError
from torch import nn

from diffmask.core.batch import Batch
from diffmask.core.capabilities import Retrainable, require_labels
from diffmask.core.task import Task
from diffmask.core.training import seeded
from diffmask.datasets.loading import packaged_encoder
from diffmask.errors import InputError, TrainingWarning
from diffmask.results.records import atomic_folder
from diffmask.tasks.text.encoding import TextEncoder, TextTaskSpec
from diffmask.tasks.text.finetuning import FineTuning
from diffmask.tasks.text.pretrained import auto_class_named, from_pretrained, load_tokenizer, quiet_transformers

CONFIG_KEY = "diffmask_finetuning_source"
"""Key of the source in a model's configuration, and so in every classifier that `diffmask train` saves."""
DEFAULT_TUNING = FineTuning()


@dataclass(frozen=True)
class FineTuningSource:
    """Pretrained encoder of a classifier and the hyperparameters of its fine-tuning; ROAR retrains from here."""

    encoder: str | Path | None = None
    """Folder, hub id or short name of the encoder; None retrains the classifier's own body with a new head."""
    tuning: FineTuning = DEFAULT_TUNING
    trust_remote_code: bool = False
    """Whether to run Python code of the encoder's repository. Never saved, never read from a configuration."""

    @staticmethod
    def of(config: Any) -> "FineTuningSource":
        """Return the source that a model's configuration states."""
        stated = getattr(config, CONFIG_KEY, None)
        if not isinstance(stated, Mapping):
            return FineTuningSource()
        known = {field.name: stated[field.name] for field in fields(FineTuning) if field.name in stated}
        return FineTuningSource(stated.get("encoder"), FineTuning(**known))

    def to_dict(self) -> dict[str, Any]:
        """Return the encoder and the hyperparameters as plain values."""
        return {"encoder": None if self.encoder is None else str(self.encoder), **asdict(self.tuning)}

    def init_classifier(self, names: Sequence[str], problem_type: str | None, seed: int) -> Any:
        """Return the encoder with an untrained classifier; its configuration states this source."""
        return self.init_labelled("AutoModelForSequenceClassification", names, seed, problem_type=problem_type)

    def init_labelled(self, auto_class: str, names: Sequence[str], seed: int, **options: Any) -> Any:
        """Return the encoder with an untrained head whose outputs have these names."""
        return self.init_model(
            auto_class,
            seed,
            num_labels=len(names),
            id2label=dict(enumerate(names)),
            label2id={name: index for index, name in enumerate(names)},
            **options,
        )

    def init_model(self, auto_class: str, seed: int, **options: Any) -> Any:
        """Return the encoder with an untrained head of an auto class; its configuration states this source."""
        with seeded(seed, "classifier"):
            model = from_pretrained(
                auto_class_named(auto_class),
                packaged_encoder(str(self.encoder)),
                trust_remote_code=self.trust_remote_code,
                **options,
            )
        setattr(model.config, CONFIG_KEY, self.to_dict())
        return model

    def load_tokenizer(self) -> Any:
        """Return the tokenizer of the encoder."""
        return load_tokenizer(packaged_encoder(str(self.encoder)), trust_remote_code=self.trust_remote_code)

    def untrained_copy(self, model: Any, tokenizer: Any, init: Callable[[], Any], seed: int) -> Any:
        """Return the model before its fine-tuning: what `init` makes of the encoder, or its own body if unknown."""
        if self.encoder is None:
            return reset_head(model, seed)
        if self.load_tokenizer().get_vocab() != tokenizer.get_vocab():
            raise InputError(
                f"the encoder '{self.encoder}' has another vocabulary than the classifier; give the encoder that it "
                "was fine-tuned from"
            )
        return init().to(next(model.parameters()).device)


def reset_head(model: nn.Module, seed: int) -> nn.Module:
    """Return a copy with random weights outside its body (`base_model`); all weights if it has no separate body."""
    fresh = deepcopy(model)
    body = getattr(fresh, "base_model", fresh)
    body_modules = set() if body is fresh else set(body.modules())
    if body_modules:
        warnings.warn(
            f"the encoder that {type(model).__name__} was fine-tuned from is unknown: retraining starts from its "
            "present body with a new head; name the encoder with source=FineTuningSource(encoder=...)",
            TrainingWarning,
            stacklevel=2,
        )
    with seeded(seed, "classifier"):
        for module in fresh.modules():
            reset = getattr(module, "reset_parameters", None)
            if module not in body_modules and callable(reset):
                reset()
    return fresh


class RetrainsEncoder(Task, Retrainable, ABC):
    """A task on a Hugging Face model that is fine-tuned again on other rows, and saved."""

    model: Any
    tokenizer: Any
    text_encoder: TextEncoder
    source: FineTuningSource
    """Encoder and hyperparameters of the fine-tuning."""

    spec: ClassVar[TextTaskSpec]

    def untrained(self, seed: int) -> Any:
        """Return the encoder with a new head; if the encoder is unknown, the model's own body with a new head."""
        return self.source.untrained_copy(self.model, self.tokenizer, lambda: self.init_head(seed), seed)

    def init_head(self, seed: int) -> Any:
        """Return the encoder with a new head."""
        return self.source.init_model(self.spec.auto_class, seed, **self.spec.head_options)

    @property
    def training_choices(self) -> Mapping[str, Any]:
        """Encoder and hyperparameters of the fine-tuning."""
        return self.source.to_dict()

    def retrain(self, data: Mapping[str, Batch], seed: int) -> Task:
        """Fine-tune the encoder with a new head on other rows; without an encoder, the model's own body."""
        self.require_trainable(data)
        build: Any = type(self)
        task: Task = build(self.untrained(seed), self.tokenizer, encoding=self.text_encoder.config, source=self.source)
        self.share_with(task)
        task.data = data
        self.source.tuning.fine_tune(task, seed)
        return task

    def share_with(self, task: Any) -> None:
        """Give a task of the same kind what it needs to know of these rows; nothing by default."""

    def require_trainable(self, data: Mapping[str, Batch]) -> None:
        """Raise an InputError if a row has no label to train on."""
        require_labels(self, data)

    def save_pretrained(self, folder: str | Path) -> None:
        """Save the model and its tokenizer in the format of `transformers`; a failure leaves the folder as it was."""
        with atomic_folder(Path(folder), last="config.json") as aside, quiet_transformers():
            try:
                self.model.save_pretrained(aside)
                self.tokenizer.save_pretrained(aside)
            except SafetensorError as error:  # the library's own type, also for a full disk
                raise OSError(None, str(error)) from None
