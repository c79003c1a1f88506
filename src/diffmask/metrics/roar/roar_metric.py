"""ROAR and Recursive ROAR: performance after masking the most important tokens and training again.

Hooker et al. 2019; for texts, and recursively, Madsen et al. 2022.
"""

from abc import ABC
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch

from diffmask.core.config import parse
from diffmask.core.explainer import Method
from diffmask.errors import ConfigError
from diffmask.methods.baselines import Random
from diffmask.metrics.metric import Metric
from diffmask.metrics.roar.masking import RandomDraws, RoarProtocol, Strategy
from diffmask.metrics.roar.step import ImportanceNode, RoarStep, StepScore
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.racu import CurveAreas, areas_between
from diffmask.results.records import Record
from diffmask.workspace.node import Address, Node
from diffmask.workspace.workspace import Workspace

PUBLISHED_METHODS: dict[str, dict[str, Any]] = {
    "gradient": {"name": "gradient", "one_hot": True, "quantity": "logit"},
    "times-input-gradient": {"name": "input-x-gradient", "quantity": "logit"},
    "integrated-gradients": {
        "name": "integrated-gradients",
        "as_published": True,
        "path": "right",
        "quantity": "logit",
    },
}
"""Importance measures of Madsen et al. 2022, with the options that compute them as published."""
SIGNED_METHODS = ("times-input-gradient", "integrated-gradients")


def roar_method(name: str, riemann_samples: int = 50, signed: bool = False) -> Method:
    """Return the importance measure that Madsen et al. 2022 call `name`, or the registered method of that name."""
    options = dict(PUBLISHED_METHODS.get(name, {"name": name}))
    if name == "integrated-gradients":
        options["n_steps"] = riemann_samples
    if signed and name in SIGNED_METHODS:
        options["signed"] = True
    method: Method = parse("method", options, "roar")
    return method


