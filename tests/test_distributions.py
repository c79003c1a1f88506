"""Divergences, predictions, log-odds and means of answers, against torch and arithmetic."""

import math
from collections.abc import Callable

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal, Poisson, kl_divergence

from diffmask.core import distributions
from diffmask.errors import InputError, NumericsError, TaskError

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
    ids=["bernoulli", "categorical", "normal", "multilabel"],
)
def test_divergence_is_torch_s(
    first: torch.distributions.Distribution, second: torch.distributions.Distribution
) -> None:
    torch.testing.assert_close(distributions.divergence(first, second), kl_divergence(first, second))


def test_divergence_stays_finite_if_a_probability_rounds_to_one() -> None:
    sure, surer = Bernoulli(logits=torch.tensor([5.0])), Bernoulli(logits=torch.tensor([40.0]))
    assert kl_divergence(sure, surer).isinf()
    # (1 - p) * (40 - softplus(5)) + p * (log of nearly 1) by hand
    p = 1 / (1 + math.exp(-5))
    assert distributions.divergence(sure, surer).item() == pytest.approx(
        (1 - p) * (40 + math.log(1 - p)) + p * math.log(p), rel=1e-4
    )


def test_an_even_bernoulli_has_a_predicted_outcome() -> None:
    assert distributions.predicted_outcome(Bernoulli(logits=torch.tensor([0.0, 3.0, -3.0]))).tolist() == [0.0, 1.0, 0.0]


def test_agreement_requires_every_label_of_a_row() -> None:
    first = Independent(Bernoulli(logits=torch.tensor([[1.0, -1.0], [1.0, 1.0]])), 1)
    second = Independent(Bernoulli(logits=torch.tensor([[2.0, -2.0], [1.0, -1.0]])), 1)
    assert distributions.agreement(first, second).tolist() == [True, False]


def test_log_odds_of_a_class_is_its_probability_over_the_others() -> None:
    outcome = torch.tensor([1, 0])
    chosen = Categorical(logits=CLASSES).probs.gather(1, outcome[:, None]).squeeze(1)
    torch.testing.assert_close(
        distributions.log_odds(Categorical(logits=CLASSES), outcome), (chosen / (1 - chosen)).log()
    )


def test_log_odds_of_yes_and_no_are_opposite() -> None:
    yes = distributions.log_odds(Bernoulli(logits=P), torch.ones(2))
    no = distributions.log_odds(Bernoulli(logits=P), torch.zeros(2))
    assert torch.equal(yes, P)
    assert torch.equal(no, -P)


def test_the_average_answer_has_the_mean_probability_in_every_row() -> None:
    mean = distributions.average(Bernoulli(probs=torch.tensor([0.2, 0.6])))
    assert isinstance(mean, Bernoulli)
    torch.testing.assert_close(mean.probs, torch.tensor([0.4, 0.4]))


@pytest.mark.parametrize(
    "build",
    [
        lambda rows: Bernoulli(logits=P[rows]),
        lambda rows: Categorical(logits=CLASSES[rows]),
        lambda rows: Normal(P[rows], Q[rows]),
        lambda rows: Independent(Bernoulli(logits=CLASSES[rows]), 1),
    ],
    ids=["bernoulli", "categorical", "normal", "multilabel"],
)
def test_concatenated_answers_equal_the_answer_to_all_rows(build: Callable[[slice], Distribution]) -> None:
    whole, joined = build(slice(2)), distributions.concatenate(build(slice(1)), build(slice(1, 2)))
    assert type(joined) is type(whole)
    torch.testing.assert_close(kl_divergence(whole, joined), torch.zeros(2))


def test_the_average_of_numbers_has_the_variance_of_the_mixture() -> None:
    mean = distributions.average(Normal(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 1.0])))
    assert isinstance(mean, Normal)
    torch.testing.assert_close(mean.scale, torch.full((2,), math.sqrt(2.0)))


def test_an_answer_that_is_not_finite_is_named_with_its_row() -> None:
    with pytest.raises(NumericsError, match=r"here: .* rows \[1\] of 2"):
        distributions.require_finite(Bernoulli(logits=torch.tensor([0.0, torch.nan]), validate_args=False), "here")


def test_an_unknown_distribution_names_the_function_to_register() -> None:
    with pytest.raises(TaskError, match=r"logits\.register"):
        distributions.logits(Poisson(torch.ones(1)))


@pytest.mark.parametrize("outcome", [-1, 2])
def test_a_target_that_is_no_class_is_refused_with_the_classes_there_are(outcome: int) -> None:
    answer = Categorical(logits=torch.zeros(1, 2), validate_args=False)
    with pytest.raises(InputError, match=rf"a target is a class from 0 to 1; found \[{outcome}\]"):
        distributions.target_score(answer, torch.tensor([outcome]), "log-odds")
