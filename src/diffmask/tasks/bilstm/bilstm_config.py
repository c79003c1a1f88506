"""Config of a BiLSTM with attention, and the presets of the data sets of NLP-ROAR. Madsen et al. 2022, table 2."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from diffmask.core.task import Task, TaskConfig
from diffmask.datasets.babi import generate_babi, load_babi
from diffmask.datasets.loading import load_data
from diffmask.datasets.mimic import load_mimic
from diffmask.datasets.sentiment import load_imdb, load_sst
from diffmask.datasets.snli import load_snli
from diffmask.datasets.tables import Columns, DataSet
from diffmask.datasets.tokenizers import (
    SPECIAL_TOKENS,
    TokenizedData,
    Vocabulary,
    imdb_words,
    mimic_words,
    snli_words,
    sst_words,
    tokenize_dataset,
)
from diffmask.datasets.word_vectors import load_word_vectors
from diffmask.errors import InputError, TaskError, nearest
from diffmask.tasks.bilstm.bilstm_task import BiLSTMClassification, encode
from diffmask.tasks.bilstm.bilstm_training import BiLSTMTraining, draw_loader_seed
from diffmask.tasks.bilstm.model import PairBiLSTM, SingleBiLSTM


@dataclass(frozen=True, kw_only=True)
class BiLSTMPreset:
    """Loader, metric, hyperparameters and sizes of one data set."""

    load: Callable[[Path], TokenizedData]
    tokenize: Callable[[DataSet], TokenizedData] | None = None
    """Tokenizer for texts from another source, such as the hub."""
    generate: Callable[[], TokenizedData] | None = None
    """Generator of rows, for a data set that needs no files."""
    metric: Literal["accuracy", "macro-f1"]
    selection: Literal["accuracy", "auroc"]
    """Score that selects the best epoch."""
    training: BiLSTMTraining
    min_count: int = 1
    """Number of training texts that must contain a word of the vocabulary."""
    embedding_size: int = 300
    hidden_size: int = 128
    """Width of the LSTM in each direction."""
    embedding_std: float = 1.0
    """Standard deviation of the initial embedding."""


def _babi(task: int) -> BiLSTMPreset:
    return BiLSTMPreset(
        load=partial(load_babi, task=task),
        generate=partial(generate_babi, task=task),
        metric="accuracy",
        selection="accuracy",
        training=BiLSTMTraining(epochs=100, batch_size=50, learning_rate=1e-3, patience=100, by_length=False),
        embedding_size=50,
        hidden_size=32,
    )


def _sentences(
    load: Callable[[Path], DataSet], tokenize: Callable[[DataSet], TokenizedData], min_count: int, batch_size: int = 32
) -> BiLSTMPreset:
    return BiLSTMPreset(
        load=lambda folder: tokenize(load(folder)),
        tokenize=tokenize,
        metric="macro-f1",
        selection="auroc",
        # Batches of any length, as published: macro-F1 on SST was 81.1 instead of 79.7 at seed 0.
        training=BiLSTMTraining(epochs=8, batch_size=batch_size, learning_rate=1e-3, patience=2, by_length=False),
        min_count=min_count,
        embedding_std=0.1,
    )


def _sst(data: DataSet) -> TokenizedData:
    """Tokenize the sentences with more than five tokens of the treebank."""
    long = {
        split: [row for row in rows if len(row.text.split(" ")) > 5]
        for split, rows in (("train", data.train), ("valid", data.valid), ("test", data.test))
    }
    return tokenize_dataset(DataSet(**long, names=data.names), sst_words)


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


def find_preset(name: str) -> BiLSTMPreset:
    """Return the preset of a data set."""
    if name not in PRESETS:
        raise InputError(f"there is no BiLSTM data set '{name}'; {nearest(name, PRESETS)}")
    return PRESETS[name]


@dataclass(frozen=True, kw_only=True)
class BiLSTMConfig(TaskConfig):
    """Bidirectional LSTM with attention pooling, trained from scratch."""

    name: ClassVar[str] = "bilstm"
    revision: ClassVar[int] = 3

    data: str = "babi-1"
    """Name of the data set."""
    folder: str | None = None
    """Folder of its files, or `hub:OWNER/NAME`; bABI is generated if there is none."""
    vectors: str | None = None
    """File of initial word vectors in word2vec's text format; by default they are random."""
    rows: int | None = None
    """Number of rows per split, from the first; None uses all."""
    epochs: int | None = None
    """Largest number of epochs; None, here and below, uses the data set's preset."""
    batch_size: int | None = None
    learning_rate: float | None = None
    patience: int | None = None
    """Epochs without improvement on the validation split before training stops, once the model has begun to learn."""

    @property
    def preset(self) -> BiLSTMPreset:
        """Preset of the data set."""
        return find_preset(self.data)

    @property
    def training(self) -> BiLSTMTraining:
        """Hyperparameters of the training."""
        choices = {name: getattr(self, name) for name in ("epochs", "batch_size", "learning_rate", "patience")}
        return replace(self.preset.training, **{name: value for name, value in choices.items() if value is not None})

    @property
    def label(self) -> str:
        """Data set, model and the choices that differ from the defaults, without the folder."""
        return " ".join(self.panel)

    @property
    def panel(self) -> tuple[str, str]:
        """Names of the data set and of the model."""
        words = "" if self.vectors is None else f", {Path(self.vectors).stem} vectors"
        return self.data, self.label_without("data", "folder", "vectors") + words

    def dataset(self) -> TokenizedData:
        """Load and tokenize the texts."""
        data = self._load()
        train, valid, test = (texts[: self.rows] for texts in data.splits().values())
        return replace(data, train=train, valid=valid, test=test)

    def _load(self) -> TokenizedData:
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
        """Return the rows, the vocabulary of the training rows, and an untrained model."""
        data = self.dataset()
        vocabulary = Vocabulary.of(data.train, self.preset.min_count)
        batches = {split: encode(texts, vocabulary) for split, texts in data.splits().items()}
        model, _ = self.init_model(vocabulary, len(data.names), "pair" in batches["train"].inputs, seed)
        return BiLSTMClassification(self, vocabulary, data.names, model, batches)

    def init_model(
        self, vocabulary: Vocabulary, classes: int, paired: bool, seed: int, earlier: int = 0
    ) -> tuple[SingleBiLSTM | PairBiLSTM, torch.Generator]:
        """Return an untrained model and the generator that orders its training rows.

        `earlier` is the number of models that were initialised from the seed before. Random numbers are drawn as in
        the published code, in the same order from the same generators, so that a seed gives the published initial
        weights. Only the order of the words in the published vocabulary is unknown.
        """
        model_class = PairBiLSTM if paired else SingleBiLSTM
        embedding_source = np.random.RandomState(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for number in range(earlier + 1):
                for _split in range(3 if number else 0):  # The published code reads each split to mask it.
                    draw_loader_seed(torch.default_generator)
                vectors = self._initial_vectors(vocabulary, embedding_source)
                model = model_class(vectors, self.preset.hidden_size, classes)
            order = torch.Generator().set_state(torch.get_rng_state())
        return model, order

    def _initial_vectors(self, vocabulary: Vocabulary, source: np.random.RandomState) -> Float[Tensor, "word size"]:
        """Read the vectors, zero for special and unknown words as published, or draw them."""
        if self.vectors is not None:
            return torch.from_numpy(load_word_vectors(Path(self.vectors), vocabulary.words)).index_fill(
                0, torch.arange(len(SPECIAL_TOKENS)), 0.0
            )
        size = self.preset.embedding_size
        drawn = source.normal(scale=self.preset.embedding_std, size=(len(vocabulary) - 1, size))
        return torch.from_numpy(np.vstack([np.zeros(size), drawn])).float()

    def train(self, task: Task, seed: int) -> None:
        """Train the model in place."""
        if not isinstance(task, BiLSTMClassification):
            raise TaskError(f"{type(task).__name__} is not a BiLSTM classification; build it with this config")
        # The model is initialised already: only the state of the generator after the initialisation is needed.
        _, order = self.init_model(task.vocabulary, len(task.names), task.paired, seed)
        self.training.train(task, order)
