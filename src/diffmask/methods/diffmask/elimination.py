"""Greedy backward elimination on an additive surrogate: the order in which tokens are erased, and the KL after each."""

from abc import ABC, abstractmethod
from functools import singledispatch
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent
from torch.nn.functional import softplus

from diffmask.core.distributions import FlatLogits, divergence, from_logits

CHUNK = 16
"""One in 16 of the remaining tokens is erased per step: a long text takes few steps, the last tokens go one by one."""

TOLERANCE_NATS = 1e-4
"""Differences in nats that do not count: equal tokens are erased in text order, however a batch is rounded."""
MAX_LEAD = 1.0
"""Lead in nats of the predicted class over the next best above which a loss of lead has no cost."""
TIE_BREAK = 1e-5
"""Nats added per step: of tokens erased at the same predicted KL, the last costs most."""


def greedy_elimination(
    answer: Distribution,
    start: FlatLogits,
    contributions: Float[Tensor, "row token feature"],
    maskable: Bool[Tensor, "row token"],
) -> Float[Tensor, "row token"]:
    """Return each token's cost: the predicted KL, in nats, once it and all tokens before it in the order are erased.

    Every step erases the token without which the prediction moves least from `start`, the logits of a distribution of
    the same kind as `answer`. Two words that contradict each other can therefore be erased together: a step that moves
    the prediction costs nothing if later steps move it back. Tokens that are not maskable cost infinity.
    """
    rows, tokens, _ = contributions.shape
    predictor = divergence_predictor(answer, start, contributions)
    logits, left = start, maskable
    step = torch.zeros_like(maskable, dtype=torch.long)
    costs: list[Tensor] = []
    while left.any():
        positions, erased = select_least_harmful(predictor.without_each(logits), left)
        logits = logits - (contributions.take_along_dim(positions[..., None], dim=1) * erased[..., None]).sum(dim=1)
        step = step.scatter(1, positions, torch.where(erased, len(costs), step.gather(1, positions)))
        left = left.scatter(1, positions, left.gather(1, positions) & ~erased)
        costs.append(predictor.at(logits))
    if not costs:
        return contributions.new_full((rows, tokens), torch.inf)
    # The smallest KL from this step on: a step is free if later ones undo it.
    smallest = torch.stack(costs, dim=1).flip(1).cummin(dim=1).values.flip(1)
    smallest = smallest + TIE_BREAK * torch.arange(1, len(costs) + 1).to(contributions)
    return smallest.gather(1, step).masked_fill(~maskable, torch.inf)


