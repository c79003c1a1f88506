"""Greedy elimination: by hand, against every subset, and for every kind of distribution."""

import itertools

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal

from diffmask.core.distributions import (
    class_probabilities,
    divergence,
    flat_logits,
    from_logits,
    probabilities_to_logits,
)
from diffmask.methods.diffmask.elimination import MAX_LEAD, divergence_predictor, greedy_elimination


def bernoulli_kl(start: float, end: float) -> float:
    """Return KL between two Bernoulli distributions, given their logits."""
    return divergence(Bernoulli(logits=torch.tensor(float(start))), Bernoulli(logits=torch.tensor(float(end)))).item()


def test_words_that_contradict_each_other_are_erased_together() -> None:
    answer = Bernoulli(logits=torch.tensor([2.0]))
    contributions = torch.tensor([[[1.0], [-1.0], [3.0], [9.0]]])
    costs = greedy_elimination(answer, flat_logits(answer), contributions, torch.tensor([[True, True, True, False]]))
    # The second is erased first: more certainty moves the prediction less than less does. The first moves it back.
    assert costs[0].tolist() == pytest.approx([0, 0, bernoulli_kl(2, -1), torch.inf], abs=1e-4)
    assert costs[0, 1] < costs[0, 0]


def lead(logits: torch.Tensor, decided: torch.Tensor) -> torch.Tensor:
    """Return the lead of a class over the next best."""
    others = logits.scatter(-1, decided, -torch.inf).amax(dim=-1)
    return logits.gather(-1, decided).squeeze(-1) - others


def predicted_cost(answer: Categorical, sums: torch.Tensor) -> torch.Tensor:
    """Return KL between each row's distribution and many logits, plus the loss of the predicted class's lead."""
    whole = flat_logits(answer).repeat_interleave(sums.shape[1], dim=0)
    decided, after = whole.argmax(dim=1, keepdim=True), sums.flatten(0, 1)
    behind = (lead(whole, decided).clamp(max=MAX_LEAD) - lead(after, decided)).clamp(min=0)
    costs = divergence(from_logits(answer, whole), from_logits(answer, after)) + behind
    return costs.unflatten(0, sums.shape[:2])


def test_it_erases_more_than_single_token_order_and_nearly_the_most_possible() -> None:
    torch.manual_seed(0)
    answer, contributions = Categorical(logits=torch.randn(50, 5)), 0.6 * torch.randn(50, 8, 5)
    whole = flat_logits(answer)[:, None]
    costs = greedy_elimination(answer, flat_logits(answer), contributions, torch.ones(50, 8, dtype=torch.bool))
    ours = (costs <= 0.1).sum(dim=1)
    subsets = torch.tensor(list(itertools.product([0.0, 1.0], repeat=8)))
    allowed = predicted_cost(answer, whole - subsets @ contributions) <= 0.1
    best = torch.where(allowed, subsets.sum(dim=1), 0).amax(dim=1)
    order = predicted_cost(answer, whole - contributions).argsort(dim=1)[..., None].expand_as(contributions)
    one_by_one = (predicted_cost(answer, whole - contributions.gather(1, order).cumsum(dim=1)) <= 0.1).sum(dim=1)
    assert (ours <= best).all()
    assert ours.sum() >= 0.8 * best.sum()
    assert ours.sum() >= 1.2 * one_by_one.sum()


def test_a_word_that_keeps_the_predicted_class_ahead_is_costly_although_the_divergence_is_small() -> None:
    answer = Categorical(logits=torch.tensor([[0.2, 0.0, -3.0]]))
    contributions = torch.tensor([[[0.4, 0.0, 0.0], [-0.4, 0.0, 0.0]]])
    assert divergence(answer, Categorical(logits=flat_logits(answer) - contributions[:, 0])).item() < 0.03
    costs = greedy_elimination(answer, flat_logits(answer), contributions, torch.tensor([[True, False]]))
    assert costs[0, 0] > 0.4


def test_a_long_text_takes_few_steps_and_keeps_the_token_that_decides() -> None:
    answer = Categorical(logits=torch.tensor([[3.0, 0.0]]))
    contributions = torch.zeros(1, 500, 2)
    contributions[0, 123, 0] = 6.0
    costs = greedy_elimination(answer, flat_logits(answer), contributions, torch.ones(1, 500, dtype=torch.bool))
    assert costs.argmax().item() == 123
    assert costs[0, 123] > 1 and costs[0, :123].max() < 1e-2


