"""Masks optimised per text, by relaxed gates and by score-function gradients."""

import pytest
import torch

from diffmask.errors import ConfigError
from diffmask.methods.diffmask.lagrangian import Multiplier, PIController, RowMultipliers
from diffmask.methods.diffmask.per_input import (
    MaskedRows,
    PerInputDiffMask,
    PerInputMaskExplainer,
    PerInputMaskMethod,
    PerInputReinforce,
)
from diffmask.tasks.classification import TextClassification
from support.linear import LinearTask, batch_of
from support.lookup import LookupTask
from support.tiny_models import tiny_model, word_pieces

METHODS = [PerInputDiffMask(baseline="zero", steps=200), PerInputReinforce(baseline="zero", steps=100)]
by_label = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


@by_label
def test_the_token_that_decides_is_kept_and_the_others_are_not(method: PerInputMaskMethod) -> None:
    # Token 3 adds 4 to the logit, token 1 adds 1 and token 2 takes 2; padding adds nothing.
    task = LinearTask([[3, 1, 2, 1], [1, 3]])
    scores = method.fit(task)(task.data["test"]).scores
    assert scores[0, 0] > 0.8
    assert scores[1, 1] > 0.8
    assert (scores[0, 0] > scores[0, 1:] + 0.3).all()


@by_label
def test_a_text_whose_tokens_have_no_effect_is_masked_as_a_whole(method: PerInputMaskMethod) -> None:
    task = LinearTask([[0, 0, 0]])
    assert (method.fit(task)(batch_of([[0, 0, 0]])).scores < 0.1).all()


@by_label
def test_a_text_that_needs_every_token_keeps_every_token(method: PerInputMaskMethod) -> None:
    task = LinearTask([[3, 3]])
    tight = type(method)(baseline="zero", steps=100, margin=0.001)
    assert (tight.fit(task)(task.data["test"]).scores > 0.5).all()


def test_the_score_function_gradient_is_that_of_the_expected_divergence() -> None:
    task = LookupTask(2, {frozenset([0, 1]): 2.0, frozenset([0]): 1.0, frozenset([1]): -1.0}, default=0.5)
    method = PerInputReinforce(baseline="zero", samples=500, memory=0.0)
    explainer = method.fit(task)
    assert isinstance(explainer, PerInputMaskExplainer)
    answer, states = task.trace(task.data["test"])
    rows = MaskedRows(task, task.data["test"], answer, "embedding", states["embedding"], explainer.baseline)
    logits = torch.tensor([[0.3, -0.4]], requires_grad=True)
    estimate, _ = explainer.sampled_divergence(rows, logits, 0)
    (gradient,) = torch.autograd.grad(estimate.sum(), logits)

    keep = torch.sigmoid(logits)[0]
    expected = torch.zeros(())
    for gate in ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)):
        chance = torch.stack([k if z else 1 - k for z, k in zip(gate, keep, strict=True)]).prod()
        expected = expected + chance * rows.divergence(torch.tensor([gate]))[0]
    (exact,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(gradient, exact, atol=0.03, rtol=0.1)


def test_rows_have_the_multiplier_they_would_have_alone() -> None:
    rule = PIController(0.1)
    full_mask_kl = torch.tensor([2.0, 0.5])
    rows = RowMultipliers(rule, full_mask_kl)
    single = [Multiplier(rule, 1 / value) for value in full_mask_kl.tolist()]
    for step, seen in enumerate(([1.0, 0.3], [0.4, 0.05], [0.0, 2.0], [0.2, 0.01])):
        rows.update(torch.tensor(seen), step / 4)
        for multiplier, value in zip(single, seen, strict=True):
            multiplier.update(value, step / 4)
    assert rows.value.tolist() == pytest.approx([multiplier.value for multiplier in single], rel=1e-5)


def test_masks_beyond_the_margin_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    task = LinearTask([[3, 3], [3, 1]])
    PerInputDiffMask(baseline="zero", steps=1, initial_logit=-5.0).fit(task)(task.data["test"])
    assert "of 2 masks 100 % change the prediction by more than the margin" in caplog.text
    assert len(caplog.records) == 1


def test_impossible_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="diffmask-per-input: margin must not be negative"):
        PerInputDiffMask(margin=-1.0)
    with pytest.raises(ConfigError, match="samples must be at least 1"):
        PerInputReinforce(samples=0)


def test_rounding_errors_of_a_batch_do_not_grow_into_other_gates() -> None:
    texts = ["the film is bad", "the film is the film is good", "the film is the film is the film is great"]
    task = TextClassification(tiny_model("llama", 2), word_pieces(), train=texts, test=texts)
    batch = task.data["test"]
    explainer = PerInputDiffMask(steps=60).fit(task)
    together = explainer(batch).scores
    for row in range(len(batch)):
        alone = explainer(batch[row : row + 1].trim()).scores[0]
        torch.testing.assert_close(together[row, : len(alone)], alone, rtol=0, atol=0)
