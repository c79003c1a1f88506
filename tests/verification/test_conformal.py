"""Conformal thresholds hold for the stated share of new texts."""

import math

import pytest
import torch

from diffmask.core.verification.conformal import fit_thresholds, largest_holding, lower_quantile


def test_the_stated_share_of_new_texts_holds() -> None:
    # log t = 2 x - 1 + noise: the regression is right, the noise is heavy-tailed.
    draw = torch.Generator().manual_seed(0)
    shares = []
    for _ in range(60):
        features = torch.randn(400, 1, generator=draw)
        noise = torch.randn(400, generator=draw) / torch.rand(400, generator=draw).clamp(min=0.05)
        largest = (2 * features[:, 0] - 1 + noise).exp()
        found = fit_thresholds(features[:200], largest[:200], share=0.9)
        shares.append(float((largest[200:] >= found(features[200:])).float().mean()))
    assert sum(shares) / len(shares) == pytest.approx(0.91, abs=0.02)


def test_a_threshold_depends_on_the_text_and_beats_one_for_all() -> None:
    draw = torch.Generator().manual_seed(1)
    features = torch.randn(400, 1, generator=draw)
    largest = (2 * features[:, 0] + 0.1 * torch.randn(400, generator=draw)).exp()
    found = fit_thresholds(features, largest, share=0.95)
    same = math.exp(lower_quantile(largest.log(), 0.95))
    assert float((found(features) > same).float().mean()) > 0.9


def test_too_few_texts_keep_everything() -> None:
    found = fit_thresholds(torch.zeros(10, 1), torch.ones(10), share=0.95)
    assert found(torch.zeros(2, 1)).tolist() == [0.0, 0.0]


def test_thresholds_after_the_first_that_breaks_do_not_count() -> None:
    thresholds = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    holds = torch.tensor([[True, False, True], [False, True, True], [True, True, True]])
    assert largest_holding(thresholds, holds).tolist() == [1.0, 0.0, 3.0]
