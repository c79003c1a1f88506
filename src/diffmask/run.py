"""Running an experiment into a folder: records, summary, manifest, one example, report."""

import platform
import time
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from diffmask.bench import Bench
from diffmask.engine import run_serial
from diffmask.evaluate.truth import by_site
from diffmask.experiment import Experiment
from diffmask.record import write_json, write_jsonl
from diffmask.report import write_report
from diffmask.statistics import summarise
from diffmask.store import Store

REPORTED = ("diffmask", "torch", "numpy", "safetensors", "transformers", "captum")


def run_experiment(experiment: Experiment, folder: str | Path) -> list[dict[str, Any]]:
    """Measure what is missing in `folder`, write every file anew, return the summary."""
    target = Path(folder)
    start = time.perf_counter()
    store = Store(target / "store")
    records = [replace(record, experiment=experiment.name) for record in run_serial(experiment.nodes(store))]
    summary = summarise(records)
    write_jsonl(target / "records.jsonl", records)
    write_json(target / "summary.json", summary)
    benches = [Bench(store, recipe, experiment.seeds[0]) for recipe in experiment.tasks]
    write_json(target / "examples.json", [_example(bench, experiment) for bench in benches])
    write_json(target / "diagnostics.json", [_diagnostics(bench, experiment) for bench in benches])
    write_json(target / "manifest.json", _manifest(experiment, time.perf_counter() - start))
    write_report(target)
    return summary


def _manifest(experiment: Experiment, seconds: float) -> dict[str, Any]:
    return {
        "experiment": experiment.to_dict(),
        "seeds": list(experiment.seeds),
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


def _example(bench: Bench, experiment: Experiment, split: str = "test") -> dict[str, Any]:
    """The row that shows most: the first long one with something to find and something to leave out."""
    task = bench.task()
    batch = task.data[split]
    row = task.example(batch)
    words = task.describe(batch[row : row + 1])[0]
    bars = []
    for method in experiment.methods:
        attribution = bench.explained(method, split).attribution
        for site, scores in by_site(attribution, method, bench):
            bars.append({"method": method.label, "site": site, "scores": scores[row, : len(words)].tolist()})
    return {"task": bench.recipe.label, "title": task.title(batch[row : row + 1]), "words": words, "bars": bars}


def _diagnostics(bench: Bench, experiment: Experiment) -> dict[str, Any]:
    found = {method.label: bench.explainer(method).diagnostics for method in experiment.methods}
    return {
        "task": bench.recipe.label,
        "seed": bench.seed,
        "fits": {label: sites for label, sites in found.items() if sites},
    }
