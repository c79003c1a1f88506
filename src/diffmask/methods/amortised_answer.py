"""An answer as numbers to which tokens add: there, back, and which way an outcome lies."""

from functools import singledispatch
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal

from diffmask.answer import logits
from diffmask.errors import TaskError

Numbers = Float[Tensor, "row feature"]


def numbers(answer: Distribution) -> Numbers:
    """The answer's logits, one row of features each."""
    return logits(answer).flatten(start_dim=1) if logits(answer).ndim > 1 else logits(answer)[:, None]


@singledispatch
def rebuilt(answer: Distribution, found: Numbers) -> Distribution:
    """The answer of the same kind that these numbers stand for."""
    raise TaskError(f"{type(answer).__name__} answers cannot be rebuilt; register them with rebuilt.register")


@rebuilt.register
def _(answer: Bernoulli, found: Tensor) -> Distribution:
    return Bernoulli(logits=found.reshape(len(found), *answer.logits.shape[1:]), validate_args=False)


@rebuilt.register
def _(answer: Categorical, found: Tensor) -> Distribution:
    return Categorical(logits=found.reshape(len(found), *answer.logits.shape[1:]), validate_args=False)


@rebuilt.register
def _(answer: Normal, found: Tensor) -> Distribution:
    # The deviation is a row's own; where rows were copied only the first matters, and ours are all alike.
    scale = answer.scale[:1].expand(len(found), *answer.scale.shape[1:])
    return Normal(found.reshape(scale.shape) * scale, scale, validate_args=False)


@rebuilt.register(Independent)
def _(answer: Any, found: Tensor) -> Distribution:
    inside = rebuilt(answer.base_dist, found)
    return Independent(inside, answer.reinterpreted_batch_ndims, validate_args=False)


@singledispatch
def direction(answer: Distribution, empty: Numbers, outcome: Shaped[Tensor, "row *event"]) -> Numbers:
    """By how much each number leans towards the outcome: d log-odds / d logits.

    For a number that is predicted, which way the outcome lies from the answer to nothing.
    """
    raise TaskError(f"{type(answer).__name__} answers have no direction; register them with direction.register")


@direction.register
def _(answer: Bernoulli, empty: Numbers, outcome: Tensor) -> Numbers:
    return (2 * outcome.reshape(empty.shape) - 1).to(empty)


@direction.register
def _(answer: Categorical, empty: Numbers, outcome: Tensor) -> Numbers:
    chosen = outcome.long()[..., None]
    others = answer.logits.scatter(-1, chosen, -torch.inf).softmax(dim=-1)
    return (-others).scatter(-1, chosen, 1.0).reshape(empty.shape)


@direction.register
def _(answer: Normal, empty: Numbers, outcome: Tensor) -> Numbers:
    return torch.sign((outcome / answer.scale).reshape(empty.shape) - empty)


@direction.register(Independent)
def _(answer: Any, empty: Numbers, outcome: Tensor) -> Numbers:
    return direction(answer.base_dist, empty, outcome)


@singledispatch
def need(
    answer: Distribution, added: Float[Tensor, "row token feature"], belief: Numbers
) -> Float[Tensor, "row token"]:
    """How much each token speaks for what may be answered: its log-odds for each outcome, where it speaks for it.

    `belief` is how likely each outcome is. A token that only speaks against what is all but certain is not needed;
    while nothing is certain, every token that speaks is.
    """
    raise TaskError(f"{type(answer).__name__} answers have no outcomes to weigh; register them with need.register")


@need.register
def _(answer: Bernoulli, added: Tensor, belief: Tensor) -> Tensor:
    likely = belief.clamp(0, 1)[:, None]
    return (likely * added.relu() + (1 - likely) * (-added).relu()).sum(dim=-1)


@need.register
def _(answer: Categorical, added: Tensor, belief: Tensor) -> Tensor:
    likely = belief.clamp(1e-4, 1)
    likely = likely / likely.sum(dim=1, keepdim=True)
    # Of each class, how likely every other is if it is not that one.
    others = likely[:, None] * (1 - torch.eye(likely.shape[1]).to(likely))
    others = others / others.sum(dim=2, keepdim=True)
    return ((added - added @ others.mT).relu() * likely[:, None]).sum(dim=-1)


@need.register
def _(answer: Normal, added: Tensor, belief: Tensor) -> Tensor:
    # A number that is predicted changes with every token that adds to it, either way.
    return added.abs().sum(dim=-1)


@need.register(Independent)
def _(answer: Any, added: Tensor, belief: Tensor) -> Tensor:
    return need(answer.base_dist, added, belief)
