"""Deletion and insertion: how fast the answer goes, and comes back, in the order of the scores. Petsiuk et al. 2018.

How many tokens, in the order of the scores, go before the decision changes? Nguyen 2018; Atanasova et al. 2020.
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
from diffmask.metrics.base import Metric, record_of
from diffmask.metrics.erasure import Eraser, Mode, fraction_to_count, top_k_mask
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.records import Record
from diffmask.workspace.workspace import Workspace

BLIND = "Erased texts are unlike those the model was trained on: part of what changes may be surprise, not evidence."


@dataclass(frozen=True, kw_only=True)
class DeletionInsertion(Metric):
    """Area under p(decision | text less its first tokens), and under p(decision | its first tokens alone)."""

    name: ClassVar[str] = "deletion-insertion"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="deletion_area",
            title="deletion",
            higher_is_better=False,
            interpretation="The answer goes quickly when tokens are erased in the method's order.",
            limitation=BLIND,
        ),
        MetricInfo(
            name="insertion_area",
            title="insertion",
            higher_is_better=True,
            interpretation="The answer comes back quickly when tokens are given back in the method's order.",
            limitation=BLIND,
        ),
    )

    split: str = "test"
    shares: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    """Shares of the maskable tokens that are erased, or given back; the area is by trapezes between them."""
    mode: Mode = "mask"
    quantity: Quantity = "probability"

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Two areas, and the points of both curves."""
        explained_split = workspace.explained(method, self.split)
        batch, eraser = workspace.task().data[self.split], Eraser(workspace.task(), self.mode)
        for metric, keep in (("deletion_area", False), ("insertion_area", True)):
            points = curve(eraser, batch, explained_split.attribution.scores, self.shares, keep, self.quantity)
            heights = area(points, self.shares)
            yield record_of(workspace, method, explained_split, "input", metric, heights, keep_rows=True)
            for share, values in zip(self.shares, points, strict=True):
                yield record_of(workspace, method, explained_split, "input", metric, values, at=share, keep_rows=True)


def curve(
    eraser: Eraser,
    batch: Batch,
    scores: Float[Tensor, "row token"],
    shares: Sequence[float],
    keep: bool,
    quantity: Quantity,
) -> Float[Tensor, "point row"]:
    """The quantity of the original decision at each share, the first tokens erased, or with `keep` they alone kept."""
    outcome: Shaped[Tensor, "row *event"] = eraser.decisions(batch)
    points = []
    for share in shares:
        first = top_k_mask(scores, batch.maskable, fraction_to_count(batch.maskable, share))
        gone = batch.maskable & ~first if keep else first
        points.append(eraser.ask(batch, gone, lambda answer, rows: target_score(answer, outcome[rows], quantity)))
    return torch.stack(points)


def area(points: Float[Tensor, "point row"], shares: Sequence[float]) -> Float[Tensor, " row"]:
    """Mean height of the curve, by trapezes.

    >>> area(torch.tensor([[1.0], [0.5], [0.0]]), (0.0, 0.5, 1.0))
    tensor([0.5000])
    """
    knots = torch.tensor(shares, dtype=points.dtype)
    return torch.trapezoid(points, knots, dim=0) / (knots[-1] - knots[0])


@dataclass(frozen=True, kw_only=True)
class DecisionFlip(Metric):
    """Share of the maskable tokens erased, highest score first, when the decision first changes; 1 if it never does."""

    name: ClassVar[str] = "decision-flip"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="flip_share",
            title="share of tokens to flip",
            higher_is_better=False,
            interpretation="Erasing few tokens, in the method's order, changes the decision.",
            limitation="A decision can flip because the erased text is strange to the model; and a class that it "
            "favours for a text of masks never flips.",
        ),
    )

    split: str = "test"
    mode: Mode = "mask"
    steps: int = 100
    """Looks at each text: after each token, or after each hundredth of them in a text that has more."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"decision-flip: steps is at least 1; found {self.steps}")

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """One number."""
        found = workspace.explained(method, self.split)
        batch, eraser = workspace.task().data[self.split], Eraser(workspace.task(), self.mode)
        share = flip_share(eraser, batch, found.attribution.scores, self.steps)
        yield record_of(workspace, method, found, "input", "flip_share", share, keep_rows=True)


def flip_share(eraser: Eraser, batch: Batch, scores: Float[Tensor, "row token"], steps: int) -> Float[Tensor, " row"]:
    """Share of the tokens gone when the decision first changes, 1 where it never does."""
    outcome = eraser.decisions(batch)
    tokens = batch.maskable.sum(dim=1)
    share = torch.ones(len(batch))
    waiting = torch.arange(len(batch))
    for step in range(1, steps + 1):
        count = erased_after(step, tokens, steps)
        waiting = waiting[(step <= tokens[waiting]) | (step == 1)]
        if len(waiting) == 0:
            break
        gone = top_k_mask(scores[waiting], batch.maskable[waiting], count[waiting])
        wanted = outcome[waiting]
        same = eraser.ask(batch[waiting], gone, partial(_keeps, wanted))
        flipped = waiting[~same]
        share[flipped] = count[flipped] / tokens[flipped].clamp(min=1)
        waiting = waiting[same]
    return share


def erased_after(step: int, tokens: Int[Tensor, " row"], steps: int) -> Int[Tensor, " row"]:
    """Tokens gone at a look: one more each time, or in long texts as many as come to all of them at the last.

    >>> erased_after(2, torch.tensor([3, 10]), steps=5)
    tensor([2, 4])
    """
    return torch.where(tokens <= steps, step, (tokens * step / steps).ceil().long()).minimum(tokens)


def _keeps(
    wanted: Shaped[Tensor, "text *event"], answer: Distribution, rows: Int[Tensor, " row"]
) -> Bool[Tensor, " row"]:
    return predicts(answer, wanted[rows])
