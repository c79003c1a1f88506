"""Agreement with human rationales: token F1, IOU F1 and AUPRC of ERASER (DeYoung et al. 2020)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.core.capabilities import HasGroundTruth, require
from diffmask.core.explainer import Method
from diffmask.explanation.text_units import Span
from diffmask.metrics.erasure import fraction_to_count, top_k_mask
from diffmask.metrics.metric import Metric, record_of
from diffmask.metrics.ranks import above_and_equal
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.records import Record
from diffmask.workspace.workspace import Workspace

Marks = Bool[Tensor, "row token"]
PLAUSIBILITY_ONLY = (
    "It compares with people, not with the model. A faithful explanation of a model that uses other evidence has a bad "
    "value."
)


@dataclass(frozen=True, kw_only=True)
class HumanRationales(Metric):
    """F1 of the highest-scoring tokens, F1 of their spans and average precision against the tokens that people marked.

    The number of tokens is the average marked share of a text. Tokens are the model's word pieces. Rows without marks
    and rows that consist of marks only are left out.
    """

    name: ClassVar[str] = "human-rationales"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="rationale_auprc",
            title="average precision against people's marks",
            higher_is_better=True,
            definition="average precision of the scores for the tokens that people marked",
            interpretation="Tokens that people marked score higher than the others.",
            limitation=PLAUSIBILITY_ONLY,
        ),
        MetricInfo(
            name="rationale_token_f1",
            title="token F1 against people's marks",
            higher_is_better=True,
            definition="F1 of the highest-scoring tokens against the tokens that people marked",
            interpretation="The highest scores lie on the tokens that people marked.",
            limitation=PLAUSIBILITY_ONLY,
        ),
        MetricInfo(
            name="rationale_iou_f1",
            title="span F1 against people's marks",
            higher_is_better=True,
            definition="F1 of the highest-scoring spans against the spans that people marked",
            interpretation="The intersection of spans of high scores and marked spans is at least half of their union.",
            limitation=f"{PLAUSIBILITY_ONLY} Scores that alternate between tokens have no spans, even if right.",
        ),
    )

    split: str = "test"
    overlap: float = 0.5
    """Smallest intersection over union of two spans that match."""

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Yield three numbers."""
        batch = workspace.task().data[self.split]
        marked = (require(workspace.task(), HasGroundTruth, self.name).ground_truth(batch) > 0) & batch.maskable
        known = marked.any(dim=1) & (batch.maskable & ~marked).any(dim=1)
        if not known.any():
            return
        explained = workspace.explained(method, self.split)
        scores, maskable, marked = explained.attribution.scores[known], batch.maskable[known], marked[known]
        chosen = select_as_many(scores, maskable, marked)
        for metric, values in (
            ("rationale_auprc", average_precision(scores, maskable, marked)),
            ("rationale_token_f1", token_f1(chosen, marked)),
            ("rationale_iou_f1", iou_f1(chosen, marked, self.overlap)),
        ):
            yield record_of(workspace, method, explained, "input", metric, values, keep_rows=True)


def select_as_many(scores: Float[Tensor, "row token"], maskable: Marks, marked: Marks) -> Marks:
    """Mark the highest scores of each row, at least one. Their share is the average marked share of a row."""
    share = float((marked.sum(dim=1) / maskable.sum(dim=1)).mean())
    return top_k_mask(scores, maskable, fraction_to_count(maskable, share).clamp(min=1))


def average_precision(scores: Float[Tensor, "row token"], maskable: Marks, marked: Marks) -> Float[Tensor, " row"]:
    """Compute the mean over marked tokens of the share of marked tokens among those that score as high or higher.

    >>> average_precision(torch.tensor([[3.0, 2.0, 1.0]]), torch.ones(1, 3).bool(), torch.tensor([[True, False, True]]))
    tensor([0.8333])
    """
    above, equal = above_and_equal(scores, maskable)
    above_marked, equal_marked = above_and_equal(scores, maskable, marked)
    precision = (above_marked + equal_marked) / (above + equal).clamp(min=1)
    return (precision * marked).sum(dim=1) / marked.sum(dim=1).clamp(min=1)


def token_f1(chosen: Marks, marked: Marks) -> Float[Tensor, " row"]:
    """Compute 2 |chosen and marked| / (|chosen| + |marked|).

    >>> token_f1(torch.tensor([[True, True, False]]), torch.tensor([[True, False, False]]))
    tensor([0.6667])
    """
    return 2 * (chosen & marked).sum(dim=1) / (chosen.sum(dim=1) + marked.sum(dim=1)).clamp(min=1)


def iou_f1(chosen: Marks, marked: Marks, overlap: float) -> Float[Tensor, " row"]:
    """Compute the F1 of spans. A chosen span is right if its IOU with a marked span is at least `overlap`.

    >>> iou_f1(torch.tensor([[True, True, False, True]]), torch.tensor([[True, True, True, False]]), 0.5)
    tensor([0.6667])
    """
    rows = zip(chosen.tolist(), marked.tolist(), strict=True)
    return torch.tensor(
        [_span_f1(find_spans(row_chosen), find_spans(row_marked), overlap) for row_chosen, row_marked in rows]
    )


def find_spans(marks: list[bool]) -> list[Span]:
    """Return the runs of marked tokens as (start, end), the end exclusive.

    >>> find_spans([True, True, False, True])
    [(0, 2), (3, 4)]
    """
    edges = [
        position
        for position, (before, here) in enumerate(zip([False, *marks], [*marks, False], strict=True))
        if before != here
    ]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _span_f1(chosen: list[Span], marked: list[Span], overlap: float) -> float:
    matches = sum(max((_iou(span, other) for other in marked), default=0.0) >= overlap for span in chosen)
    # As in ERASER, precision and recall have the same numerator.
    return 2 * matches / (len(chosen) + len(marked)) if chosen or marked else 0.0


def _iou(first: Span, second: Span) -> float:
    shared = max(0, min(first[1], second[1]) - max(first[0], second[0]))
    return shared / (first[1] - first[0] + second[1] - second[0] - shared)
