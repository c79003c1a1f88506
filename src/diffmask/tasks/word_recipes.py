"""BiLSTMs with attention as recipes."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from diffmask.data.splits import load_data
from diffmask.data.tables import Columns
from diffmask.data.worded import Vocabulary, WordedData
from diffmask.errors import InputError, TaskError
from diffmask.task import Task, TaskRecipe
from diffmask.tasks.bilstm import PairBiLSTM, SingleBiLSTM
from diffmask.tasks.word_presets import Preset, preset
from diffmask.tasks.word_training import WordTraining, loader_draws
from diffmask.tasks.words import WordClassification, encode


@dataclass(frozen=True, kw_only=True)
class BiLSTM(TaskRecipe):
    """An LSTM in both directions that pools by attention, trained from nothing."""

    name: ClassVar[str] = "bilstm"
    revision: ClassVar[int] = 1

    data: str = "babi-1"
    """A data set's name."""
    folder: str | None = None
    """Where its files are, or `hub:OWNER/NAME` of the Hugging Face hub; bABI is generated where none is given."""
    rows: int | None = None
    """Rows of each split to use, the first ones; all where none is given."""
    epochs: int | None = None
    """At most so many passes over all rows; this and what follows, where not given, as suits the data set."""
    batch_size: int | None = None
    learning_rate: float | None = None
    patience: int | None = None
    """Epochs without gain on validation rows after which training stops; longer where nothing was learned yet."""

    @property
    def preset(self) -> Preset:
        """What belongs to the data set."""
        return preset(self.data)

    @property
    def training(self) -> WordTraining:
        """The choices of the training."""
        own = {name: getattr(self, name) for name in ("epochs", "batch_size", "learning_rate", "patience")}
        return replace(self.preset.training, **{name: value for name, value in own.items() if value is not None})

    @property
    def label(self) -> str:
        """The data set, the model, and choices other than the usual; not where the files are."""
        return " ".join(self.panel)

    @property
    def panel(self) -> tuple[str, str]:
        """The data set and the model."""
        return self.data, self.label_without("data", "folder")

    def dataset(self) -> WordedData:
        """The texts as words."""
        found = self._found()
        train, valid, test = (texts[: self.rows] for texts in found.splits().values())
        return replace(found, train=train, valid=valid, test=test)

    def _found(self) -> WordedData:
        if self.folder is not None and self.folder.startswith("hub:"):
            if self.preset.spell is None:
                raise InputError(f"{self.data} is not read from the hub; give the folder of its files")
            return self.preset.spell(load_data(self.folder, Columns()))
        if self.folder is not None:
            return self.preset.load(Path(self.folder))
        if self.preset.generate is None:
            raise InputError(f"{self.data} is read from files: give their folder (`--data FOLDER`, in YAML `folder:`)")
        return self.preset.generate()

    def build(self, seed: int) -> WordClassification:
        """Rows, the vocabulary of the training rows, and an untrained model."""
        found = self.dataset()
        vocabulary = Vocabulary.of(found.train, self.preset.least)
        data = {name: encode(texts, vocabulary) for name, texts in found.splits().items()}
        model, _ = self.begin(len(vocabulary), len(found.names), "pair" in data["train"].inputs, seed)
        return WordClassification(self, vocabulary, found.names, model, data)

    def begin(
        self, words: int, classes: int, paired: bool, seed: int, earlier: int = 0
    ) -> tuple[SingleBiLSTM | PairBiLSTM, torch.Generator]:
        """An untrained model, its seed's first or one after `earlier` others, and what orders the rows it learns from.

        Random numbers are drawn as published, in the same order from the same generators, so that a seed begins with
        the weights that it began with there. Only the words' vectors were dealt out in an order that nobody knows.
        """
        chosen = self.preset
        kind = PairBiLSTM if paired else SingleBiLSTM
        source = np.random.RandomState(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for place in range(earlier + 1):
                for _split in range(3 if place else 0):  # Meanwhile each was read, to be masked.
                    loader_draws(torch.default_generator)
                drawn = source.normal(scale=chosen.deviation, size=(words - 1, chosen.size))
                vectors = torch.from_numpy(np.vstack([np.zeros(chosen.size), drawn])).float()
                model = kind(vectors, chosen.width, classes)
            onward = torch.Generator().set_state(torch.get_rng_state())
        return model, onward

    def train(self, task: Task, seed: int) -> None:
        """Train the model in place."""
        if not isinstance(task, WordClassification):
            raise TaskError(f"{type(task).__name__} is not a task of words; build it with this recipe")
        # The model has its first weights already: what is wanted is the generator, as it stood after them.
        _, source = self.begin(len(task.vocabulary), len(task.names), task.paired, seed)
        self.training.run(task, source)
