"""Meaning of a surrogate's outputs: changes in the logits, or divergences, which add up over the erased tokens.

An answer over few classes has few logits, and the surrogate predicts how each changes. The answer of extractive
question answering is a position: its outcomes differ from text to text, and no network learns their logits from a few
thousand texts. There the surrogate predicts the divergence itself, as a sum of costs that are never negative.
"""

from abc import ABC, abstractmethod
from functools import singledispatch

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import softplus

from diffmask.core.answers import SpanAnswer
from diffmask.core.distributions import (
    FlatLogits,
    coarse_outcome,
    divergence,
    flat_logits,
    from_logits,
    log_odds_gradient,
    predicted_outcome,
)
from diffmask.core.explainer import ForwardTrace
from diffmask.methods.amortised.objectives import logit_divergence
from diffmask.methods.diffmask.elimination import TIE_BREAK, greedy_elimination

COST_SHIFT = 4.0
"""Output of an untrained network, below zero: each token of a text then costs about 0.02 nats."""


class SurrogateTarget(ABC):
    """Quantity that the networks of a surrogate predict per token, and that adds up over erased tokens."""

    @abstractmethod
    def outputs(self, answer: Distribution) -> int:
        """Return the number of outputs per token, given an answer over few classes."""

    @abstractmethod
    def loss(
        self,
        answer: Distribution,
        masked: Float[Tensor, "row copy feature"],
        outputs: Float[Tensor, "row token output"],
        erased: Bool[Tensor, "row copy token"],
    ) -> Float[Tensor, "row copy"]:
        """Return the error of the sum over the erased tokens, given the model's logits for masked copies."""

    @abstractmethod
    def elimination_costs(
        self,
        answer: Distribution,
        start: FlatLogits,
        outputs: Float[Tensor, "row token output"],
        maskable: Bool[Tensor, "row token"],
    ) -> Float[Tensor, "row token"]:
        """Return the predicted divergence, in nats, at the step of an elimination that erases each token."""

    @abstractmethod
    def contribution(
        self, trace: ForwardTrace, outputs: Float[Tensor, "row token output"]
    ) -> Float[Tensor, "row token"]:
        """Return how much each token contributes to the prediction."""


class LogitChanges(SurrogateTarget):
    """Change in each logit when a token is erased; the prediction is the logits of the whole text less their sum."""

    def outputs(self, answer: Distribution) -> int:
        """Return the number of logits."""
        return flat_logits(answer).shape[1]

    def loss(self, answer: Distribution, masked: Tensor, outputs: Tensor, erased: Tensor) -> Float[Tensor, "row copy"]:
        """Return KL(model's prediction for a masked copy || prediction of the sum)."""
        predicted = flat_logits(answer)[:, None] - erased.to(outputs) @ outputs
        return logit_divergence(answer, masked, predicted)

    def elimination_costs(
        self, answer: Distribution, start: FlatLogits, outputs: Tensor, maskable: Tensor
    ) -> Float[Tensor, "row token"]:
        """Erase one token after another, always the one whose removal changes the answer least."""
        return greedy_elimination(answer, start, outputs, maskable)

    def contribution(self, trace: ForwardTrace, outputs: Tensor) -> Float[Tensor, "row token"]:
        """Return the change in the log-odds of the predicted class."""
        answer = trace.coarse_answer
        all_erased = flat_logits(answer) - (outputs * trace.rows.maskable[..., None]).sum(dim=1)
        towards = log_odds_gradient(answer, all_erased, coarse_outcome(predicted_outcome(trace.answer), trace.answer))
        return (outputs * towards[:, None]).sum(dim=-1)


class DivergenceCosts(SurrogateTarget):
    """Divergence that erasing a token adds: softplus(output - 4). Never negative, so the cheapest is erased first."""

    def outputs(self, answer: Distribution) -> int:
        """Return 1."""
        return 1

    def costs(self, outputs: Float[Tensor, "row token 1"]) -> Float[Tensor, "row token"]:
        """Return the cost of each token in nats."""
        return softplus(outputs.squeeze(-1) - COST_SHIFT)

    def loss(self, answer: Distribution, masked: Tensor, outputs: Tensor, erased: Tensor) -> Float[Tensor, "row copy"]:
        """Return the squared error of log(1 + divergence): a divergence of 10 need not be told from one of 12."""
        copies = masked.shape[1]
        original = from_logits(answer, flat_logits(answer).repeat_interleave(copies, dim=0))
        measured = divergence(original, from_logits(answer, masked.flatten(0, 1))).unflatten(0, masked.shape[:2])
        predicted = (erased.to(outputs) @ self.costs(outputs)[..., None]).squeeze(-1)
        return (measured.clamp(min=0).log1p() - predicted.log1p()).square()

    def elimination_costs(
        self, answer: Distribution, start: FlatLogits, outputs: Tensor, maskable: Tensor
    ) -> Float[Tensor, "row token"]:
        """Sum the costs from the cheapest token on."""
        costs, order = self.costs(outputs).masked_fill(~maskable, torch.inf).sort(dim=1, stable=True)
        steps = torch.arange(1, costs.shape[1] + 1, device=costs.device).to(costs)
        return torch.zeros_like(costs).scatter(1, order, costs.cumsum(dim=1) + TIE_BREAK * steps)

    def contribution(self, trace: ForwardTrace, outputs: Tensor) -> Float[Tensor, "row token"]:
        """Return the cost of each token."""
        return self.costs(outputs)


@singledispatch
def surrogate_target(answer: Distribution) -> SurrogateTarget:
    """Return the target for answers of this kind."""
    return LogitChanges()


@surrogate_target.register
def _(answer: SpanAnswer) -> SurrogateTarget:
    return DivergenceCosts()
