"""An answer as numbers to which tokens add: there, back, and which way an outcome lies."""

from functools import singledispatch
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal

from diffmask.answer import by_row, logits
from diffmask.errors import TaskError

Numbers = Float[Tensor, "row feature"]
LEAST = 0.01
"""The least probability that an outcome has in what a linear function tells of an answer."""


def numbers(answer: Distribution) -> Numbers:
    """The answer's logits, one row of features each."""
    return by_row(logits(answer))


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
def told_by(answer: Distribution, tends: Numbers) -> Numbers:
    """The numbers of an answer that goes the way `diffmask.answer.tendency` tells, as far as that can be known."""
    return tends


@told_by.register
def _(answer: Bernoulli, tends: Numbers) -> Numbers:
    return torch.logit(tends, eps=LEAST)


@told_by.register
def _(answer: Categorical, tends: Numbers) -> Numbers:
    return tends.clamp(min=LEAST).log()


@told_by.register(Independent)
def _(answer: Any, tends: Numbers) -> Numbers:
    return told_by(answer.base_dist, tends)
