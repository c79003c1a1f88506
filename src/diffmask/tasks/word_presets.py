"""The data sets that models of words are trained on, with what was published for each. Madsen et al. 2022, table 2."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from diffmask.data.babi import load_babi
from diffmask.data.babi_world import generate_babi
from diffmask.data.imdb import load_imdb
from diffmask.data.mimic import load_mimic
from diffmask.data.snli import load_snli
from diffmask.data.sst import load_sst
from diffmask.data.spelling import note_words, review_words, with_digits_hidden, without_punctuation
from diffmask.data.tables import DataSet
from diffmask.data.worded import WordedData, worded
from diffmask.errors import InputError, nearest
from diffmask.tasks.word_training import WordTraining


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How a data set is loaded, and the sizes and scores that belong to it."""

    load: Callable[[Path], WordedData]
    spell: Callable[[DataSet], WordedData] | None = None
    """Texts from elsewhere, as the hub, as words."""
    generate: Callable[[], WordedData] | None = None
    """Rows of our own, where there are no files."""
    metric: Literal["accuracy", "macro-f1"]
    selection: Literal["accuracy", "auroc"]
    """What chooses the best epoch."""
    training: WordTraining
    least: int = 1
    """Texts that hold a word before it has a number of its own."""
    size: int = 300
    """Width of the embedding."""
    width: int = 128
    """Width of the LSTM, each direction."""
    deviation: float = 1.0
    """Standard deviation of the embedding before training."""


def _babi(task: int) -> Preset:
    return Preset(
        load=partial(load_babi, task=task),
        generate=partial(generate_babi, task=task),
        metric="accuracy",
        selection="accuracy",
        training=WordTraining(epochs=100, batch_size=50, learning_rate=1e-3, patience=100, by_length=False),
        size=50,
        width=32,
    )


def _sentences(
    load: Callable[[Path], DataSet], spell: Callable[[DataSet], WordedData], least: int, batch_size: int = 32
) -> Preset:
    return Preset(
        load=lambda folder: spell(load(folder)),
        spell=spell,
        metric="macro-f1",
        selection="auroc",
        training=WordTraining(epochs=8, batch_size=batch_size, learning_rate=1e-3, patience=2),
        least=least,
        deviation=0.1,
    )


def _sst(found: DataSet) -> WordedData:
    """Sentences of six or more words of the treebank, as it counts them."""
    long = {
        name: [row for row in rows if len(row.text.split(" ")) > 5]
        for name, rows in (("train", found.train), ("valid", found.valid), ("test", found.test))
    }
    return worded(DataSet(**long, names=found.names), without_punctuation)


SNLI = replace(
    _sentences(load_snli, partial(worded, spell=with_digits_hidden), least=3, batch_size=128),
    metric="accuracy",
    selection="accuracy",
    training=WordTraining(epochs=25, batch_size=128, learning_rate=1e-3, patience=3),
)
PRESETS = {
    **{f"babi-{task}": _babi(task) for task in (1, 2, 3)},
    "sst": _sentences(partial(load_sst, classes=2), _sst, least=1),
    "snli": SNLI,
    "imdb": _sentences(load_imdb, partial(worded, spell=review_words, shortest=7, longest=399), least=10),
    "mimic-diabetes": _sentences(partial(load_mimic, subset="diabetes"), partial(worded, spell=note_words), least=5),
    "mimic-anemia": _sentences(
        partial(load_mimic, subset="anemia"), partial(worded, spell=note_words, longest=4000), least=5
    ),
}


def preset(name: str) -> Preset:
    """The data set of that name."""
    if name not in PRESETS:
        raise InputError(f"there is no data set '{name}' of words; {nearest(name, PRESETS)}")
    return PRESETS[name]
