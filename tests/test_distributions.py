"""Answers: divergence, decisions and averages against torch and arithmetic."""

import math
from collections.abc import Callable

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal, Poisson, kl_divergence

from diffmask.core import distributions as answer
from diffmask.errors import NumericsError, TaskError

P = torch.tensor([0.3, -2.0])
Q = torch.tensor([1.5, 0.1])
CLASSES = torch.tensor([[0.2, 1.0, -1.0], [2.0, 0.0, 0.5]])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Bernoulli(logits=P), Bernoulli(logits=Q)),
        (Categorical(logits=CLASSES), Categorical(logits=CLASSES.flip(1))),
        (Normal(P, 1.0), Normal(Q, 2.0)),
        (Independent(Bernoulli(logits=CLASSES), 1), Independent(Bernoulli(logits=-CLASSES), 1)),
    ],
    ids=["yes or no", "classes", "number", "many labels"],
)
def test_divergence_is_torch_s(
    first: torch.distributions.Distribution, second: torch.distributions.Distribution
) -> None:
    torch.testing.assert_close(answer.divergence(first, second), kl_divergence(first, second))


def test_divergence_stays_finite_where_a_probability_rounds_to_one() -> None:
    sure, surer = Bernoulli(logits=torch.tensor([5.0])), Bernoulli(logits=torch.tensor([40.0]))
    assert kl_divergence(sure, surer).isinf()
    # (1 - p) * (40 - softplus(5)) + p * (log of nearly 1) by hand
    p = 1 / (1 + math.exp(-5))
    assert answer.divergence(sure, surer).item() == pytest.approx(
        (1 - p) * (40 + math.log(1 - p)) + p * math.log(p), rel=1e-4
    )


def test_an_even_yes_or_no_still_decides() -> None:
    assert answer.predicted_outcome(Bernoulli(logits=torch.tensor([0.0, 3.0, -3.0]))).tolist() == [0.0, 1.0, 0.0]


def test_agreement_asks_every_label_of_a_row() -> None:
    first = Independent(Bernoulli(logits=torch.tensor([[1.0, -1.0], [1.0, 1.0]])), 1)
    second = Independent(Bernoulli(logits=torch.tensor([[2.0, -2.0], [1.0, -1.0]])), 1)
    assert answer.agreement(first, second).tolist() == [True, False]


def test_log_odds_of_a_class_is_its_probability_over_the_others() -> None:
    outcome = torch.tensor([1, 0])
    chosen = Categorical(logits=CLASSES).probs.gather(1, outcome[:, None]).squeeze(1)
    torch.testing.assert_close(answer.log_odds(Categorical(logits=CLASSES), outcome), (chosen / (1 - chosen)).log())


def test_log_odds_of_yes_and_no_are_opposite() -> None:
    yes = answer.log_odds(Bernoulli(logits=P), torch.ones(2))
    no = answer.log_odds(Bernoulli(logits=P), torch.zeros(2))
    assert torch.equal(yes, P)
    assert torch.equal(no, -P)


def test_the_average_answer_is_the_mean_probability_given_to_every_row() -> None:
    mean = answer.average(Bernoulli(probs=torch.tensor([0.2, 0.6])))
    assert isinstance(mean, Bernoulli)
    torch.testing.assert_close(mean.probs, torch.tensor([0.4, 0.4]))


@pytest.mark.parametrize(
    "made",
    [
        lambda rows: Bernoulli(logits=P[rows]),
        lambda rows: Categorical(logits=CLASSES[rows]),
        lambda rows: Normal(P[rows], Q[rows]),
        lambda rows: Independent(Bernoulli(logits=CLASSES[rows]), 1),
    ],
    ids=["yes or no", "classes", "number", "many labels"],
)
def test_answers_to_parts_joined_are_the_answer_to_the_whole(made: Callable[[slice], Distribution]) -> None:
    whole, found = made(slice(2)), answer.concatenate(made(slice(1)), made(slice(1, 2)))
    assert type(found) is type(whole)
    torch.testing.assert_close(kl_divergence(whole, found), torch.zeros(2))


def test_the_average_of_numbers_has_the_variance_of_the_mixture() -> None:
    mean = answer.average(Normal(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 1.0])))
    assert isinstance(mean, Normal)
    torch.testing.assert_close(mean.scale, torch.full((2,), math.sqrt(2.0)))


def test_an_answer_that_is_not_finite_is_named_with_its_row() -> None:
    with pytest.raises(NumericsError, match=r"here: .* rows \[1\] of 2"):
        answer.require_finite(Bernoulli(logits=torch.tensor([0.0, torch.nan]), validate_args=False), "here")


def test_an_unknown_kind_of_answer_says_how_to_add_it() -> None:
    with pytest.raises(TaskError, match=r"logits\.register"):
        answer.logits(Poisson(torch.ones(1)))