@dataclass(frozen=True, kw_only=True)
class RemoveAndRetrain(Metric, ABC):
    """Curve of the task's score over the amount of masked tokens, and the area between it and the random curve."""

    cost_scales_with_texts: ClassVar[bool] = False
    recursive: ClassVar[bool]
    variant: ClassVar[str]
    """Prefix of the names of its records."""

    strategy: Strategy = "quantile"
    """Whether an amount is a percentage of the maskable tokens or a number of tokens."""
    amounts: tuple[int, ...] = ()
    """Points of the curve, increasing from 0. Default, as published: 0 to 100 percent, or 0 to 10 tokens."""
    target: Literal["gold", "predicted"] = "gold"
    """Outcome that is explained."""
    absolute: bool = True
    """Whether tokens are ranked by the absolute score instead of by the signed score."""
    random_draws: RandomDraws = "published"
    """Scores of the random baseline: the published draws, or those of the `random` method. See `RoarProtocol`."""

    def __post_init__(self) -> None:
        if len(self.points) < 2 or self.points[0] != 0 or list(self.points) != sorted(set(self.points)):
            raise ConfigError(
                f"{self.name}: amounts must increase from 0, such as [0, 10, 20, 100]; found {list(self.points)}"
            )
        if self.strategy == "quantile" and self.points[-1] != 100:
            raise ConfigError(
                f"{self.name}: amounts must end at 100 percent, because RACU is relative to the score with everything "
                f"masked, such as [0, 10, 20, 100]; found {list(self.points)}"
            )

    @property
    def points(self) -> tuple[int, ...]:
        """Amounts that are masked."""
        return self.amounts or tuple(range(11) if self.strategy == "count" else range(0, 101, 10))

    def protocol(self) -> RoarProtocol:
        """Return how tokens are removed. A recursive step is the smallest distance between two points of the curve."""
        return RoarProtocol(
            strategy=self.strategy,
            recursive=self.recursive,
            step_size=min(after - before for before, after in pairwise(self.points)),
            target=self.target,
            absolute=self.absolute,
            random_draws=self.random_draws,
        )

    def steps(self, method: Method, workspace: Workspace) -> list[RoarStep]:
        """Return the step of each point of the curve."""
        return [RoarStep(workspace, method, self.protocol(), k) for k in self.points]

    def nodes(self, method: Method, workspace: Workspace) -> list[Node]:
        """Return the nodes of the method's curve and of the random curve, which the area needs."""
        nodes: dict[Address, Node] = {}
        for each in (Random(), method):
            steps = {step.k: step for point in self.steps(each, workspace) for step in point.lineage()}
            unmasked = RoarStep(workspace, each, self.protocol(), 0)
            for node in (ImportanceNode(workspace, unmasked), *steps.values()):
                nodes.setdefault(node.address, node)
        return list(nodes.values())

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Yield the points of the curve, then its areas.

        The random curve has no areas, nor has a curve by count, which may end before everything is masked.
        """
        curve = [step.score() for step in self.steps(method, workspace)]
        counted = self.strategy == "count"
        metric = f"{self.variant}_count_score" if counted else f"{self.variant}_score"
        for k, point in zip(self.points, curve, strict=True):
            yield self._record(method, workspace, metric, point.score, point.rows, at=float(k))
        if isinstance(method, Random) or counted:
            return
        random = [step.score() for step in self.steps(Random(), workspace)]
        areas = self.areas([point.score for point in curve], [point.score for point in random])
        by_row = self._racu_by_row(curve, random, areas.denominator)
        for metric, value in (
            ("racu", areas.relative),
            ("racu_clipped", areas.clipped),
            ("area", areas.absolute),
            ("area_possible", areas.denominator),
        ):
            record = self._record(method, workspace, f"{self.variant}_{metric}", value, curve[0].rows)
            yield replace(record, per_row=by_row) if metric == "racu" else record

    def _racu_by_row(
        self, curve: Sequence[StepScore], random: Sequence[StepScore], possible: float
    ) -> tuple[float, ...]:
        """Compute the contribution of each test row to RACU, their mean; empty if the score is not a mean of rows."""
        rows = len(curve[0].by_row)
        if not possible or not rows or any(len(point.by_row) != rows for point in (*curve, *random)):
            return ()
        scores, base = (
            torch.tensor([point.by_row for point in points], dtype=torch.float64) for points in (curve, random)
        )
        at = torch.tensor(self.points, dtype=torch.float64) / self.points[-1]
        return tuple((torch.trapezoid(base - scores, at, dim=0) / possible).tolist())

    def areas(self, curve: Sequence[float], random: Sequence[float]) -> CurveAreas:
        """Compute the areas between two curves at the points of this metric."""
        return areas_between(measure=curve, random=random, at=[k / self.points[-1] for k in self.points])

    def _record(
        self, method: Method, workspace: Workspace, metric: str, value: float, rows: int, at: float | None = None
    ) -> Record:
        return Record(
            task=workspace.task_config.label,
            method=method.label,
            site="",
            metric=metric,
            value=value,
            seed=workspace.seed,
            rows=rows,
            digest=workspace.run_key(method),
            at=at,
        )


def _racu_info(variant: str, title: str) -> MetricInfo:
    return MetricInfo(
        name=f"{variant}_racu",
        title=f"{title}'s RACU",
        higher_is_better=True,
        definition="loss of performance of a model retrained without the highest-scoring tokens, beyond that without "
        "random tokens, relative to the largest possible one",
        interpretation="A model retrained without the tokens that score highest loses more than one retrained without "
        "random tokens.",
        limitation="It does not show whether the explained model uses these tokens: other models are trained, which "
        "may learn from the positions of the masks. With one seed the intervals do not include the variance of "
        "training.",
        x_label="% of tokens masked",
        curve=f"{variant}_score",
        relative_to_random=True,
    )


@dataclass(frozen=True, kw_only=True)
class Roar(RemoveAndRetrain):
    """ROAR: scores are computed once, for the unmasked data and its model."""

    name: ClassVar[str] = "roar"
    recursive: ClassVar[bool] = False
    variant: ClassVar[str] = "roar"
    infos: ClassVar[tuple[MetricInfo, ...]] = (_racu_info("roar", "ROAR"),)


@dataclass(frozen=True, kw_only=True)
class RecursiveRoar(RemoveAndRetrain):
    """Recursive ROAR: scores are computed again at each step, so that redundant tokens are found as well."""

    name: ClassVar[str] = "recursive-roar"
    recursive: ClassVar[bool] = True
    variant: ClassVar[str] = "recursive_roar"
    infos: ClassVar[tuple[MetricInfo, ...]] = (_racu_info("recursive_roar", "Recursive ROAR"),)
