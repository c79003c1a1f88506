"""Do the scores agree with what people marked? ERASER's token F1, IOU F1 and AUPRC. DeYoung et al. 2020."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.core.capabilities import HasGroundTruth, require
from diffmask.core.explainer import Method
from diffmask.explanation.text_units import Span
from diffmask.metrics.base import Metric, record_of
from diffmask.metrics.erasure import fraction_to_count, top_k_mask
from diffmask.metrics.ranks import above_and_equal
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.records import Record
from diffmask.workspace.workspace import Workspace

Marks = Bool[Tensor, "row token"]
PEOPLE = (
    "It compares with people, not with the model: a model that decides for reasons of its own is rightly unlike them."
)


@dataclass(frozen=True, kw_only=True)
class HumanRationales(Metric):
    """F1 of the highest-scoring tokens and of their spans, and average precision, against the tokens people marked.

    As many tokens are taken as people mark on average, as a share of the text. The tokens are the model's word pieces.
    Rows without marks, or with nothing but marks, are left out.
    """

    name: ClassVar[str] = "human-rationales"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="rationale_auprc",
            title="average precision against people's marks",
            higher_is_better=True,
            interpretation="Tokens that people marked score higher than those they did not.",
            limitation=PEOPLE,
        ),
        MetricInfo(
            name="rationale_token_f1",
            title="token F1 against people's marks",
            higher_is_better=True,
            interpretation="The highest scores lie on the tokens that people marked.",
            limitation=PEOPLE,
        ),
        MetricInfo(
            name="rationale_iou_f1",
            title="span F1 against people's marks",
            higher_is_better=True,
            interpretation="Runs of high scores cover at least half of what they and people's spans cover together.",
            limitation=PEOPLE + " Scores that jump from token to token have no spans, however right they are.",
        ),
    )

    split: str = "test"
    overlap: float = 0.5
    """Least intersection over union of two spans that count as one."""

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Three numbers."""
        batch = workspace.task().data[self.split]
        marked = (require(workspace.task(), HasGroundTruth, self.name).ground_truth(batch) > 0) & batch.maskable
        known = marked.any(dim=1) & (batch.maskable & ~marked).any(dim=1)
        if not known.any():
            return
        found = workspace.explained(method, self.split)
        scores, maskable, marked = found.attribution.scores[known], batch.maskable[known], marked[known]
        chosen = as_many(scores, maskable, marked)
        for metric, values in (
            ("rationale_auprc", average_precision(scores, maskable, marked)),
            ("rationale_token_f1", token_f1(chosen, marked)),
            ("rationale_iou_f1", iou_f1(chosen, marked, self.overlap)),
        ):
            yield record_of(workspace, method, found, "input", metric, values, keep_rows=True)


def as_many(scores: Float[Tensor, "row token"], maskable: Marks, marked: Marks) -> Marks:
    """The highest scores of each row, as large a share of it as is marked on average; at least one."""
    share = float((marked.sum(dim=1) / maskable.sum(dim=1)).mean())
    return top_k_mask(scores, maskable, fraction_to_count(maskable, share).clamp(min=1))


def average_precision(scores: Float[Tensor, "row token"], maskable: Marks, marked: Marks) -> Float[Tensor, " row"]:
    """Mean over marked tokens of the share of marked ones among all that score as high or higher.

    >>> average_precision(torch.tensor([[3.0, 2.0, 1.0]]), torch.ones(1, 3).bool(), torch.tensor([[True, False, True]]))
    tensor([0.8333])
    """
    above, equal = above_and_equal(scores, maskable)
    above_marked, equal_marked = above_and_equal(scores, maskable, marked)
    precision = (above_marked + equal_marked) / (above + equal).clamp(min=1)
    return (precision * marked).sum(dim=1) / marked.sum(dim=1).clamp(min=1)


def token_f1(chosen: Marks, marked: Marks) -> Float[Tensor, " row"]:
    """2 |chosen and marked| / (|chosen| + |marked|).

    >>> token_f1(torch.tensor([[True, True, False]]), torch.tensor([[True, False, False]]))
    tensor([0.6667])
    """
    return 2 * (chosen & marked).sum(dim=1) / (chosen.sum(dim=1) + marked.sum(dim=1)).clamp(min=1)


def iou_f1(chosen: Marks, marked: Marks, overlap: float) -> Float[Tensor, " row"]:
    """F1 of spans: a chosen span is right if its intersection with a marked one is `overlap` of their union.

    >>> iou_f1(torch.tensor([[True, True, False, True]]), torch.tensor([[True, True, True, False]]), 0.5)
    tensor([0.6667])
    """
    rows = zip(chosen.tolist(), marked.tolist(), strict=True)
    return torch.tensor([_span_f1(spans(ours), spans(theirs), overlap) for ours, theirs in rows])


def spans(marks: list[bool]) -> list[Span]:
    """Runs of marked tokens: first, and the one after the last.

    >>> spans([True, True, False, True])
    [(0, 2), (3, 4)]
    """
    edges = [
        place
        for place, (before, here) in enumerate(zip([False, *marks], [*marks, False], strict=True))
        if before != here
    ]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _span_f1(ours: list[Span], theirs: list[Span], overlap: float) -> float:
    right = sum(max((_overlap(span, other) for other in theirs), default=0.0) >= overlap for span in ours)
    # As in ERASER, the same count is held against both numbers of spans.
    return 2 * right / (len(ours) + len(theirs)) if ours or theirs else 0.0


def _overlap(one: Span, two: Span) -> float:
    shared = max(0, min(one[1], two[1]) - max(one[0], two[0]))
    return shared / (one[1] - one[0] + two[1] - two[0] - shared)
