"""Functions of a model's answer, a `torch.distributions.Distribution` with one entry per row.

Each dispatches on the distribution family: logits, predicted outcome, log-odds, KL divergence, mean, concatenation, and
the conversion from an answer to a flat vector of logits and back.
"""

from functools import singledispatch
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal, kl_divergence
from torch.nn.functional import softplus

from diffmask.errors import InputError, NumericsError, TaskError


def _unregistered(answer: Distribution, function: str) -> str:
    name = type(answer).__name__
    return f"no {function} for {name} answers; register it with diffmask.core.distributions.{function}.register"


@singledispatch
def logits(answer: Distribution) -> Float[Tensor, "row *feature"]:
    """Return the unconstrained parameters of an answer: logits, or a mean in units of the standard deviation."""
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
    """Flatten all values of a row into one axis."""
    return values[:, None].flatten(start_dim=1)


@singledispatch
def class_probabilities(answer: Distribution) -> Float[Tensor, "row number"]:
    """Return the class probabilities of each row; for families without classes, the logits."""
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
    """Return the most probable outcome of each row."""
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
    """Return log p / (1 - p) of an outcome; unlike log p, it does not saturate as p approaches 1."""
    return answer.log_prob(outcome)


@log_odds.register
def _(answer: Bernoulli, outcome: Tensor) -> Tensor:
    return (2 * outcome - 1) * answer.logits


@log_odds.register
def _(answer: Categorical, outcome: Tensor) -> Tensor:
    index = _class_index(outcome, answer.logits)
    chosen = answer.logits.gather(-1, index)
    others = answer.logits.scatter(-1, index, -torch.inf)
    return chosen.squeeze(-1) - others.logsumexp(dim=-1)


@log_odds.register(Independent)
def _(answer: Any, outcome: Tensor) -> Tensor:
    return log_odds(answer.base_dist, outcome).flatten(start_dim=1).sum(dim=1)


def _class_index(outcome: Tensor, scores: Tensor) -> Tensor:
    """Return the classes as an index of the last axis; a class that the model does not have is an InputError."""
    index = outcome.long()[..., None]
    classes = scores.shape[-1]
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < classes:
        wrong = index[(index < 0) | (index >= classes)][0]
        raise InputError(
            f"class {int(wrong)} is asked for, but the model has {classes}: give one from 0 to {classes - 1}"
        )
    return index


class UnnormalizedCategorical(Categorical):
    """A categorical distribution that keeps its logits as given, before normalisation."""

    def __init__(self, scores: Float[Tensor, "row answer"]) -> None:
        super().__init__(logits=scores, validate_args=False)
        self.scores = scores


@singledispatch
def logit(answer: Distribution, outcome: Shaped[Tensor, "row *event"]) -> Float[Tensor, "row *event"]:
    """Return the unnormalised logit of an outcome."""
    raise TaskError(
        f"a {type(answer).__name__} does not keep its unnormalised logits; explain 'log-odds', or have the task answer "
        "with diffmask.core.distributions.UnnormalizedCategorical"
    )


@logit.register
def _(answer: Bernoulli, outcome: Tensor) -> Tensor:
    return log_odds(answer, outcome)


@logit.register
def _(answer: UnnormalizedCategorical, outcome: Tensor) -> Tensor:
    return answer.scores.gather(-1, _class_index(outcome, answer.scores)).squeeze(-1)


Quantity = Literal["log-odds", "log-probability", "probability", "logit"]
"""The explained quantity of an outcome: log p / (1 - p), log p, p, or its unnormalised logit."""


def target_score(
    answer: Distribution, outcome: Shaped[Tensor, "row *event"], quantity: Quantity
) -> Float[Tensor, " row"]:
    """Return the scalar that is explained, by its changes or its gradient; larger if the outcome is more probable."""
    if isinstance(answer, Categorical) and not bool(((outcome >= 0) & (outcome < answer.logits.shape[-1])).all()):
        classes, given = answer.logits.shape[-1], outcome.unique().tolist()[:5]
        raise InputError(f"a target is a class from 0 to {classes - 1}; found {given}")
    if quantity == "log-odds":
        return log_odds(answer, outcome)
    if quantity == "logit":
        return logit(answer, outcome)
    log_probability = answer.log_prob(outcome)
    return log_probability.exp() if quantity == "probability" else log_probability


@singledispatch
def with_base(answer: Any, base: Distribution) -> Distribution:
    """Return an answer of several decisions with another distribution of the decisions."""
    return Independent(base, answer.reinterpreted_batch_ndims, validate_args=False)


@singledispatch
def average(answer: Distribution) -> Distribution:
    """Return the mean answer over the rows, once per row: the prediction of a model that ignores its input."""
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
    return with_base(answer, average(answer.base_dist))


