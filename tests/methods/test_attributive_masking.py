"""Attributive masking: the objective by hand, and what its two terms teach."""

import pytest
import torch

from diffmask.errors import ConfigError
from diffmask.methods.amortised.attributive_masking import AttributiveMaskExplainer, AttributiveMasking, MaskEffect
from support.small_words import WordsTask


def test_the_objective_rewards_the_change_under_the_complement_up_to_three_nats() -> None:
    effect = MaskEffect(torch.tensor([0.2, 0.2]), torch.tensor([1.0, 50.0]), torch.tensor([0.5, 0.5]))
    method = AttributiveMasking(keep_weight=2.0, complement_weight=0.5, size_weight=0.1)
    assert method.loss(effect).tolist() == pytest.approx([0.4 - 0.5 + 0.05, 0.4 - 1.5 + 0.05])


def test_an_untrained_mask_is_one_half_and_its_complement_has_the_same_effect() -> None:
    task = WordsTask()
    explainer = AttributiveMasking(width=8).build(task, 0)
    batch = task.data["test"][:5]
    torch.testing.assert_close(explainer(batch).scores[batch.maskable], torch.full((int(batch.maskable.sum()),), 0.5))
    effect = explainer.mean_effect(batch, 4)
    assert effect["divergence"] == pytest.approx(effect["complement_divergence"])
    assert effect["size"] == pytest.approx(0.5)


@pytest.fixture(scope="module")
def fitted() -> AttributiveMaskExplainer:
    found = AttributiveMasking(steps=120, width=32, learning_rate=5e-3).fit(WordsTask(), 0)
    assert isinstance(found, AttributiveMaskExplainer)
    return found


def test_a_fitted_mask_keeps_the_prediction_and_its_complement_changes_it(fitted: AttributiveMaskExplainer) -> None:
    effect = fitted.diagnostics["network"]
    assert effect["divergence"] < 0.2
    assert effect["complement_divergence"] > 3 * effect["divergence"]


def test_a_batch_costs_one_forward_pass_which_also_gives_the_prediction(fitted: AttributiveMaskExplainer) -> None:
    before = fitted.cost.forwards
    fitted(fitted.task.data["test"][:6])
    assert fitted.cost.forwards - before == 1


def test_weights_out_of_bounds_are_refused() -> None:
    with pytest.raises(ConfigError, match="attributive-masking: complement_weight must be at least 0"):
        AttributiveMasking(complement_weight=-1.0)
    with pytest.raises(ConfigError, match="steps must be at least 1"):
        AttributiveMasking(steps=0)
