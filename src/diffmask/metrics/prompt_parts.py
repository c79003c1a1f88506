"""Metrics of scores of units that are erased as a whole, such as the parts of a language model's prompt.

Linear datamodelling score (Park et al. 2023, Cohen-Wang et al. 2024), top-k drop, sufficiency and identical responses.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffmask.core.batch import Batch
from diffmask.core.capabilities import ErasesUnits, explained_outcome, require
from diffmask.core.config import require_between
from diffmask.core.distributions import divergence, predicts, target_score
from diffmask.core.explainer import Method
from diffmask.core.task import Task
from diffmask.core.training import generator
from diffmask.core.units import tokens_of_units, unit_scores
from diffmask.methods.unit_ablation import ablated_scores
from diffmask.metrics.metric import Metric, record_of
from diffmask.metrics.ranks import rank_correlation
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.records import Record
from diffmask.workspace.workspace import Workspace

UNDER_ERASURE = "A prompt without some of its parts may be out of distribution for the model."


@dataclass(frozen=True, kw_only=True)
class LinearDatamodelling(Metric):
    """Spearman correlation, over random ablations, of the sum of the kept units' scores with the measured log-odds."""

    name: ClassVar[str] = "linear-datamodelling"
    perturbs_input: ClassVar[bool] = True
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="lds",
            title="linear datamodelling score",
            higher_is_better=True,
            definition="rank correlation of summed scores and measured log-odds over random ablations of the parts",
            interpretation="Adding up the scores of the kept parts predicts which ablations harm the response most.",
            limitation=UNDER_ERASURE,
        ),
    )

    split: str = "test"
    ablations: int = 64
    """Random ablations per row; each part is kept with probability one half."""

    def __post_init__(self) -> None:
        require_between(self, "ablations", 3)

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Yield one number."""
        task = workspace.task()
        batch = task.data[self.split]
        numbers = require(task, ErasesUnits, self.name).unit_numbers(batch)
        explained = workspace.explained(method, self.split)
        scores = unit_scores(explained.attribution.scores, numbers)
        rows = torch.arange(len(batch)).repeat_interleave(self.ablations)
        source = generator(0, "linear datamodelling", scores.shape[1])
        kept = torch.rand(len(rows), scores.shape[1], generator=source) < 0.5
        measured = ablated_scores(task, batch, explained_outcome(task, batch), rows, kept)
        predicted = (scores[rows] * kept).sum(dim=1)
        shape = (len(batch), self.ablations)
        correlation = rank_correlation(predicted.view(shape), measured.view(shape), torch.ones(shape, dtype=torch.bool))
        yield record_of(workspace, method, explained, "input", "lds", correlation, keep_rows=True)


@dataclass(frozen=True, kw_only=True)
class PartErasure(Metric):
    """Effect of erasing the k units with the highest scores, and of keeping them alone."""

    name: ClassVar[str] = "part-erasure"
    perturbs_input: ClassVar[bool] = True
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="top_k_drop",
            title="top-k drop",
            higher_is_better=True,
            definition="loss of log-probability per response token when the k parts with the highest scores are erased",
            interpretation="The parts with the highest scores are those that the response depends on.",
            limitation=UNDER_ERASURE,
        ),
        MetricInfo(
            name="part_sufficiency",
            title="divergence of the top k alone",
            higher_is_better=False,
            definition="KL(original || only the k parts with the highest scores), in nats per response token",
            interpretation="The parts with the highest scores are nearly enough for the response.",
            limitation="A model that depends on its whole prompt has a large value for every method.",
        ),
        MetricInfo(
            name="identical_response",
            title="identical responses",
            higher_is_better=True,
            definition="share of prompts whose greedy response from the k parts with the highest scores is the same",
            interpretation="The parts with the highest scores alone give the same response, word for word.",
            limitation="One changed word counts as much as another response.",
        ),
    )

    split: str = "test"
    k: int = 1
    """Number of parts that are erased, and kept alone."""

    def __post_init__(self) -> None:
        require_between(self, "k", 1)

    @torch.no_grad()
    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Yield three numbers."""
        task = workspace.task()
        batch = task.data[self.split]
        numbers = require(task, ErasesUnits, self.name).unit_numbers(batch)
        explained = workspace.explained(method, self.split)
        top = top_units(unit_scores(explained.attribution.scores, numbers), numbers, self.k)
        row_values = [self._row(task, batch[row : row + 1].trim(), top[row : row + 1]) for row in range(len(batch))]
        for name, values in zip([info.name for info in self.infos], torch.stack(row_values, dim=1), strict=True):
            yield record_of(workspace, method, explained, "input", name, values, keep_rows=True)

    def _row(self, task: Task, batch: Batch, top: Bool[Tensor, "row unit"]) -> Float[Tensor, " metric"]:
        units = require(task, ErasesUnits, self.name)
        numbers, outcome = units.unit_numbers(batch), explained_outcome(task, batch)
        chosen = tokens_of_units(top, numbers)
        whole = task.predict(batch)
        without = task.predict(units.erase(batch, chosen))
        alone = task.predict(units.erase(batch, batch.maskable & ~chosen))
        tokens = batch.inputs["scored"].sum() if "scored" in batch.inputs else torch.tensor(1)
        loss = target_score(whole, outcome, "log-probability") - target_score(without, outcome, "log-probability")
        same = predicts(alone, outcome * batch.inputs.get("scored", torch.ones_like(outcome)))
        return torch.cat([loss / tokens, divergence(whole, alone), same.float()])


def top_units(scores: Float[Tensor, "row unit"], numbers: Int[Tensor, "row token"], k: int) -> Bool[Tensor, "row unit"]:
    """Mark the k units of each row with the highest scores, ties by position.

    >>> top_units(torch.tensor([[0.1, 0.9, 0.0]]), torch.tensor([[1, 2]]), 1)
    tensor([[False,  True, False]])
    """
    real = torch.arange(1, scores.shape[1] + 1, device=scores.device) <= numbers.amax(dim=1, keepdim=True)
    order = scores.masked_fill(~real, -torch.inf).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return (order < k) & real
