"""What a model's answer, a `torch.distributions.Distribution`, is asked: its decision, its numbers, its mean.

An answer as numbers to which tokens add: there, back, and which way an outcome lies.
"""

from functools import singledispatch
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal, kl_divergence
from torch.nn.functional import softplus

from diffmask.errors import NumericsError, TaskError


def _unregistered(answer: Distribution, function: str) -> str:
    name = type(answer).__name__
    return f"no {function} for {name} answers; register it with diffmask.core.distributions.{function}.register"


@singledispatch
def logits(answer: Distribution) -> Float[Tensor, "row *feature"]:
    """The unconstrained numbers an answer is made of: logits, or a mean in units of its deviation."""
    raise TaskError(_unregistered(answer, "logits"))


@logits.register
def _(answer: Bernoulli) -> Tensor:
    return answer.logits


@logits.register
def _(answer: Categorical) -> Tensor:
    return answer.logits


@logits.register
def _(answer: Normal) -> Tensor:
    return answer.loc / answer.scale


@logits.register(Independent)
def _(answer: Any) -> Tensor:
    return logits(answer.base_dist)


def flatten_features(values: Float[Tensor, "row *feature"]) -> Float[Tensor, "row number"]:
    """Whatever an answer holds of a row, side by side."""
    return values[:, None].flatten(start_dim=1)


@singledispatch
def class_probabilities(answer: Distribution) -> Float[Tensor, "row number"]:
    """Which way an answer goes, a few numbers a row: the classes' probabilities, or what `logits` gives."""
    return flatten_features(logits(answer))


@class_probabilities.register(Bernoulli)
@class_probabilities.register(Categorical)
def _(answer: Any) -> Tensor:
    return flatten_features(answer.probs)


@class_probabilities.register(Independent)
def _(answer: Any) -> Tensor:
    return class_probabilities(answer.base_dist)


@singledispatch
def predicted_outcome(answer: Distribution) -> Shaped[Tensor, "row *event"]:
    """The outcome the model would bet on."""
    return answer.mode


@predicted_outcome.register
def _(answer: Bernoulli) -> Tensor:
    # Bernoulli.mode is NaN at exactly one half.
    return (answer.logits > 0).to(answer.logits.dtype)


@predicted_outcome.register(Independent)
def _(answer: Any) -> Tensor:
    return predicted_outcome(answer.base_dist)


@singledispatch
def log_odds(answer: Distribution, outcome: Shaped[Tensor, "row *event"]) -> Float[Tensor, "row *event"]:
    """How far the answer leans towards an outcome, in nats, without the ceiling that a log-probability has."""
    return answer.log_prob(outcome)


@log_odds.register
def _(answer: Bernoulli, outcome: Tensor) -> Tensor:
    return (2 * outcome - 1) * answer.logits


@log_odds.register
def _(answer: Categorical, outcome: Tensor) -> Tensor:
    chosen = answer.logits.gather(-1, outcome.long()[..., None])
    others = answer.logits.scatter(-1, outcome.long()[..., None], -torch.inf)
    return chosen.squeeze(-1) - others.logsumexp(dim=-1)


@log_odds.register(Independent)
def _(answer: Any, outcome: Tensor) -> Tensor:
    return log_odds(answer.base_dist, outcome).flatten(start_dim=1).sum(dim=1)


class UnnormalizedCategorical(Categorical):
    """A categorical that remembers the numbers it was made of, before they were normalised."""

    def __init__(self, scores: Float[Tensor, "row answer"]) -> None:
        super().__init__(logits=scores, validate_args=False)
        self.scores = scores


@singledispatch
def logit(answer: Distribution, outcome: Shaped[Tensor, "row *event"]) -> Float[Tensor, "row *event"]:
    """The model's own number for an outcome, before anything is normalised."""
    raise TaskError(
        f"a {type(answer).__name__} does not keep its unnormalised logits; explain 'log-odds', or have the task answer "
        "with diffmask.core.distributions.UnnormalizedCategorical"
    )


@logit.register
def _(answer: Bernoulli, outcome: Tensor) -> Tensor:
    return log_odds(answer, outcome)


