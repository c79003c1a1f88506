"""Build one `BenchmarkResult` per task from the records of a run.

A result has estimates, comparisons, costs, curves, the agreement of methods, texts with their scores, and a verdict.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.core.batch import Attribution
from diffmask.core.capabilities import row_text
from diffmask.core.config import digest_of
from diffmask.core.explainer import Method
from diffmask.core.store import Artefact
from diffmask.errors import DiffMaskError
from diffmask.experiments.executors.executor import RunResult
from diffmask.experiments.experiment import Experiment, ExplainNode, MeasureNode
from diffmask.methods.baselines import Random
from diffmask.methods.gradients import IntegratedGradients
from diffmask.metrics.erasure import unmasked_predictions
from diffmask.metrics.masking_ood import MaskingShift, masking_shift
from diffmask.metrics.metric import Metric
from diffmask.metrics.ranks import rank_correlation, top_overlap
from diffmask.results.benchmark_result import BenchmarkResult, BenchmarkText, Curve, MethodResult, MetricInfo
from diffmask.results.comparison import MIN_ROWS, compare, estimate
from diffmask.results.records import RUN_AGAIN, Record, read_json
from diffmask.results.verdict import VerdictInputs, verdict
from diffmask.workspace.workspace import CachedAttribution, InMemoryTaskConfig, Workspace


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
    """Return the agreement of every pair of methods, as means over texts."""
    kinds = {"rank correlation": rank_correlation, "overlap of the highest fifth": top_overlap}
    return {
        name: [[_mean(kind(first, second, maskable)) for second in scores] for first in scores]
        for name, kind in kinds.items()
    }


def _mean(values: Float[Tensor, " row"]) -> float:
    known = values[~values.isnan()]
    return float(known.mean()) if len(known) else 0.0


STEPS = 50


def method_cost(explained: Sequence[CachedAttribution], reference: float | None) -> dict[str, float]:
    """Return the cost of a method: rows and seconds per text, seconds of the fit, peak memory, break-even in texts."""
    texts = sum(len(each.attribution) for each in explained)
    costs = [each.cost for each in explained]
    cost = {
        "forwards": sum(cost.rows for cost in costs) / texts,
        "backwards": sum(cost.rows_back for cost in costs) / texts,
        "seconds": sum(cost.seconds for cost in costs) / texts,
        "fit_seconds": sum(each.fit_cost.seconds for each in explained) / len(explained),
        "peak_megabytes": max(max(each.cost.peak_megabytes, each.fit_cost.peak_megabytes) for each in explained),
    }
    learned = any(each.fit_cost.forwards for each in explained)
    return {**cost, **({"break_even": break_even(cost, reference)} if learned and reference is not None else {})}


def break_even(cost: dict[str, float], reference: float) -> float:
    """Return the number of texts from which the method is cheaper than the reference: fit / (reference - seconds).

    >>> break_even({"fit_seconds": 90.0, "seconds": 0.1}, 1.0)
    100.0
    """
    gain = reference - cost["seconds"]
    return cost["fit_seconds"] / gain if gain > 0 else math.inf


def reference_seconds(runs: Sequence[MethodRun], workspace: Workspace, split: str, texts: int = 8) -> float | None:
    """Return the seconds per text of integrated gradients with 50 steps: as benchmarked, or measured on a few texts."""
    for run in runs:
        if isinstance(run.method, IntegratedGradients) and run.measured:
            explained = workspace.explained(run.method, split)
            return explained.cost.seconds / len(explained.attribution) * STEPS / run.method.n_steps

    def make() -> Artefact:
        batch = workspace.task().data[split].spread(texts)
        explainer = IntegratedGradients(n_steps=STEPS).fit(workspace.task())
        explainer(batch, rows_at_once=1)  # the points of one text fill a pass; several texts would add padding
        return Artefact({}, {"seconds": explainer.cost.seconds / len(batch)})

    try:
        artefact = workspace.store.get_or_make("cost", digest_of(["cost", workspace.task_digest(), split, STEPS]), make)
    except DiffMaskError:
        return None
    return float(artefact.values["seconds"])


Values = dict[str, dict[str, Any]]


def build_results(
    experiment: Experiment,
    workspaces: Sequence[Workspace],
    result: RunResult,
    folder: Path,
    *,
    texts: int | None = None,
) -> list[BenchmarkResult]:
    """Return one result per task of a run, with the scores of its first `texts` rows; None keeps all.

    A task of which nothing was measured, because its training failed, has no result.
    """
    results = []
    for config in experiment.tasks:
        own = [workspace for workspace in workspaces if workspace.task_config == config]
        runs = collect_runs(experiment, own, result)
        if any(run.measured for run in runs) or isinstance(config, InMemoryTaskConfig):
            results.append(build_result(experiment, runs, own, folder, texts))
    return results


def explained_split(experiment: Experiment) -> str:
    """Return the split whose attributions a run compares."""
    return experiment.explained_split or "test"


def collect_runs(experiment: Experiment, workspaces: Sequence[Workspace], result: RunResult) -> list[MethodRun]:
    """Sort the records and failures of one task by method. A failed node does not stop the others."""
    split = explained_split(experiment)
    methods = experiment.methods
    runs = [MethodRun(name, method) for name, method in zip(short_names(methods), methods, strict=True)]
    for run, workspace in product(runs, workspaces):
        explained = ExplainNode(workspace, run.method, split)
        if (reason := result.reason(explained.address)) is not None:
            run.problems.append(f"{run.name} is left out: {reason}")
            continue
        for metric in experiment.metrics:
            address = MeasureNode(workspace, run.method, metric, split).address
            if (reason := result.reason(address)) is not None:
                run.problems.append(f"{metric.name} of {run.name} is left out: {reason}")
            elif address in result.outcomes:
                run.measured += [(metric, record) for record in result.outcomes[address].records]
    return runs


def short_names(methods: Sequence[Method]) -> list[str]:
    """Return unique names: a name that two methods share gets the options that differ, or a number."""
    count = Counter(method.name for method in methods)
    names: list[str] = []
    for method in methods:
        name = method.label if count[method.name] > 1 else method.name
        names.append(f"{name} #{names.count(name) + 1}" if name in names else name)
    return names


def fit_problems(run: MethodRun, workspace: Workspace) -> Iterator[str]:
    """Yield the problems that a fit's own diagnostics found."""
    for site, diagnosis in workspace.diagnostics(run.method).items():
        for name, text in diagnosis.get("problems", {}).items():
            yield f"the fit of {run.name} is not sound at {site} ({name}): {text}"


