"""The data sets that models of words are trained on, with what was published for each. Madsen et al. 2022, table 2."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from diffmask.data import babi, babi_world
from diffmask.data.worded import WordedData
from diffmask.errors import InputError, nearest
from diffmask.tasks.word_training import WordTraining


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How a data set is loaded, and the sizes and scores that belong to it."""

    load: Callable[[Path], WordedData]
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
    classes: int | None = None
    """Outputs, where there are more than classes."""
    deviation: float = 1.0
    """Standard deviation of the embedding before training."""


def _babi(task: int) -> Preset:
    return Preset(
        load=partial(babi.load, task=task),
        generate=partial(babi_world.load, task=task),
        metric="accuracy",
        selection="accuracy",
        training=WordTraining(epochs=100, batch_size=64, learning_rate=4e-3, patience=5, short_first=15),
        size=50,
        width=32,
        classes=36,
    )


PRESETS = {f"babi-{task}": _babi(task) for task in (1, 2, 3)}


def preset(name: str) -> Preset:
    """The data set of that name."""
    if name not in PRESETS:
        raise InputError(f"there is no data set '{name}' of words; {nearest(name, PRESETS)}")
    return PRESETS[name]
