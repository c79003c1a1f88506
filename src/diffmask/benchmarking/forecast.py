"""Methods at an equal price: each is given as many steps or samples as so many rows through the model pay for.

A few texts first: from what they take, what all will take.

What a benchmark will take, told before it starts; what is in the store takes nothing.
"""

import logging
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor

from diffmask.benchmarking.config import BenchmarkConfig, short_names
from diffmask.core.batch import Batch, order_by_length
from diffmask.core.capabilities import Retrainable, require
from diffmask.core.explainer import Method
from diffmask.core.store import Store
from diffmask.core.task import Task
from diffmask.core.training import progress_bar
from diffmask.errors import DiffMaskError, FitWarning
from diffmask.experiments.experiment import FitNode, MeasureNode
from diffmask.metrics.base import Metric
from diffmask.metrics.erasure import unmasked_predictions
from diffmask.results.formatting import format_duration, join_names
from diffmask.workspace.node import Node
from diffmask.workspace.workspace import CachedAttribution, Workspace

KNOBS = ("n_steps", "n_samples", "samples", "most_steps", "steps")
"""Options that say how much a method spends, in the order in which they are looked for."""
PROBED = (8, 16)
"""Values of a knob between which the price is taken to be a line."""
SLACK = 1.1
"""A method without a knob may cost a tenth more than the budget."""


def within_budget(config: BenchmarkConfig, task: Task) -> tuple[BenchmarkConfig, list[str]]:
    """The config with every method at its budget, and what to say of those that cannot be; a random order stays."""
    if config.budget is None:
        return config, []
    kept, said = [], []
    with rehearsal(task, config.split, config.seeds[0]) as small:
        for method in config.methods:
            found = method if method.is_baseline else affordable(method, small, config)
            if found is None:
                said.append(f"{method.label} is left out: each text costs more than {config.budget:g} rows")
            else:
                kept.append(found)
    return replace(config, methods=tuple(kept)), said


def affordable(method: Method, workspace: Workspace, config: BenchmarkConfig) -> Method | None:
    """The method with its knob where the budget is spent; as it is where it has none; None if it costs more."""
    budget = config.budget or 0.0
    try:
        knob = next(iter(knobs(method)), None)
        if knob is None:
            return method if calls(method, workspace, config) <= SLACK * budget else None
        low, high = (calls(changed(method, knob, value), workspace, config) for value in PROBED)
    except DiffMaskError:
        return method  # what it cannot do is said when it is asked to do it
    each = (high - low) / (PROBED[1] - PROBED[0])
    if each <= 0:
        return method if low <= SLACK * budget else None
    value = int(PROBED[0] + (budget - low) / each)
    return changed(method, knob, value) if value >= 1 else None


def knobs(method: Method) -> Iterator[str]:
    """The options of a method that say how much it spends."""
    choices = method.to_dict()
    return (name for name in KNOBS if isinstance(choices.get(name), int))


def calls(method: Method, workspace: Workspace, config: BenchmarkConfig) -> float:
    """Rows through the model for a text, the fit shared by all texts of the config."""
    return ModelCalls.of(workspace.explained(method, config.split)).a_text(config.texts)


FEW = 8
"""Texts that are rehearsed."""
STEPS = (4, 12)
"""Lengths of the two short fits from which a long one is told."""
TRAINING_ROWS = 32
"""Rows of the shorter of the two trainings from which a whole one is told."""
HELD_OUT = 32
"""Validation rows that short fits are diagnosed on."""


@contextmanager
def rehearsal(task: Task, split: str, seed: int) -> Iterator[Workspace]:
    """A bench over a few texts of all lengths, with a store that is thrown away; the model has run once.

    What short fits have to say of themselves is nobody's concern.
    """
    small = task.subset(split, spread(task.data[split], FEW))
    if split != "valid" and "valid" in small.data:
        small = small.subset("valid", torch.arange(min(HELD_OUT, len(small.data["valid"]))))
    with TemporaryDirectory() as folder, _unheard():
        workspace = Workspace.over(Store(Path(folder)), small, seed)
        unmasked_predictions(workspace, split, "predicted")
        yield workspace


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
    order = order_by_length(batch)
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


def fit_seconds(method: Method, workspace: Workspace) -> float:
    """What a fit will take: told from two short ones, or measured where it has no steps."""
    first = timed(lambda: workspace.explainer(shortened(method)))
    if method.effort is None or shortened(method) == method:
        return first
    second = timed(lambda: workspace.explainer(method.with_effort(STEPS[1])))
    per_step = max(0.0, second - first) / (STEPS[1] - STEPS[0])
    return first + per_step * (method.effort - STEPS[0])


