"""Linear probes: ridge regression from the states of a site to the model's prediction."""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from diffmask.core.distributions import class_probabilities
from diffmask.core.explainer import ForwardTrace, pool_states


class LinearProbe(nn.Module):
    """Prediction of the model's class probabilities from a site's states: first token, last token and mean.

    Whether a word is necessary depends on the prediction: "dreadful" is necessary for a negative one and can be erased
    for a positive one. The probe predicts it from the information available at the site.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(outputs, inputs, dtype=dtype))
        self.register_buffer("bias", torch.zeros(outputs, dtype=dtype))

    def forward(
        self, state: Float[Tensor, "row token width"], present: Bool[Tensor, "row token"]
    ) -> Float[Tensor, "row output"]:
        """Return outputs in [-1, 1]; for classes, approximately their probabilities."""
        return torch.nn.functional.linear(_features(state, present), self.weight, self.bias).clamp(-1.0, 1.0)


@torch.no_grad()
def fit_linear_probes(traces: list[ForwardTrace], sites: Iterable[str]) -> dict[str, LinearProbe]:
    """Fit one probe per site on the rows of some traces."""
    targets = torch.cat([class_probabilities(trace.coarse_answer) for trace in traces])
    targets = targets / targets.abs().amax(dim=0).clamp(min=1.0)
    return {site: _ridge_regression(_all_features(traces, site), targets) for site in sites}


def _features(state: Tensor, present: Tensor) -> Float[Tensor, "row input"]:
    return torch.cat(pool_states(state, present), dim=-1)


def _all_features(traces: list[ForwardTrace], site: str) -> Float[Tensor, "row input"]:
    return torch.cat([_features(trace.states[site], trace.rows.present) for trace in traces])


def _ridge_regression(features: Float[Tensor, "row input"], targets: Float[Tensor, "row output"]) -> LinearProbe:
    """Fit a ridge regression with the penalty of the smallest leave-one-out error."""
    mean, deviation = features.mean(dim=0), features.std(dim=0, correction=0).clamp(min=1e-6)
    centre = targets.mean(dim=0)
    inputs, outputs = ((features - mean) / deviation).double(), (targets - centre).double()
    eigenvalues, eigenvectors = torch.linalg.eigh(inputs @ inputs.T)
    rotated = eigenvectors.T @ outputs
    penalties = eigenvalues.mean().clamp(min=1e-9) * torch.logspace(-3, 2, 16, dtype=torch.double)
    best = min(
        penalties.tolist(), key=lambda penalty: _leave_one_out_error(eigenvalues, eigenvectors, rotated, penalty)
    )
    dual = eigenvectors @ (rotated / (eigenvalues[:, None] + best))
    weights = (inputs.T @ dual).T.to(features.dtype) / deviation
    probe = LinearProbe(features.shape[1], targets.shape[1], features.dtype)
    probe.weight.copy_(weights)
    probe.bias.copy_(centre - weights @ mean)
    return probe


def _leave_one_out_error(eigenvalues: Tensor, eigenvectors: Tensor, rotated: Tensor, penalty: float) -> float:
    """Return the mean squared leave-one-out error in closed form: residual / (1 - leverage)."""
    shrinkage = penalty / (eigenvalues + penalty)
    residual = eigenvectors @ (shrinkage[:, None] * rotated)
    free = (eigenvectors.square() @ shrinkage).clamp(min=1e-9)
    return (residual / free[:, None]).square().mean().item()