@logit.register
def _(answer: UnnormalizedCategorical, outcome: Tensor) -> Tensor:
    return answer.scores.gather(-1, outcome.long()[..., None]).squeeze(-1)


Quantity = Literal["log-odds", "log-probability", "probability", "logit"]
"""What is explained of an outcome: log p / (1 - p), log p, p, or the number that the model gives it."""


def target_score(
    answer: Distribution, outcome: Shaped[Tensor, "row *event"], quantity: Quantity
) -> Float[Tensor, " row"]:
    """The number whose change or slope is the explanation; larger as the answer leans towards the outcome."""
    if quantity == "log-odds":
        return log_odds(answer, outcome)
    if quantity == "logit":
        return logit(answer, outcome)
    log_probability = answer.log_prob(outcome)
    return log_probability.exp() if quantity == "probability" else log_probability


@singledispatch
def average(answer: Distribution) -> Distribution:
    """The mean answer over the rows, given to each: what the model says when it knows nothing of the row."""
    raise TaskError(_unregistered(answer, "average"))


@average.register
def _(answer: Bernoulli) -> Distribution:
    return Bernoulli(probs=answer.probs.mean(dim=0, keepdim=True).expand_as(answer.probs))


@average.register
def _(answer: Categorical) -> Distribution:
    return Categorical(probs=answer.probs.mean(dim=0, keepdim=True).expand_as(answer.probs))


@average.register
def _(answer: Normal) -> Distribution:
    # Law of total variance: the spread of the rows' means belongs to the mixture.
    variance = (answer.scale**2).mean(0, keepdim=True) + answer.loc.var(0, keepdim=True, correction=0)
    return Normal(answer.loc.mean(0, keepdim=True), variance.sqrt()).expand(answer.batch_shape)


@average.register(Independent)
def _(answer: Any) -> Distribution:
    return Independent(average(answer.base_dist), answer.reinterpreted_batch_ndims)


@singledispatch
def concatenate(first: Distribution, *others: Distribution) -> Distribution:
    """The answers to several batches as the answer to one."""
    raise TaskError(_unregistered(first, "concatenate"))


@concatenate.register
def _(first: Bernoulli, *others: Bernoulli) -> Distribution:
    return Bernoulli(logits=torch.cat([one.logits for one in (first, *others)]))


@concatenate.register
def _(first: Categorical, *others: Categorical) -> Distribution:
    return Categorical(logits=torch.cat([one.logits for one in (first, *others)]))


@concatenate.register
def _(first: Normal, *others: Normal) -> Distribution:
    every = (first, *others)
    return Normal(torch.cat([one.loc for one in every]), torch.cat([one.scale for one in every]))


@concatenate.register(Independent)
def _(first: Any, *others: Any) -> Distribution:
    return Independent(concatenate(*(one.base_dist for one in (first, *others))), first.reinterpreted_batch_ndims)


@singledispatch
def divergence(original: Distribution, changed: Distribution) -> Float[Tensor, "row *event"]:
    """KL(original || changed) in nats, a number a row; within an `Independent` a number an event."""
    return kl_divergence(original, changed)


@divergence.register
def _(original: Bernoulli, changed: Distribution) -> Tensor:
    # torch's own is infinite where a probability rounds to 0 or 1; logits do not round.
    yes = softplus(-logits(changed)) - softplus(-original.logits)
    no = softplus(logits(changed)) - softplus(original.logits)
    return original.probs * yes + (1 - original.probs) * no


@divergence.register
def _(original: Categorical, changed: Distribution) -> Tensor:
    return (original.probs * (original.logits - logits(changed))).sum(dim=-1)


@divergence.register(Independent)
def _(original: Any, changed: Any) -> Tensor:
    rows = divergence(original.base_dist, changed.base_dist)
    return rows.flatten(start_dim=1).sum(dim=1) if rows.ndim > 1 else rows


def agreement(original: Distribution, changed: Distribution) -> Bool[Tensor, " row"]:
    """Whether each row's decision is the same."""
    return predicts(changed, predicted_outcome(original))


def predicts(answer: Distribution, outcome: Shaped[Tensor, "row *event"]) -> Bool[Tensor, " row"]:
    """Whether the model would bet on the outcome."""
    same = predicted_outcome(answer) == outcome
    return same.reshape(len(same), -1).all(dim=1)


