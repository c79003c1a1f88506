"""ROAR and Recursive ROAR: performance after masking what a method calls important, and training again.

Hooker et al. 2019; for texts, and recursively, Madsen et al. 2022.
"""

from abc import ABC
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal

import torch

from diffmask.core.explainer import Method
from diffmask.errors import ConfigError
from diffmask.methods.baselines import Random
from diffmask.metrics.base import Metric
from diffmask.metrics.roar.masking import Strategy
from diffmask.metrics.roar.step import Importances, Protocol, Score, Step
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.racu import CurveAreas, areas_between
from diffmask.results.records import Record
from diffmask.workspace.node import Node
from diffmask.workspace.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class RemoveAndRetrain(Metric, ABC):
    """A curve of the task's own score over what is masked; over shares, the area between it and the random one, too."""

    cost_scales_with_texts: ClassVar[bool] = False
    recursive: ClassVar[bool]
    variant: ClassVar[str]
    """What its metrics' names begin with."""

    strategy: Strategy = "quantile"
    """Percent of the tokens that may be masked, or so many of them."""
    amounts: tuple[int, ...] = ()
    """Points of the curve, rising from 0; where none are given as published: 0 to 100 percent, or 0 to 10 tokens."""
    target: Literal["gold", "predicted"] = "gold"
    """The outcome whose importances are taken."""
    absolute: bool = True
    """Whether a token that speaks against the outcome is as important as one that speaks for it."""

    def __post_init__(self) -> None:
        if len(self.points) < 2 or self.points[0] != 0 or list(self.points) != sorted(set(self.points)):
            raise ConfigError(f"{self.name}: amounts {list(self.points)} do not rise from 0; as in [0, 10, 20, 100]")
        if self.strategy == "quantile" and self.points[-1] != 100:
            raise ConfigError(
                f"{self.name}: amounts {list(self.points)} do not end at 100 percent, where everything is masked and "
                "which RACU is relative to; as in [0, 10, 20, 100]"
            )

    @property
    def points(self) -> tuple[int, ...]:
        """The amounts that are masked."""
        return self.amounts or tuple(range(11) if self.strategy == "count" else range(0, 101, 10))

    def protocol(self) -> Protocol:
        """How tokens are removed; a recursive step is from one point of the curve to the next."""
        return Protocol(
            strategy=self.strategy,
            recursive=self.recursive,
            step_size=min(after - before for before, after in pairwise(self.points)),
            target=self.target,
            absolute=self.absolute,
        )

    def steps(self, method: Method, workspace: Workspace) -> list[Step]:
        """One for each point of the curve."""
        return [Step(workspace, method, self.protocol(), k) for k in self.points]

    def nodes(self, method: Method, workspace: Workspace) -> list[Node]:
        """The unmasked model's importances and each training; of the random curve too: there is no area without it."""
        found: dict[tuple[str, str], Node] = {}
        for chosen in (Random(), method):
            steps = {step.k: step for point in self.steps(chosen, workspace) for step in point.lineage()}
            for part in (Importances(workspace, Step(workspace, chosen, self.protocol(), 0)), *steps.values()):
                found.setdefault(part.address, part)
        return list(found.values())

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """The curve, then its areas; a random one has none, nor one by count, which may end before all is masked."""
        curve = [step.score() for step in self.steps(method, workspace)]
        counted = self.strategy == "count"
        metric = f"{self.variant}_count_score" if counted else f"{self.variant}_score"
        for k, point in zip(self.points, curve, strict=True):
            yield self._record(method, workspace, metric, point.score, point.rows, at=float(k))
        if isinstance(method, Random) or counted:
            return
        random = [step.score() for step in self.steps(Random(), workspace)]
        found = self.areas([point.score for point in curve], [point.score for point in random])
        by_row = self._by_row(curve, random, found.denominator)
        for metric, value in (
            ("racu", found.relative),
            ("racu_clipped", found.clipped),
            ("area", found.absolute),
            ("area_possible", found.denominator),
        ):
            record = self._record(method, workspace, f"{self.variant}_{metric}", value, curve[0].rows)
            yield replace(record, per_row=by_row) if metric == "racu" else record

    def _by_row(self, curve: Sequence[Score], random: Sequence[Score], possible: float) -> tuple[float, ...]:
        """Each test row's part in RACU, whose mean it is; nothing where the score is no mean of rows."""
        rows = len(curve[0].by_row)
        if not possible or not rows or any(len(point.by_row) != rows for point in (*curve, *random)):
            return ()
        found, base = (torch.tensor([point.by_row for point in one], dtype=torch.float64) for one in (curve, random))
        at = torch.tensor(self.points, dtype=torch.float64) / self.points[-1]
        return tuple((torch.trapezoid(base - found, at, dim=0) / possible).tolist())

    def areas(self, curve: Sequence[float], random: Sequence[float]) -> CurveAreas:
        """Between two curves at this metric's points."""
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


def _measure(variant: str, title: str) -> MetricInfo:
    return MetricInfo(
        name=f"{variant}_racu",
        title=f"{title}'s RACU",
        higher_is_better=True,
        definition="loss of performance of a model retrained without the highest-scoring tokens, beyond that without "
        "random tokens, relative to the largest possible one",
        interpretation="A model retrained without the tokens that score highest loses more than one retrained without "
        "random tokens.",
        limitation="Whether this very model uses those tokens: another is trained, and may read where the masks are. "
        "With one seed the chance of a training is not in the intervals, only that of the texts.",
        x_label="% of tokens masked",
        curve=f"{variant}_score",
        relative_to_random=True,
    )


@dataclass(frozen=True, kw_only=True)
class Roar(RemoveAndRetrain):
    """Importances once, of the unmasked data and its model."""

    name: ClassVar[str] = "roar"
    recursive: ClassVar[bool] = False
    variant: ClassVar[str] = "roar"
    infos: ClassVar[tuple[MetricInfo, ...]] = (_measure("roar", "ROAR"),)


@dataclass(frozen=True, kw_only=True)
class RecursiveRoar(RemoveAndRetrain):
    """Importances again at each step, of the masked data and the model trained on it: redundancy cannot hide."""

    name: ClassVar[str] = "recursive-roar"
    recursive: ClassVar[bool] = True
    variant: ClassVar[str] = "recursive_roar"
    infos: ClassVar[tuple[MetricInfo, ...]] = (_measure("recursive_roar", "Recursive ROAR"),)
