"""Deletion and insertion: how fast the answer goes, and comes back, in the order of the scores. Petsiuk et al. 2018."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from diffmask.answer import Quantity, explained
from diffmask.batch import Batch
from diffmask.bench import Bench
from diffmask.board import Measure
from diffmask.evaluate.erasing import Eraser, Mode, first_tokens, share_of
from diffmask.evaluation import Evaluation, record_of
from diffmask.explainer import Method
from diffmask.record import Record

BLIND = "Erased texts are unlike those the model was trained on: part of what changes may be surprise, not evidence."


@dataclass(frozen=True, kw_only=True)
class DeletionInsertion(Evaluation):
    """Area under p(decision | text less its first tokens), and under p(decision | its first tokens alone)."""

    name: ClassVar[str] = "deletion-insertion"
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure(
            name="deletion_area",
            title="deletion",
            better="lower",
            says="The answer goes quickly when tokens are erased in the method's order.",
            cannot_say=BLIND,
        ),
        Measure(
            name="insertion_area",
            title="insertion",
            better="higher",
            says="The answer comes back quickly when tokens are given back in the method's order.",
            cannot_say=BLIND,
        ),
    )

    split: str = "test"
    shares: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    """Shares of the maskable tokens that are erased, or given back; the area is by trapezes between them."""
    mode: Mode = "mask"
    quantity: Quantity = "probability"

    def run(self, method: Method, bench: Bench) -> Iterator[Record]:
        """Two areas, and the points of both curves."""
        explained_split = bench.explained(method, self.split)
        batch, eraser = bench.task().data[self.split], Eraser(bench.task(), self.mode)
        for metric, keep in (("deletion_area", False), ("insertion_area", True)):
            points = curve(eraser, batch, explained_split.attribution.scores, self.shares, keep, self.quantity)
            heights = area(points, self.shares)
            yield record_of(bench, method, explained_split, "input", metric, heights, keep_rows=True)
            for share, values in zip(self.shares, points, strict=True):
                yield record_of(bench, method, explained_split, "input", metric, values, at=share, keep_rows=True)


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
        first = first_tokens(scores, batch.maskable, share_of(batch.maskable, share))
        gone = batch.maskable & ~first if keep else first
        points.append(eraser.ask(batch, gone, lambda answer, rows: explained(answer, outcome[rows], quantity)))
    return torch.stack(points)


def area(points: Float[Tensor, "point row"], shares: Sequence[float]) -> Float[Tensor, " row"]:
    """Mean height of the curve, by trapezes.

    >>> area(torch.tensor([[1.0], [0.5], [0.0]]), (0.0, 0.5, 1.0))
    tensor([0.5000])
    """
    knots = torch.tensor(shares, dtype=points.dtype)
    return torch.trapezoid(points, knots, dim=0) / (knots[-1] - knots[0])
