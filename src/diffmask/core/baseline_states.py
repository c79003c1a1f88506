"""Statistics of the states at a site, the baseline state that replaces an erased one, and explainers that need it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Generic, Literal, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffmask.core.batch import Batch
from diffmask.core.capabilities import HasPlaceholder
from diffmask.core.explainer import Explainer, ForwardTrace, iter_traces
from diffmask.core.resources import AdaptiveBatchSize
from diffmask.core.task import Task
from diffmask.errors import TaskError


@dataclass(frozen=True)
class SiteStatistics:
    """Mean and standard deviation of the states at a site, over real tokens."""

    mean: Float[Tensor, " width"]
    deviation: Float[Tensor, " width"]


def site_statistics(task: Task, sites: Iterable[str], rows: int) -> dict[str, SiteStatistics]:
    """Compute the statistics of the named sites over `rows` training rows."""
    return trace_statistics(iter_traces(task, task.data["train"].spread(rows), 128), sites)


def trace_statistics(traces: Iterable[ForwardTrace], sites: Iterable[str]) -> dict[str, SiteStatistics]:
    """Compute the statistics of the named sites over the rows of the given traces."""
    moments = {site: _Moments() for site in sites}
    for trace in traces:
        for site, moment in moments.items():
            moment.add(trace.states[site][trace.rows.present])
    return {site: moment.statistics() for site, moment in moments.items()}


class _Moments:
    """Running count, sum and sum of squares in double precision; results have the states' dtype, at least float32."""

    def __init__(self) -> None:
        self.count, self.total, self.squares, self.dtype = 0, torch.zeros(()), torch.zeros(()), torch.float32

    def add(self, states: Float[Tensor, "token width"]) -> None:
        self.dtype = torch.promote_types(states.dtype, torch.float32)
        self.count += len(states)
        self.total = self.total + states.double().sum(dim=0)
        self.squares = self.squares + states.double().square().sum(dim=0)

    def statistics(self) -> SiteStatistics:
        mean = self.total / self.count
        variance = (self.squares / self.count - mean.square()).clamp(min=0)
        return SiteStatistics(mean.to(self.dtype), variance.sqrt().clamp(min=1e-6).to(self.dtype))


def mask_state(task: Task, site: str, rows: int = 64) -> Float[Tensor, " width"]:
    """Return the mean state of the mask token, over rows whose maskable tokens are all masked."""
    if task.mask_token is None:
        raise TaskError(f"{type(task).__name__} has no mask token; use baseline 'mean' or 'zero'")
    return token_state(task, site, task.mask_token, rows)


def token_state(task: Task, site: str, token: int, rows: int = 64) -> Float[Tensor, " width"]:
    """Return the mean state of one token, over training rows whose maskable tokens are all this token.

    At the embedding this is the token's vector, so that training rows are not needed there: a task without them that
    can encode a placeholder uses that.
    """
    batch = example_rows(task, rows).trim()
    replaced = replace(batch, tokens=batch.tokens.masked_fill(batch.maskable, token))
    _, states = task.trace(replaced)
    return states[site][batch.maskable].mean(dim=0)


def example_rows(task: Task, rows: int) -> Batch:
    """Return training rows, or those of another split, or a placeholder of a task without data."""
    if not task.data and isinstance(task, HasPlaceholder):
        return task.placeholder_batch()
    split = "train" if "train" in task.data else next(iter(task.data), "train")
    return task.data[split][:rows]


Baseline = Literal["auto", "zero", "mean", "mask", "pad"]
"""The state of an erased token: zeros, the mean state, or the state of the mask or padding token.

`auto` is `mask` if the task has a mask token, else `mean`, or `pad` if there are no training rows.
"""


def baseline_state(task: Task, site: str, baseline: Baseline, rows: int = 2000) -> Float[Tensor, " width"]:
    """Return the state that replaces an erased one at a site."""
    default = "mask" if task.mask_token is not None else "mean" if "train" in task.data else "pad"
    chosen = default if baseline == "auto" else baseline
    if chosen == "mask":
        return mask_state(task, site)
    if chosen == "pad":
        return token_state(task, site, task.pad_token)
    if chosen == "zero":
        state = ForwardTrace.of(task, example_rows(task, 1).trim()).states[site]
        return state.new_zeros(state.shape[-1], dtype=torch.promote_types(state.dtype, torch.float32))
    return site_statistics(task, [site], rows)[site].mean


@runtime_checkable
class _RunsInPortions(Protocol):
    @property
    def internal_batch_size(self) -> int:
        """Rows per forward pass."""


MethodT = TypeVar("MethodT", bound=_RunsInPortions)


class BaselineExplainer(Explainer, Generic[MethodT]):
    """Explainer that replaces states at one site by a baseline, in many rows whose number per pass may shrink."""

    def __init__(self, method: MethodT, task: Task, site: str, baseline: Float[Tensor, " width"]) -> None:
        super().__init__(task)
        self.method, self.site = method, site
        self.baseline = nn.Parameter(baseline, requires_grad=False)
        self.portion = AdaptiveBatchSize(method.internal_batch_size)
