"""Report on an amortised explainer: faithfulness, agreement and cost, compared with its teachers and two baselines.

It covers held-out texts, texts unlike the training texts, and a copy of the model with a planted shortcut, where the
important token is known.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from diffmask.core.batch import Batch, iter_by_length
from diffmask.core.explainer import Explainer, Method
from diffmask.core.progress import progress_bar
from diffmask.core.task import Task
from diffmask.core.training import generator
from diffmask.errors import InputError, TaskError
from diffmask.methods.amortised.amortised import Amortised, AmortisedExplainer
from diffmask.methods.amortised.objectives import teacher_store
from diffmask.methods.gradients import IntegratedGradients
from diffmask.methods.leave_one_out import LeaveOneOut
from diffmask.metrics.erasure import Eraser, UnmaskedPrediction, rank_positions, tokens_to_erase
from diffmask.metrics.faithfulness import Comprehensiveness, probability_drops
from diffmask.metrics.ranks import rank_correlation, top_overlap
from diffmask.metrics.shortcuts import PlantedShortcut
from diffmask.workspace.workspace import Workspace

Scores = Float[Tensor, "row token"]


@dataclass(frozen=True)
class FaithfulnessScores:
    """Means over ratios and texts, in probability of the predicted outcome. DeYoung et al. 2020."""

    comprehensiveness: float
    """p(y|x) - p(y|x without the top tokens); higher is better."""
    sufficiency: float
    """p(y|x) - p(y|top tokens only); lower is better."""


@dataclass(frozen=True, kw_only=True)
class ReportRow:
    """Results of one method on one set of texts."""

    method: str
    faithfulness: FaithfulnessScores
    milliseconds: float
    """Time to explain a text."""
    correlation: float
    """Rank correlation with the amortised scores, averaged over texts."""
    overlap: float
    """Overlap of the top fifth of tokens with that of the amortised scores."""
    break_even: float
    """Number of texts above which fitting and using the amortised explainer takes less time than this method.

    Infinite for a method that is at least as fast."""


@dataclass(frozen=True, kw_only=True)
class ReportSection:
    """Results of all methods on the same texts."""

    title: str
    texts: int
    rows: tuple[ReportRow, ...]
    predict_milliseconds: float
    """Time to predict a text without explaining it."""
    out_of_distribution: tuple[int, ...]
    """Indices of the texts that are unlike the training texts."""

    def __str__(self) -> str:
        head = f"{'method':36} compreh. suffic. correl. overlap  ms/text x predict break-even"
        lines = [
            f"{row.method[:36]:36} {row.faithfulness.comprehensiveness:8.3f} {row.faithfulness.sufficiency:7.3f} "
            f"{row.correlation:7.2f} {row.overlap:7.2f} {row.milliseconds:8.1f} "
            f"{row.milliseconds / self.predict_milliseconds:9.1f} {row.break_even:10.0f}"
            for row in self.rows
        ]
        count = len(self.out_of_distribution)
        note = f"{count} of {self.texts} texts are out of distribution"
        indices = f": rows {list(self.out_of_distribution[:10])}" if 0 < count <= self.texts // 2 else ""
        return "\n".join([f"{self.title} ({self.texts})", head, *lines, note + indices])


@dataclass(frozen=True, kw_only=True)
class AmortisedReport:
    """Result of `amortised_report`; `print` shows it as tables."""

    fit_seconds: float
    held_out: ReportSection
    ood_texts: ReportSection
    planted: dict[str, float]
    """Share of texts in which each method, fitted to a model that relies on a planted shortcut, ranks it first."""
    planted_skipped: str
    """Reason why the planted shortcut was not measured; empty if it was."""
    problems: tuple[str, ...]
    """Problems that the fit reported."""

    def __str__(self) -> str:
        shares = [f"{name[:36]:36} {share:8.1%}" for name, share in self.planted.items()]
        skipped = [f"not measured: {self.planted_skipped}"]
        shortcut = "\n".join(["planted shortcut ranked first", *(shares or skipped)])
        notes = [f"the fit took {self.fit_seconds:.0f} s", *self.problems]
        return "\n\n".join([str(self.held_out), str(self.ood_texts), shortcut, "\n".join(notes)])


def amortised_report(
    explainer: AmortisedExplainer,
    batch: Batch | None = None,
    rows: int = 100,
    *,
    ood_texts: Batch | None = None,
    planted: bool | Mapping[str, Any] = True,
) -> AmortisedReport:
    """Compare an amortised explainer with its teachers, integrated gradients and leave-one-out.

    `batch` defaults to the first `rows` test texts. `ood_texts` are texts unlike those of the fit; the default is the
    same texts with their tokens in random order. The planted shortcut trains a copy of the model that relies on it and
    fits every method to that copy, with the options of `planted-shortcut` in `planted`; both are cached.
    """
    data = explainer.task.data
    splits = [data[name][:rows] for name in ("test", "valid") if name in data]
    if batch is None and not splits:
        raise InputError(
            "the task has no test or validation texts; pass some, amortised_report(explainer, task.encode([...]))"
        )
    texts = splits[0] if batch is None else batch
    comparison = Comparators(explainer, [method.fit(explainer.task) for method in comparison_methods(explainer)])
    shares: dict[str, float] = {}
    reason = "planted=False"
    if planted is not False:
        options = {"rows": rows, **({} if planted is True else planted)}
        shares, reason = comparison.planted(PlantedShortcut.from_dict({"name": PlantedShortcut.name, **options}))
    problems = explainer.diagnostics.get("network", {}).get("problems", {})
    return AmortisedReport(
        fit_seconds=explainer.fit_cost.seconds,
        held_out=comparison.section("held-out texts", texts),
        ood_texts=(
            comparison.section("the same texts with tokens in random order", shuffle_tokens(texts))
            if ood_texts is None
            else comparison.section("out-of-distribution texts", ood_texts)
        ),
        planted=shares,
        planted_skipped=reason,
        problems=tuple(f"{name}: {text}" for name, text in problems.items()),
    )


@dataclass(frozen=True)
class Comparators:
    """An amortised explainer and the explainers it is compared with, all fitted to the same task."""

    explainer: AmortisedExplainer
    others: Sequence[Explainer]

    def section(self, title: str, batch: Batch) -> ReportSection:
        """Run every explainer on the same texts."""
        task = self.explainer.task
        scores, seconds = _timed(self.explainer, batch)
        results = [(_label(self.explainer), scores, seconds)]
        for other in progress_bar(self.others, title):
            results.append((_label(other), *_timed(other, batch)))
        fit_seconds = self.explainer.fit_cost.seconds
        rows = [
            ReportRow(
                method=name,
                faithfulness=score_faithfulness(task, batch, other_scores),
                milliseconds=1000 * spent / len(batch),
                correlation=_mean(rank_correlation(scores, other_scores, batch.maskable)),
                overlap=_mean(top_overlap(scores, other_scores, batch.maskable)),
                break_even=fit_seconds * len(batch) / (spent - seconds) if spent > seconds else float("inf"),
            )
            for name, other_scores, spent in results
        ]
        return ReportSection(
            title=title,
            texts=len(batch),
            rows=tuple(rows),
            predict_milliseconds=1000 * _predict_seconds(task, batch) / len(batch),
            out_of_distribution=tuple(self.explainer.is_out_of_distribution(batch).nonzero().flatten().tolist()),
        )

    def planted(self, metric: PlantedShortcut) -> tuple[dict[str, float], str]:
        """Return the share ranked first by each method, or an empty result and the reason."""
        task, name = self.explainer.task, f"{metric.shortcut}_first"
        if self.explainer.config is None or not {"train", "test"} <= task.data.keys():
            return {}, "it needs the explainer's method and the task's training and test texts"
        workspace, shares = Workspace.over(teacher_store(), task), {}
        try:
            for method in progress_bar(
                [self.explainer.config, *comparison_methods(self.explainer)], "planted shortcut"
            ):
                values = [record.value for record in metric.run(method, workspace) if record.metric == name]
                if not values:
                    return {}, "the copy of the model did not learn it; try planted={'learning_rate': 1e-3}"
                shares[method.label] = values[0]
        except TaskError as error:
            return {}, str(error)
        return shares, ""


def comparison_methods(explainer: AmortisedExplainer) -> list[Method]:
    """Return the explainer's teachers, then integrated gradients with 50 steps and leave-one-out."""
    teachers = explainer.config.teachers() if isinstance(explainer.config, Amortised) else []
    standard = [IntegratedGradients(n_steps=50, baseline="auto", signed=True), LeaveOneOut()]
    return [*teachers, *(method for method in standard if method not in teachers)]


