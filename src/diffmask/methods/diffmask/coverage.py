"""Thresholds per text, so that a stated share of unseen texts holds the margin without verification.

The thresholds of a fit are multiplied by a number per text. It is predicted from features of the text, such as how sure
the model is, and lowered by the conformal quantile of the prediction's errors (`core.verification.conformal`).
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.batch import Batch
from diffmask.core.distributions import agreement, divergence, flatten_features, log_odds, predicted_outcome
from diffmask.core.explainer import ForwardTrace, iter_traces
from diffmask.core.progress import progress_bar
from diffmask.core.verification.conformal import fit_thresholds, largest_holding

if TYPE_CHECKING:
    from diffmask.methods.diffmask.surrogate import SurrogateMaskExplainer

FACTORS = tuple(2.0**power for power in (-6, -4, -2, -1, 0, 1))
"""Multiples of the fitted thresholds that are measured on every calibration text."""
SMALLEST_FACTOR = FACTORS[0] / 16
"""Factor of a text on which even the smallest multiple breaks the margin: nearly every token is kept."""
FEATURES = 4


def text_features(
    answer: Distribution, costs: Float[Tensor, "row token"], threshold: Float[Tensor, ""]
) -> Float[Tensor, "row feature"]:
    """Return how sure the model is, and of the predicted elimination: its tokens, the total cost, the tokens kept."""
    sure = flatten_features(log_odds(answer, predicted_outcome(answer))).mean(dim=1).clamp(-20, 20) / 5
    finite = costs.isfinite()
    total = costs.masked_fill(~finite, 0.0).amax(dim=1).clamp(min=1e-4).log()
    kept = (finite & (costs > threshold)).sum(dim=1)
    return torch.stack([sure, finite.sum(dim=1).clamp(min=1).log(), total, kept.to(costs).log1p()], dim=1)


@torch.no_grad()
def calibrate_coverage(explainer: "SurrogateMaskExplainer", rows: Batch, margin: float, coverage: float) -> None:
    """Fit the factors so that masks of a share of unseen texts hold the margin and the prediction.

    Masks of inputs are measured at the last site, whose factors all sites use; masks of states at every site. With too
    few rows for the share all factors stay one.
    """
    traces = list(iter_traces(explainer.task, rows, 32))
    sites = explainer.sites if explainer.mask == "states" else explainer.sites[-1:]
    for site in progress_bar(sites, "calibrate the coverage"):
        parts = [_measure(explainer, trace, site, margin) for trace in traces]
        features, holds = (torch.cat(values) for values in zip(*parts, strict=True))
        factors = torch.tensor(FACTORS, dtype=features.dtype, device=features.device).expand(len(features), -1)
        fitted = fit_thresholds(features, largest_holding(factors, holds, SMALLEST_FACTOR), coverage)
        if fitted.quantile > -torch.inf:
            explainer.set_factors(site, fitted)


def _measure(
    explainer: "SurrogateMaskExplainer", trace: ForwardTrace, site: str, margin: float
) -> tuple[Float[Tensor, "row feature"], Bool[Tensor, "row factor"]]:
    """Return the features of each text, and whether its masks at multiples of the thresholds hold."""
    features, masks = explainer.scaled_masks(trace, site, FACTORS)
    answers = [explainer.predict_masked(trace, site, mask) for mask in masks]
    holds = [(divergence(trace.answer, answer) <= margin) & agreement(trace.answer, answer) for answer in answers]
    return features, torch.stack(holds, dim=1)