def build_result(
    experiment: Experiment,
    runs: Sequence[MethodRun],
    workspaces: Sequence[Workspace],
    folder: Path,
    texts: int | None = None,
) -> BenchmarkResult:
    """Build the result of one task: estimates, comparisons, curves, agreement, texts and verdict."""
    split, first = explained_split(experiment), workspaces[0]
    measured = [run for run in runs if run.measured]
    infos = describe_metrics(experiment.metrics)
    values = {info.name: _values(measured, metric, name, info) for (metric, name), info in infos.items()}
    metrics = [info for info in infos.values() if values[info.name]]
    explained = {run.name: _explained(run.method, workspaces, split) for run in measured}
    reference = reference_seconds(measured, first, split)
    methods = [_method_result(run, first, values, method_cost(explained[run.name], reference)) for run in measured]
    comparisons = compare(metrics, values)
    rows = first.task().data[split]
    shift = masking_shift(first, split) if perturbs_input(experiment) else None
    inputs = VerdictInputs(
        metrics=metrics,
        methods=methods,
        comparisons=comparisons,
        texts=len(rows),
        baseline=random_baseline(measured),
        masking_excess_loss=None if shift is None else shift.excess_loss,
    )
    attributions = {name: caches[0].attribution for name, caches in explained.items()}
    return BenchmarkResult(
        title=f"{first.task_config.label}, {len(rows)} texts",
        verdict=verdict(inputs),
        warnings=list(_warnings(experiment, runs, first, len(rows), shift)),
        metrics=metrics,
        methods=methods,
        comparisons=comparisons,
        curves=list(_curves(measured, infos)),
        agreement=agreement_table([each.scores for each in attributions.values()], rows.maskable),
        texts=list(islice(_texts(first, split, attributions), texts)),
        manifest=read_json(folder / "manifest.json", RUN_AGAIN),
        masking_excess_loss=inputs.masking_excess_loss,
    )


def _explained(method: Method, workspaces: Sequence[Workspace], split: str) -> list[CachedAttribution]:
    """Return the attributions of the first seed, and those of other seeds that the run has made."""
    other_workspaces = [
        workspace
        for workspace in workspaces[1:]
        if workspace.store.has("explain", workspace.explain_digest(method, split))
    ]
    return [workspace.explained(method, split) for workspace in (workspaces[0], *other_workspaces)]


def random_baseline(runs: Sequence[MethodRun]) -> str:
    """Return the name of the run with random scores; the default name if that run failed."""
    return next((run.name for run in runs if isinstance(run.method, Random)), Random.name)


def describe_metrics(metrics: Sequence[Metric]) -> dict[tuple[Metric, str], MetricInfo]:
    """Return the `MetricInfo` of every number of every metric. A name used twice gets the options that differ."""
    infos: dict[tuple[Metric, str], MetricInfo] = {}
    for metric in metrics:
        for info in metric.infos:
            taken = {known.name for known in infos.values()}
            choices = metric.label.removeprefix(metric.name).strip()
            endings = ("", f" {choices}", f" by {metric.label}")
            ending = next(ending for ending in endings if f"{info.name}{ending}" not in taken)
            infos[metric, info.name] = replace(info, name=f"{info.name}{ending}", title=f"{info.title}{ending}")
    return infos


