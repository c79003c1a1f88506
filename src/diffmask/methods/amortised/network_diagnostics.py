"""Diagnostics of an amortised explainer: how far the model is from additive, and how much its scores miss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from diffmask.core.distributions import flat_logits, log_odds_gradient, predicted_outcome
from diffmask.methods.amortised.network import AttributionNetwork
from diffmask.methods.amortised.objectives import MaskedBatch, additive_logits


@torch.no_grad()
def additivity(network: AttributionNetwork, held_out: Sequence[MaskedBatch]) -> dict[str, Any]:
    """Measure additivity on held-out texts, f being the log-odds of the predicted outcome in nats.

    * `interaction`: mean |f(S) + f(complement) - f(all) - f(none)| / mean |f(all) - f(none)|; 0 for an additive model.
    * `residual`: share of the variance of f(S) that the kept tokens' scores leave unexplained.
    * `efficiency_gap`: mean |sum of all scores - (f(all) - f(none))| / mean |f(all) - f(none)|.
    """
    parts = [_log_odds(network, batch) for batch in held_out]
    effect = torch.cat([part.full - part.empty for part in parts])
    masked = torch.cat([part.masked.flatten() for part in parts])
    estimate = torch.cat([part.estimate.flatten() for part in parts])
    interaction = torch.cat([part.interaction.flatten() for part in parts])
    gap = torch.cat([part.score_sum - (part.full - part.empty) for part in parts])
    size = effect.abs().mean().clamp(min=1e-9)
    residual = (masked - estimate).square().sum() / (masked - masked.mean()).square().sum().clamp(min=1e-9)
    figures = {
        "interaction": (interaction.abs().mean() / size).item(),
        "residual": residual.item(),
        "efficiency_gap": (gap.abs().mean() / size).item(),
    }
    return {**figures, "problems": _problems(figures)}


def interaction_only(diagnosis: dict[str, Any]) -> dict[str, Any]:
    """Select the part that applies to distillation: scores in a teacher's units need not add up."""
    problems = {name: text for name, text in diagnosis["problems"].items() if name == "not additive"}
    return {"interaction": diagnosis["interaction"], "problems": problems}


@dataclass(frozen=True)
class _LogOdds:
    """Log-odds of the predicted outcome under masks, and what the scores predict for them."""

    masked: Float[Tensor, "row copy"]
    estimate: Float[Tensor, "row copy"]
    full: Float[Tensor, " row"]
    empty: Float[Tensor, " row"]
    score_sum: Float[Tensor, " row"]

    @property
    def interaction(self) -> Float[Tensor, "row pair"]:
        """f(S) + f(complement) - f(all) - f(none); masks alternate with their complements."""
        return self.masked.unflatten(1, (-1, 2)).sum(-1) - (self.full + self.empty)[:, None]


def _log_odds(network: AttributionNetwork, batch: MaskedBatch) -> _LogOdds:
    gradient = log_odds_gradient(batch.prediction, batch.empty_logits, predicted_outcome(batch.prediction))
    scores = (network(*batch.cached.restore()) * gradient[:, None]).sum(-1)
    maskable = batch.kept[:, :2].any(dim=1)  # a mask and its complement together keep every maskable token
    return _LogOdds(
        masked=(batch.masked_logits * gradient[:, None]).sum(-1),
        estimate=(additive_logits(network, batch) * gradient[:, None]).sum(-1),
        full=(flat_logits(batch.prediction) * gradient).sum(-1),
        empty=(batch.empty_logits * gradient).sum(-1),
        score_sum=(scores * maskable).sum(dim=1),
    )


def _problems(figures: dict[str, float]) -> dict[str, str]:
    problems = {}
    if figures["interaction"] > 0.5:
        problems["not additive"] = (
            f"the effects of a token set and of its complement differ from the effect of the whole text by "
            f"{figures['interaction']:.0%}: tokens interact, and one score per token cannot express that"
        )
    if figures["residual"] > 0.5:
        problems["residual"] = (
            f"the scores do not explain {figures['residual']:.0%} of the variance of the predictions for masked copies"
        )
    return problems