def test_the_categorical_formula_equals_divergence_plus_loss_of_lead() -> None:
    torch.manual_seed(1)
    answer, contributions, logits = Categorical(logits=torch.randn(3, 4)), torch.randn(3, 6, 4), torch.randn(3, 4)
    predictor = divergence_predictor(answer, flat_logits(answer), contributions)
    torch.testing.assert_close(predictor.without_each(logits), predicted_cost(answer, logits[:, None] - contributions))
    torch.testing.assert_close(predictor.at(logits), predicted_cost(answer, logits[:, None]).squeeze(1))


@pytest.mark.parametrize("kind", [Bernoulli, Categorical])
def test_without_each_equals_the_cost_after_erasing_the_token(kind: type[Distribution]) -> None:
    torch.manual_seed(2)
    answer = kind(logits=torch.randn(3, 2) if kind is Categorical else torch.randn(3))  # type: ignore[call-arg]
    features = flat_logits(answer).shape[1]
    contributions, logits = torch.randn(3, 5, features), torch.randn(3, features)
    predictor = divergence_predictor(answer, flat_logits(answer), contributions)
    torch.testing.assert_close(predictor.without_each(logits)[:, 2], predictor.at(logits - contributions[:, 2]))


@pytest.mark.parametrize(
    "answer",
    [
        Categorical(logits=torch.tensor([[1.0, 0.0, -1.0]])),
        Bernoulli(logits=torch.tensor([0.7])),
        Independent(Bernoulli(logits=torch.tensor([[0.7, -1.0]])), 1),
        Normal(torch.tensor([2.0]), torch.tensor([0.5])),
    ],
    ids=["classes", "label", "labels", "number"],
)
def test_a_distribution_is_rebuilt_from_its_class_probabilities(answer: Distribution) -> None:
    again = from_logits(answer, probabilities_to_logits(answer, class_probabilities(answer)))
    assert divergence(answer, again).sum().item() == pytest.approx(0.0, abs=1e-6)
    features = flat_logits(answer).shape[1]
    contributions = torch.linspace(-1, 2, 4 * features).reshape(1, 4, features)
    costs = greedy_elimination(answer, flat_logits(answer), contributions, torch.ones(1, 4, dtype=torch.bool))
    assert costs.isfinite().all() and costs.max() > 0.01


def eliminated_by_hand(logit: float, contributions: list[float]) -> list[int]:
    """The step at which each token is erased: of n that remain, the n / 16 (rounded up) that move KL least."""
    left, steps, step = list(range(len(contributions))), [0] * len(contributions), 0
    start = logit
    while left:
        caused = {token: round(bernoulli_kl(start, logit - contributions[token]) / 1e-4) for token in left}
        chosen = sorted(left, key=lambda token: (caused[token], token))[: -(-len(left) // 16)]
        for token in chosen:
            logit -= contributions[token]
            left.remove(token)
            steps[token] = step
        step += 1
    return steps


def test_long_rows_lose_a_sixteenth_per_step_each_at_its_own_pace() -> None:
    torch.manual_seed(1)
    lengths = (50, 33, 16)
    contributions = 0.2 * torch.randn(3, 50, 1)
    maskable = torch.arange(50) < torch.tensor(lengths)[:, None]
    answer = Bernoulli(logits=torch.tensor([2.0, -1.0, 0.5]))
    costs = greedy_elimination(answer, flat_logits(answer), contributions, maskable)
    for row, (length, logit) in enumerate(zip(lengths, (2.0, -1.0, 0.5), strict=True)):
        steps = eliminated_by_hand(logit, contributions[row, :length, 0].tolist())
        own = costs[row, :length].tolist()
        # Tokens of one step cost the same, and later ones more.
        assert len(set(own)) == len(set(steps))
        assert sorted(range(length), key=lambda token: (own[token], token)) == sorted(
            range(length), key=lambda token: (steps[token], token)
        )
        assert costs[row, length:].isinf().all()


def test_several_decisions_cost_the_sum_of_each() -> None:
    torch.manual_seed(2)
    start, contributions = torch.randn(3, 8), torch.randn(3, 5, 8)
    answer = Independent(Categorical(logits=start.unflatten(1, (2, 4))), 1)
    both = divergence_predictor(answer, start, contributions)
    logits = start + 0.3 * torch.randn(3, 8)
    parts = [
        divergence_predictor(Categorical(logits=start[:, half]), start[:, half], contributions[..., half])
        for half in (slice(0, 4), slice(4, 8))
    ]
    halves = logits[:, :4], logits[:, 4:]
    at = sum(part.at(half) for part, half in zip(parts, halves, strict=True))
    each = sum(part.without_each(half) for part, half in zip(parts, halves, strict=True))
    torch.testing.assert_close(both.at(logits), at)
    torch.testing.assert_close(both.without_each(logits), each)
    assert both.at(logits).shape == (3,) and both.without_each(logits).shape == (3, 5)
