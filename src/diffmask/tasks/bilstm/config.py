"""The data sets that models of words are trained on, with what was published for each. Madsen et al. 2022, table 2.

BiLSTMs with attention as recipes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch

from diffmask.core.task import Task, TaskConfig
from diffmask.datasets.babi import generate_babi, load_babi
from diffmask.datasets.loading import load_data
from diffmask.datasets.mimic import load_mimic
from diffmask.datasets.sentiment import load_imdb, load_sst
from diffmask.datasets.snli import load_snli
from diffmask.datasets.tables import Columns, DataSet
from diffmask.datasets.tokenizers import (
    TokenizedData,
    Vocabulary,
    imdb_words,
    mimic_words,
    snli_words,
    sst_words,
    tokenize_dataset,
)
from diffmask.errors import InputError, TaskError, nearest
from diffmask.tasks.bilstm.model import PairBiLSTM, SingleBiLSTM
from diffmask.tasks.bilstm.task import BiLSTMClassification, encode
from diffmask.tasks.bilstm.training import BiLSTMTraining, loader_draws


@dataclass(frozen=True, kw_only=True)
class BiLSTMPreset:
    """How a data set is loaded, and the sizes and scores that belong to it."""

    load: Callable[[Path], TokenizedData]
    tokenize: Callable[[DataSet], TokenizedData] | None = None
    """Texts from elsewhere, as the hub, as words."""
    generate: Callable[[], TokenizedData] | None = None
    """Rows of our own, where there are no files."""
    metric: Literal["accuracy", "macro-f1"]
    selection: Literal["accuracy", "auroc"]
    """What chooses the best epoch."""
    training: BiLSTMTraining
    min_count: int = 1
    """Texts that hold a word before it has a number of its own."""
    size: int = 300
    """Width of the embedding."""
    width: int = 128
    """Width of the LSTM, each direction."""
    deviation: float = 1.0
    """Standard deviation of the embedding before training."""


def _babi(task: int) -> BiLSTMPreset:
    return BiLSTMPreset(
        load=partial(load_babi, task=task),
        generate=partial(generate_babi, task=task),
        metric="accuracy",
        selection="accuracy",
        training=BiLSTMTraining(epochs=100, batch_size=50, learning_rate=1e-3, patience=100, by_length=False),
        size=50,
        width=32,
    )


def _sentences(
    load: Callable[[Path], DataSet], tokenize: Callable[[DataSet], TokenizedData], min_count: int, batch_size: int = 32
) -> BiLSTMPreset:
    return BiLSTMPreset(
        load=lambda folder: tokenize(load(folder)),
        tokenize=tokenize,
        metric="macro-f1",
        selection="auroc",
        training=BiLSTMTraining(epochs=8, batch_size=batch_size, learning_rate=1e-3, patience=2),
        min_count=min_count,
        deviation=0.1,
    )


def _sst(found: DataSet) -> TokenizedData:
    """Sentences of six or more words of the treebank, as it counts them."""
    long = {
        name: [row for row in rows if len(row.text.split(" ")) > 5]
        for name, rows in (("train", found.train), ("valid", found.valid), ("test", found.test))
    }
    return tokenize_dataset(DataSet(**long, names=found.names), sst_words)


SNLI = replace(
    _sentences(load_snli, partial(tokenize_dataset, tokenize=snli_words), min_count=3, batch_size=128),
    metric="accuracy",
    selection="accuracy",
    training=BiLSTMTraining(epochs=25, batch_size=128, learning_rate=1e-3, patience=3),
)
PRESETS = {
    **{f"babi-{task}": _babi(task) for task in (1, 2, 3)},
    "sst": _sentences(partial(load_sst, classes=2), _sst, min_count=1),
    "snli": SNLI,
    "imdb": _sentences(
        load_imdb, partial(tokenize_dataset, tokenize=imdb_words, min_words=7, max_words=399), min_count=10
    ),
    "mimic-diabetes": _sentences(
        partial(load_mimic, subset="diabetes"), partial(tokenize_dataset, tokenize=mimic_words), min_count=5
    ),
    "mimic-anemia": _sentences(
        partial(load_mimic, subset="anemia"),
        partial(tokenize_dataset, tokenize=mimic_words, max_words=4000),
        min_count=5,
    ),
}


def preset(name: str) -> BiLSTMPreset:
    """The data set of that name."""
    if name not in PRESETS:
        raise InputError(f"there is no data set '{name}' of words; {nearest(name, PRESETS)}")
    return PRESETS[name]


@dataclass(frozen=True, kw_only=True)
class BiLSTMConfig(TaskConfig):
    """An LSTM in both directions that pools by attention, trained from nothing."""

    name: ClassVar[str] = "bilstm"
    revision: ClassVar[int] = 2

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
    def preset(self) -> BiLSTMPreset:
        """What belongs to the data set."""
        return preset(self.data)

    @property
    def training(self) -> BiLSTMTraining:
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

    def dataset(self) -> TokenizedData:
        """The texts as words."""
        found = self._found()
        train, valid, test = (texts[: self.rows] for texts in found.splits().values())
        return replace(found, train=train, valid=valid, test=test)

    def _found(self) -> TokenizedData:
        if self.folder is not None and self.folder.startswith("hub:"):
            if self.preset.tokenize is None:
                raise InputError(f"{self.data} is not read from the hub; give the folder of its files")
            return self.preset.tokenize(load_data(self.folder, Columns()))
        if self.folder is not None:
            return self.preset.load(Path(self.folder))
        if self.preset.generate is None:
            raise InputError(f"{self.data} is read from files: give their folder (`--data FOLDER`, in YAML `folder:`)")
        return self.preset.generate()

    def build(self, seed: int) -> BiLSTMClassification:
        """Rows, the vocabulary of the training rows, and an untrained model."""
        found = self.dataset()
        vocabulary = Vocabulary.of(found.train, self.preset.min_count)
        data = {name: encode(texts, vocabulary) for name, texts in found.splits().items()}
        model, _ = self.init_model(len(vocabulary), len(found.names), "pair" in data["train"].inputs, seed)
        return BiLSTMClassification(self, vocabulary, found.names, model, data)

    def init_model(
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
            forward_lstm = torch.Generator().set_state(torch.get_rng_state())
        return model, forward_lstm

    def train(self, task: Task, seed: int) -> None:
        """Train the model in place."""
        if not isinstance(task, BiLSTMClassification):
            raise TaskError(f"{type(task).__name__} is not a task of words; build it with this recipe")
        # The model has its first weights already: what is wanted is the generator, as it stood after them.
        _, source = self.init_model(len(task.vocabulary), len(task.names), task.paired, seed)
        self.training.train(task, source)
