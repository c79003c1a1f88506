"""Exact erasure: the smallest set of tokens that keeps the answer, where a task can state it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Shaped
from torch import Tensor

from diffmask.batch import Attribution, Batch
from diffmask.explainer import Explainer, Method
from diffmask.task import Task


@dataclass(frozen=True, kw_only=True)
class ExactErasure(Method):
    """1 for the smallest evidence, 0 for the rest: what a search over all subsets finds, with its hindsight.

    De Cao et al. 2020, section 4.1: that a token can be dropped does not mean that the model knows it.
    """

    name: ClassVar[str] = "exact-erasure"

    def build(self, task: Task, seed: int) -> "ExactErasureExplainer":
        """A task that does not know its smallest evidence is refused here."""
        task.smallest_evidence(next(iter(task.data.values()))[:1])
        return ExactErasureExplainer(task)


class ExactErasureExplainer(Explainer):
    """The task's own smallest evidence."""

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Ones at the evidence."""
        return Attribution(self.task.smallest_evidence(batch))
