"""Split-conformal thresholds: a stated share of new texts holds the margin without verification.

For each calibration text let t be the largest threshold whose mask holds the margin. A ridge regression predicts log t
from features of the text on one half; on the other half the residuals r = log t - prediction are sorted, and the
threshold of a new text is exp(prediction + q), q the k-th smallest residual with k = floor((n + 1) (1 - share)). If
texts are exchangeable, then t >= threshold for at least `share` of new texts (Vovk et al. 2005; Lei et al. 2018).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class ConformalThresholds:
    """A threshold per text, from its features."""

    weights: Float[Tensor, " feature"]
    """Of the features and, last, of the constant 1."""
    quantile: float
    """Added to the predicted log threshold; minus infinity if there are too few calibration texts for the share."""

    def __call__(self, features: Float[Tensor, "text feature"]) -> Float[Tensor, " text"]:
        """Return the threshold of each text."""
        return (_with_constant(features) @ self.weights + self.quantile).exp()


def fit_thresholds(
    features: Float[Tensor, "text feature"], largest: Float[Tensor, " text"], share: float = 0.95, ridge: float = 1.0
) -> ConformalThresholds:
    """Fit on every other text and calibrate on the rest, so that a share of new texts has a larger `largest`."""
    logs = largest.double().clamp(min=1e-9).log()
    design = _with_constant(features.double())
    train, test = design[::2], design[1::2]
    penalty = ridge * torch.eye(design.shape[1], dtype=design.dtype)
    penalty[-1, -1] = 0.0
    weights = torch.linalg.solve(train.T @ train + penalty, train.T @ logs[::2])
    return ConformalThresholds(weights, lower_quantile(logs[1::2] - test @ weights, share))


def lower_quantile(values: Float[Tensor, " text"], share: float) -> float:
    """Return the k-th smallest value, k = floor((n + 1) (1 - share)); minus infinity if k is 0.

    A new exchangeable value is at least as large with probability `share`.

    >>> lower_quantile(torch.arange(1.0, 20.0), 0.9)
    2.0
    >>> lower_quantile(torch.arange(1.0, 9.0), 0.95)
    -inf
    """
    # A small constant: (19 + 1) (1 - 0.9) is 1.9999999999999996 in floating point.
    place = int((len(values) + 1) * (1 - share) + 1e-9)
    return float(values.sort().values[place - 1]) if place else -float("inf")


def largest_holding(
    thresholds: Float[Tensor, "text step"], holds: Bool[Tensor, "text step"], none: float = 0.0
) -> Float[Tensor, " text"]:
    """Return, per text, the largest of its rising thresholds up to which all hold; `none` if the first breaks.

    >>> largest_holding(torch.tensor([[0.1, 0.2, 0.3]]), torch.tensor([[True, True, False]]))
    tensor([0.2000])
    """
    count = holds.long().cumprod(dim=1).sum(dim=1)
    padded = torch.cat([thresholds.new_full((len(thresholds), 1), none), thresholds], dim=1)
    return padded.gather(1, count[:, None])[:, 0]


def _with_constant(features: Float[Tensor, "text feature"]) -> Float[Tensor, "text column"]:
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1).double()
