"""Scores that look at nothing: the floor and the flat line of every comparison."""

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Shaped
from torch import Tensor

from diffmask.core.batch import Attribution, Batch
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task
from diffmask.core.training import generator


@dataclass(frozen=True, kw_only=True)
class Uniform(Method):
    """Every token the same."""

    name: ClassVar[str] = "uniform"

    def build(self, task: Task, seed: int) -> "UniformExplainer":
        """Nothing to allocate."""
        return UniformExplainer(task)


class UniformExplainer(Explainer):
    """Score 1 for every token."""

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Ones."""
        return Attribution(torch.ones(batch.tokens.shape))


@dataclass(frozen=True, kw_only=True)
class Random(Method):
    """Every token a number drawn from (0, 1)."""

    name: ClassVar[str] = "random"

    def build(self, task: Task, seed: int) -> "RandomExplainer":
        """Nothing to allocate; the seed chooses the numbers."""
        return RandomExplainer(task, seed)


class RandomExplainer(Explainer):
    """Uniform scores, drawn for a row from its own tokens: a row scores the same in any batch."""

    seed: Tensor

    def __init__(self, task: Task, seed: int) -> None:
        super().__init__(task)
        self.register_buffer("seed", torch.tensor(seed))

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """One generator a row, seeded by the row's tokens."""
        scores = torch.zeros(batch.tokens.shape)
        for row, (tokens, real) in enumerate(zip(batch.tokens, batch.present, strict=True)):
            text = hashlib.sha256(tokens[real].cpu().numpy().tobytes()).hexdigest()
            scores[row, real] = torch.rand(int(real.sum()), generator=generator(int(self.seed), "random", text))
        return Attribution(scores)
