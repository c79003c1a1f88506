"""Base class of metrics: a `Metric` evaluates a method on the task of a workspace and yields flat records."""

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
    """Config of a metric. `run` computes one or several numbers, each described by a `MetricInfo`."""

    kind: ClassVar[str] = "metric"
    infos: ClassVar[tuple[MetricInfo, ...]] = ()
    """Descriptions of the numbers that methods are compared by. Records without a description are not compared."""

    perturbs_input: ClassVar[bool] = False
    """Whether the model is run on texts with erased tokens, which may be out of its training distribution."""
    cost_scales_with_texts: ClassVar[bool] = True
    """Whether the cost grows with the number of texts. If so, a pilot run on a few texts can forecast it."""

    @abstractmethod
    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Compute the metric of a method and yield one record per number."""

    def extra_workspaces(self, workspace: Workspace) -> Sequence[Workspace]:
        """Return further workspaces on which `run` fits the method. Their tasks may have to be trained first."""
        return ()

    def pilot_version(self) -> tuple["Metric", float]:
        """Return a cheaper copy for cost estimation and the factor that scales its training time."""
        return self, 1.0

    def nodes(self, method: Method, workspace: Workspace) -> Sequence[Node]:
        """Return the nodes that an executor may run in parallel before `run`, in an executable order."""
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
    """Build the record of the mean of a metric over rows, with the cost of the explanations."""
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
