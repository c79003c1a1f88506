"""Choice of one mask per text such that a stated share of new texts holds the margin without verification.

Several nested masks of every calibration text are measured. On one half of the texts a logistic regression learns the
risk of a mask, the probability that it breaks, from features of the mask. The mask of a text is the one with the
smallest `share of tokens kept + price * risk`. On the other half the price falls for as long as
(texts that break + 1) / (texts + 1) <= 1 - share: conformal risk control (Angelopoulos et al. 2024). The loss need not
be monotone in the price, so the search stops at the first price that fails.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

PRICES = tuple(10 ** (2 - step / 20) for step in range(81))
"""Prices of a risk of one, in shares of tokens kept, from the highest to the lowest."""
NEWTON_STEPS = 30


def fit_risk(
    features: Float[Tensor, "text mask feature"], holds: Bool[Tensor, "text mask"], ridge: float = 1.0
) -> Float[Tensor, " weight"]:
    """Return the weights of a logistic regression for masks that break; the last weight is that of the constant."""
    design = _with_constant(features).flatten(0, 1)
    target = (~holds).to(design).flatten()
    penalty = ridge * torch.eye(design.shape[1]).to(design)
    penalty[-1, -1] = 1e-3  # Keeps the regression finite where every mask holds.
    weights = design.new_zeros(design.shape[1])
    for _ in range(NEWTON_STEPS):
        risk = (design @ weights).sigmoid()
        gradient = design.T @ (risk - target) + penalty @ weights
        curvature = (design * (risk * (1 - risk)).clamp(min=1e-6)[:, None]).T @ design + penalty
        weights = weights - torch.linalg.solve(curvature, gradient)
    return weights


def predicted_risk(
    features: Float[Tensor, "text mask feature"], weights: Float[Tensor, " weight"]
) -> Float[Tensor, "text mask"]:
    """Return the probability that each mask breaks."""
    return (_with_constant(features) @ weights.double()).sigmoid()


def choose_masks(
    kept: Float[Tensor, "text mask"], risk: Float[Tensor, "text mask"], price: float
) -> Int[Tensor, " text"]:
    """Return the mask of each text with the smallest share of tokens kept plus price times risk.

    A mask that keeps everything has no risk.

    >>> choose_masks(torch.tensor([[1.0, 0.5, 0.1]]), torch.tensor([[0.3, 0.02, 0.9]]), price=1.0)
    tensor([1])
    """
    return (kept + price * risk.masked_fill(kept >= 1, 0.0)).argmin(dim=1)


def calibrate_price(
    kept: Float[Tensor, "text mask"],
    risk: Float[Tensor, "text mask"],
    holds: Bool[Tensor, "text mask"],
    share: float,
) -> float | None:
    """Return the lowest price, searched from the highest, at which the stated share of new texts holds.

    None if there are too few texts for the share, or if even the highest price fails.
    """
    allowed = (1 - share) * (len(kept) + 1) - 1 + 1e-9
    lowest = None
    for price in PRICES:
        broken = ~holds.gather(1, choose_masks(kept, risk, price)[:, None])
        if int(broken.sum()) > allowed:
            break
        lowest = price
    return lowest


def _with_constant(features: Float[Tensor, "text mask feature"]) -> Float[Tensor, "text mask column"]:
    return torch.cat([features, torch.ones_like(features[..., :1])], dim=-1).double()
