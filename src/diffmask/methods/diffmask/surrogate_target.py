"""Meaning of a surrogate's outputs: changes in the logits, or divergences, which add up over the erased tokens.

An answer over few classes has few logits, and the surrogate predicts how each changes. The answer of extractive
question answering is a position: its outcomes differ from text to text, and no network learns their logits from a few
thousand texts. There the surrogate predicts the divergence itself, as a sum of costs that are never negative.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import singledispatch

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import softplus

from diffmask.core.answers import SpanAnswer
from diffmask.core.coarse_answers import coarse_outcome
from diffmask.core.distributions import (
    FlatLogits,
    divergence,
    flat_logits,
    from_logits,
    log_odds_gradient,
    predicted_outcome,
)
from diffmask.core.explainer import ForwardTrace
from diffmask.core.task import Task
from diffmask.methods.amortised.objectives import logit_divergence
from diffmask.methods.diffmask.elimination import TIE_BREAK, greedy_elimination

COST_SHIFT = 4.0
"""Output of an untrained network, below zero: each token of a text then costs about 0.02 nats."""


GUIDE_WEIGHT = 0.5
"""Weight of the gradients in the loss, beside the measured divergences of masked copies."""


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

    def token_guide(self, task: Task, trace: ForwardTrace) -> Float[Tensor, "row token"] | None:
        """Return a first estimate of the logarithm of each token's cost, up to a constant per row; None for no guide.

        Masked copies say little about single tokens of a long text: one number for each copy."""
        return None

    def guide_loss(
        self, outputs: Float[Tensor, "row token output"], guide: Tensor, maskable: Bool[Tensor, "row token"]
    ) -> Float[Tensor, " row"]:
        """Return the distance of the outputs to the guide."""
        return outputs.new_zeros(len(outputs))

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
        """Return the squared error of log(1 + divergence), which large divergences do not dominate."""
        copies = masked.shape[1]
        original = from_logits(answer, flat_logits(answer).repeat_interleave(copies, dim=0))
        measured = divergence(original, from_logits(answer, masked.flatten(0, 1))).unflatten(0, masked.shape[:2])
        predicted = (erased.to(outputs) @ self.costs(outputs)[..., None]).squeeze(-1)
        return (measured.clamp(min=0).log1p() - predicted.log1p()).square()

    def token_guide(self, task: Task, trace: ForwardTrace) -> Float[Tensor, "row token"]:
        """Return 2 log |d log p(prediction) / d embedding|: to second order, a divergence is quadratic in gradients."""
        outcome = predicted_outcome(trace.answer)
        gradient = embedding_gradient(task, trace, lambda answer: answer.log_prob(outcome))
        return 2 * (gradient.norm(dim=-1) + torch.finfo(gradient.dtype).tiny).log()

    def guide_loss(self, outputs: Tensor, guide: Tensor, maskable: Tensor) -> Float[Tensor, " row"]:
        """Return the variance over a row's tokens of the log cost less its guide, which has no scale of its own."""
        real = maskable.to(outputs)
        count = real.sum(dim=1, keepdim=True).clamp(min=1)
        difference = (outputs.squeeze(-1) - guide.to(outputs)) * real
        centred = (difference - difference.sum(dim=1, keepdim=True) / count) * real
        return GUIDE_WEIGHT * centred.square().sum(dim=1) / count.squeeze(1)

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


def embedding_gradient(
    task: Task, trace: ForwardTrace, quantity: Callable[[Distribution], Float[Tensor, " row"]]
) -> Float[Tensor, "row token width"]:
    """Return the gradient of a quantity of the answer with respect to the states of the first site."""
    site = task.sites[0]
    with torch.enable_grad():
        state = trace.states[site].detach().clone().requires_grad_(True)
        answer = task.resume(trace.rows, {site: state}, {site: lambda _: state})
        return torch.autograd.grad(quantity(answer).sum(), state)[0]


@singledispatch
def surrogate_target(answer: Distribution) -> SurrogateTarget:
    """Return the target for answers of this kind."""
    return LogitChanges()


@surrogate_target.register
def _(answer: SpanAnswer) -> SurrogateTarget:
    return DivergenceCosts()
