"""Build a `BenchmarkResult` from the records of a run: estimates, comparisons, costs, curves, agreement, verdict."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.benchmarking.config import BenchmarkConfig, short_names
from diffmask.core.capabilities import row_text
from diffmask.core.config import digest_of
from diffmask.core.explainer import Method
from diffmask.core.store import Artefact
from diffmask.errors import DiffMaskError
from diffmask.experiments.executors.base import RunResult
from diffmask.experiments.experiment import ExplainNode, MeasureNode
from diffmask.methods.baselines import Random
from diffmask.methods.gradients import IntegratedGradients
from diffmask.metrics.base import Metric
from diffmask.metrics.erasure import unmasked_predictions
from diffmask.metrics.masking_ood import MaskingShift, masking_shift
from diffmask.metrics.ranks import rank_correlation, top_overlap
from diffmask.results.benchmark_result import BenchmarkResult, BoardText, Curve, MethodResult, MetricInfo
from diffmask.results.comparison import MIN_ROWS, compare, estimate
from diffmask.results.records import Record
from diffmask.results.verdict import VerdictInputs, verdict
from diffmask.workspace.workspace import CachedAttribution, Workspace


@dataclass
class MethodRun:
    """Everything that was measured of one method."""

    name: str
    method: Method
    measured: list[tuple[Metric, Record]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Why the method, or one of its metrics, was left out."""


def agreement_table(
    scores: list[Float[Tensor, "row token"]], maskable: Bool[Tensor, "row token"]
) -> dict[str, list[list[float]]]:
    """Every pair of methods, means over texts."""
    kinds = {"rank correlation": rank_correlation, "overlap of the highest fifth": top_overlap}
    return {
        name: [[_mean(kind(one, other, maskable)) for other in scores] for one in scores]
        for name, kind in kinds.items()
    }


def _mean(values: Float[Tensor, " row"]) -> float:
    known = values[~values.isnan()]
    return float(known.mean()) if len(known) else 0.0


STEPS = 50


def method_cost(explained: Sequence[CachedAttribution], rival: float | None) -> dict[str, float]:
    """Per text: rows forward and backward, seconds; in all: seconds of the fit, memory, and the break-even in texts."""
    texts = sum(len(one.attribution) for one in explained)
    costs = [one.cost for one in explained]
    found = {
        "forwards": sum(cost.rows for cost in costs) / texts,
        "backwards": sum(cost.rows_back for cost in costs) / texts,
        "seconds": sum(cost.seconds for cost in costs) / texts,
        "fit_seconds": sum(one.fit_cost.seconds for one in explained) / len(explained),
        "peak_megabytes": max(max(one.cost.peak_megabytes, one.fit_cost.peak_megabytes) for one in explained),
    }
    learned = any(one.fit_cost.forwards for one in explained)
    return {**found, **({"break_even": break_even(found, rival)} if learned and rival is not None else {})}


def break_even(cost: dict[str, float], rival: float) -> float:
    """Texts after which fit and explanations together have taken no more than the rival's: f / (r - s).

    >>> break_even({"fit_seconds": 90.0, "seconds": 0.1}, 1.0)
    100.0
    """
    gain = rival - cost["seconds"]
    return cost["fit_seconds"] / gain if gain > 0 else math.inf


def reference_seconds(found: Sequence[MethodRun], workspace: Workspace, split: str, few: int = 8) -> float | None:
    """Seconds that integrated gradients of 50 steps take for a text: as benchmarked, or measured on a few texts."""
    for done in found:
        if isinstance(done.method, IntegratedGradients) and done.measured:
            explained = workspace.explained(done.method, split)
            return explained.cost.seconds / len(explained.attribution) * STEPS / done.method.n_steps

    def make() -> Artefact:
        some = workspace.task().data[split].spread(few)
        explainer = IntegratedGradients(n_steps=STEPS).fit(workspace.task())
        explainer(some, rows_at_once=1)  # a text's points fill a pass; beside other texts there would be padding
        return Artefact({}, {"seconds": explainer.cost.seconds / len(some)})

    try:
        kept = workspace.store.get_or_make("cost", digest_of(["cost", workspace.task_digest(), split, STEPS]), make)
    except DiffMaskError:
        return None
    return float(kept.values["seconds"])


Values = dict[str, dict[str, Any]]


