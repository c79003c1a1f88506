"""A few texts first: from what they take, what all will take."""

import logging
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor

from diffmask.batch import Batch
from diffmask.bench import Bench, Explained
from diffmask.errors import FitWarning
from diffmask.evaluate.erasing import clean
from diffmask.explainer import Method
from diffmask.store import Store
from diffmask.task import Task

FEW = 8
"""Texts that are rehearsed."""
STEPS = (4, 12)
"""Lengths of the two short fits from which a long one is told."""
TRAINING_ROWS = 32
"""Rows of the shorter of the two trainings from which a whole one is told."""
HELD_OUT = 32
"""Validation rows that short fits are diagnosed on."""


@contextmanager
def rehearsal(task: Task, split: str, seed: int) -> Iterator[Bench]:
    """A bench over a few texts of all lengths, with a store that is thrown away; the model has run once.

    What short fits have to say of themselves is nobody's concern.
    """
    small = task.narrowed(split, spread(task.data[split], FEW))
    if split != "valid" and "valid" in small.data:
        small = small.narrowed("valid", torch.arange(min(HELD_OUT, len(small.data["valid"]))))
    with TemporaryDirectory() as folder, _unheard():
        bench = Bench.over(Store(Path(folder)), small, seed)
        clean(bench, split, "predicted")
        yield bench


@contextmanager
def _unheard() -> Iterator[None]:
    """Within this block the package logs warnings only, and no warning of a fit is given."""
    log = logging.getLogger("diffmask")
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            yield
    finally:
        log.setLevel(level)


def spread(batch: Batch, few: int) -> Int[Tensor, " row"]:
    """Rows evenly spread over the lengths of a batch."""
    order = batch.present.sum(dim=1).argsort(stable=True)
    count = min(few, len(order))
    return order[((torch.arange(count) + 0.5) * len(order) / count).long()]


def learns(method: Method) -> bool:
    """Whether a method has something to learn."""
    return type(method).train is not Method.train


def changed(method: Method, option: str, value: Any) -> Method:
    """The same method with another value of an option."""
    return cast(Method, replace(cast(Any, method), **{option: value}))


def shortened(method: Method) -> Method:
    """The same method with a fit of few steps, where its fit has many."""
    return method.with_effort(STEPS[0]) if learns(method) and (method.effort or 0) > STEPS[1] else method


def fit_seconds(method: Method, bench: Bench) -> float:
    """What a fit will take: told from two short ones, or measured where it has no steps."""
    first = timed(lambda: bench.explainer(shortened(method)))
    if method.effort is None or shortened(method) == method:
        return first
    second = timed(lambda: bench.explainer(method.with_effort(STEPS[1])))
    per_step = max(0.0, second - first) / (STEPS[1] - STEPS[0])
    return first + per_step * (method.effort - STEPS[0])


def training_seconds(task: Task, seed: int) -> float:
    """What training the task again will take: told from two trainings on few rows, or measured where all are few."""
    rows = len(task.data.get("train", ()))
    if rows <= 2 * TRAINING_ROWS:
        return timed(lambda: task.retrain(task.data, seed))
    short, longer = (_share(task.data, few / rows) for few in (TRAINING_ROWS, 2 * TRAINING_ROWS))
    first, second = timed(lambda: task.retrain(short, seed)), timed(lambda: task.retrain(longer, seed))
    per_row = max(0.0, second - first) / TRAINING_ROWS
    return first + per_row * (rows - TRAINING_ROWS)


def _share(data: Mapping[str, Batch], share: float) -> dict[str, Batch]:
    """The same share of every split, rows of all lengths."""
    return {split: batch[spread(batch, max(1, round(share * len(batch))))] for split, batch in data.items()}


def timed(work: Any) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Calls:
    """Rows through the model, forward and backward, a text."""

    explaining: float
    fitting: int
    """In all; not a text."""

    @staticmethod
    def of(explained: Explained) -> "Calls":
        """As counted."""
        cost, fit = explained.cost, explained.fit_cost
        return Calls((cost.rows + cost.rows_back) / len(explained.attribution), fit.rows + fit.rows_back)

    def a_text(self, texts: int) -> float:
        """With the fit shared by so many texts."""
        return self.explaining + self.fitting / texts
