"""What a learned explainer is worth: beside its teachers and two standard methods, on texts it was not fitted to.

On held-out texts, on texts unlike them, and where the truth is known: on a copy of the model with a planted shortcut.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from diffmask.core.batch import Batch
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task
from diffmask.core.training import generator, progress_bar
from diffmask.errors import InputError, TaskError
from diffmask.methods.amortised.amortised import Amortised, AmortisedExplainer
from diffmask.methods.amortised.objectives import kept_scores
from diffmask.methods.gradients import IntegratedGradients
from diffmask.methods.leave_one_out import LeaveOneOut
from diffmask.metrics.erasure import Clean, Eraser, counts, places
from diffmask.metrics.faithfulness import Comprehensiveness, drops
from diffmask.metrics.ranks import rank_correlation, top_overlap
from diffmask.metrics.shortcuts import PlantedShortcut
from diffmask.workspace.workspace import Workspace

Scores = Float[Tensor, "row token"]


@dataclass(frozen=True)
class Faithfulness:
    """Means over ratios and texts, in probability of the answer. DeYoung et al. 2020."""

    comprehensiveness: float
    """p(y|x) - p(y|x without the top tokens); higher is better."""
    sufficiency: float
    """p(y|x) - p(y|the top tokens alone); lower is better."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One method on some texts."""

    method: str
    quality: Faithfulness
    milliseconds: float
    """A text, to explain."""
    correlation: float
    """Rank correlation with the student's scores, averaged over texts."""
    overlap: float
    """Share of the highest fifth of tokens that the student has among its own."""
    break_even: float
    """Texts from which on fitting the student took less time than this method; infinite for a method as fast as it."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """The student and the others on the same texts."""

    title: str
    texts: int
    lines: tuple[Line, ...]
    bare_milliseconds: float
    """A text, to answer only."""
    unlike: tuple[int, ...]
    """Rows that are unlike the texts of the fit."""

    def __str__(self) -> str:
        head = f"{'method':36} compreh. suffic. correl. overlap  ms/text  x bare  break-even"
        lines = [
            f"{line.method[:36]:36} {line.quality.comprehensiveness:8.3f} {line.quality.sufficiency:7.3f} "
            f"{line.correlation:7.2f} {line.overlap:7.2f} {line.milliseconds:8.1f} "
            f"{line.milliseconds / self.bare_milliseconds:7.1f} {line.break_even:11.0f}"
            for line in self.lines
        ]
        unlike = f"{len(self.unlike)} of {self.texts} are unlike the texts of the fit"
        rows = f": rows {list(self.unlike[:10])}" if 0 < len(self.unlike) <= self.texts // 2 else ""
        return "\n".join([f"{self.title} ({self.texts})", head, *lines, unlike + rows])


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a fit came to; `print` shows it as tables."""

    fit_seconds: float
    held_out: Section
    strangers: Section
    planted: dict[str, float]
    """Share of texts with a planted shortcut in which a method ranks it first, fitted to a copy that relies on it."""
    not_planted: str
    """Why there is no such share, where there is none."""
    problems: tuple[str, ...]

    def __str__(self) -> str:
        shares = [f"{name[:36]:36} {share:8.1%}" for name, share in self.planted.items()]
        shortcut = "\n".join(["a planted shortcut, ranked first", *(shares or [f"not measured: {self.not_planted}"])])
        notes = [f"the fit took {self.fit_seconds:.0f} s", *self.problems]
        return "\n\n".join([str(self.held_out), str(self.strangers), shortcut, "\n".join(notes)])


def report_on(
    explainer: AmortisedExplainer,
    batch: Batch | None,
    rows: int,
    strangers: Batch | None,
    planted: bool | Mapping[str, Any],
) -> Report:
    """See `AmortisedExplainer.report`."""
    data = explainer.task.data
    known = [data[name][:rows] for name in ("test", "valid") if name in data]
    if batch is None and not known:
        raise InputError("the task has no test or validation texts; give some, report(task.encode([...]))")
    texts = known[0] if batch is None else batch
    examiner = Examiner(explainer, [method.fit(explainer.task) for method in peers(explainer)])
    found: dict[str, float] = {}
    why = "it was not asked for"
    if planted is not False:
        choices = {"rows": rows, **({} if planted is True else planted)}
        found, why = examiner.planted(PlantedShortcut.from_dict({"name": PlantedShortcut.name, **choices}))
    problems = explainer.diagnostics.get("student", {}).get("problems", {})
    return Report(
        fit_seconds=explainer.fit_cost.seconds,
        held_out=examiner.section("held-out texts", texts),
        strangers=(
            examiner.section("the same texts, their words in random order", in_no_order(texts))
            if strangers is None
            else examiner.section("texts of another kind", strangers)
        ),
        planted=found,
        not_planted=why,
        problems=tuple(f"{name}: {text}" for name, text in problems.items()),
    )


