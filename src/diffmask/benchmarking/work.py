"""Doing what a plan asks for: node by node, what is in the store is not done again."""

import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from diffmask.benchmarking.config import BenchmarkConfig, short_names
from diffmask.core.explainer import Method
from diffmask.core.training import progress_bar
from diffmask.errors import DiffMaskError, FitWarning
from diffmask.experiments.experiment import FitNode, MeasureNode
from diffmask.metrics.base import Metric
from diffmask.results.records import Record
from diffmask.workspace.workspace import Workspace

logger = logging.getLogger(__name__)


@dataclass
class MethodRun:
    """Everything measured of one method."""

    name: str
    method: Method
    measured: list[tuple[Metric, Record]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What could not be done."""


def work(plan: BenchmarkConfig, workspaces: Sequence[Workspace]) -> list[MethodRun]:
    """Fit, explain and measure, one method after the other; what one method cannot do does not stop the others."""
    found = [MethodRun(name, method) for name, method in zip(short_names(plan.methods), plan.methods, strict=True)]
    pieces = [(done, workspace) for done in found for workspace in workspaces]
    with warnings.catch_warnings():
        # What a fit warns of stands on the board.
        warnings.simplefilter("ignore", FitWarning)
        for done, workspace in progress_bar(pieces, "benchmark"):
            start = time.perf_counter()
            _work_on(done, plan, workspace)
            logger.info("%s, seed %d: %.1f s", done.name, workspace.seed, time.perf_counter() - start)
    return found


def _work_on(done: MethodRun, plan: BenchmarkConfig, workspace: Workspace) -> None:
    try:
        if not workspace.store.has("explain", workspace.explain_digest(done.method, plan.split)):
            FitNode(workspace, done.method).run()
        workspace.explained(done.method, plan.split)
    except DiffMaskError as error:
        done.problems.append(f"{done.name} is left out: {error}")
        return
    for metric in plan.metrics:
        try:
            _make_parts(metric, done.method, workspace)
            done.measured += [(metric, record) for record in MeasureNode(workspace, done.method, metric).run()]
        except DiffMaskError as error:
            done.problems.append(f"{metric.name} of {done.name} is left out: {error}")


def _make_parts(metric: Metric, method: Method, workspace: Workspace) -> None:
    """What is worth doing by itself, told piece by piece: trainings take long."""
    missing = [part for part in metric.nodes(method, workspace) if not workspace.store.has(*part.address)]
    for number, part in enumerate(progress_bar(missing, metric.name), start=1):
        start = time.perf_counter()
        part.run()
        logger.info("%s: %.1f s (%d of %d)", part.label, time.perf_counter() - start, number, len(missing))


def fit_problems(done: MethodRun, workspace: Workspace) -> Iterator[str]:
    """What a fit says against itself."""
    for site, diagnosis in workspace.diagnostics(done.method).items():
        for name, text in diagnosis.get("problems", {}).items():
            yield f"the fit of {done.name} is not sound at {site} ({name}): {text}"
