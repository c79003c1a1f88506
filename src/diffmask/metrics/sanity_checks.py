"""Scores must change when the weights do: the model against one whose weights are shuffled. Adebayo et al. 2018.

Is a method fitted again, with another seed, of the same opinion?
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from diffmask.core.explainer import Method
from diffmask.core.task import Task
from diffmask.core.training import generator
from diffmask.errors import ConfigError
from diffmask.metrics.base import Metric, record_of
from diffmask.metrics.ranks import rank_correlation
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.records import Record
from diffmask.workspace.derived import ModifiedWorkspace, ReseededWorkspace, TaskModification
from diffmask.workspace.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class Shuffled(TaskModification):
    """The last share of the model's modules, from the head down, with the numbers of each weight in another order."""

    name: ClassVar[str] = "shuffled"

    share: float = 1.0

    def apply(self, task: Task, seed: int) -> None:
        """The rows stay."""

    @torch.no_grad()
    def train(self, task: Task, seed: int) -> None:
        """Shuffle in place: each weight keeps its mean and deviation, and loses what it learned."""
        source = generator(seed, "shuffled weights")
        owners = weight_owners(task.model)
        for module in owners[len(owners) - round(self.share * len(owners)) :]:
            for weight in module.parameters(recurse=False):
                order = torch.randperm(weight.numel(), generator=source).to(weight.device)
                weight.copy_(weight.flatten()[order].view_as(weight))


def weight_owners(model: nn.Module) -> list[nn.Module]:
    """Modules that hold weights themselves, in the order in which the model defines them: the head comes last."""
    return [module for module in model.modules() if any(True for _ in module.parameters(recurse=False))]


@dataclass(frozen=True, kw_only=True)
class RandomisedModel(Metric):
    """Spearman's rho between the scores of the model and those of a copy whose weights are shuffled."""

    name: ClassVar[str] = "randomised-model"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="randomised_correlation",
            title="correlation with a shuffled model",
            higher_is_better=False,
            interpretation="The scores follow what the model learned: without it they are others.",
            limitation="Near zero is the least one may ask, not a sign of truth; and a model's wiring alone can give "
            "some tokens more weight than others, which is no fault of a method.",
        ),
    )

    split: str = "test"
    shares: tuple[float, ...] = ()
    """Points of a curve on the way: shares of the modules, from the head down, that are shuffled."""

    def __post_init__(self) -> None:
        if not all(0 < share <= 1 for share in self.shares):
            raise ConfigError(f"randomised-model: shares are above 0 and at most 1; found {list(self.shares)}")

    def extra_workspaces(self, workspace: Workspace) -> Sequence[Workspace]:
        """Everything shuffled, then each share."""
        changes = [Shuffled(), *(Shuffled(share=share) for share in self.shares)]
        return [ModifiedWorkspace.of(workspace, change) for change in changes]

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """The correlation with everything shuffled; then that of each share."""
        own = workspace.explained(method, self.split)
        maskable = workspace.task().data[self.split].maskable
        for share, shuffled in zip((None, *self.shares), self.extra_workspaces(workspace), strict=True):
            other = shuffled.explained(method, self.split)
            values = rank_correlation(own.attribution.scores, other.attribution.scores, maskable)
            yield record_of(workspace, method, own, "input", "randomised_correlation", values, at=share, keep_rows=True)


@dataclass(frozen=True, kw_only=True)
class StabilityOverSeeds(Metric):
    """Mean of Spearman's rho between the scores of a fit with seed s and those of fits with s + 1, s + 2, ..."""

    name: ClassVar[str] = "stability"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="seed_correlation",
            title="agreement between seeds",
            higher_is_better=True,
            interpretation="A fit with another seed ranks the tokens of a text alike.",
            limitation="A method that draws nothing at random agrees with itself whatever it says.",
        ),
    )

    split: str = "test"
    others: int = 1
    """Further fits, on the same model."""

    def __post_init__(self) -> None:
        if self.others < 1:
            raise ConfigError(f"stability: others is at least 1; found {self.others}")

    def extra_workspaces(self, workspace: Workspace) -> Sequence[Workspace]:
        """The same task at other seeds."""
        return [ReseededWorkspace.of(workspace, workspace.seed + further) for further in range(1, self.others + 1)]

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """One number."""
        own = workspace.explained(method, self.split)
        maskable = workspace.task().data[self.split].maskable
        others = [beside.explained(method, self.split).attribution for beside in self.extra_workspaces(workspace)]
        found = [rank_correlation(own.attribution.scores, other.scores, maskable) for other in others]
        values = torch.stack(found).mean(dim=0)
        yield record_of(workspace, method, own, "input", "seed_correlation", values, keep_rows=True)
