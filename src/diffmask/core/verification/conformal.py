"""Choice of one mask per text such that a stated share of new texts holds the margin without verification.

Several nested masks of every calibration text are measured. A logistic regression learns the risk of a mask, the
probability that it breaks, from features of the mask; the risk of a text is predicted by a regression on the other
half of the texts. The mask of a text is the one with the smallest `share of tokens kept + price * risk`. The price
falls for as long as the share of new texts that break is at most 1 - share with a confidence of `CONFIDENCE`, by the
exact binomial bound: a risk-controlling prediction set (Bates et al. 2021). The loss need not be monotone in the price,
so the search stops at the first price that fails.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.distributions import Binomial

PRICES = tuple(10 ** (2 - step / 20) for step in range(81))
"""Prices of a risk of one, in shares of tokens kept, from the highest to the lowest."""
CONFIDENCE = 0.9
"""Probability over calibration texts that the stated share of new texts holds."""
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


def cross_fitted_risk(
    features: Float[Tensor, "text mask feature"], holds: Bool[Tensor, "text mask"]
) -> Float[Tensor, "text mask"]:
    """Return the risk of the masks of each text, predicted from every second of the other texts."""
    risk = features.new_zeros(holds.shape, dtype=torch.float64)
    for half in (0, 1):
        risk[half::2] = predicted_risk(features[half::2], fit_risk(features[1 - half :: 2], holds[1 - half :: 2]))
    return risk


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
    allowed = allowed_breaks(len(kept), share)
    lowest = None
    for price in PRICES:
        broken = ~holds.gather(1, choose_masks(kept, risk, price)[:, None])
        if int(broken.sum()) > allowed:
            break
        lowest = price
    return lowest


def allowed_breaks(texts: int, share: float) -> int:
    """Return how many of the calibration texts may break; -1 if there are too few texts for the share.

    If more than 1 - share of new texts broke, a number of breaks this low would have a probability of at most
    1 - `CONFIDENCE`. With too few texts for that confidence none may break, as in conformal risk control (Angelopoulos
    et al. 2024).

    >>> allowed_breaks(256, 0.95), allowed_breaks(30, 0.95), allowed_breaks(10, 0.95)
    (7, 0, -1)
    """
    if (1 - share) * (texts + 1) < 1 - 1e-9:
        return -1
    breaks = torch.arange(texts + 1, dtype=torch.float64)
    probability = Binomial(texts, torch.tensor(1 - share, dtype=torch.float64)).log_prob(breaks).exp().cumsum(dim=0)
    return max(0, int((probability <= 1 - CONFIDENCE).sum()) - 1)


def _with_constant(features: Float[Tensor, "text mask feature"]) -> Float[Tensor, "text mask column"]:
    return torch.cat([features, torch.ones_like(features[..., :1])], dim=-1).double()
