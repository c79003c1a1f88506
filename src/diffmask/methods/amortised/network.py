"""Network of an amortised explainer: it maps the states of a text to a score per token and logit."""

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from diffmask.core.baseline_states import SiteStatistics
from diffmask.core.explainer import States, pool_states


@dataclass(frozen=True)
class CachedStates:
    """States of a few texts at the sites that the network reads; single precision is stored as half precision."""

    states: States
    present: Bool[Tensor, "row token"]
    dtype: torch.dtype

    def restore(self) -> tuple[States, Bool[Tensor, "row token"]]:
        """Return the states in the model's precision, and which tokens are present."""
        return {site: state.to(self.dtype) for site, state in self.states.items()}, self.present


def cache_states(states: States, sites: tuple[str, ...], present: Bool[Tensor, "row token"]) -> CachedStates:
    """Store the states of the named sites for repeated training steps."""
    dtype = states[sites[0]].dtype
    stored = torch.half if dtype == torch.float32 else dtype
    limit = torch.finfo(stored).max
    return CachedStates({site: states[site].clamp(-limit, limit).to(stored) for site in sites}, present, dtype)


class AttributionNetwork(nn.Module):
    """phi_t = V (g_t + gelu(U g_t)), g_t = gelu(sum_k W_k h_kt + sum_j R_j r_j).

    h_kt is the standardised state of token t at the k-th of `sites`. r_1, r_2, r_3 are the states of the last site at
    the first token, at the last token, and averaged over tokens; their projections are computed once per row.
    """

    def __init__(self, statistics: dict[str, SiteStatistics], features: int, width: int) -> None:
        super().__init__()
        self.sites = tuple(statistics)
        self.projections = nn.ModuleList(StandardisedLinear(site, width) for site in statistics.values())
        last = statistics[self.sites[-1]]
        self.pooled_projections = nn.ModuleList(StandardisedLinear(last, width) for _ in range(3))
        self.bias = nn.Parameter(torch.zeros(width, dtype=last.mean.dtype))
        self.hidden = nn.Linear(width, width, dtype=last.mean.dtype)
        self.output = nn.Linear(width, features, dtype=last.mean.dtype)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, states: States, present: Bool[Tensor, "row token"]) -> Float[Tensor, "row token feature"]:
        """Return the predicted contribution of each token to each logit."""
        return self.from_projections([self.projection(site)(states[site]) for site in self.sites], states, present)

    def projection(self, site: str) -> "StandardisedLinear":
        """Return the input layer of a site."""
        return cast(StandardisedLinear, self.projections[self.sites.index(site)])

    def from_projections(
        self, projected: list[Float[Tensor, "row token hidden"]], states: States, present: Bool[Tensor, "row token"]
    ) -> Float[Tensor, "row token feature"]:
        """Return the contributions, given the projected states of every site in `sites`."""
        pooled = pool_states(states[self.sites[-1]], present)
        context = [layer(state) for state, layer in zip(pooled, self.pooled_projections, strict=True)]
        # Added one by one: a stack of them would be the largest tensor of the forward pass.
        hidden = gelu(sum(projected[1:], projected[0]) + (sum(context, self.bias))[:, None])
        return self.output(hidden + gelu(self.hidden(hidden)))


class StandardisedLinear(nn.Module):
    """W (h - mean) / deviation, with the deviation folded into W: there are many states and few weights."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, statistics: SiteStatistics, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", statistics.mean.clone())
        self.register_buffer("deviation", statistics.deviation.clone())
        inputs = len(statistics.mean)
        self.weight = nn.Parameter(torch.randn(width, inputs, dtype=statistics.mean.dtype) / inputs**0.5)

    def forward(self, states: Float[Tensor, "*row width"]) -> Float[Tensor, "*row hidden"]:
        """Project the standardised states."""
        return linear(states, *self.folded())

    def folded(self) -> tuple[Float[Tensor, "hidden width"], Float[Tensor, " hidden"]]:
        """Return the weight and bias that apply to states before standardisation."""
        weight = self.weight / self.deviation
        return weight, -(weight @ self.mean)


def project_all(
    states: Float[Tensor, "row token width"], layers: list[StandardisedLinear]
) -> tuple[Float[Tensor, "row token hidden"], ...]:
    """Apply several input layers to the same states: one large matrix product costs less than many small ones."""
    if not layers:
        return ()
    weights, biases = zip(*(layer.folded() for layer in layers), strict=True)
    projected = linear(states, torch.cat(weights), torch.cat(biases))
    return projected.split([len(bias) for bias in biases], dim=-1)


def ood_score(network: AttributionNetwork, states: States, present: Bool[Tensor, "row token"]) -> Float[Tensor, " row"]:
    """Return sqrt(n) RMS((mean state of the row - mu) / deviation), mu and deviation per token of the training texts.

    The mean of n independent tokens deviates by 1 / sqrt(n), so a short text does not score high for being short.
    """
    squares = []
    for site in network.sites:
        *_, mean = pool_states(states[site], present)
        layer = network.projection(site)
        squares.append(((mean - layer.mean) / layer.deviation).square())
    return (torch.cat(squares, dim=-1).mean(dim=-1) * present.sum(dim=1)).sqrt()
