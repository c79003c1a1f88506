"""Forecast the duration of a benchmark from a pilot run on a few texts, and fit methods to an equal cost budget.

Artefacts that are in the store already cost nothing.
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

from diffmask.benchmarking.benchmark_config import BenchmarkConfig
from diffmask.core.batch import Batch, order_by_length
from diffmask.core.capabilities import Retrainable, require
from diffmask.core.explainer import Method
from diffmask.core.progress import PROGRESS_LOGGER, progress_bar
from diffmask.core.store import Store
from diffmask.core.task import Task
from diffmask.errors import DiffMaskError, FitWarning
from diffmask.experiments.experiment import FitNode, MeasureNode
from diffmask.experiments.result_builder import short_names
from diffmask.metrics.erasure import unmasked_predictions
from diffmask.metrics.metric import Metric
from diffmask.results.formatting import format_duration, join_names
from diffmask.workspace.node import Node
from diffmask.workspace.workspace import CachedAttribution, Workspace

COST_OPTIONS = ("n_steps", "n_samples", "samples", "most_steps", "steps")
"""Options that control the cost of a method, in the order in which they are tried."""
PROBE_VALUES = (8, 16)
"""Values of a cost option at which the cost is measured; it is taken to be linear in between and beyond."""
TOLERANCE = 1.1
"""A method without a cost option may exceed the budget by a tenth."""


def within_budget(config: BenchmarkConfig, task: Task) -> tuple[BenchmarkConfig, list[str]]:
    """Set the cost option of every method so that it spends the budget; return also a line per method left out."""
    if config.budget is None:
        return config, []
    methods, left_out = [], []
    with pilot_run(task, config.split, config.seeds[0]) as small:
        for method in config.methods:
            chosen = method if method.is_baseline else affordable(method, small, config)
            if chosen is None:
                left_out.append(f"{method.label} is left out: each text costs more than {config.budget:g} rows")
            else:
                methods.append(chosen)
    return replace(config, methods=tuple(methods)), left_out


def affordable(method: Method, workspace: Workspace, config: BenchmarkConfig) -> Method | None:
    """Return the method with its cost option at the budget, unchanged if it has none, or None if it costs more."""
    budget = config.budget or 0.0
    try:
        option = next(iter(cost_options(method)), None)
        if option is None:
            return method if calls(method, workspace, config) <= TOLERANCE * budget else None
        low, high = (calls(with_option(method, option, value), workspace, config) for value in PROBE_VALUES)
    except Exception:
        return method  # the benchmark itself reports what the method cannot do
    each = (high - low) / (PROBE_VALUES[1] - PROBE_VALUES[0])
    if each <= 0:
        return method if low <= TOLERANCE * budget else None
    value = int(PROBE_VALUES[0] + (budget - low) / each)
    return with_option(method, option, value) if value >= 1 else None


def cost_options(method: Method) -> Iterator[str]:
    """Return the cost options that a method has."""
    choices = method.to_dict()
    return (name for name in COST_OPTIONS if isinstance(choices.get(name), int))


def calls(method: Method, workspace: Workspace, config: BenchmarkConfig) -> float:
    """Return the rows through the model per text, with the fit shared by all texts of the benchmark."""
    return ModelCalls.of(workspace.explained(method, config.split)).per_text(config.texts)


PILOT_TEXTS = 8
"""Texts of the pilot run."""
PILOT_STEPS = (4, 12)
"""Steps of the two short fits from which the duration of a long fit is extrapolated."""
PILOT_TRAINING_ROWS = 32
"""Rows of the shorter of the two trainings from which the duration of a full training is extrapolated."""
PILOT_VALIDATION_ROWS = 32
"""Validation rows on which short fits are diagnosed."""


@contextmanager
def pilot_run(task: Task, split: str, seed: int) -> Iterator[Workspace]:
    """Yield a workspace over a few texts of all lengths with a temporary store, after one forward pass.

    Warnings about the short fits are suppressed.
    """
    small = task.subset(split, spread_rows(task.data[split], PILOT_TEXTS))
    if split != "valid" and "valid" in small.data:
        small = small.subset("valid", torch.arange(min(PILOT_VALIDATION_ROWS, len(small.data["valid"]))))
    with TemporaryDirectory() as folder, _silenced():
        workspace = Workspace.over(Store(Path(folder)), small, seed)
        unmasked_predictions(workspace, split, "predicted")
        yield workspace


@contextmanager
def _silenced() -> Iterator[None]:
    """Log progress and warnings only, and suppress warnings about fits, within this block."""
    log, progress = logging.getLogger("diffmask"), logging.getLogger(PROGRESS_LOGGER)
    level = log.level
    progress.setLevel(log.getEffectiveLevel())
    log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            yield
    finally:
        log.setLevel(level)
        progress.setLevel(logging.NOTSET)


def spread_rows(batch: Batch, few: int) -> Int[Tensor, " row"]:
    """Return rows whose lengths are evenly spread over those of a batch."""
    order = order_by_length(batch)
    count = min(few, len(order))
    return order[((torch.arange(count) + 0.5) * len(order) / count).long()]


def is_trained(method: Method) -> bool:
    """Return whether a method has a training."""
    return type(method).train is not Method.train


def with_option(method: Method, option: str, value: Any) -> Method:
    """Return the method with another value of an option."""
    return cast(Method, replace(cast(Any, method), **{option: value}))


def short_version(method: Method) -> Method:
    """Return the method with a short fit, if its fit has many steps."""
    return (
        method.with_effort(PILOT_STEPS[0]) if is_trained(method) and (method.effort or 0) > PILOT_STEPS[1] else method
    )


def fit_seconds(method: Method, workspace: Workspace) -> float:
    """Estimate the duration of a fit from two short fits, or measure it if the fit has no steps."""
    first = timed(lambda: workspace.explainer(short_version(method)))
    if method.effort is None or short_version(method) == method:
        return first
    second = timed(lambda: workspace.explainer(method.with_effort(PILOT_STEPS[1])))
    per_step = max(0.0, second - first) / (PILOT_STEPS[1] - PILOT_STEPS[0])
    return first + per_step * (method.effort - PILOT_STEPS[0])


def training_seconds(task: Task, seed: int) -> float:
    """Estimate the duration of a training from two trainings on few rows, or measure it if there are few rows."""
    retrain = require(task, Retrainable, "ROAR").retrain
    rows = len(task.data.get("train", ()))
    if rows <= 2 * PILOT_TRAINING_ROWS:
        return timed(lambda: retrain(task.data, seed))
    short, longer = (_share(task.data, few / rows) for few in (PILOT_TRAINING_ROWS, 2 * PILOT_TRAINING_ROWS))
    first, second = timed(lambda: retrain(short, seed)), timed(lambda: retrain(longer, seed))
    per_row = max(0.0, second - first) / PILOT_TRAINING_ROWS
    return first + per_row * (rows - PILOT_TRAINING_ROWS)


def _share(data: Mapping[str, Batch], share: float) -> dict[str, Batch]:
    """Return the same share of every split, with rows of all lengths."""
    return {split: batch[spread_rows(batch, max(1, round(share * len(batch))))] for split, batch in data.items()}


def timed(work: Any) -> float:
    """Return the duration of a call in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@dataclass(frozen=True)
