"""Curves of the prediction as tokens are erased or inserted in the order of their scores.

Deletion and insertion area: Petsiuk et al. 2018. Share of tokens that flip the decision: Nguyen 2018; Atanasova et al.
2020.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.batch import Batch
from diffmask.core.distributions import Quantity, predicts, target_score
from diffmask.core.explainer import Method
from diffmask.errors import ConfigError
from diffmask.metrics.erasure import Eraser, Mode, fraction_to_count, top_k_mask
from diffmask.metrics.metric import Metric, record_of
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.records import Record
from diffmask.workspace.workspace import Workspace

OUT_OF_DISTRIBUTION = "Texts with erased tokens may be out of distribution, which can cause part of the change."


@dataclass(frozen=True, kw_only=True)
class DeletionInsertion(Metric):
    """Area under p(decision | text without its top tokens) and under p(decision | only its top tokens)."""

    name: ClassVar[str] = "deletion-insertion"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="deletion_area",
            title="deletion",
            higher_is_better=False,
            definition="mean probability of the predicted class as tokens are erased, highest score first",
            interpretation="The probability of the predicted class falls quickly as tokens are erased in the method's "
            "order.",
            limitation=OUT_OF_DISTRIBUTION,
        ),
        MetricInfo(
            name="insertion_area",
            title="insertion",
            higher_is_better=True,
            definition="mean probability of the predicted class as tokens are inserted, highest score first",
            interpretation="The probability of the predicted class rises quickly as tokens are inserted in the "
            "method's order.",
            limitation=OUT_OF_DISTRIBUTION,
        ),
    )

    split: str = "test"
    shares: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    """Shares of the maskable tokens that are erased or inserted. The area is computed by the trapezoidal rule."""
    mode: Mode = "mask"
    quantity: Quantity = "probability"
    """Function of the model's output that the curve shows."""

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Yield both areas and the points of both curves."""
        explained_split = workspace.explained(method, self.split)
        batch, eraser = workspace.task().data[self.split], Eraser(workspace.task(), self.mode)
        for metric, keep in (("deletion_area", False), ("insertion_area", True)):
            points = erasure_curve(eraser, batch, explained_split.attribution.scores, self.shares, keep, self.quantity)
            areas = mean_height(points, self.shares)
            yield record_of(workspace, method, explained_split, "input", metric, areas, keep_rows=True)
            for share, values in zip(self.shares, points, strict=True):
                yield record_of(workspace, method, explained_split, "input", metric, values, at=share, keep_rows=True)


def erasure_curve(
    eraser: Eraser,
    batch: Batch,
    scores: Float[Tensor, "row token"],
    shares: Sequence[float],
    keep: bool,
    quantity: Quantity,
) -> Float[Tensor, "point row"]:
    """Compute the quantity of the original decision at each share: top tokens erased, or, with `keep`, the others."""
    outcome: Shaped[Tensor, "row *event"] = eraser.decisions(batch)
    points = []
    for share in shares:
        first = top_k_mask(scores, batch.maskable, fraction_to_count(batch.maskable, share))
        erased = batch.maskable & ~first if keep else first
        points.append(
            eraser.map_erased(batch, erased, lambda prediction, rows: target_score(prediction, outcome[rows], quantity))
        )
    return torch.stack(points)


def mean_height(points: Float[Tensor, "point row"], shares: Sequence[float]) -> Float[Tensor, " row"]:
    """Compute the mean height of each row's curve by the trapezoidal rule.

    >>> mean_height(torch.tensor([[1.0], [0.5], [0.0]]), (0.0, 0.5, 1.0))
    tensor([0.5000])
    """
    knots = torch.tensor(shares, dtype=points.dtype)
    return torch.trapezoid(points, knots, dim=0) / (knots[-1] - knots[0])


@dataclass(frozen=True, kw_only=True)
class DecisionFlip(Metric):
    """Share of the maskable tokens erased, highest score first, when the decision first changes. 1 if it never does."""

    name: ClassVar[str] = "decision-flip"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="flip_share",
            title="share of tokens to flip the decision",
            higher_is_better=False,
            definition="share of tokens that must be erased, highest score first, to change the predicted class",
            interpretation="Erasing few tokens in the method's order changes the predicted class.",
            limitation="A prediction can change because the text is out of distribution. The class that the model "
            "predicts for a fully masked text never changes.",
        ),
    )

    split: str = "test"
    mode: Mode = "mask"
    steps: int = 100
    """Largest number of predictions per text: after each token, or after each hundredth of a longer text."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"decision-flip: steps is at least 1; found {self.steps}")

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Yield the mean share."""
        explained_split = workspace.explained(method, self.split)
        batch, eraser = workspace.task().data[self.split], Eraser(workspace.task(), self.mode)
        share = flip_share(eraser, batch, explained_split.attribution.scores, self.steps)
        yield record_of(workspace, method, explained_split, "input", "flip_share", share, keep_rows=True)


def flip_share(eraser: Eraser, batch: Batch, scores: Float[Tensor, "row token"], steps: int) -> Float[Tensor, " row"]:
    """Compute the share of tokens erased when the decision first changes, or 1 if it never does."""
    outcome = eraser.decisions(batch)
    tokens = batch.maskable.sum(dim=1)
    share = torch.ones(len(batch))
    waiting = torch.arange(len(batch))
    for step in range(1, steps + 1):
        count = erased_after(step, tokens, steps)
        waiting = waiting[(step <= tokens[waiting]) | (step == 1)]
        if len(waiting) == 0:
            break
        erased = top_k_mask(scores[waiting], batch.maskable[waiting], count[waiting])
        same = eraser.map_erased(batch[waiting], erased, partial(_is_predicted, outcome[waiting]))
        flipped = waiting[~same]
        share[flipped] = count[flipped] / tokens[flipped].clamp(min=1)
        waiting = waiting[same]
    return share


def erased_after(step: int, tokens: Int[Tensor, " row"], steps: int) -> Int[Tensor, " row"]:
    """Compute the number of tokens erased at a step: one more per step, or equal shares in texts longer than `steps`.

    >>> erased_after(2, torch.tensor([3, 10]), steps=5)
    tensor([2, 4])
    """
    return torch.where(tokens <= steps, step, (tokens * step / steps).ceil().long()).minimum(tokens)


def _is_predicted(
    outcome: Shaped[Tensor, "text *event"], prediction: Distribution, rows: Int[Tensor, " row"]
) -> Bool[Tensor, " row"]:
    return predicts(prediction, outcome[rows])
