"""The network that an amortised explainer is: it reads a text's states and scores every token for every class."""

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from diffmask.core.explainer import States, pool_states
from diffmask.core.probe import SiteStatistics


@dataclass(frozen=True)
class Reading:
    """What a student reads of some texts, kept small: single-precision states in half precision."""

    states: States
    present: Bool[Tensor, "row token"]
    dtype: torch.dtype

    def full(self) -> tuple[States, Bool[Tensor, "row token"]]:
        """The states in the model's own precision."""
        return {site: state.to(self.dtype) for site, state in self.states.items()}, self.present


def keep(states: States, sites: tuple[str, ...], present: Bool[Tensor, "row token"]) -> Reading:
    """The named sites' states, to be read again and again."""
    dtype = states[sites[0]].dtype
    small = torch.half if dtype == torch.float32 else dtype
    most = torch.finfo(small).max
    return Reading({site: states[site].clamp(-most, most).to(small) for site in sites}, present, dtype)


class AttributionNetwork(nn.Module):
    """phi_t = V gelu(U gelu(sum_k W_k h_kt + W_r r)), r = the last state at the first and last token and on average.

    States are standardised; `sites` are the ones read. What is added for the whole row is computed once a row.
    """

    def __init__(self, known: dict[str, SiteStatistics], features: int, width: int) -> None:
        super().__init__()
        self.sites = tuple(known)
        self.parts = nn.ModuleList(Standardised(part, width) for part in known.values())
        last = known[self.sites[-1]]
        self.places = nn.ModuleList(Standardised(last, width) for _ in range(3))
        self.bias = nn.Parameter(torch.zeros(width, dtype=last.mean.dtype))
        self.between = nn.Linear(width, width, dtype=last.mean.dtype)
        self.vote = nn.Linear(width, features, dtype=last.mean.dtype)
        nn.init.zeros_(self.vote.weight)
        nn.init.zeros_(self.vote.bias)

    def forward(self, states: States, present: Bool[Tensor, "row token"]) -> Float[Tensor, "row token feature"]:
        """What each token adds to each of the answer's numbers."""
        return self.told([self.part(site)(states[site]) for site in self.sites], states, present)

    def part(self, site: str) -> "Standardised":
        """How the states of a site are seen."""
        return cast(Standardised, self.parts[self.sites.index(site)])

    def told(
        self, seen: list[Float[Tensor, "row token hidden"]], states: States, present: Bool[Tensor, "row token"]
    ) -> Float[Tensor, "row token feature"]:
        """What each token adds, from views of the states of `sites`."""
        whole = [
            part(state) for state, part in zip(pool_states(states[self.sites[-1]], present), self.places, strict=True)
        ]
        # Added one by one: a stack of them would be the largest tensor of the pass.
        hidden = gelu(sum(seen[1:], seen[0]) + (sum(whole, self.bias))[:, None])
        return self.vote(hidden + gelu(self.between(hidden)))


class Standardised(nn.Module):
    """W (h - mean) / deviation, the deviation folded into W: states are many, weights few."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, known: SiteStatistics, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", known.mean.clone())
        self.register_buffer("deviation", known.deviation.clone())
        inputs = len(known.mean)
        self.weight = nn.Parameter(torch.randn(width, inputs, dtype=known.mean.dtype) / inputs**0.5)

    def forward(self, states: Float[Tensor, "*row width"]) -> Float[Tensor, "*row hidden"]:
        """A linear view of the states."""
        return linear(states, *self.folded())

    def folded(self) -> tuple[Float[Tensor, "hidden width"], Float[Tensor, " hidden"]]:
        """Weight and bias that see states as they are."""
        weight = self.weight / self.deviation
        return weight, -(weight @ self.mean)


def views(
    states: Float[Tensor, "row token width"], parts: list[Standardised]
) -> tuple[Float[Tensor, "row token hidden"], ...]:
    """What each of several students sees of the same states: one large product costs less than many small ones."""
    if not parts:
        return ()
    weights, biases = zip(*(part.folded() for part in parts), strict=True)
    seen = linear(states, torch.cat(weights), torch.cat(biases))
    return seen.split([len(bias) for bias in biases], dim=-1)


def ood_score(student: AttributionNetwork, states: States, present: Bool[Tensor, "row token"]) -> Float[Tensor, " row"]:
    """How far a row's mean states lie from those of the fit's texts: root mean square, in deviations of a token."""
    parts = []
    for site, part in zip(student.sites, student.parts.children(), strict=True):
        *_, mean = pool_states(states[site], present)
        parts.append(((mean - cast(Standardised, part).mean) / cast(Standardised, part).deviation).square())
    # The mean of n independent tokens lies 1 / sqrt(n) off: short texts are no strangers for being short.
    return (torch.cat(parts, dim=-1).mean(dim=-1) * present.sum(dim=1)).sqrt()
