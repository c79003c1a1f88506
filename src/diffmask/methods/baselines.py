"""Baselines that do not look at the model: random and uniform scores."""

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
    """score_t = 1."""

    name: ClassVar[str] = "uniform"
    is_baseline: ClassVar[bool] = True

    def build(self, task: Task, seed: int) -> "UniformExplainer":
        """Return the explainer; there is nothing to fit."""
        return UniformExplainer(task)


class UniformExplainer(Explainer):
    """Explainer that scores every token 1."""

    explains_target: ClassVar[bool] = False

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Return ones."""
        return Attribution(torch.ones(batch.tokens.shape))


@dataclass(frozen=True, kw_only=True)
class Random(Method):
    """score_t ~ U(0, 1)."""

    name: ClassVar[str] = "random"
    is_baseline: ClassVar[bool] = True

    def build(self, task: Task, seed: int) -> "RandomExplainer":
        """Return the explainer; the seed selects the random numbers."""
        return RandomExplainer(task, seed)


class RandomExplainer(Explainer):
    """Explainer that draws scores from a generator seeded by the row's tokens: a row scores the same in any batch."""

    explains_target: ClassVar[bool] = False

    seed: Tensor

    def __init__(self, task: Task, seed: int) -> None:
        super().__init__(task)
        self.register_buffer("seed", torch.tensor(seed))

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Draw one score per token of each row."""
        scores = torch.zeros(batch.tokens.shape)
        for row, (tokens, present) in enumerate(zip(batch.tokens, batch.present, strict=True)):
            text = hashlib.sha256(tokens[present].cpu().numpy().tobytes()).hexdigest()
            scores[row, present] = torch.rand(int(present.sum()), generator=generator(int(self.seed), "random", text))
        return Attribution(scores)
