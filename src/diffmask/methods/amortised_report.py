"""A student beside its teachers and two standard methods, on texts that it was not fitted to: what it is worth."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from diffmask.batch import Batch
from diffmask.explainer import Explainer, Method
from diffmask.methods.amortised_faithfulness import Scores, faithfulness, overlap, rank_correlation
from diffmask.methods.erasure import Erasure
from diffmask.methods.integrated_gradient import IntegratedGradient
from diffmask.task import Task


@dataclass(frozen=True, kw_only=True)
class Line:
    """One method on the report's texts."""

    method: str
    comprehensiveness: float
    sufficiency: float
    milliseconds: float
    """A text, to explain."""
    correlation: float
    """Rank correlation with the student's scores, averaged over texts."""
    overlap: float
    """Share of the highest fifth of tokens that the student has among its own."""
    break_even: float
    """Texts from which on fitting the student took less time than this method; infinite for a method as fast as it."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a fit came to; `print` shows it as a table."""

    texts: int
    fit_seconds: float
    bare_milliseconds: float
    """A text, to answer only."""
    lines: tuple[Line, ...]
    unlike: tuple[int, ...]
    """Rows of the report's texts that are unlike the texts of the fit."""
    problems: tuple[str, ...]

    def __str__(self) -> str:
        head = f"{'method':36} compreh. suffic.  ms/text  x bare  correl. overlap  break-even"
        lines = [
            f"{line.method[:36]:36} {line.comprehensiveness:8.3f} {line.sufficiency:7.3f} {line.milliseconds:8.1f} "
            f"{line.milliseconds / self.bare_milliseconds:7.1f} {line.correlation:8.2f} {line.overlap:7.2f} "
            f"{line.break_even:11.0f}"
            for line in self.lines
        ]
        notes = [
            f"{self.texts} texts; the fit took {self.fit_seconds:.0f} s; a bare pass {self.bare_milliseconds:.1f} ms"
        ]
        if self.unlike:
            notes.append(f"{len(self.unlike)} texts are unlike those of the fit: rows {list(self.unlike[:10])}")
        return "\n".join([head, *lines, *notes, *self.problems])


def side_by_side(
    explainer: Explainer, batch: Batch, teachers: Sequence[Method], unlike: Sequence[int], problems: Sequence[str]
) -> Report:
    """The explainer, its teachers, leave-one-out and integrated gradients with 50 steps, all on the same texts."""
    task = explainer.task
    bare = _bare(task, batch)
    scores, seconds = _timed(explainer, batch)
    name = explainer.recipe.label if explainer.recipe else type(explainer).__name__
    measured = [(name, scores, seconds)]
    for method in [*teachers, *(other for other in _standard() if other not in teachers)]:
        measured.append((method.label, *_timed(method.fit(task), batch)))
    fit = explainer.fit_cost.seconds
    lines = [
        Line(
            method=label,
            **asdict(faithfulness(task, batch, found)),
            milliseconds=1000 * spent / len(batch),
            correlation=rank_correlation(scores, found, batch.maskable),
            overlap=overlap(scores, found, batch.maskable),
            break_even=fit * len(batch) / (spent - seconds) if spent > seconds else float("inf"),
        )
        for label, found, spent in measured
    ]
    return Report(
        texts=len(batch),
        fit_seconds=fit,
        bare_milliseconds=1000 * bare / len(batch),
        lines=tuple(lines),
        unlike=tuple(unlike),
        problems=tuple(problems),
    )


def _standard() -> list[Method]:
    return [IntegratedGradient(n_steps=50, baseline="auto", signed=True), Erasure()]


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