def collect_runs(config: BenchmarkConfig, workspaces: Sequence[Workspace], result: RunResult) -> list[MethodRun]:
    """Sort the records and failures of a run by method. A failed node does not stop the others."""
    runs = [MethodRun(name, method) for name, method in zip(short_names(config.methods), config.methods, strict=True)]
    for run, workspace in product(runs, workspaces):
        explained = ExplainNode(workspace, run.method, config.split)
        if (reason := result.reason(explained.address)) is not None:
            run.problems.append(f"{run.name} is left out: {reason}")
            continue
        for metric in config.metrics:
            address = MeasureNode(workspace, run.method, metric, config.split).address
            if (reason := result.reason(address)) is not None:
                run.problems.append(f"{metric.name} of {run.name} is left out: {reason}")
            else:
                run.measured += [(metric, record) for record in result.outcomes[address].records]
    return runs


def fit_problems(run: MethodRun, workspace: Workspace) -> Iterator[str]:
    """Yield the problems that a fit's own diagnostics found."""
    for site, diagnosis in workspace.diagnostics(run.method).items():
        for name, text in diagnosis.get("problems", {}).items():
            yield f"the fit of {run.name} is not sound at {site} ({name}): {text}"


def build_result(
    config: BenchmarkConfig, runs: Sequence[MethodRun], workspaces: Sequence[Workspace], folder: Path
) -> BenchmarkResult:
    """Build the result of a finished run: estimates, comparisons, curves, agreement, texts and verdict."""
    measured = [run for run in runs if run.measured]
    infos = describe_metrics(config.metrics)
    values = {info.name: _values(measured, metric, name, info) for (metric, name), info in infos.items()}
    metrics = [info for info in infos.values() if values[info.name]]
    explained = {
        run.name: [workspace.explained(run.method, config.split) for workspace in workspaces] for run in measured
    }
    reference = reference_seconds(measured, workspaces[0], config.split)
    methods = [
        _method_result(run, workspaces[0], values, method_cost(explained[run.name], reference)) for run in measured
    ]
    comparisons = compare(metrics, values)
    texts = len(workspaces[0].task().data[config.split])
    baseline = random_baseline(measured)
    shift = masking_shift(workspaces[0], config.split) if perturbs_input(config) else None
    inputs = VerdictInputs(
        metrics=metrics,
        methods=methods,
        comparisons=comparisons,
        texts=texts,
        baseline=baseline,
        masking_excess_loss=None if shift is None else shift.excess_loss,
    )
    first = {name: attributions[0] for name, attributions in explained.items()}
    maskable = workspaces[0].task().data[config.split].maskable
    return BenchmarkResult(
        title=f"{workspaces[0].task_config.label}, {texts} texts",
        verdict=verdict(inputs),
        warnings=list(_warnings(config, runs, workspaces[0], texts, shift)),
        metrics=metrics,
        methods=methods,
        comparisons=comparisons,
        curves=list(_curves(measured, infos)),
        agreement=agreement_table([each.attribution.scores for each in first.values()], maskable),
        texts=list(_texts(workspaces[0], config.split, first)),
        manifest=json.loads((folder / "manifest.json").read_text()),
        masking_excess_loss=inputs.masking_excess_loss,
    )


def random_baseline(runs: Sequence[MethodRun]) -> str:
    """Return the name of the run with random scores; the default name if that run failed."""
    return next((run.name for run in runs if isinstance(run.method, Random)), Random.name)


def describe_metrics(metrics: Sequence[Metric]) -> dict[tuple[Metric, str], MetricInfo]:
    """Return the `MetricInfo` of every number of every metric. A name used twice gets the options that differ."""
    found: dict[tuple[Metric, str], MetricInfo] = {}
    for metric in metrics:
        for info in metric.infos:
            taken = {known.name for known in found.values()}
            choices = metric.label.removeprefix(metric.name).strip()
            endings = ("", f" {choices}", f" by {metric.label}")
            ending = next(ending for ending in endings if f"{info.name}{ending}" not in taken)
            found[metric, info.name] = replace(info, name=f"{info.name}{ending}", title=f"{info.title}{ending}")
    return found