def score_faithfulness(task: Task, batch: Batch, scores: Scores) -> FaithfulnessScores:
    """Compute comprehensiveness and sufficiency with the ratios and the erasure of the registered metric."""
    return FaithfulnessScores(*(drops.mean().item() for drops in drops_by_text(task, batch, scores)))


def drops_by_text(task: Task, batch: Batch, scores: Scores) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
    """Return comprehensiveness and sufficiency of each text: means over the ratios."""
    eraser = Eraser(task)
    target = eraser.decisions(batch)
    everything = torch.arange(len(batch))
    whole = UnmaskedPrediction(target, eraser.probability(batch, target, everything, torch.zeros_like(batch.present)))
    order, sizes = rank_positions(scores, batch.maskable), tokens_to_erase(batch.maskable, Comprehensiveness().ratios)
    erased, kept = (probability_drops(eraser, batch, whole, order, sizes, keep) for keep in (False, True))
    return erased.mean(dim=1), kept.mean(dim=1)


def shuffle_tokens(batch: Batch, seed: int = 0) -> Batch:
    """Return the same texts with the maskable tokens of each in random order: known words in unknown sentences."""
    uniform = torch.rand(batch.tokens.shape, generator=generator(seed, "no order")).to(batch.tokens.device)
    source, destination = (
        value.masked_fill(~batch.maskable, torch.inf).argsort(dim=1, stable=True)
        for value in (uniform, torch.zeros_like(uniform))
    )
    return replace(batch, tokens=batch.tokens.scatter(1, destination, batch.tokens.gather(1, source)))


def _label(explainer: Explainer) -> str:
    return explainer.config.label if explainer.config else type(explainer).__name__


def _timed(explainer: Explainer, batch: Batch) -> tuple[Scores, float]:
    """Return scores and seconds, after a small batch to warm up."""
    explainer(batch[:2])
    start = time.perf_counter()
    return explainer(batch).scores, time.perf_counter() - start


@torch.no_grad()
def _predict_seconds(task: Task, batch: Batch, rows_at_once: int = 256) -> float:
    """Return the seconds of a forward pass over the texts in order of length, as explainers take them."""
    task.predict(batch[:2].trim())
    start = time.perf_counter()
    for _, texts in iter_by_length(batch, rows_at_once):
        task.predict(texts)
    return time.perf_counter() - start


def _mean(values: Float[Tensor, " row"]) -> float:
    return values.nanmean().item()