def select_least_harmful(
    caused: Float[Tensor, "row token"], left: Bool[Tensor, "row token"]
) -> tuple[Int[Tensor, "row some"], Bool[Tensor, "row some"]]:
    """Return positions of the tokens whose erasure causes least, and which of them to erase: one in `CHUNK` per row."""
    count = -(-left.sum(dim=1, keepdim=True) // CHUNK)
    most = int(count.max())
    caused = (caused / TOLERANCE_NATS).round().masked_fill(~left, torch.inf)
    # Both put the first of equal tokens first. Most steps erase one token, and argmin is cheaper than sorting.
    order = caused.argmin(dim=1, keepdim=True) if most == 1 else caused.argsort(dim=1, stable=True)[:, :most]
    return order, torch.arange(most, device=left.device) < count


class DivergencePredictor(ABC):
    """Predicted divergence between the start of an elimination and the logits that remain."""

    @abstractmethod
    def at(self, logits: FlatLogits) -> Float[Tensor, " row"]:
        """Return the divergence at the remaining logits."""

    @abstractmethod
    def without_each(self, logits: FlatLogits) -> Float[Tensor, "row token"]:
        """Return the divergence if each token is erased as well."""


class GenericDivergence(DivergencePredictor):
    """KL between distributions of any kind."""

    def __init__(
        self, answer: Distribution, start: FlatLogits, contributions: Float[Tensor, "row token feature"]
    ) -> None:
        self.answer, self.start, self.contributions = answer, start, contributions

    def at(self, logits: FlatLogits) -> Float[Tensor, " row"]:
        """Return KL(start || remaining)."""
        return divergence(from_logits(self.answer, self.start), from_logits(self.answer, logits))

    def without_each(self, logits: FlatLogits) -> Float[Tensor, "row token"]:
        """Return KL(start || remaining without the token), one distribution per token."""
        rows, tokens, _ = self.contributions.shape
        original = from_logits(self.answer, self.start.repeat_interleave(tokens, dim=0))
        after = from_logits(self.answer, (logits[:, None] - self.contributions).flatten(0, 1))
        return divergence(original, after).unflatten(0, (rows, tokens))


class CategoricalDivergence(DivergencePredictor):
    """KL(p || softmax x) = log(1 + sum exp e) - p e + sum p log p, plus the loss of the predicted class's lead.

    e is how far each other class is ahead of the predicted one: its x less that of the predicted class. The loss of
    lead matters for several classes: two may be nearly equal, so that the decision flips at a small divergence.
    Tensors have the classes first, because these functions run once per step.
    """

    def __init__(self, start: FlatLogits, contributions: Float[Tensor, "row token feature"]) -> None:
        predicted = torch.arange(start.shape[1], device=start.device) == start.argmax(dim=1, keepdim=True)
        order = predicted.int().argsort(dim=1, descending=True, stable=True)
        self.predicted, self.others = order[:, :1], order[:, 1:]
        log_probability = start.log_softmax(dim=1)
        self.probability = log_probability.exp().take_along_dim(self.others, dim=1).T.contiguous()
        self.negative_entropy = (log_probability.exp() * log_probability).sum(dim=1)
        self.lead = (-_best(self._ahead(start))).clamp(max=MAX_LEAD)
        self.contributions = self._ahead(contributions)
        self.mean_contribution = (self.probability[..., None] * self.contributions).sum(dim=0)

    def at(self, logits: FlatLogits) -> Float[Tensor, " row"]:
        """Return KL and loss of lead at the remaining logits."""
        ahead = self._ahead(logits)
        return softplus(_log_sum(ahead)) + self._linear_term(ahead) + (self.lead + _best(ahead)).clamp(min=0)

    def without_each(self, logits: FlatLogits) -> Float[Tensor, "row token"]:
        """Return KL and loss of lead if each token is erased as well."""
        ahead = self._ahead(logits)
        after = ahead[..., None] - self.contributions
        kl = softplus(_log_sum(after)) + self.mean_contribution + self._linear_term(ahead)[:, None]
        return kl + (self.lead[:, None] + _best(after)).clamp(min=0)

    def _ahead(self, values: Float[Tensor, "row *token class"]) -> Float[Tensor, "other row *token"]:
        predicted, others = (index if values.ndim == 2 else index[:, None] for index in (self.predicted, self.others))
        difference = values.take_along_dim(others, dim=-1) - values.take_along_dim(predicted, dim=-1)
        return difference.movedim(-1, 0).contiguous()

    def _linear_term(self, ahead: Float[Tensor, "other row"]) -> Float[Tensor, " row"]:
        """Return sum p log p - p e."""
        return self.negative_entropy - (self.probability * ahead).sum(dim=0)


class EventsDivergence(DivergencePredictor):
    """Sum of the divergences of several decisions, such as the first and the last token of a span."""

    def __init__(self, events: int, start: FlatLogits, contributions: Float[Tensor, "row token feature"]) -> None:
        self.events = events
        self.parts = [
            CategoricalDivergence(*part)
            for part in zip(start.chunk(events, dim=1), contributions.chunk(events, dim=2), strict=True)
        ]

    def at(self, logits: FlatLogits) -> Float[Tensor, " row"]:
        """Return the sum over the decisions."""
        values = zip(self.parts, logits.chunk(self.events, dim=1), strict=True)
        return torch.stack([part.at(value) for part, value in values]).sum(dim=0)

    def without_each(self, logits: FlatLogits) -> Float[Tensor, "row token"]:
        """Return the sum over the decisions if each token is erased as well."""
        values = zip(self.parts, logits.chunk(self.events, dim=1), strict=True)
        return torch.stack([part.without_each(value) for part, value in values]).sum(dim=0)


def _best(ahead: Float[Tensor, "other row *token"]) -> Float[Tensor, "row *token"]:
    """Return how far the best other class is ahead."""
    return ahead[0] if len(ahead) == 1 else ahead.amax(dim=0)


def _log_sum(ahead: Float[Tensor, "other row *token"]) -> Float[Tensor, "row *token"]:
    """Return log sum exp e over the other classes."""
    return ahead[0] if len(ahead) == 1 else ahead.logsumexp(dim=0)


@singledispatch
def divergence_predictor(
    answer: Distribution, start: FlatLogits, contributions: Float[Tensor, "row token feature"]
) -> DivergencePredictor:
    """Return the predictor for distributions of this kind."""
    return GenericDivergence(answer, start, contributions)


@divergence_predictor.register
def _(answer: Categorical, start: FlatLogits, contributions: Tensor) -> DivergencePredictor:
    return CategoricalDivergence(start, contributions)


@divergence_predictor.register(Independent)
def _(answer: Any, start: FlatLogits, contributions: Tensor) -> DivergencePredictor:
    if isinstance(answer.base_dist, Categorical):
        return EventsDivergence(answer.event_shape.numel(), start, contributions)
    return GenericDivergence(answer, start, contributions)
