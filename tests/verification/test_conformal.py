"""The mask of each text is chosen by risk and size, and the stated share of new texts holds."""

from itertools import pairwise

import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from diffmask.core.verification.conformal import (
    CONFIDENCE,
    PRICES,
    allowed_breaks,
    calibrate_price,
    choose_masks,
    cross_fitted_risk,
    fit_risk,
    predicted_risk,
)

KEPT = torch.tensor([1.0, 0.5, 0.2, 0.0])
"""Share of tokens that the four masks of a text keep."""


def draw_texts(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Features, kept shares and outcomes of texts: a mask breaks if its difficulty is above 2 minus noise."""
    sure = torch.rand(count, 1, generator=draw) * 3
    difficulty = 3 * (1 - KEPT) - sure
    noise = torch.randn(count, 1, generator=draw) / 2
    holds = (difficulty + noise <= 0) | (KEPT == 1)
    return difficulty[..., None], KEPT.expand(count, -1), holds


def chosen(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(1, index[:, None])[:, 0]


def test_the_stated_share_of_new_texts_holds_at_nine_in_ten_calibrations_with_small_masks() -> None:
    draw = torch.Generator().manual_seed(0)
    shares, sizes = [], []
    for _ in range(100):
        features, kept, holds = draw_texts(200, draw)
        price = calibrate_price(kept, cross_fitted_risk(features, holds), holds, 0.9)
        assert price is not None
        unseen, kept_of_unseen, holds_of_unseen = draw_texts(2000, draw)
        index = choose_masks(kept_of_unseen, predicted_risk(unseen, fit_risk(features, holds)), price)
        shares.append(float(chosen(holds_of_unseen, index).float().mean()))
        sizes.append(float(chosen(kept_of_unseen, index).mean()))
    # Nine in ten less three standard errors of a hundred calibrations.
    assert sum(share >= 0.9 for share in shares) >= 100 * CONFIDENCE - 9
    assert sum(shares) / len(shares) < 0.96
    # Any single mask for all texts that holds on nine tenths keeps everything.
    assert sum(sizes) / len(sizes) < 0.8


def test_the_risk_of_a_text_does_not_depend_on_whether_its_own_masks_hold() -> None:
    features, _, holds = draw_texts(60, torch.Generator().manual_seed(3))
    changed = holds.clone()
    changed[7] = ~changed[7]
    before, after = cross_fitted_risk(features, holds), cross_fitted_risk(features, changed)
    assert torch.equal(before[7], after[7])
    assert not torch.equal(before[8], after[8])


@pytest.mark.parametrize("texts", [45, 128, 256, 5000])
def test_the_allowed_breaks_are_the_most_of_which_the_binomial_bound_is_confident(texts: int) -> None:
    allowed = allowed_breaks(texts, 0.95)
    assert binom.cdf(allowed, texts, 0.05) <= 1 - CONFIDENCE < binom.cdf(allowed + 1, texts, 0.05)


def test_no_text_may_break_where_there_are_too_few_for_the_confidence() -> None:
    assert [allowed_breaks(texts, 0.95) for texts in (18, 19, 44)] == [-1, 0, 0]


def test_the_risk_is_the_probability_of_a_break() -> None:
    draw = torch.Generator().manual_seed(1)
    features = torch.randn(4000, 1, 1, generator=draw)
    breaks = torch.rand(4000, 1, generator=draw) < (2 * features[..., 0] - 1).sigmoid()
    weights = fit_risk(features, ~breaks)
    assert weights.tolist() == pytest.approx([2.0, -1.0], abs=0.2)
    risk = predicted_risk(features, weights)
    for low in (0.0, 0.25, 0.5, 0.75):
        inside = (risk >= low) & (risk < low + 0.25)
        assert float(breaks[inside].float().mean()) == pytest.approx(float(risk[inside].mean()), abs=0.05)


def test_masks_that_all_hold_have_next_to_no_risk() -> None:
    features = torch.zeros(50, 2, 1)
    risk = predicted_risk(features, fit_risk(features, torch.ones(50, 2, dtype=torch.bool)))
    assert float(risk.max()) < 0.02


def test_a_higher_price_never_chooses_a_riskier_mask() -> None:
    draw = torch.Generator().manual_seed(2)
    kept, risk = torch.rand(50, 5, generator=draw), torch.rand(50, 5, generator=draw)
    risks = [chosen(risk, choose_masks(kept, risk, price)) for price in PRICES]
    assert all(bool((high <= low).all()) for high, low in pairwise(risks))


def test_too_few_texts_have_no_price() -> None:
    kept, risk = KEPT.expand(10, -1), torch.zeros(10, 4)
    assert calibrate_price(kept, risk, torch.ones(10, 4, dtype=torch.bool), 0.95) is None


def test_a_risk_that_is_wrong_about_every_text_has_no_price() -> None:
    kept, holds = torch.tensor([[0.9, 0.1]]).expand(100, -1), torch.zeros(100, 2, dtype=torch.bool)
    assert calibrate_price(kept, torch.zeros(100, 2), holds, 0.95) is None