class ModelCalls:
    """Rows through the model, forward and backward."""

    explaining: float
    """Rows per text."""
    fitting: int
    """Rows of the whole fit."""

    @staticmethod
    def of(explained: CachedAttribution) -> "ModelCalls":
        """Return the calls that were counted for an attribution."""
        cost, fit = explained.cost, explained.fit_cost
        return ModelCalls((cost.rows + cost.rows_back) / len(explained.attribution), fit.rows + fit.rows_back)

    def per_text(self, texts: int) -> float:
        """Return the rows per text when the fit is shared by a number of texts."""
        return self.explaining + self.fitting / texts


@dataclass(frozen=True)
class Forecast:
    """Estimated seconds per method and per metric's own preparation."""

    seconds_by_name: dict[str, float]
    unknown: tuple[str, ...]
    """Metrics whose duration cannot be estimated from a few texts."""
    trainings: int = 0
    """Number of models that will be trained."""

    @property
    def seconds(self) -> float:
        """Total of the estimates."""
        return sum(self.seconds_by_name.values())

    def __str__(self) -> str:
        if not any(self.seconds_by_name.values()) and not self.unknown:
            return "forecast: everything is finished already"
        longest = sorted(self.seconds_by_name, key=lambda name: -self.seconds_by_name[name])[:3]
        parts = ", ".join(
            f"{name} {format_duration(self.seconds_by_name[name])}" for name in longest if self.seconds_by_name[name]
        )
        models = f" for {self.trainings} trainings and the rest" if self.trainings else ""
        text = f"forecast: about {format_duration(self.seconds)}{models} ({parts})"
        return text + (f", plus an unknown time for {join_names(self.unknown)}" if self.unknown else "")


def forecast(config: BenchmarkConfig, workspaces: Sequence[Workspace]) -> Forecast:
    """Estimate the duration of everything that is missing, method by method and metric by metric."""
    nodes = _missing_nodes(config, workspaces)
    missing_work = {
        name: _Missing(config, method, workspaces)
        for name, method in zip(short_names(config.methods), config.methods, strict=True)
    }
    estimates = dict.fromkeys(missing_work, 0.0)
    if not nodes and not any(missing.anything for missing in missing_work.values()):
        return Forecast(estimates, ())
    with pilot_run(workspaces[0].task(), config.split, workspaces[0].seed) as small:
        for metric in config.metrics:
            if metric.extra_workspaces(small) and any(
                missing.measurements.get(metric) for missing in missing_work.values()
            ):
                estimates[metric.name] = estimates.get(metric.name, 0.0) + _preparation(metric, workspaces, small)
        for name, missing in progress_bar(missing_work.items(), "pilot run on a few texts"):
            if missing.anything:
                estimates[name] = missing.seconds(small)
        node_estimates = _node_seconds(nodes, config.split, workspaces[0], small)
    unknown = tuple(
        metric.name
        for metric in config.metrics
        if not metric.cost_scales_with_texts and not metric.nodes(config.methods[0], workspaces[0])
    )
    trainings = sum(node.trains for name in node_estimates for node in nodes[name])
    return Forecast({**estimates, **node_estimates}, unknown, trainings)