def require_finite(answer: Distribution, where: str) -> None:
    """Stop at the first answer that is not a number, with its row."""
    finite = torch.isfinite(logits(answer).detach())
    if not finite.all():
        rows = (~finite.flatten(start_dim=1)).any(dim=1) if finite.ndim > 1 else ~finite
        first = rows.nonzero().flatten().tolist()[:5]
        raise NumericsError(f"{where}: the model's answer is not finite for rows {first} of {len(rows)}")


FlatLogits = Float[Tensor, "row feature"]
MIN_PROBABILITY = 0.01
"""The least probability that an outcome has in what a linear function tells of an answer."""


def flat_logits(answer: Distribution) -> FlatLogits:
    """The answer's logits, one row of features each."""
    return flatten_features(logits(answer))


@singledispatch
def from_logits(answer: Distribution, found: FlatLogits) -> Distribution:
    """The answer of the same kind that these numbers stand for."""
    raise TaskError(_unregistered(answer, "from_logits"))


@from_logits.register
def _(answer: Bernoulli, found: Tensor) -> Distribution:
    return Bernoulli(logits=found.reshape(len(found), *answer.logits.shape[1:]), validate_args=False)


@from_logits.register
def _(answer: Categorical, found: Tensor) -> Distribution:
    return Categorical(logits=found.reshape(len(found), *answer.logits.shape[1:]), validate_args=False)


@from_logits.register
def _(answer: Normal, found: Tensor) -> Distribution:
    # The deviation is a row's own; where rows were copied only the first matters, and ours are all alike.
    scale = answer.scale[:1].expand(len(found), *answer.scale.shape[1:])
    return Normal(found.reshape(scale.shape) * scale, scale, validate_args=False)


@from_logits.register(Independent)
def _(answer: Any, found: Tensor) -> Distribution:
    inside = from_logits(answer.base_dist, found)
    return Independent(inside, answer.reinterpreted_batch_ndims, validate_args=False)


@singledispatch
def log_odds_gradient(answer: Distribution, empty: FlatLogits, outcome: Shaped[Tensor, "row *event"]) -> FlatLogits:
    """By how much each number leans towards the outcome: d log-odds / d logits.

    For a number that is predicted, which way the outcome lies from the answer to nothing.
    """
    raise TaskError(_unregistered(answer, "log_odds_gradient"))


@log_odds_gradient.register
def _(answer: Bernoulli, empty: FlatLogits, outcome: Tensor) -> FlatLogits:
    return (2 * outcome.reshape(empty.shape) - 1).to(empty)


@log_odds_gradient.register
def _(answer: Categorical, empty: FlatLogits, outcome: Tensor) -> FlatLogits:
    chosen = outcome.long()[..., None]
    others = answer.logits.scatter(-1, chosen, -torch.inf).softmax(dim=-1)
    return (-others).scatter(-1, chosen, 1.0).reshape(empty.shape)


@log_odds_gradient.register
def _(answer: Normal, empty: FlatLogits, outcome: Tensor) -> FlatLogits:
    return torch.sign((outcome / answer.scale).reshape(empty.shape) - empty)


@log_odds_gradient.register(Independent)
def _(answer: Any, empty: FlatLogits, outcome: Tensor) -> FlatLogits:
    return log_odds_gradient(answer.base_dist, empty, outcome)


@singledispatch
def probabilities_to_logits(answer: Distribution, tends: FlatLogits) -> FlatLogits:
    """The numbers of an answer that goes the way `class_probabilities` tells, as far as that can be known."""
    return tends


@probabilities_to_logits.register
def _(answer: Bernoulli, tends: FlatLogits) -> FlatLogits:
    return torch.logit(tends, eps=MIN_PROBABILITY)


@probabilities_to_logits.register
def _(answer: Categorical, tends: FlatLogits) -> FlatLogits:
    return tends.clamp(min=MIN_PROBABILITY).log()


@probabilities_to_logits.register(Independent)
def _(answer: Any, tends: FlatLogits) -> FlatLogits:
    return probabilities_to_logits(answer.base_dist, tends)
