"""Text tasks as recipes: a classifier that is there, or one fine-tuned from an encoder."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from diffmask.batch import Batch
from diffmask.data.splits import load_data
from diffmask.data.tables import DataSet, Example
from diffmask.errors import TaskError
from diffmask.task import Task, TaskRecipe
from diffmask.tasks.finetuning import FineTuning
from diffmask.tasks.reading import Reading
from diffmask.tasks.text import TextClassification


@dataclass(frozen=True, kw_only=True)
class TextTask(Reading, TaskRecipe):
    """A trained classifier on a data set."""

    name: ClassVar[str] = "text"

    model: str
    """Folder or hub id of the classifier."""
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

    def build(self, seed: int) -> Task:
        """The classifier as it is."""
        return TextClassification(self.model, **_splits(self.dataset()), reading=self)


@dataclass(frozen=True, kw_only=True)
class FineTunedTask(FineTuning, TextTask):
    """An encoder fine-tuned on a data set."""

    name: ClassVar[str] = "fine-tuned-text"

    model: str = "minilm"
    """Folder or hub id of the encoder; `minilm` is packaged."""
    data: str = "rotten-tomatoes"
    """A data set's name, the path of a table, or a folder with a table for each split."""

    def build(self, seed: int) -> "FineTunedClassification":
        """The encoder with an untrained head."""
        found = self.dataset()
        task = FineTunedClassification(*self.fresh_classifier(self.model, found, seed), **_splits(found), reading=self)
        task.recipe = self
        return task

    def train(self, task: Task, seed: int) -> None:
        """Fine-tune all of it."""
        if not isinstance(task, TextClassification):
            raise TaskError(f"{type(task).__name__} is not a text task; build it with this recipe")
        self.run(task, seed)


class FineTunedClassification(TextClassification):
    """A classifier that can be trained again from its encoder."""

    recipe: FineTunedTask

    def retrain(self, data: Mapping[str, Batch], seed: int) -> "FineTunedClassification":
        """A fresh head on the encoder, fine-tuned on other rows."""
        names = DataSet(train=[], valid=[], test=[], names=self.head.names)
        model, _ = self.recipe.fresh_classifier(self.recipe.model, names, seed)
        task = FineTunedClassification(model, self.tokenizer, reading=self.reader.reading)
        task.recipe, task.data = self.recipe, dict(data)
        self.recipe.run(task, seed)
        return task


def _spread(examples: list[Example], count: int | None) -> list[Example]:
    """So many of them, evenly from first to last: a table may be sorted by its labels."""
    if count is None or count >= len(examples):
        return examples
    return [examples[number * len(examples) // count] for number in range(count)]


def _splits(data: DataSet) -> dict[str, Any]:
    return {"train": data.train, "valid": data.valid, "test": data.test}
