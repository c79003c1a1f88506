"""Amortised scores: exact for an additive model, one forward pass per text, diagnostics for the rest."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Independent, Normal

from diffmask.core.distributions import flat_logits, from_logits, log_odds_gradient
from diffmask.core.explainer import Explainer
from diffmask.core.training import generator
from diffmask.errors import ConfigError, FitWarning
from diffmask.methods.amortised.amortised import Amortised, AmortisedExplainer, spread_sites
from diffmask.methods.amortised.network_training import parse_budget
from diffmask.methods.amortised.objectives import sample_guided_masks, sample_mask_pairs
from diffmask.methods.amortised.refine import posterior_mean
from diffmask.methods.leave_one_out import LeaveOneOut
from diffmask.metrics.ranks import rank_correlation
from support.linear import VALUES, Sum
from support.small_words import WordsTask

pytestmark = pytest.mark.usefixtures("cache")
METHOD = Amortised(budget="2400 texts", width=32, batch_size=32, steps_per_batch=4, learning_rate=5e-3)


@pytest.fixture(scope="module")
def explainer() -> AmortisedExplainer:
    return METHOD.fit(WordsTask(), seed=0)  # type: ignore[return-value]


def truth(explainer: Explainer) -> Tensor:
    """Contribution of each token to the logit minus that of the mask token, signed towards the prediction."""
    batch = explainer.task.data["test"]
    sign = torch.sign(explainer.task.predict(batch).logits)  # type: ignore[attr-defined]
    return (torch.tensor(VALUES)[batch.tokens] - VALUES[4]) * sign[:, None] * batch.maskable


def test_scores_of_an_additive_model_are_the_contributions(explainer: AmortisedExplainer) -> None:
    scores = explainer(explainer.task.data["test"]).scores
    assert (scores - truth(explainer)).abs().mean() < 0.2


def test_a_class_that_is_not_the_answer_has_the_opposite_scores(explainer: AmortisedExplainer) -> None:
    batch = explainer.task.data["test"]
    torch.testing.assert_close(explainer(batch, 1).scores, -explainer(batch, 0).scores)


def test_diagnostics_of_an_additive_model_report_no_problem(explainer: AmortisedExplainer) -> None:
    diagnostics = explainer.diagnostics["network"]
    assert diagnostics["interaction"] < 1e-5
    assert diagnostics["residual"] < 0.02
    assert diagnostics["efficiency_gap"] < 0.1
    assert not diagnostics["problems"]


class Whole(Sum):
    """logit = 6 if no token is masked, else -2: a model far from additive."""

    def forward(self, tokens: Tensor, present: Tensor) -> Tensor:
        masked = ((self.embedding(tokens) - self.embedding.weight[4]).abs().sum(-1) < 0.1) & present
        return torch.where(masked.any(dim=1), -2.0, 6.0)


def test_a_model_far_from_additive_is_reported() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = Amortised(budget="64 texts", width=8).fit(WordsTask(model=Whole()))
    assert any("not additive" in str(warning.message) for warning in caught)
    # f(S) + f(rest) - f(all) - f(none) = -8 of 8, unless all of a text's tokens, or none, are kept.
    assert 0.5 < fitted.diagnostics["network"]["interaction"] <= 1


def test_an_explanation_takes_one_forward_pass(explainer: AmortisedExplainer) -> None:
    before = explainer.cost.forwards
    explainer(explainer.task.data["test"][:20])
    assert explainer.cost.forwards == before + 1


def test_the_learning_curve_is_measured_on_held_out_texts(explainer: AmortisedExplainer) -> None:
    curve = explainer.diagnostics["network"]["curve"]
    assert curve[0]["texts"] == 0
    assert min(point["error"] for point in curve) < 0.05 * curve[0]["error"]
    assert curve[-1]["texts"] == 2400


def test_held_out_texts_end_a_fit_that_gains_nothing() -> None:
    stuck = Amortised(budget="3200 texts", width=8, learning_rate=1e-12, steps_per_batch=1, patience=2, held_out=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        curve = stuck.fit(WordsTask()).diagnostics["network"]["curve"]
    assert curve[-1]["texts"] < 3200


def test_a_teacher_is_imitated_and_its_scores_are_stored(explainer: AmortisedExplainer, cache: Path) -> None:
    task = WordsTask()
    method = Amortised(
        teacher="leave-one-out", budget="320 texts", width=32, steps_per_batch=16, learning_rate=5e-3, held_out=32
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        student = method.fit(task)
    batch = task.data["test"]
    taught = LeaveOneOut().fit(task)(batch).scores
    assert rank_correlation(student(batch).scores, taught, batch.maskable).mean() > 0.9
    kept = len(list((cache / "teacher").iterdir()))
    # Another seed learns from the same answers.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        again = method.fit(task, seed=5)
    assert len(list((cache / "teacher").iterdir())) == kept
    assert again.fit_cost.rows < 0.7 * student.fit_cost.rows


def test_the_scores_of_several_teachers_are_averaged() -> None:
    method = Amortised(teacher=["random", LeaveOneOut(mode="delete")], budget="64 texts", width=8)
    assert [teacher.label for teacher in method.teachers()] == ["random", "leave-one-out (mode=delete)"]
    assert Amortised.from_dict(method.to_dict()) == method
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        method.fit(WordsTask())


def test_out_of_distribution_texts_are_flagged(explainer: AmortisedExplainer) -> None:
    task = WordsTask()
    unusual = task.data["test"].map(lambda value: value)
    unusual = type(unusual)(**{**vars(unusual), "tokens": torch.where(unusual.maskable, 3, 0)})
    usual = explainer.is_out_of_distribution(task.data["test"]).float().mean()
    long = unusual.present.sum(dim=1) > 5
    assert usual < 0.1
    assert explainer.is_out_of_distribution(unusual)[long].all()


def test_refining_starts_from_the_student_and_ends_at_the_truth(explainer: AmortisedExplainer) -> None:
    batch = explainer.task.data["test"][:20]
    rough = Amortised(budget="32 texts", width=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        start: Any = rough.fit(WordsTask())
    exact = truth(explainer)[:20]
    before = (start(batch).scores - exact).abs().mean()
    after = (start.refined(copies=128)(batch).scores - exact).abs().mean()
    assert after < 0.3 * before


def test_a_fit_with_refine_explains_as_the_refined_explainer() -> None:
    rough = Amortised(budget="32 texts", width=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        one_pass, refining = rough.fit(WordsTask()), replace(rough, refine=32).fit(WordsTask())
    assert isinstance(one_pass, AmortisedExplainer)
    batch = one_pass.task.data["test"][:20]
    torch.testing.assert_close(refining(batch).scores, one_pass.refined(copies=32)(batch).scores)
    assert not torch.allclose(refining(batch).scores, one_pass(batch).scores)
    with pytest.raises(ConfigError, match="refine must be 0 or at least 2"):
        Amortised(refine=1)


def test_the_posterior_is_ridge_regression_around_the_first_guess() -> None:
    kept = torch.tensor([[[True, False], [False, True], [True, True]]])
    effects = torch.tensor([[1.0, 2.0, 3.0]])
    first = torch.tensor([[0.5, 0.5]])
    mask = kept[0].double()
    by_hand = torch.linalg.solve(mask.T @ mask + torch.eye(2), mask.T @ effects[0].double() + first[0].double())
    torch.testing.assert_close(posterior_mean(first, kept, effects, 1.0)[0].double(), by_hand, rtol=1e-6, atol=1e-6)


def test_masks_come_with_their_complements_and_in_all_sizes() -> None:
    maskable = torch.ones(200, 30, dtype=torch.bool)
    maskable[:, 20:] = False
    kept = sample_mask_pairs(maskable, 4, generator(0, "masks"))
    assert (kept[:, 0::2] ^ kept[:, 1::2])[..., :20].all()
    assert not kept[..., 20:].any()
    share = kept[..., :20].float().mean(dim=-1)
    assert 0.45 < share.mean() < 0.55 and share.std() > 0.25
    # The strata: of four pairs one keeps, or leaves, at most an eighth.
    assert share[:, 0].mean() < 0.1


def test_guided_masks_keep_high_scores() -> None:
    scores = torch.tensor([[0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 7.0]]).expand(300, 7)
    maskable = torch.ones(300, 7, dtype=torch.bool)
    maskable[:, 6] = False
    kept = sample_guided_masks(scores, maskable, 2, generator(0, "pointed"))
    assert not kept[..., 6].any()
    assert (kept[:, 0::2] ^ kept[:, 1::2])[..., :6].all()
    assert (kept[:, 0::2].sum(dim=-1) <= 3).all() and (kept[:, 0::2].sum(dim=-1) >= 1).all()
    assert kept[:, 0::2, 2].float().mean() > 0.8


@pytest.mark.parametrize(
    "answer",
    [
        Bernoulli(logits=torch.tensor([0.3, -1.0])),
        Categorical(logits=torch.tensor([[0.1, 0.5, -0.2], [1.0, 0.0, 0.0]])),
        Independent(Bernoulli(logits=torch.tensor([[0.3, -1.0], [0.2, 0.1]])), 1),
        Independent(Normal(torch.tensor([[0.3], [1.0]]), torch.ones(2, 1)), 1),
    ],
    ids=["bernoulli", "categorical", "labels", "numbers"],
)
def test_a_distribution_is_restored_from_its_logits_and_its_gradient_raises_the_outcome(answer: Any) -> None:
    again = from_logits(answer, flat_logits(answer))
    outcome = answer.mode if not isinstance(answer, Independent) else answer.base_dist.mode
    torch.testing.assert_close(again.log_prob(outcome), answer.log_prob(outcome))
    empty = flat_logits(answer) - 1.0
    towards = log_odds_gradient(answer, empty, outcome)
    moved = from_logits(answer, flat_logits(answer) + 0.01 * towards)
    if not isinstance(answer, Independent) or isinstance(answer.base_dist, Bernoulli):
        assert (moved.log_prob(outcome) > answer.log_prob(outcome)).all()
    else:
        assert (towards == 1).all()


def test_budgets_are_parsed_from_numbers_with_units() -> None:
    assert parse_budget("1.5 min").seconds == 90
    assert parse_budget("200").texts == 200
    with pytest.raises(ConfigError, match="'soon' is no budget; write '5min'"):
        Amortised(budget="soon")


def test_a_budget_in_seconds_is_kept() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        fitted = Amortised(budget="0.2s", width=8, held_out=8).fit(WordsTask())
    assert len(fitted.diagnostics["network"]["curve"]) >= 2


def test_a_model_with_few_sites_has_few_default_sites() -> None:
    assert spread_sites(("only",)) == ("only",)
    assert spread_sites(("a", "b")) == ("a", "b")


def test_an_unknown_teacher_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no method 'leave-one-ou'; nearest: 'leave-one-out'"):
        Amortised(teacher="leave-one-ou").teachers()
