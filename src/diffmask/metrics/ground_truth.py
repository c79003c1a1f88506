"""Agreement with a known ground truth: divergence (De Cao et al. 2020, table 1) and share of the scores on evidence.

The ground truth is whatever a task's `truth` marks, such as supporting sentences or counted digits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.core.batch import Attribution
from diffmask.core.capabilities import HasGroundTruth, require
from diffmask.core.explainer import Method
from diffmask.metrics.metric import Metric, record_of
from diffmask.metrics.ranks import top_k_probability
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.records import Record
from diffmask.workspace.workspace import Workspace

Scores = Float[Tensor, "row token"]


@dataclass(frozen=True, kw_only=True)
class DivergenceToTruth(Metric):
    """KL(truth || scores) and JS(truth, scores), with the scores of each row normalised to sum to one.

    Rows without a relevant token are left out. `flat_rows` is the share of rows whose largest and smallest score
    differ by less than `flat`.
    """

    name: ClassVar[str] = "divergence-to-truth"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="kl_to_truth",
            title="KL to the truth",
            higher_is_better=False,
            definition="KL divergence from the ground truth to the normalised scores",
            interpretation="The scores are distributed over the tokens as the ground truth is.",
            limitation="It is infinite if a relevant token scores exactly zero. It does not carry over to other tasks.",
        ),
        MetricInfo(
            name="js_to_truth",
            title="JS to the truth",
            higher_is_better=False,
            definition="Jensen-Shannon divergence between the ground truth and the normalised scores",
            interpretation="The scores are distributed over the tokens as the ground truth is. Largest value: log 2.",
            limitation="The task was constructed to have a ground truth. Real texts may be explained better or worse.",
        ),
    )

    split: str = "test"
    flat: float = 0.02
    """Difference below which a row's scores count as uniform."""

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Yield three numbers per site of the attribution."""
        batch = workspace.task().data[self.split]
        truth = require(workspace.task(), HasGroundTruth, self.name).ground_truth(batch)
        known = truth.sum(dim=1) > 0
        explained = workspace.explained(method, self.split)
        for site, scores in scores_by_site(explained.attribution, method, workspace):
            share = normalise(scores[known], batch.maskable[known])
            target = normalise(truth[known], batch.maskable[known])
            yield record_of(workspace, method, explained, site, "kl_to_truth", kl_rows(target, share), keep_rows=True)
            yield record_of(workspace, method, explained, site, "js_to_truth", js_rows(target, share), keep_rows=True)
            is_flat = score_range(scores, batch.maskable) < self.flat
            yield record_of(workspace, method, explained, site, "flat_rows", is_flat.float())


def scores_by_site(attribution: Attribution, method: Method, workspace: Workspace) -> Iterator[tuple[str, Scores]]:
    """Yield the scores of each layer, or the scores at the method's only site, `input` if it has none."""
    if attribution.by_layer is None:
        yield method.to_dict().get("site", "input") or workspace.task().sites[0], attribution.scores
        return
    for index, site in enumerate(attribution.layers):
        yield site, attribution.by_layer[:, index]


def normalise(scores: Scores, maskable: Float[Tensor, "row token"] | Tensor) -> Scores:
    """Divide |scores| by their sum per row; a row of zeros becomes uniform."""
    size = scores.abs() * maskable
    total = size.sum(dim=1, keepdim=True)
    uniform = maskable / maskable.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.where(total > 0, size / total.clamp(min=1e-30), uniform)


def kl_rows(first: Scores, second: Scores) -> Float[Tensor, " row"]:
    """Compute the sum of p log(p / q) over tokens, with 0 log 0 = 0; infinite if q is 0 where p is not."""
    terms = torch.where(first > 0, first * (first / second).log(), 0.0)
    return terms.sum(dim=1)


def js_rows(first: Scores, second: Scores) -> Float[Tensor, " row"]:
    """Compute the Jensen-Shannon divergence in nats."""
    middle = (first + second) / 2
    return (kl_rows(first, middle) + kl_rows(second, middle)) / 2


def score_range(scores: Scores, maskable: Tensor) -> Float[Tensor, " row"]:
    """Compute the largest minus the smallest score of each row."""
    return scores.masked_fill(~maskable, -torch.inf).amax(1) - scores.masked_fill(~maskable, torch.inf).amin(1)


EVIDENCE_LIMITATION = "If the model does not use the evidence, a right explanation has a bad value."


@dataclass(frozen=True, kw_only=True)
class MassOnEvidence(Metric):
    """sum of |score| over the evidence / sum of |score|, and whether the highest score lies on the evidence.

    The evidence of a bABI question is its supporting sentences. Rows without known evidence and rows that consist of
    evidence only are left out.
    """

    name: ClassVar[str] = "mass-on-evidence"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="evidence_mass",
            title="mass on the evidence",
            higher_is_better=True,
            definition="share of the sum of the absolute scores that lies on the known evidence",
            interpretation="Most of the sum of the absolute scores lies on the tokens that the label follows from.",
            limitation=EVIDENCE_LIMITATION,
        ),
        MetricInfo(
            name="evidence_first",
            title="highest score on the evidence",
            higher_is_better=True,
            definition="share of texts whose highest score lies on the known evidence",
            interpretation="The token with the highest score is one that the label follows from.",
            limitation=EVIDENCE_LIMITATION,
        ),
    )

    split: str = "test"

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Yield two numbers."""
        batch = workspace.task().data[self.split]
        evidence = (require(workspace.task(), HasGroundTruth, self.name).ground_truth(batch) > 0) & batch.maskable
        known = evidence.any(dim=1) & (batch.maskable & ~evidence).any(dim=1)
        if not known.any():
            return
        explained = workspace.explained(method, self.split)
        scores, maskable, evidence = explained.attribution.scores[known], batch.maskable[known], evidence[known]
        mass = (normalise(scores, maskable) * evidence).sum(dim=1)
        yield record_of(workspace, method, explained, "input", "evidence_mass", mass, keep_rows=True)
        first = top_token_probability(scores, maskable, evidence)
        yield record_of(workspace, method, explained, "input", "evidence_first", first, keep_rows=True)


def top_token_probability(
    scores: Float[Tensor, "row token"], maskable: Bool[Tensor, "row token"], marked: Bool[Tensor, "row token"]
) -> Float[Tensor, " row"]:
    """Compute the probability that the top token is a marked one if ties are broken at random.

    >>> marked = torch.tensor([[True, False, True]])
    >>> top_token_probability(torch.tensor([[3.0, 3.0, 1.0]]), torch.ones(1, 3).bool(), marked)
    tensor([0.5000])
    """
    return (top_k_probability(scores, maskable, torch.ones(len(scores))) * marked).sum(dim=1)