def _values(kept: Sequence[MethodRun], metric: Metric, name: str, info: MetricInfo) -> dict[str, Any]:
    """By method, seeds x rows of one number."""
    found = {}
    for done in kept:
        records = [record for record in _records(done, metric, name) if record.at is None]
        rows = [record.per_row or (record.value,) for record in records if record.per_row or info.relative_to_random]
        if rows and len({len(row) for row in rows}) == 1:
            found[done.name] = np.array(rows, dtype=np.float64)
    baseline = random_baseline(kept)
    if info.relative_to_random and found and any(done.name == baseline for done in kept):
        found = {baseline: np.zeros_like(next(iter(found.values()))), **found}
    return found


def _records(done: MethodRun, metric: Metric, name: str) -> list[Record]:
    """Return the records of one number of a metric."""
    return [record for own, record in done.measured if (own, record.metric) == (metric, name)]


def _method_result(done: MethodRun, workspace: Workspace, values: Values, cost: dict[str, float]) -> MethodResult:
    return MethodResult(
        name=done.name,
        recipe=done.method.to_dict(),
        estimates={
            info: estimate(by_method[done.name]) for info, by_method in values.items() if done.name in by_method
        },
        cost=cost,
        diagnostics=workspace.diagnostics(done.method),
        is_baseline=done.method.is_baseline,
    )


def _curves(kept: Sequence[MethodRun], names: Mapping[tuple[Metric, str], MetricInfo]) -> Iterator[Curve]:
    for (metric, name), info in names.items():
        drawn = info.curve or name
        for done in kept:
            points: dict[float, list[tuple[float, ...]]] = {}
            for record in _records(done, metric, drawn):
                if record.at is not None:
                    points.setdefault(record.at, []).append(record.per_row or (record.value,))
            found = {at: estimate(np.array(rows, dtype=np.float64)) for at, rows in sorted(points.items())}
            if found:
                yield Curve(
                    metric=info.name.replace(name, drawn, 1),
                    method=done.name,
                    x_label=info.x_label,
                    x=list(found),
                    y=[point.mean for point in found.values()],
                    low=[point.low for point in found.values()],
                    high=[point.high for point in found.values()],
                )


def perturbs_input(config: BenchmarkConfig) -> bool:
    """Return whether a metric of the benchmark runs the model on masked texts."""
    return any(metric.perturbs_input for metric in config.metrics)


def _warnings(
    config: BenchmarkConfig, found: Sequence[MethodRun], workspace: Workspace, texts: int, shift: MaskingShift | None
) -> Iterator[str]:
    if texts < MIN_ROWS:
        yield f"{texts} texts are too few for a verdict; at least {MIN_ROWS} are needed"
    if shift is not None and shift.warning():
        yield shift.warning()
    if shift is None and perturbs_input(config) and not workspace.task().trained_with_masks:
        yield (
            "the model was not trained on masked texts, and without labels it cannot be measured how far they are out "
            "of distribution: part of the effect of erasing words may be due to this"
        )
    for done in found:
        yield from done.problems
        if done.measured:
            yield from fit_problems(done, workspace)


@torch.no_grad()
def _texts(workspace: Workspace, split: str, seen: Mapping[str, CachedAttribution]) -> Iterator[BoardText]:
    task, whole = workspace.task(), unmasked_predictions(workspace, split, "predicted")
    text = row_text(task)
    gold, said = text.outcomes(task.data[split].target), text.outcomes(whole.target)
    for row, (label, prediction) in enumerate(zip(gold, said, strict=True)):
        read = text.read_row(split, row)
        layered = {name: one.attribution for name, one in seen.items() if one.attribution.by_layer is not None}
        yield BoardText(
            words=list(read.words),
            gaps=list(read.gaps),
            gold=label,
            prediction=prediction or "",
            probability=float(whole.probability[row]),
            scores={name: _of_words(one.attribution.scores[row], read.columns) for name, one in seen.items()},
            by_layer={
                name: [_of_words(layer, read.columns) for layer in found.by_layer[row]]
                for name, found in layered.items()
                if found.by_layer is not None
            },
            layers={name: list(found.layers) for name, found in layered.items()},
        )


def _of_words(scores: torch.Tensor, columns: Sequence[tuple[int, ...]]) -> list[float]:
    """A word scores as the highest of its tokens; to five figures, which is all a page shows."""
    values = scores.tolist()
    return [float(f"{max(values[column] for column in own):.5g}") for own in columns]
