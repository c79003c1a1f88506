"""An `Metric` sees a method and a task on a bench, and yields flat records."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from diffmask.core.config import Config
from diffmask.core.explainer import Method
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.records import Record
from diffmask.workspace.node import Node
from diffmask.workspace.workspace import CachedAttribution, Workspace


@dataclass(frozen=True, kw_only=True)
class Metric(Config, ABC):
    """The choices that make a measurement; `run` makes it."""

    kind: ClassVar[str] = "metric"
    infos: ClassVar[tuple[MetricInfo, ...]] = ()
    """How to read the metrics it yields, where methods are compared by them: a measure's name is a record's metric."""

    perturbs_input: ClassVar[bool] = False
    """Whether it takes words out of texts: what the model then says may be surprise."""
    cost_scales_with_texts: ClassVar[bool] = True
    """Whether its work grows with the texts: what it takes can then be forecast from a few."""

    @abstractmethod
    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """The numbers, one a record."""

    def extra_workspaces(self, workspace: Workspace) -> Sequence[Workspace]:
        """Benches on which it fits and asks methods anew, with tasks that it may have to train first."""
        return ()

    def pilot_version(self) -> tuple["Metric", float]:
        """The same over tasks that are trained for less long, and how many times as long its own are trained."""
        return self, 1.0

    def nodes(self, method: Method, workspace: Workspace) -> Sequence[Node]:
        """What of its work can be done beside other work, in an order that can be run; `run` finds it done."""
        return ()


def record_of(
    workspace: Workspace,
    method: Method,
    explained: CachedAttribution,
    site: str,
    metric: str,
    values: Float[Tensor, " row"],
    *,
    at: float | None = None,
    keep_rows: bool = False,
) -> Record:
    """The mean of a metric over rows, as a record that knows what it cost."""
    finite = bool(values.isfinite().all())
    return Record(
        task=workspace.task_config.label,
        method=method.label,
        site=site,
        metric=metric,
        value=values.mean().item(),
        seed=workspace.seed,
        rows=len(values),
        deviation=values.std().item() if finite and len(values) > 1 else 0.0,
        cost=explained.figures(),
        digest=workspace.run_key(method),
        at=at,
        per_row=tuple(values.tolist()) if keep_rows else (),
    )
