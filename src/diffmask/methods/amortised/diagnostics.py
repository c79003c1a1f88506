"""How far a model is from adding up, and how much of what does not the scores miss."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from diffmask.core.distributions import flat_logits, log_odds_gradient, predicted_outcome
from diffmask.methods.amortised.network import AttributionNetwork
from diffmask.methods.amortised.objectives import MaskedBatch, sums

Leans = Float[Tensor, "row copy"]


@torch.no_grad()
def additivity(student: AttributionNetwork, held_out: Sequence[MaskedBatch]) -> dict[str, Any]:
    """Figures on held-out texts, in nats of log-odds for the model's own answer, each a share of their size.

    * `interaction`: |f(S) + f(rest) - f(all) - f(none)| over |f(all) - f(none)|; 0 for a model that adds up.
    * `residual`: variance of f(S) that the kept tokens' scores leave unexplained; 1 is no better than the mean.
    * `efficiency_gap`: |sum of all scores - (f(all) - f(none))| over |f(all) - f(none)|.
    """
    parts = [_measure(student, lesson) for lesson in held_out]
    told, found, interaction, gap, change = (torch.cat(column) for column in zip(*parts, strict=True))
    size = change.abs().mean().clamp(min=1e-9)
    residual = (told - found).square().sum() / (told - told.mean()).square().sum().clamp(min=1e-9)
    figures = {
        "interaction": (interaction.abs().mean() / size).item(),
        "residual": residual.item(),
        "efficiency_gap": (gap.abs().mean() / size).item(),
    }
    return {**figures, "problems": _problems(figures)}


def interaction_only(found: dict[str, Any]) -> dict[str, Any]:
    """What of it concerns a student that imitates: its scores are in a teacher's units and need not add up."""
    problems = {name: text for name, text in found["problems"].items() if name == "not additive"}
    return {"interaction": found["interaction"], "problems": problems}


def _measure(student: AttributionNetwork, lesson: MaskedBatch) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Flat: f(S), the scores' sum for it, interaction a pair, efficiency gap and change a row."""
    whole = flat_logits(lesson.answer)
    towards = log_odds_gradient(lesson.answer, lesson.empty, predicted_outcome(lesson.answer))
    told, found = ((value * towards[:, None]).sum(-1) for value in (lesson.told, sums(student, lesson)))
    full, none = ((value * towards).sum(-1) for value in (whole, lesson.empty))
    pairs = told.unflatten(1, (-1, 2)).sum(-1) - (full + none)[:, None]
    scores = (student(*lesson.reading.full()) * towards[:, None]).sum(-1)
    gap = (scores * lesson.kept[:, :2].any(dim=1)).sum(dim=1) - (full - none)
    return told.flatten(), found.flatten(), pairs.flatten(), gap, full - none


def _problems(figures: dict[str, float]) -> dict[str, str]:
    found = {}
    if figures["interaction"] > 0.5:
        found["not additive"] = (
            f"a set and its complement miss adding up by {figures['interaction']:.0%} of what the text changes: "
            "tokens work together, and one number a token cannot say so"
        )
    if figures["residual"] > 0.5:
        found["residual"] = f"the scores leave {figures['residual']:.0%} of the answers to masked copies unexplained"
    return found
