"""Run an experiment into a folder: records, summary, manifest, results per task, one example, report."""

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from diffmask.core.capabilities import row_text
from diffmask.core.explainer import Method
from diffmask.core.store import Store
from diffmask.core.training import torch_threads
from diffmask.errors import RunError
from diffmask.experiments.executors.executor import Executor, RunResult, make_schedule
from diffmask.experiments.executors.job import Job
from diffmask.experiments.executors.local import SerialExecutor
from diffmask.experiments.executors.progress_view import ProgressView, estimate_progress
from diffmask.experiments.executors.schedule import FailedNode
from diffmask.experiments.experiment import Experiment
from diffmask.experiments.result_builder import build_results
from diffmask.metrics.ground_truth import scores_by_site
from diffmask.report.page import write_page
from diffmask.results.benchmark_result import save_results
from diffmask.results.records import require_path, summarise, write_json, write_jsonl
from diffmask.workspace.workspace import Workspace

TEXTS = 200
"""Rows of each task whose scores are on the page of a run."""
REPORTED = ("diffmask", "torch", "numpy", "numba", "safetensors", "transformers", "captum")


def run_experiment(
    experiment: Experiment, folder: str | Path, executor: Executor | None = None, view: ProgressView | None = None
) -> list[dict[str, Any]]:
    """Run what is missing in `folder`, write every file anew, and return the summary.

    If nodes fail, the others are run and reported before a RunError names the failures.
    """
    require_path(folder)
    target = Path(folder).resolve()
    workspaces = experiment.workspaces(Store(target / "store"))
    result = execute(experiment, workspaces, target, executor, view)
    finished = _finished_methods(experiment, workspaces, failed=bool(result.failures))
    with torch_threads(1):
        write_json(target / "examples.json", [_example(workspace, methods) for workspace, methods in finished])
        save_results(target, build_results(experiment, workspaces, result, target, texts=TEXTS))
    write_page(target)
    if result.failures:
        raise RunError(_describe_failures(result.failures, target))
    return summarise(result.records)


def execute(
    experiment: Experiment,
    workspaces: Sequence[Workspace],
    folder: Path,
    executor: Executor | None = None,
    view: ProgressView | None = None,
    details: Mapping[str, Any] | None = None,
) -> RunResult:
    """Run the missing nodes of an experiment and write records.jsonl, summary.json and manifest.json.

    `details` are further entries of the manifest.
    """
    start = time.perf_counter()
    workspaces[0].store.remove_partial_writes()
    result = (executor or SerialExecutor()).run(experiment.nodes(workspaces), folder, view)
    records = [replace(record, experiment=experiment.name) for record in result.records]
    write_jsonl(folder / "records.jsonl", records)
    write_json(folder / "summary.json", summarise(records))
    manifest = make_manifest(experiment, time.perf_counter() - start)
    write_json(folder / "manifest.json", {**manifest, **(details or {})})
    return replace(result, records=records)


def describe_nodes(experiment: Experiment, folder: str | Path, executor: Executor) -> Iterator[str]:
    """Yield one line per node: done or missing, its label, its artefact and those that it needs; then a forecast."""
    require_path(folder)
    target = Path(folder).resolve()
    nodes = experiment.nodes(experiment.workspaces(Store(target / "store")))
    schedule = make_schedule(nodes, target)
    for node in schedule.nodes:
        state = "done   " if node.address in schedule.outcomes else "missing"
        needs = f" <- {', '.join(map('/'.join, node.needs))}" if node.needs else ""
        yield f"{state}  {node.label}  [{'/'.join(node.address)}{needs}]"
    yield from estimate_progress(schedule, executor.size).lines()


def _describe_failures(failures: Sequence[FailedNode], folder: Path) -> str:
    """Return one line per failed node with its reason and its log; nodes that build on it are counted."""
    roots = [failure for failure in failures if failure.after is None]
    lines = [f"{len(roots)} failed; {len(failures) - len(roots)} that build on them were left out; the rest is kept"]
    for failure in roots:
        left_out = sum(other.after == failure.node.address for other in failures)
        dependent = f" ({left_out} build on it)" if left_out else ""
        lines.append(f"  {failure.node.label}: {failure.why}{dependent}; log: {Job(failure.node, folder).log}")
    return "\n".join(lines)


def make_manifest(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Return everything that is needed to repeat a run."""
    return {
        "experiment": experiment.to_dict(),
        "seeds": list(experiment.seeds),
        "panels": {config.label: list(config.panel) for config in experiment.tasks},
        "versions": versions(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that the numbers depend on."""
    return {"python": platform.python_version(), **{name: _version(name) for name in REPORTED if _version(name)}}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _finished_methods(
    experiment: Experiment, workspaces: Sequence[Workspace], failed: bool, split: str = "test"
) -> list[tuple[Workspace, list[Method]]]:
    """Return the workspaces of the first seed with their methods, without those whose nodes failed."""
    finished = []
    for workspace in workspaces:
        if workspace.seed != experiment.seeds[0]:
            continue
        methods = [
            method
            for method in experiment.methods
            if not failed or workspace.store.has("explain", workspace.explain_digest(method, split))
        ]
        if not failed or workspace.store.has("task", workspace.task_digest()):
            finished.append((workspace, methods))
    return finished


def _example(workspace: Workspace, methods: Sequence[Method], split: str = "test") -> dict[str, Any]:
    """Return one row of the task with the scores of every method."""
    task = workspace.task()
    batch = task.data[split]
    text = row_text(task)
    row = text.example(batch)
    words = text.describe(batch[row : row + 1])[0]
    bars = []
    for method in methods:
        attribution = workspace.explained(method, split).attribution
        for site, scores in scores_by_site(attribution, method, workspace):
            per_site = attribution.by_layer is not None
            values = scores[row, : len(words)].tolist()
            bars.append({"method": method.label, "site": site, "per_site": per_site, "scores": values})
    return {
        "task": workspace.task_config.label,
        "title": text.title(batch[row : row + 1]),
        "words": words,
        "bars": bars,
    }
