"""Sanity checks: scores must change when the weights are shuffled (Adebayo et al. 2018) and agree between seeds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffmask.core.batch import Attribution
from diffmask.core.explainer import Method
from diffmask.core.task import Task
from diffmask.core.training import generator
from diffmask.errors import ConfigError
from diffmask.metrics.metric import Metric, record_of
from diffmask.metrics.ranks import rank_correlation
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.records import Record
from diffmask.workspace.derived import ModifiedWorkspace, ReseededWorkspace, TaskModification
from diffmask.workspace.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class ShuffledWeights(TaskModification):
    """Shuffles the entries of each weight in the last share of the modules, counted from the head."""

    name: ClassVar[str] = "shuffled"

    share: float = 1.0
    """Share of the modules with weights, counted from the head."""

    def apply(self, task: Task, seed: int) -> None:
        """Leave the rows as they are."""

    @torch.no_grad()
    def train(self, task: Task, seed: int) -> None:
        """Shuffle each weight in place, which keeps its mean and standard deviation."""
        source = generator(seed, "shuffled weights")
        owners = modules_with_weights(task.model)
        for module in owners[len(owners) - round(self.share * len(owners)) :]:
            for weight in module.parameters(recurse=False):
                order = torch.randperm(weight.numel(), generator=source).to(weight.device)
                weight.copy_(weight.flatten()[order].view_as(weight))


def modules_with_weights(model: nn.Module) -> list[nn.Module]:
    """Return the modules that hold weights themselves, in the order of their definition: the head is last."""
    return [module for module in model.modules() if any(True for _ in module.parameters(recurse=False))]


@dataclass(frozen=True, kw_only=True)
class RandomisedModel(Metric):
    """Spearman's rho between the scores for the model and for a copy with shuffled weights."""

    name: ClassVar[str] = "randomised-model"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="randomised_correlation",
            title="correlation with a shuffled model",
            higher_is_better=False,
            definition="rank correlation with the scores for a copy of the model with shuffled weights",
            interpretation="The scores depend on the learned weights: they differ for a model with shuffled weights.",
            limitation="A value near zero is necessary, not sufficient, for a right explanation. The architecture "
            "alone can give some tokens more weight than others, which is not a fault of the method.",
        ),
    )

    split: str = "test"
    shares: tuple[float, ...] = ()
    """Points of a curve: shares of the modules, counted from the head, whose weights are shuffled."""

    def __post_init__(self) -> None:
        if not all(0 < share <= 1 for share in self.shares):
            raise ConfigError(f"randomised-model: shares are above 0 and at most 1; found {list(self.shares)}")

    def extra_workspaces(self, workspace: Workspace) -> Sequence[Workspace]:
        """Return the workspace with all weights shuffled, then one per share."""
        changes = [ShuffledWeights(), *(ShuffledWeights(share=share) for share in self.shares)]
        return [ModifiedWorkspace.of(workspace, change) for change in changes]

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Yield the correlation with all weights shuffled, then one per share."""
        original = workspace.explained(method, self.split)
        maskable = workspace.task().data[self.split].maskable
        for share, shuffled in zip((None, *self.shares), self.extra_workspaces(workspace), strict=True):
            randomised = shuffled.explained(method, self.split)
            values = rank_correlation(original.attribution.scores, randomised.attribution.scores, maskable)
            yield record_of(
                workspace, method, original, "input", "randomised_correlation", values, at=share, keep_rows=True
            )


@dataclass(frozen=True, kw_only=True)
class StabilityOverSeeds(Metric):
    """Mean Spearman's rho between the scores of a fit with seed s and of fits with seeds s + 1, s + 2, ..."""

    name: ClassVar[str] = "stability"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="seed_correlation",
            title="agreement between seeds",
            higher_is_better=True,
            definition="rank correlation between the scores of fits with different seeds",
            interpretation="A fit with another seed ranks the tokens of a text alike.",
            limitation="A deterministic method always has the value 1, whether it is right or not.",
        ),
        MetricInfo(
            name="seed_layer_spread",
            title="spread of the layer claims between seeds",
            higher_is_better=False,
            definition="mean absolute difference, in layers, of the layer that drops a token, between seeds",
            interpretation="A claim such as 'needed until block 5' has this spread over fits with other seeds.",
            limitation="Masks that drop every token at the same layer have the value 0, whether they are right or not.",
        ),
    )

    split: str = "test"
    others: int = 1
    """Number of further fits on the same model."""

    def __post_init__(self) -> None:
        if self.others < 1:
            raise ConfigError(f"stability: others is at least 1; found {self.others}")

    def extra_workspaces(self, workspace: Workspace) -> Sequence[Workspace]:
        """Return the workspaces of the same task at further seeds."""
        return [ReseededWorkspace.of(workspace, workspace.seed + further) for further in range(1, self.others + 1)]

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Yield the mean correlation and, for methods with a mask per layer, the spread of the dropping layer."""
        original = workspace.explained(method, self.split)
        maskable = workspace.task().data[self.split].maskable
        others = [other.explained(method, self.split).attribution for other in self.extra_workspaces(workspace)]
        correlations = [rank_correlation(original.attribution.scores, other.scores, maskable) for other in others]
        values = torch.stack(correlations).mean(dim=0)
        yield record_of(workspace, method, original, "input", "seed_correlation", values, keep_rows=True)
        if original.attribution.by_layer is None:
            return
        first = layers_needed(original.attribution.by_layer)
        spreads = [(first - layers_needed(by_layer)).abs() for by_layer in _by_layer(others)]
        spread = (torch.stack(spreads).mean(dim=0) * maskable).sum(dim=1) / maskable.sum(dim=1).clamp(min=1)
        yield record_of(workspace, method, original, "input", "seed_layer_spread", spread, keep_rows=True)


def _by_layer(attributions: Sequence[Attribution]) -> list[Float[Tensor, "row layer token"]]:
    return [attribution.by_layer for attribution in attributions if attribution.by_layer is not None]


def layers_needed(keep_probability: Float[Tensor, "row layer token"]) -> Float[Tensor, "row token"]:
    """Return the number of layers until each token is dropped for good: the last layer that keeps it, counted from 1.

    >>> layers_needed(torch.tensor([[[0.9, 0.9], [0.2, 0.8], [0.6, 0.1]]]))
    tensor([[3., 2.]])
    """
    layers = torch.arange(1, keep_probability.shape[1] + 1, device=keep_probability.device)
    return ((keep_probability > 0.5) * layers[:, None]).amax(dim=1).to(keep_probability)
