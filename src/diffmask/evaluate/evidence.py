"""Do the scores lie on the known evidence: supporting sentences, counted digits, whatever a task's `truth` marks?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.bench import Bench
from diffmask.board import Measure
from diffmask.evaluate.ranks import chance_among_first
from diffmask.evaluate.truth import normalised
from diffmask.evaluation import Evaluation, record_of
from diffmask.explainer import Method
from diffmask.record import Record

PLANTED = "The evidence is what should decide; a model that decides by something else is blamed on its explanation."


@dataclass(frozen=True, kw_only=True)
class MassOnEvidence(Evaluation):
    """sum of |score| over the evidence / sum of |score|; and whether the highest score lies on it.

    The evidence of bABI's questions are their supporting sentences. Rows without known evidence are left out, and
    so are rows all of whose tokens are evidence.
    """

    name: ClassVar[str] = "mass-on-evidence"
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure(
            name="evidence_mass",
            title="mass on the evidence",
            better="higher",
            says="Most of the scores' weight lies on what the answer follows from.",
            cannot_say=PLANTED,
        ),
        Measure(
            name="evidence_first",
            title="highest score on the evidence",
            better="higher",
            says="The token that scores highest is one the answer follows from.",
            cannot_say=PLANTED,
        ),
    )

    split: str = "test"

    def run(self, method: Method, bench: Bench) -> Iterator[Record]:
        """Two numbers."""
        batch = bench.task().data[self.split]
        evidence = (bench.task().truth(batch) > 0) & batch.maskable
        known = evidence.any(dim=1) & (batch.maskable & ~evidence).any(dim=1)
        if not known.any():
            return
        found = bench.explained(method, self.split)
        scores, maskable, evidence = found.attribution.scores[known], batch.maskable[known], evidence[known]
        mass = (normalised(scores, maskable) * evidence).sum(dim=1)
        yield record_of(bench, method, found, "input", "evidence_mass", mass, keep_rows=True)
        first = first_on(scores, maskable, evidence)
        yield record_of(bench, method, found, "input", "evidence_first", first, keep_rows=True)


def first_on(
    scores: Float[Tensor, "row token"], maskable: Bool[Tensor, "row token"], wanted: Bool[Tensor, "row token"]
) -> Float[Tensor, " row"]:
    """Chance that the token ranked first is a wanted one, ties broken at random.

    >>> first_on(torch.tensor([[3.0, 3.0, 1.0]]), torch.ones(1, 3).bool(), torch.tensor([[True, False, True]]))
    tensor([0.5000])
    """
    return (chance_among_first(scores, maskable, torch.ones(len(scores))) * wanted).sum(dim=1)
