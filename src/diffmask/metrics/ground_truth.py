"""Divergence to a known truth. De Cao et al. 2020, table 1.

Do the scores lie on the known evidence: supporting sentences, counted digits, whatever a task's `truth` marks?
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
from diffmask.metrics.base import Metric, record_of
from diffmask.metrics.ranks import chance_among_first
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.records import Record
from diffmask.workspace.workspace import Workspace

Scores = Float[Tensor, "row token"]


@dataclass(frozen=True, kw_only=True)
class DivergenceToTruth(Metric):
    """KL(truth || scores) and JS(truth, scores) of each row's scores normalised to sum to one.

    Rows in which no token matters are left out. `flat_rows` is the share of rows whose largest and smallest score
    differ by less than `flat`.
    """

    name: ClassVar[str] = "divergence-to-truth"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="kl_to_truth",
            title="KL to the truth",
            higher_is_better=False,
            interpretation="The scores are shared out as the answer really depends on the tokens.",
            limitation="It is infinite where a needed token scores exactly zero, and says nothing about other tasks.",
        ),
        MetricInfo(
            name="js_to_truth",
            title="JS to the truth",
            higher_is_better=False,
            interpretation="The scores are shared out as the answer really depends on the tokens; at most log 2.",
            limitation="The truth is known because the task was made so; real texts may be explained worse or better.",
        ),
    )

    split: str = "test"
    flat: float = 0.02
    """Difference below which a row's scores count as uniform."""

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Three numbers for each site the method speaks of."""
        batch = workspace.task().data[self.split]
        truth = require(workspace.task(), HasGroundTruth, self.name).ground_truth(batch)
        known = truth.sum(dim=1) > 0
        explained = workspace.explained(method, self.split)
        for site, scores in by_site(explained.attribution, method, workspace):
            share = normalised(scores[known], batch.maskable[known])
            target = normalised(truth[known], batch.maskable[known])
            yield record_of(workspace, method, explained, site, "kl_to_truth", kl(target, share), keep_rows=True)
            yield record_of(workspace, method, explained, site, "js_to_truth", js(target, share), keep_rows=True)
            level = spread(scores, batch.maskable) < self.flat
            yield record_of(workspace, method, explained, site, "flat_rows", level.float())


def by_site(attribution: Attribution, method: Method, workspace: Workspace) -> Iterator[tuple[str, Scores]]:
    """The scores as seen from each layer, or at the one site the method works at; `input` if it has none."""
    if attribution.by_layer is None:
        yield method.to_dict().get("site", "input") or workspace.task().sites[0], attribution.scores
        return
    for index, site in enumerate(attribution.layers):
        yield site, attribution.by_layer[:, index]


def normalised(scores: Scores, maskable: Float[Tensor, "row token"] | Tensor) -> Scores:
    """Sizes of the scores, as shares of their row; a row of zeros is uniform."""
    size = scores.abs() * maskable
    total = size.sum(dim=1, keepdim=True)
    uniform = maskable / maskable.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.where(total > 0, size / total.clamp(min=1e-30), uniform)


def kl(first: Scores, second: Scores) -> Float[Tensor, " row"]:
    """sum of p log(p / q) over tokens, with 0 log 0 = 0; infinite where q misses what p has."""
    terms = torch.where(first > 0, first * (first / second).log(), 0.0)
    return terms.sum(dim=1)


def js(first: Scores, second: Scores) -> Float[Tensor, " row"]:
    """Jensen-Shannon divergence in nats."""
    middle = (first + second) / 2
    return (kl(first, middle) + kl(second, middle)) / 2


def spread(scores: Scores, maskable: Tensor) -> Float[Tensor, " row"]:
    """Largest less smallest score of each row."""
    return scores.masked_fill(~maskable, -torch.inf).amax(1) - scores.masked_fill(~maskable, torch.inf).amin(1)


PLANTED = "The evidence is what should decide; a model that decides by something else is blamed on its explanation."


@dataclass(frozen=True, kw_only=True)
class MassOnEvidence(Metric):
    """sum of |score| over the evidence / sum of |score|; and whether the highest score lies on it.

    The evidence of bABI's questions are their supporting sentences. Rows without known evidence are left out, and
    so are rows all of whose tokens are evidence.
    """

    name: ClassVar[str] = "mass-on-evidence"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="evidence_mass",
            title="mass on the evidence",
            higher_is_better=True,
            interpretation="Most of the scores' weight lies on what the answer follows from.",
            limitation=PLANTED,
        ),
        MetricInfo(
            name="evidence_first",
            title="highest score on the evidence",
            higher_is_better=True,
            interpretation="The token that scores highest is one the answer follows from.",
            limitation=PLANTED,
        ),
    )

    split: str = "test"

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Two numbers."""
        batch = workspace.task().data[self.split]
        evidence = (require(workspace.task(), HasGroundTruth, self.name).ground_truth(batch) > 0) & batch.maskable
        known = evidence.any(dim=1) & (batch.maskable & ~evidence).any(dim=1)
        if not known.any():
            return
        found = workspace.explained(method, self.split)
        scores, maskable, evidence = found.attribution.scores[known], batch.maskable[known], evidence[known]
        mass = (normalised(scores, maskable) * evidence).sum(dim=1)
        yield record_of(workspace, method, found, "input", "evidence_mass", mass, keep_rows=True)
        first = first_on(scores, maskable, evidence)
        yield record_of(workspace, method, found, "input", "evidence_first", first, keep_rows=True)


def first_on(
    scores: Float[Tensor, "row token"], maskable: Bool[Tensor, "row token"], wanted: Bool[Tensor, "row token"]
) -> Float[Tensor, " row"]:
    """Chance that the token ranked first is a wanted one, ties broken at random.

    >>> first_on(torch.tensor([[3.0, 3.0, 1.0]]), torch.ones(1, 3).bool(), torch.tensor([[True, False, True]]))
    tensor([0.5000])
    """
    return (chance_among_first(scores, maskable, torch.ones(len(scores))) * wanted).sum(dim=1)