def training_seconds(task: Task, seed: int) -> float:
    """What training the task again will take: told from two trainings on few rows, or measured where all are few."""
    retrain = require(task, Retrainable, "ROAR").retrain
    rows = len(task.data.get("train", ()))
    if rows <= 2 * TRAINING_ROWS:
        return timed(lambda: retrain(task.data, seed))
    short, longer = (_share(task.data, few / rows) for few in (TRAINING_ROWS, 2 * TRAINING_ROWS))
    first, second = timed(lambda: retrain(short, seed)), timed(lambda: retrain(longer, seed))
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
class ModelCalls:
    """Rows through the model, forward and backward, a text."""

    explaining: float
    fitting: int
    """In all; not a text."""

    @staticmethod
    def of(explained: CachedAttribution) -> "ModelCalls":
        """As counted."""
        cost, fit = explained.cost, explained.fit_cost
        return ModelCalls((cost.rows + cost.rows_back) / len(explained.attribution), fit.rows + fit.rows_back)

    def a_text(self, texts: int) -> float:
        """With the fit shared by so many texts."""
        return self.explaining + self.fitting / texts


@dataclass(frozen=True)
class Forecast:
    """Seconds of every method, and of every metric before it asks the first; and what is not in them."""

    by_part: dict[str, float]
    unknown: tuple[str, ...]
    """Metrics whose work does not grow with the texts: a few texts do not tell what they take."""
    trainings: int = 0
    """Models that are trained for it."""

    @property
    def seconds(self) -> float:
        """In all."""
        return sum(self.by_part.values())

    def __str__(self) -> str:
        if not any(self.by_part.values()) and not self.unknown:
            return "forecast: everything is there already"
        dearest = sorted(self.by_part, key=lambda name: -self.by_part[name])[:3]
        parts = ", ".join(f"{name} {format_duration(self.by_part[name])}" for name in dearest if self.by_part[name])
        models = f" for {self.trainings} trainings and the rest" if self.trainings else ""
        said = f"forecast: about {format_duration(self.seconds)}{models} ({parts})"
        return said + (f", and what {join_names(self.unknown)} will take" if self.unknown else "")


def forecast(config: BenchmarkConfig, workspaces: Sequence[Workspace]) -> Forecast:
    """Measured on a few texts, method by method and metric by metric."""
    parts = _missing_parts(config, workspaces)
    todo = {
        name: _Missing(config, method, workspaces)
        for name, method in zip(short_names(config.methods), config.methods, strict=True)
    }
    found = dict.fromkeys(todo, 0.0)
    if not parts and not any(missing.anything for missing in todo.values()):
        return Forecast(found, ())
    with rehearsal(workspaces[0].task(), config.split, workspaces[0].seed) as small:
        for metric in config.metrics:
            if metric.extra_workspaces(small) and any(missing.measurements.get(metric) for missing in todo.values()):
                found[metric.name] = found.get(metric.name, 0.0) + _preparation(metric, workspaces, small)
        for name, missing in progress_bar(todo.items(), "rehearse on a few texts"):
            if missing.anything:
                found[name] = missing.seconds(small)
        made = _making(parts, config.split, workspaces[0], small)
    unknown = tuple(
        metric.name
        for metric in config.metrics
        if not metric.cost_scales_with_texts and not metric.nodes(config.methods[0], workspaces[0])
    )
    trainings = sum(part.trains for name in made for part in parts[name])
    return Forecast({**found, **made}, unknown, trainings)


def _missing_parts(config: BenchmarkConfig, workspaces: Sequence[Workspace]) -> dict[str, list[Node]]:
    """By metric, what is still to be made for it; what two of them share stands with the first."""
    seen: set[tuple[str, str]] = set()
    found: dict[str, list[Node]] = {}
    for metric, workspace, method in product(config.metrics, workspaces, config.methods):
        for part in metric.nodes(method, workspace):
            address = part.address
            if address not in seen and not workspace.store.has(*address):
                found.setdefault(metric.name, []).append(part)
            seen.add(address)
    return found


