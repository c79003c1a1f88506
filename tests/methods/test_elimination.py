"""The order in which tokens go: by hand, against every subset, and for every kind of answer."""

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


def moved(start: float, end: float) -> float:
    """KL between two coins, given their logits."""
    return divergence(Bernoulli(logits=torch.tensor(float(start))), Bernoulli(logits=torch.tensor(float(end)))).item()


def test_words_that_speak_against_each_other_go_together() -> None:
    answer = Bernoulli(logits=torch.tensor([2.0]))
    lost = torch.tensor([[[1.0], [-1.0], [3.0], [9.0]]])
    found = greedy_elimination(answer, flat_logits(answer), lost, torch.tensor([[True, True, True, False]]))
    # The second goes first, as being surer moves the answer less than being less sure; then the first brings it back.
    assert found[0].tolist() == pytest.approx([0, 0, moved(2, -1), torch.inf], abs=1e-4)
    assert found[0, 1] < found[0, 0]


def lead(logits: torch.Tensor, decided: torch.Tensor) -> torch.Tensor:
    """Of a class over the next best."""
    others = logits.scatter(-1, decided, -torch.inf).amax(dim=-1)
    return logits.gather(-1, decided).squeeze(-1) - others


def caused(answer: Categorical, sums: torch.Tensor) -> torch.Tensor:
    """KL between each row's answer and what many sums of numbers stand for, and what the decision loses of its lead."""
    whole = flat_logits(answer).repeat_interleave(sums.shape[1], dim=0)
    decided, after = whole.argmax(dim=1, keepdim=True), sums.flatten(0, 1)
    behind = (lead(whole, decided).clamp(max=MAX_LEAD) - lead(after, decided)).clamp(min=0)
    moved = divergence(from_logits(answer, whole), from_logits(answer, after)) + behind
    return moved.unflatten(0, sums.shape[:2])


def test_it_finds_larger_sets_than_tokens_one_by_one_and_nearly_the_largest() -> None:
    torch.manual_seed(0)
    answer, lost = Categorical(logits=torch.randn(50, 5)), 0.6 * torch.randn(50, 8, 5)
    whole = flat_logits(answer)[:, None]
    ours = (greedy_elimination(answer, flat_logits(answer), lost, torch.ones(50, 8, dtype=torch.bool)) <= 0.1).sum(
        dim=1
    )
    subsets = torch.tensor(list(itertools.product([0.0, 1.0], repeat=8)))
    best = torch.where(caused(answer, whole - subsets @ lost) <= 0.1, subsets.sum(dim=1), 0).amax(dim=1)
    order = caused(answer, whole - lost).argsort(dim=1)[..., None].expand_as(lost)
    one_by_one = (caused(answer, whole - lost.gather(1, order).cumsum(dim=1)) <= 0.1).sum(dim=1)
    assert (ours <= best).all()
    assert ours.sum() >= 0.8 * best.sum()
    assert ours.sum() >= 1.2 * one_by_one.sum()


def test_a_word_that_keeps_the_decision_ahead_is_needed_though_the_divergence_is_small() -> None:
    answer = Categorical(logits=torch.tensor([[0.2, 0.0, -3.0]]))
    lost = torch.tensor([[[0.4, 0.0, 0.0], [-0.4, 0.0, 0.0]]])
    assert divergence(answer, Categorical(logits=flat_logits(answer) - lost[:, 0])).item() < 0.03
    needed = greedy_elimination(answer, flat_logits(answer), lost, torch.tensor([[True, False]]))
    assert needed[0, 0] > 0.4


def test_a_long_text_takes_few_steps_and_keeps_what_decides() -> None:
    answer = Categorical(logits=torch.tensor([[3.0, 0.0]]))
    lost = torch.zeros(1, 500, 2)
    lost[0, 123, 0] = 6.0
    needed = greedy_elimination(answer, flat_logits(answer), lost, torch.ones(1, 500, dtype=torch.bool))
    assert needed.argmax().item() == 123
    assert needed[0, 123] > 1 and needed[0, :123].max() < 1e-2


def test_the_short_cut_for_classes_foretells_what_any_answer_does_and_the_lead_lost() -> None:
    torch.manual_seed(1)
    answer, lost, remaining = Categorical(logits=torch.randn(3, 4)), torch.randn(3, 6, 4), torch.randn(3, 4)
    foretold = divergence_predictor(answer, flat_logits(answer), lost)
    torch.testing.assert_close(foretold.without_each(remaining), caused(answer, remaining[:, None] - lost))
    torch.testing.assert_close(foretold.at(remaining), caused(answer, remaining[:, None]).squeeze(1))


@pytest.mark.parametrize("kind", [Bernoulli, Categorical])
def test_a_token_that_goes_leaves_what_remains_without_it(kind: type[Distribution]) -> None:
    torch.manual_seed(2)
    answer = kind(logits=torch.randn(3, 2) if kind is Categorical else torch.randn(3))  # type: ignore[call-arg]
    features = flat_logits(answer).shape[1]
    lost, remaining = torch.randn(3, 5, features), torch.randn(3, features)
    foretold = divergence_predictor(answer, flat_logits(answer), lost)
    torch.testing.assert_close(foretold.without_each(remaining)[:, 2], foretold.at(remaining - lost[:, 2]))


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
def test_an_answer_is_rebuilt_from_the_way_it_tends(answer: Distribution) -> None:
    again = from_logits(answer, probabilities_to_logits(answer, class_probabilities(answer)))
    assert divergence(answer, again).sum().item() == pytest.approx(0.0, abs=1e-6)
    features = flat_logits(answer).shape[1]
    lost = torch.linspace(-1, 2, 4 * features).reshape(1, 4, features)
    needed = greedy_elimination(answer, flat_logits(answer), lost, torch.ones(1, 4, dtype=torch.bool))
    assert needed.isfinite().all() and needed.max() > 0.01