@dataclass(frozen=True)
class Examiner:
    """An explainer and the others that it is measured against, each fitted once for all texts."""

    explainer: AmortisedExplainer
    others: Sequence[Explainer]

    def section(self, title: str, batch: Batch) -> Section:
        """Everybody on the same texts."""
        task = self.explainer.task
        scores, seconds = _timed(self.explainer, batch)
        measured = [(_label(self.explainer), scores, seconds)]
        for other in progress_bar(self.others, title):
            measured.append((_label(other), *_timed(other, batch)))
        fit = self.explainer.fit_cost.seconds
        lines = [
            Line(
                method=name,
                quality=faithfulness(task, batch, found),
                milliseconds=1000 * spent / len(batch),
                correlation=_mean(rank_correlation(scores, found, batch.maskable)),
                overlap=_mean(top_overlap(scores, found, batch.maskable)),
                break_even=fit * len(batch) / (spent - seconds) if spent > seconds else float("inf"),
            )
            for name, found, spent in measured
        ]
        return Section(
            title=title,
            texts=len(batch),
            lines=tuple(lines),
            bare_milliseconds=1000 * _bare(task, batch) / len(batch),
            unlike=tuple(self.explainer.unlike(batch).nonzero().flatten().tolist()),
        )

    def planted(self, metric: PlantedShortcut) -> tuple[dict[str, float], str]:
        """The share ranked first by each method that can be fitted again, or why nobody was asked."""
        task, wanted = self.explainer.task, f"{metric.shortcut}_first"
        if self.explainer.config is None or not {"train", "test"} <= task.data.keys():
            return {}, "it takes the explainer's recipe, training and test texts to make a copy of the model and fit it"
        workspace, found = Workspace.over(kept_scores(), task), {}
        try:
            for method in progress_bar([self.explainer.config, *peers(self.explainer)], "planted shortcut"):
                first = [record.value for record in metric.run(method, workspace) if record.metric == wanted]
                if not first:
                    return {}, "the copy of the model did not learn it; try report(planted={'learning_rate': 1e-3})"
                found[method.label] = first[0]
        except TaskError as error:
            return {}, str(error)
        return found, ""


def peers(explainer: AmortisedExplainer) -> list[Method]:
    """An explainer's teachers, then integrated gradients with 50 steps and leave-one-out."""
    teachers = explainer.config.teachers() if isinstance(explainer.config, Amortised) else []
    standard = [IntegratedGradients(n_steps=50, baseline="auto", signed=True), LeaveOneOut()]
    return [*teachers, *(method for method in standard if method not in teachers)]


def faithfulness(task: Task, batch: Batch, scores: Scores) -> Faithfulness:
    """Of any scores, by the ratios and the erasure that comprehensiveness is measured with everywhere."""
    eraser = Eraser(task)
    target = eraser.decisions(batch)
    everything = torch.arange(len(batch))
    whole = Clean(target, eraser.probability(batch, target, everything, torch.zeros_like(batch.present)))
    order, sizes = places(scores, batch.maskable), counts(batch.maskable, Comprehensiveness().ratios)
    found = [drops(eraser, batch, whole, order, sizes, keep).mean().item() for keep in (False, True)]
    return Faithfulness(*found)


def in_no_order(batch: Batch, seed: int = 0) -> Batch:
    """The same texts, the maskable tokens of each in random order: words that the fit knows, sentences it does not."""
    drawn = torch.rand(batch.tokens.shape, generator=generator(seed, "no order")).to(batch.tokens.device)
    taken, put = (
        value.masked_fill(~batch.maskable, torch.inf).argsort(dim=1, stable=True)
        for value in (drawn, torch.zeros_like(drawn))
    )
    return replace(batch, tokens=batch.tokens.scatter(1, put, batch.tokens.gather(1, taken)))


def _label(explainer: Explainer) -> str:
    return explainer.config.label if explainer.config else type(explainer).__name__


def _timed(explainer: Explainer, batch: Batch) -> tuple[Scores, float]:
    """Scores and seconds; a first small batch warms up."""
    explainer(batch[:2])
    start = time.perf_counter()
    return explainer(batch).scores, time.perf_counter() - start


@torch.no_grad()
def _bare(task: Task, batch: Batch, rows_at_once: int = 256) -> float:
    """Seconds of a pass over the texts in order of length, as an explainer takes them."""
    order = batch.present.sum(dim=1).argsort(stable=True)
    task.predict(batch[:2].trim())
    start = time.perf_counter()
    for rows in order.split(rows_at_once):
        task.predict(batch[rows].trim())
    return time.perf_counter() - start


def _mean(values: Float[Tensor, " row"]) -> float:
    return values.nanmean().item()
