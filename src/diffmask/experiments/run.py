"""Running an experiment into a folder: records, summary, manifest, one example, report."""

import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from diffmask.core.capabilities import row_text
from diffmask.core.explainer import Method
from diffmask.core.store import Store
from diffmask.core.training import single_threaded
from diffmask.errors import RunError
from diffmask.experiments.executors.base import Executor, make_schedule
from diffmask.experiments.executors.job import Job
from diffmask.experiments.executors.local import SerialExecutor
from diffmask.experiments.executors.progress import ProgressView, estimate_progress
from diffmask.experiments.executors.schedule import FailedNode
from diffmask.experiments.experiment import Experiment
from diffmask.metrics.ground_truth import scores_by_site
from diffmask.report.run_page import write_run_report
from diffmask.results.records import summarise, write_json, write_jsonl
from diffmask.workspace.workspace import Workspace

REPORTED = ("diffmask", "torch", "numpy", "numba", "safetensors", "transformers", "captum")


def run_experiment(
    experiment: Experiment, folder: str | Path, engine: Executor | None = None, view: ProgressView | None = None
) -> list[dict[str, Any]]:
    """Measure what is missing in `folder`, write every file anew, return the summary.

    Where a part fails, the rest is measured and written all the same before the error says what failed and why.
    """
    target = Path(folder).resolve()
    start = time.perf_counter()
    store = Store(target / "store")
    store.remove_partial_writes()
    ran = (engine or SerialExecutor()).run(experiment.nodes(store), target, view)
    records = [replace(record, experiment=experiment.name) for record in ran.records]
    summary = summarise(records)
    write_jsonl(target / "records.jsonl", records)
    write_json(target / "summary.json", summary)
    stood = _what_stands(experiment, store, failed=bool(ran.failures))
    with single_threaded():
        write_json(target / "examples.json", [_example(workspace, methods) for workspace, methods in stood])
        write_json(target / "diagnostics.json", [_diagnostics(workspace, methods) for workspace, methods in stood])
    write_json(target / "manifest.json", _manifest(experiment, time.perf_counter() - start))
    write_run_report(target)
    if ran.failures:
        raise RunError(_list_of(ran.failures, target))
    return summary


def describe_nodes(experiment: Experiment, folder: str | Path, engine: Executor) -> Iterator[str]:
    """The graph, a node a line: done or missing, what it is, the artefact it makes, how many others it builds on."""
    target = Path(folder).resolve()
    schedule = make_schedule(experiment.nodes(Store(target / "store")), target)
    for node in schedule.nodes:
        state = "done   " if node.address in schedule.outcomes else "missing"
        behind = f" <- {', '.join(map('/'.join, node.needs))}" if node.needs else ""
        yield f"{state}  {node.label}  [{'/'.join(node.address)}{behind}]"
    yield from estimate_progress(schedule, engine.size).lines()


def _list_of(failures: Sequence[FailedNode], folder: Path) -> str:
    """What failed and why, with its log; what was left out because of it is counted."""
    own = [failure for failure in failures if failure.after is None]
    lines = [f"{len(own)} failed; {len(failures) - len(own)} that build on them were left out; the rest is kept"]
    for failure in own:
        left_out = sum(other.after == failure.node.address for other in failures)
        behind = f" ({left_out} build on it)" if left_out else ""
        lines.append(f"  {failure.node.label}: {failure.why}{behind}; log: {Job(failure.node, folder).log}")
    return "\n".join(lines)


def _manifest(experiment: Experiment, seconds: float) -> dict[str, Any]:
    return {
        "experiment": experiment.to_dict(),
        "seeds": list(experiment.seeds),
        "panels": {recipe.label: list(recipe.panel) for recipe in experiment.tasks},
        "versions": versions(),
        "system": f"{platform.system()} {platform.machine()}",
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
    }


def versions() -> dict[str, str]:
    """Of Python and of the packages that numbers depend on."""
    return {"python": platform.python_version(), **{name: _version(name) for name in REPORTED if _version(name)}}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


Stood = tuple[Workspace, list[Method]]


def _what_stands(experiment: Experiment, store: Store, failed: bool, split: str = "test") -> list[Stood]:
    """The first seed's tasks, each with its methods; where something failed, only those of which there is a result."""
    found = []
    for recipe in experiment.tasks:
        workspace = Workspace(store, recipe, experiment.seeds[0])
        methods = [
            method
            for method in experiment.methods
            if not failed or store.has("explain", workspace.explain_digest(method, split))
        ]
        if not failed or store.has("task", workspace.task_digest()):
            found.append((workspace, methods))
    return found


def _example(workspace: Workspace, methods: Sequence[Method], split: str = "test") -> dict[str, Any]:
    """The row that shows most: the first long one with something to find and something to leave out."""
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


def _diagnostics(workspace: Workspace, methods: Sequence[Method]) -> dict[str, Any]:
    found = {method.label: workspace.explainer(method).diagnostics for method in methods}
    return {
        "task": workspace.task_config.label,
        "seed": workspace.seed,
        "fits": {label: sites for label, sites in found.items() if sites},
    }