@singledispatch
def concatenate(first: Distribution, *others: Distribution) -> Distribution:
    """Concatenate the rows of several answers of one family."""
    raise TaskError(_unregistered(first, "concatenate"))


@concatenate.register
def _(first: Bernoulli, *others: Bernoulli) -> Distribution:
    return Bernoulli(logits=torch.cat([answer.logits for answer in (first, *others)]))


@concatenate.register
def _(first: Categorical, *others: Categorical) -> Distribution:
    return Categorical(logits=torch.cat([answer.logits for answer in (first, *others)]))


@concatenate.register
def _(first: Normal, *others: Normal) -> Distribution:
    answers = (first, *others)
    return Normal(torch.cat([answer.loc for answer in answers]), torch.cat([answer.scale for answer in answers]))


@concatenate.register(Independent)
def _(first: Any, *others: Any) -> Distribution:
    return with_base(first, concatenate(*(answer.base_dist for answer in (first, *others))))


@singledispatch
def divergence(original: Distribution, changed: Distribution) -> Float[Tensor, "row *event"]:
    """Compute KL(original || changed) in nats, per row; inside an `Independent`, per event."""
    return kl_divergence(original, changed)


@divergence.register
def _(original: Bernoulli, changed: Distribution) -> Tensor:
    # torch's kl_divergence is infinite if a probability rounds to 0 or 1; logits do not round.
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
    """Return whether the predicted outcome of each row is the same."""
    return predicts(changed, predicted_outcome(original))


def predicts(answer: Distribution, outcome: Shaped[Tensor, "row *event"]) -> Bool[Tensor, " row"]:
    """Return whether the outcome is the predicted one, per row."""
    same = predicted_outcome(answer) == outcome
    return same.reshape(len(same), -1).all(dim=1)


def require_finite(answer: Distribution, where: str) -> None:
    """Raise a NumericsError that names `where` and the first rows whose answers are not finite."""
    finite = torch.isfinite(logits(answer).detach())
    if not finite.all():
        rows = (~finite.flatten(start_dim=1)).any(dim=1) if finite.ndim > 1 else ~finite
        first = rows.nonzero().flatten().tolist()[:5]
        raise NumericsError(f"{where}: the model's answer is not finite for rows {first} of {len(rows)}")


FlatLogits = Float[Tensor, "row feature"]
MIN_PROBABILITY = 0.01
"""Lower bound of the probabilities that `probabilities_to_logits` converts."""


def flat_logits(answer: Distribution) -> FlatLogits:
    """Return the logits of each row as one vector."""
    return flatten_features(logits(answer))


@singledispatch
def from_logits(answer: Distribution, values: FlatLogits) -> Distribution:
    """Return a distribution of the same family as `answer` with the given flat logits."""
    raise TaskError(_unregistered(answer, "from_logits"))


@from_logits.register
def _(answer: Bernoulli, values: Tensor) -> Distribution:
    return Bernoulli(logits=values.reshape(len(values), *answer.logits.shape[1:]), validate_args=False)


@from_logits.register
def _(answer: Categorical, values: Tensor) -> Distribution:
    return Categorical(logits=values.reshape(len(values), *answer.logits.shape[1:]), validate_args=False)


@from_logits.register
def _(answer: Normal, values: Tensor) -> Distribution:
    # Every row has the same scale, so the first one also fits repeated rows.
    scale = answer.scale[:1].expand(len(values), *answer.scale.shape[1:])
    return Normal(values.reshape(scale.shape) * scale, scale, validate_args=False)


@from_logits.register(Independent)
def _(answer: Any, values: Tensor) -> Distribution:
    return with_base(answer, from_logits(answer.base_dist, values))


@singledispatch
def log_odds_gradient(answer: Distribution, empty: FlatLogits, outcome: Shaped[Tensor, "row *event"]) -> FlatLogits:
    """Return d log-odds(outcome) / d logits.

    For a Normal it is the sign of the outcome minus `empty`, the logits of an input without tokens.
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
def probabilities_to_logits(answer: Distribution, probabilities: FlatLogits) -> FlatLogits:
    """Return logits with the given `class_probabilities`, clipped to at least MIN_PROBABILITY."""
    return probabilities


@probabilities_to_logits.register
def _(answer: Bernoulli, probabilities: FlatLogits) -> FlatLogits:
    return torch.logit(probabilities, eps=MIN_PROBABILITY)


@probabilities_to_logits.register
def _(answer: Categorical, probabilities: FlatLogits) -> FlatLogits:
    return probabilities.clamp(min=MIN_PROBABILITY).log()


@probabilities_to_logits.register(Independent)
def _(answer: Any, probabilities: FlatLogits) -> FlatLogits:
    return probabilities_to_logits(answer.base_dist, probabilities)
