"""Thresholds per text, so that a stated share of unseen texts holds the margin without verification.

The thresholds of a fit are multiplied by one of `FACTORS` per text: the one whose mask is the best compromise between
tokens kept and the predicted risk that the mask breaks the margin or the prediction (`core.verification.conformal`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.batch import Batch
from diffmask.core.distributions import agreement, divergence, flatten_features, log_odds, predicted_outcome
from diffmask.core.explainer import ForwardTrace, iter_traces
from diffmask.core.progress import progress_bar
from diffmask.core.verification.conformal import calibrate_price, cross_fitted_risk, fit_risk
from diffmask.core.verification.search import log_odds_bounds

if TYPE_CHECKING:
    from diffmask.methods.diffmask.surrogate import SurrogateMaskExplainer

FACTORS = (0.0, *(2.0**power for power in (-10, -8, -6, -5, -4, -3, -2, -1, 0, 1)))
"""Multiples of the fitted thresholds that a text may have; zero keeps every token."""
FEATURES = 3
MAX_LOG_ODDS = 20.0


@dataclass(frozen=True)
class ScaledMasks:
    """Masks of texts at every one of `FACTORS`, with features that predict whether they hold."""

    kept: Bool[Tensor, "row factor token"]
    share: Float[Tensor, "row factor"]
    """Share of the maskable tokens that are kept."""
    features: Float[Tensor, "row factor feature"]

    @staticmethod
    def of(
        trace: ForwardTrace,
        costs: Float[Tensor, "row site token"],
        thresholds: Float[Tensor, " site"],
        contribution: Float[Tensor, "row token"],
        margin: float,
    ) -> "ScaledMasks":
        """Erase the tokens whose cost at any site is within a multiple of its threshold."""
        factors = torch.tensor(FACTORS).to(costs)[:, None, None]
        within = (costs[:, None] <= factors * thresholds[:, None]) & (thresholds >= 0)[:, None]
        maskable = trace.rows.maskable[:, None]
        kept = maskable & ~within.any(dim=2)
        share = kept.sum(dim=2) / maskable.sum(dim=2).clamp(min=1)
        # A text without maskable tokens keeps everything.
        share = torch.where(maskable.any(dim=2), share, 1.0)
        return ScaledMasks(kept, share, risk_features(trace, contribution, maskable & ~kept, margin))


def risk_features(
    trace: ForwardTrace,
    contribution: Float[Tensor, "row token"],
    erased: Bool[Tensor, "row mask token"],
    margin: float,
) -> Float[Tensor, "row mask feature"]:
    """Return how far the log-odds of the prediction may fall, and how far from both bounds masks are predicted to be.

    Erased tokens are predicted to lower the log-odds by the sum of their contributions. The prediction of an unsure
    model may fall by little before it flips.
    """
    lead = _lead(trace.answer)
    predicted = lead[:, None] - (erased.to(contribution) @ contribution[..., None]).squeeze(-1)
    low, high = (torch.from_numpy(bound).to(lead) for bound in log_odds_bounds(lead.cpu().numpy(), margin))
    tolerance = (lead - low).clamp(min=1e-3).log()[:, None].expand_as(predicted)
    slack = [(predicted - low[:, None]).clamp(-3, 3), (high[:, None] - predicted).clamp(-1, 3)]
    return torch.stack([tolerance, *slack], dim=-1)


@torch.no_grad()
def calibrate_coverage(explainer: "SurrogateMaskExplainer", rows: Batch, coverage: float) -> None:
    """Fit the choice of factors so that masks of a share of unseen texts hold the margin and the prediction.

    Masks of inputs are measured at the last site, whose factors all sites use; masks of states at every site. With too
    few rows for the share all factors stay one.
    """
    traces = list(iter_traces(explainer.task, rows, 32))
    sites = explainer.sites if explainer.mask == "states" else explainer.sites[-1:]
    for site in progress_bar(sites, "calibrate the coverage"):
        parts = [_measure(explainer, trace, site) for trace in traces]
        share, features, holds = (torch.cat(values) for values in zip(*parts, strict=True))
        price = calibrate_price(share, cross_fitted_risk(features, holds), holds, coverage)
        if price is not None:
            explainer.set_risk(site, fit_risk(features, holds), price)


def _measure(explainer: "SurrogateMaskExplainer", trace: ForwardTrace, site: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return the share of tokens that each mask keeps, its features, and whether it holds."""
    masks, margin = explainer.scaled_masks(trace, site), explainer.margin_at(site)
    answers = [explainer.predict_masked(trace, site, mask) for mask in masks.kept.unbind(dim=1)]
    holds = [(divergence(trace.answer, answer) <= margin) & agreement(trace.answer, answer) for answer in answers]
    return masks.share, masks.features, torch.stack(holds, dim=1)


def _lead(answer: Distribution) -> Float[Tensor, " row"]:
    """Return the log-odds of the prediction."""
    return flatten_features(log_odds(answer, predicted_outcome(answer))).mean(dim=1).clamp(-MAX_LOG_ODDS, MAX_LOG_ODDS)