def _making(
    parts: Mapping[str, Sequence[Node]], split: str, workspace: Workspace, small: Workspace
) -> dict[str, float]:
    """What trainings and explanations of every row will take, by metric; nothing where none can be trained."""
    task = workspace.task()
    rows = sum(len(batch) for batch in task.data.values())
    few = len(small.task().data[split])

    @cache
    def explaining(method: Method) -> float:
        try:
            each = small.explained(shortened(method), split).cost.seconds / few
            return rows * each + fit_seconds(method, small)
        except DiffMaskError:
            return 0.0

    try:
        training = training_seconds(task, workspace.seed) if parts else 0.0
    except DiffMaskError:
        return {}
    return {
        name: training * sum(part.trains for part in made)
        + sum(explaining(part.explained_by) for part in made if part.explained_by)
        for name, made in parts.items()
    }


def _preparation(metric: Metric, workspaces: Sequence[Workspace], small: Workspace) -> float:
    """What a metric's own tasks will take to train, told from short trainings; nothing where none can be made."""
    short, longer = metric.pilot_version()
    spent = 0.0
    for place, pilot in enumerate(short.extra_workspaces(small)):
        try:
            each = longer * timed(pilot.task)
        except DiffMaskError:
            continue
        beside = [metric.extra_workspaces(workspace)[place] for workspace in workspaces]
        spent += each * sum(not workspace.store.has("task", workspace.task_digest()) for workspace in beside)
    return spent


class _Missing:
    """What is not yet there of one method."""

    def __init__(self, config: BenchmarkConfig, method: Method, workspaces: Sequence[Workspace]) -> None:
        self.config, self.method = config, method
        self.texts = len(workspaces[0].task().data[config.split])
        self.explanations = sum(self._unexplained(workspace) for workspace in workspaces)
        self.fitted = [workspace for workspace in workspaces if FitNode(workspace, method).is_done()]
        self.fits = sum(workspace not in self.fitted and self._unexplained(workspace) > 0 for workspace in workspaces)
        # By metric, the benches on which it is still to be made.
        self.measurements = {
            metric: [workspace for workspace in workspaces if not MeasureNode(workspace, method, metric).is_done()]
            for metric in config.metrics
            if metric.cost_scales_with_texts
        }

    @property
    def anything(self) -> bool:
        """Whether anything is missing."""
        return bool(self.explanations or any(self.measurements.values()))

    def _unexplained(self, workspace: Workspace) -> float:
        """The share of the texts that is not explained yet."""
        digest = workspace.explain_digest(self.method, self.config.split)
        if workspace.store.has("explain", digest):
            return 0.0
        shards = workspace.shards(self.method, self.config.split)
        if shards is None:
            return 1.0
        count = -(-self.texts // shards.size)
        return 1 - sum(map(shards.is_done, range(count))) / count

    def seconds(self, small: Workspace) -> float:
        """What the rest will take; nothing for a method that cannot do it."""
        try:
            spent = self.fits * fit_seconds(self.method, small) if self.fits else 0.0
            each = small.explained(self._rehearsed(small), self.config.split).cost.seconds / self._few(small)
            spent += self.explanations * self.texts * each
            return spent + sum(
                self._measuring(metric, workspaces, small)
                for metric, workspaces in self.measurements.items()
                if workspaces
            )
        except DiffMaskError:
            return 0.0

    def _measuring(self, metric: Metric, workspaces: Sequence[Workspace], small: Workspace) -> float:
        """What one metric will take, over tasks that are trained already."""
        short, _ = metric.pilot_version()
        spent = 0.0
        for place, pilot in enumerate(short.extra_workspaces(small)):
            beside = [metric.extra_workspaces(workspace)[place] for workspace in workspaces]
            fits = sum(not FitNode(workspace, self.method).is_done() for workspace in beside)
            # Asked for even where every fit is there: what is timed below then finds a short one made.
            spent += fits * fit_seconds(self.method, pilot)
        a_few = timed(lambda: _measure(short, self._rehearsed(small), small))
        return spent + len(workspaces) * a_few * self.texts / self._few(small)

    def _rehearsed(self, small: Workspace) -> Method:
        """The method with a short fit; as it is where there is a fit to borrow and no metric wants others."""
        if not self.fitted or any(metric.extra_workspaces(small) for metric in self.config.metrics):
            return shortened(self.method)
        small.use_explainer(self.method, self.fitted[0].explainer(self.method))
        return self.method

    def _few(self, small: Workspace) -> int:
        return len(small.task().data[self.config.split])


def _measure(metric: Metric, method: Method, workspace: Workspace) -> None:
    for _ in metric.run(method, workspace):
        pass