def _values(runs: Sequence[MethodRun], metric: Metric, name: str, info: MetricInfo) -> dict[str, Any]:
    """Return the values of one number by method, as an array of seeds x rows."""
    values = {}
    for run in runs:
        records = [record for record in _records(run, metric, name) if record.at is None]
        rows = [record.per_row or (record.value,) for record in records if record.per_row or info.relative_to_random]
        if len({len(row) for row in rows}) > 1:
            # Each seed has test rows of its own: they are further rows, not further seeds of the same rows.
            rows = [tuple(chain.from_iterable(rows))]
        if rows:
            values[run.name] = np.array(rows, dtype=np.float64)
    baseline = random_baseline(runs)
    if info.relative_to_random and values and any(run.name == baseline for run in runs):
        values = {baseline: np.zeros_like(next(iter(values.values()))), **values}
    return values


def _records(run: MethodRun, metric: Metric, name: str) -> list[Record]:
    """Return the records of one number of a metric, at the last site that was measured."""
    records = [record for own, record in run.measured if (own, record.metric) == (metric, name)]
    # A method with scores per layer is compared by its last layer, which knows the whole model.
    return [record for record in records if record.site == records[-1].site]


def _method_result(run: MethodRun, workspace: Workspace, values: Values, cost: dict[str, float]) -> MethodResult:
    return MethodResult(
        name=run.name,
        config=run.method.to_dict(),
        estimates={info: estimate(by_method[run.name]) for info, by_method in values.items() if run.name in by_method},
        cost=cost,
        diagnostics=workspace.diagnostics(run.method),
        is_baseline=run.method.is_baseline,
    )


def _curves(runs: Sequence[MethodRun], names: Mapping[tuple[Metric, str], MetricInfo]) -> Iterator[Curve]:
    for (metric, name), info in names.items():
        drawn = info.curve or name
        for run in runs:
            points: dict[float, list[tuple[float, ...]]] = {}
            for record in _records(run, metric, drawn):
                if record.at is not None:
                    points.setdefault(record.at, []).append(record.per_row or (record.value,))
            estimates = {at: estimate(np.array(rows, dtype=np.float64)) for at, rows in sorted(points.items())}
            if estimates:
                yield Curve(
                    metric=info.name.replace(name, drawn, 1),
                    method=run.name,
                    x_label=info.x_label,
                    x=list(estimates),
                    y=[point.mean for point in estimates.values()],
                    low=[point.low for point in estimates.values()],
                    high=[point.high for point in estimates.values()],
                )


def perturbs_input(experiment: Experiment) -> bool:
    """Return whether a metric runs the model on masked texts."""
    return any(metric.perturbs_input for metric in experiment.metrics)


def _warnings(
    experiment: Experiment, runs: Sequence[MethodRun], workspace: Workspace, texts: int, shift: MaskingShift | None
) -> Iterator[str]:
    if texts < MIN_ROWS:
        yield f"{texts} texts are too few for a verdict; at least {MIN_ROWS} are needed"
    if shift is not None and shift.warning():
        yield shift.warning()
    if shift is None and perturbs_input(experiment) and not workspace.task().trained_with_masks:
        yield (
            "the model was not trained on masked texts, and without labels it cannot be measured how far they are out "
            "of distribution: part of the effect of erasing words may be due to this"
        )
    for run in runs:
        yield from run.problems
        if run.measured:
            yield from fit_problems(run, workspace)


@torch.no_grad()
def _texts(workspace: Workspace, split: str, attributions: Mapping[str, Attribution]) -> Iterator[BenchmarkText]:
    task, whole = workspace.task(), unmasked_predictions(workspace, split, "predicted")
    text = row_text(task)
    gold, predicted = text.outcomes(task.data[split].target), text.outcomes(whole.target)
    for row, (label, prediction) in enumerate(zip(gold, predicted, strict=True)):
        read = text.read_row(split, row)
        layered = {name: each for name, each in attributions.items() if each.by_layer is not None}
        yield BenchmarkText(
            words=list(read.words),
            gaps=list(read.gaps),
            gold=label,
            prediction=prediction or "",
            probability=float(whole.probability[row]),
            scores={name: _of_words(each.scores[row], read.columns) for name, each in attributions.items()},
            by_layer={
                name: [_of_words(layer, read.columns) for layer in attribution.by_layer[row]]
                for name, attribution in layered.items()
                if attribution.by_layer is not None
            },
            layers={name: list(attribution.layers) for name, attribution in layered.items()},
        )


def _of_words(scores: torch.Tensor, columns: Sequence[tuple[int, ...]]) -> list[float]:
    """Return the highest token score per word, with the five digits that the page shows."""
    values = scores.tolist()
    return [float(f"{max(values[column] for column in own):.5g}") for own in columns]
