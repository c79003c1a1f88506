"""A self-test of metrics: explanations that are degraded by a known amount must be ranked in the known order.

A share of the ranks of every text is shuffled: 0, 20, ... 100 %. A metric that cannot order these explanations on a
model and its texts cannot be relied on to compare methods there.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from diffmask.core.batch import Attribution, Batch
from diffmask.core.config import require_between
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task
from diffmask.core.training import generator
from diffmask.errors import DiffMaskError
from diffmask.methods.leave_one_out import LeaveOneOut
from diffmask.metrics.metric import Metric
from diffmask.metrics.ranks import rank_correlation
from diffmask.results.formatting import format_number
from diffmask.workspace.workspace import Workspace

LEVELS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Shares of the ranks that are shuffled."""
RELIABLE = 0.9
"""Smallest rank correlation with the known order of a metric that can be relied on."""


@dataclass(frozen=True, kw_only=True)
class Degraded(Method):
    """Scores of another method, of which a share is exchanged among tokens of the same text at random."""

    name: ClassVar[str] = "degraded"

    base: Method
    """Method that is degraded."""
    shuffled: float
    """Share of the tokens whose scores are shuffled."""

    def __post_init__(self) -> None:
        require_between(self, "shuffled", 0, 1)

    def build(self, task: Task, seed: int) -> "DegradedExplainer":
        """Build the explainer of the base method."""
        return DegradedExplainer(task, self.base.build(task, seed), self.shuffled, seed)

    def train(self, explainer: Any, task: Task, seed: int) -> None:
        """Train the explainer of the base method."""
        self.base.train(explainer.base, task, seed)


class DegradedExplainer(Explainer):
    """Shuffles part of another explainer's scores. Which positions are shuffled does not depend on the other rows."""

    def __init__(self, task: Task, base: Explainer, shuffled: float, seed: int) -> None:
        super().__init__(task)
        self.base, self.shuffled, self.seed = base, shuffled, seed

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Return the base scores with a share of them shuffled within each row."""
        scores = self.base.explain(batch, target).scores
        source = generator(self.seed, "self-test")
        draws = torch.rand(batch.tokens.shape[1], 2, generator=source).to(scores.device)
        return Attribution(shuffle_part(scores, batch, draws[:, 0] < self.shuffled, draws[:, 1]))


def shuffle_part(
    scores: Float[Tensor, "row token"], batch: Batch, chosen: Tensor, keys: Float[Tensor, " token"]
) -> Float[Tensor, "row token"]:
    """Permute the scores of the chosen maskable tokens of each row; the other scores stay.

    The i-th chosen token gets the score of the chosen token with the i-th smallest key.
    """
    mine = batch.maskable & chosen
    places = (~mine).to(torch.uint8).argsort(dim=1, stable=True)
    donors = torch.where(mine, keys.expand(mine.shape), torch.inf).argsort(dim=1, stable=True)
    return scores.scatter(1, places, scores.gather(1, donors))


@dataclass(frozen=True, kw_only=True)
class MetricReliability:
    """How well one number orders explanations that were degraded by known amounts."""

    metric: str
    """Name of the number."""
    title: str
    values: tuple[float, ...]
    """Mean over texts per level, from the whole explanation to a random order."""
    correlation: float
    """Spearman's rho with the known order: 1 if every level is worse than the one before."""

    @property
    def is_reliable(self) -> bool:
        """Whether comparisons by this metric can be relied on for this model."""
        return self.correlation >= RELIABLE


def self_test(
    workspace: Workspace, metrics: Sequence[Metric], base: Method | None = None, levels: Sequence[float] = LEVELS
) -> list[MetricReliability]:
    """Run every metric on degraded copies of a method, by default leave-one-out; those that cannot run are left out."""
    method = base or LeaveOneOut()
    reliabilities = []
    for metric in metrics:
        try:
            reliabilities += _test_metric(workspace, metric, method, levels)
        except DiffMaskError as error:
            warnings.warn(f"the self-test of {metric.name} was left out: {error}", stacklevel=2)
    return reliabilities


def _test_metric(
    workspace: Workspace, metric: Metric, base: Method, levels: Sequence[float]
) -> list[MetricReliability]:
    values: dict[str, list[float]] = {info.name: [] for info in metric.infos}
    for level in levels:
        for record in metric.run(Degraded(base=base, shuffled=level), workspace):
            if record.at is None and record.metric in values:
                values[record.metric].append(record.value)
    return [
        MetricReliability(
            metric=info.name,
            title=info.title,
            values=tuple(values[info.name]),
            correlation=_known_order(values[info.name], info.higher_is_better),
        )
        for info in metric.infos
        if len(values[info.name]) == len(levels)
    ]


def _known_order(values: Sequence[float], higher_is_better: bool) -> float:
    """Return Spearman's rho between the quality by the metric and the known order, best first.

    >>> round(_known_order([0.9, 0.5, 0.6, 0.1], higher_is_better=True), 6)
    0.8
    """
    quality = torch.tensor([values], dtype=torch.float64) * (1 if higher_is_better else -1)
    known = -torch.arange(len(values), dtype=torch.float64)[None]
    return float(rank_correlation(quality, known, torch.ones_like(known, dtype=torch.bool)))


def describe(tested: Sequence[MetricReliability], method: str = LeaveOneOut.name) -> str:
    """Return a paragraph for the verdict: which metrics can be relied on for this model."""
    names = {
        kept: ", ".join(
            f"{reliability.title} ({format_number(reliability.correlation, 2)})"
            for reliability in tested
            if reliability.is_reliable == kept
        )
        for kept in (True, False)
    }
    start = f"Self-test of the metrics (rank correlation with the known order of {method} degraded by noise): "
    reliable = f"rely on {names[True]}" if names[True] else "no metric can be relied on for this model"
    return start + reliable + (f"; do not rely on {names[False]}." if names[False] else ".")
