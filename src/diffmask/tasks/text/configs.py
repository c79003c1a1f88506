"""Text tasks as recipes: a classifier that is there, or one fine-tuned from an encoder."""

from abc import ABC
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from diffmask.core.batch import spread_indices
from diffmask.core.task import Task, TaskConfig
from diffmask.datasets.loading import load_data, packaged_encoder
from diffmask.datasets.tables import DataSet, Example
from diffmask.errors import InputError, TaskError
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.text.encoding import TextEncodingConfig
from diffmask.tasks.text.finetuning import FineTuning
from diffmask.tasks.text.pretrained import FineTuningSource, load_tokenizer

PROBLEMS = {
    "classes": "single_label_classification",
    "labels": "multi_label_classification",
    "numbers": "regression",
}
"""What `transformers` calls the answers of a fine-tuning."""


@dataclass(frozen=True, kw_only=True)
class TextTaskConfig(TextEncodingConfig, TaskConfig, ABC):
    """A model on a data set of texts."""

    model: str
    """Folder or hub id of the model."""
    data: str
    """A data set's name, the path of a table, or a folder with a table for each split."""
    rows: int | None = None
    """Training rows to use, spread evenly over all of them; all where none is given."""

    @property
    def panel(self) -> tuple[str, str]:
        """The data set and the model."""
        return self.data, self.label_without("data")

    def dataset(self) -> DataSet:
        """The texts."""
        found = load_data(self.data, self)
        return replace(found, train=_spread(found.train, self.rows))


@dataclass(frozen=True, kw_only=True)
class TextClassificationConfig(TextTaskConfig):
    """A trained classifier on a data set."""

    name: ClassVar[str] = "text-classification"

    model: str
    """Folder or hub id of the classifier."""
    encoder: str | None = None
    """What it was fine-tuned from, where ROAR trains it again; one that `diffmask train` made knows it."""

    def build(self, seed: int) -> Task:
        """The classifier as it is."""
        return TextClassification(self.model, **_splits(self.dataset()), encoding=self, encoder=self.encoder)


@dataclass(frozen=True, kw_only=True)
class FineTunedClassificationConfig(FineTuning, TextTaskConfig):
    """An encoder fine-tuned on a data set."""

    name: ClassVar[str] = "fine-tuned-classification"

    model: str = "minilm"
    """Folder or hub id of the encoder; `minilm` is packaged."""
    data: str = "rotten-tomatoes"
    """A data set's name, the path of a table, or a folder with a table for each split."""

    def build(self, seed: int) -> TextClassification:
        """The encoder with an untrained head."""
        found = self.dataset()
        model = FineTuningSource(self.model, self.tuning).classifier(self._outputs(found), PROBLEMS[self.answers], seed)
        return TextClassification(model, load_tokenizer(packaged_encoder(self.model)), **_splits(found), encoding=self)

    def _outputs(self, data: DataSet) -> tuple[str, ...]:
        """The names of the classifier's outputs."""
        if self.answers == "numbers":
            return ("number",)
        if len(data.classes) < 2:
            raise InputError(f"the training rows have {len(data.classes)} labels; a classifier needs two")
        return data.classes

    def train(self, task: Task, seed: int) -> None:
        """Fine-tune all of it."""
        if not isinstance(task, TextClassification):
            raise TaskError(f"{type(task).__name__} is not a text task; build it with this recipe")
        self.fine_tune(task, seed)


def _spread(examples: list[Example], count: int | None) -> list[Example]:
    """So many of them, evenly from first to last: a table may be sorted by its labels."""
    return examples if count is None else [examples[index] for index in spread_indices(len(examples), count)]


def _splits(data: DataSet) -> dict[str, Any]:
    return {"train": data.train, "valid": data.valid, "test": data.test}