def _missing_nodes(config: BenchmarkConfig, workspaces: Sequence[Workspace]) -> dict[str, list[Node]]:
    """Return the missing nodes by metric; a node that two metrics share is counted for the first."""
    seen: set[tuple[str, str]] = set()
    missing: dict[str, list[Node]] = {}
    for metric, workspace, method in product(config.metrics, workspaces, config.methods):
        for node in metric.nodes(method, workspace):
            address = node.address
            if address not in seen and not workspace.store.has(*address):
                missing.setdefault(metric.name, []).append(node)
            seen.add(address)
    return missing


def _node_seconds(
    nodes: Mapping[str, Sequence[Node]], split: str, workspace: Workspace, small: Workspace
) -> dict[str, float]:
    """Estimate trainings and explanations of all rows by metric; empty if the task cannot be trained."""
    task = workspace.task()
    rows = sum(len(batch) for batch in task.data.values())
    few = len(small.task().data[split])

    @cache
    def explaining(method: Method) -> float:
        try:
            each = small.explained(short_version(method), split).cost.seconds / few
            return rows * each + fit_seconds(method, small)
        except DiffMaskError:
            return 0.0

    try:
        training = training_seconds(task, workspace.seed) if nodes else 0.0
    except DiffMaskError:
        return {}
    return {
        name: training * sum(node.trains for node in missing)
        + sum(explaining(node.explained_by) for node in missing if node.explained_by)
        for name, missing in nodes.items()
    }


def _preparation(metric: Metric, workspaces: Sequence[Workspace], small: Workspace) -> float:
    """Estimate the training of a metric's own tasks from short trainings; 0 if they cannot be made."""
    short, longer = metric.pilot_version()
    spent = 0.0
    for index, pilot in enumerate(short.extra_workspaces(small)):
        try:
            each = longer * timed(pilot.task)
        except DiffMaskError:
            continue
        extra = [metric.extra_workspaces(workspace)[index] for workspace in workspaces]
        spent += each * sum(not workspace.store.has("task", workspace.task_digest()) for workspace in extra)
    return spent


class _Missing:
    """Missing work of one method."""

    def __init__(self, config: BenchmarkConfig, method: Method, workspaces: Sequence[Workspace]) -> None:
        self.config, self.method = config, method
        self.texts = len(workspaces[0].task().data[config.split])
        self.explanations = sum(self._unexplained(workspace) for workspace in workspaces)
        self.fitted = [workspace for workspace in workspaces if FitNode(workspace, method).is_done()]
        self.fits = sum(workspace not in self.fitted and self._unexplained(workspace) > 0 for workspace in workspaces)
        # By metric, the workspaces in which it is missing.
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
        """Return the share of the texts that is not explained yet."""
        digest = workspace.explain_digest(self.method, self.config.split)
        if workspace.store.has("explain", digest):
            return 0.0
        shards = workspace.shards(self.method, self.config.split)
        if shards is None:
            return 1.0
        count = -(-self.texts // shards.size)
        return 1 - sum(map(shards.is_done, range(count))) / count

    def seconds(self, small: Workspace) -> float:
        """Estimate the missing work; 0 for a method that cannot do it."""
        try:
            spent = self.fits * fit_seconds(self.method, small) if self.fits else 0.0
            each = small.explained(self._pilot_method(small), self.config.split).cost.seconds / self._few(small)
            spent += self.explanations * self.texts * each
            return spent + sum(
                self._measuring(metric, workspaces, small)
                for metric, workspaces in self.measurements.items()
                if workspaces
            )
        except Exception:  # the benchmark itself reports what the method cannot do
            return 0.0

    def _measuring(self, metric: Metric, workspaces: Sequence[Workspace], small: Workspace) -> float:
        """Estimate one metric, without the training of its own tasks."""
        short, _ = metric.pilot_version()
        spent = 0.0
        for index, pilot in enumerate(short.extra_workspaces(small)):
            extra = [metric.extra_workspaces(workspace)[index] for workspace in workspaces]
            fits = sum(not FitNode(workspace, self.method).is_done() for workspace in extra)
            # Measured even if every fit exists: the metric timed below then finds a short fit in the store.
            spent += fits * fit_seconds(self.method, pilot)
        a_few = timed(lambda: _measure(short, self._pilot_method(small), small))
        return spent + len(workspaces) * a_few * self.texts / self._few(small)

    def _pilot_method(self, small: Workspace) -> Method:
        """Return the method with a short fit, or unchanged if its fit exists and no metric needs further fits."""
        if not self.fitted or any(metric.extra_workspaces(small) for metric in self.config.metrics):
            return short_version(self.method)
        small.use_explainer(self.method, self.fitted[0].explainer(self.method))
        return self.method

    def _few(self, small: Workspace) -> int:
        return len(small.task().data[self.config.split])


def _measure(metric: Metric, method: Method, workspace: Workspace) -> None:
    for _ in metric.run(method, workspace):
        pass
