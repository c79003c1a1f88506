"""The probe of DiffMask: a shallow network that reads a state and predicts whether its token can be erased."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from diffmask.core.baselines import SiteStatistics


class Probe(nn.Module):
    """logit = reach * tanh(v' tanh(W x + c) + d) + shift, x = the standardised states.

    De Cao et al. 2020, with the bounded output of the original code. `reach` grows during a fit: while it is small no
    gate saturates, open or shut, before it is known what it lets through. `shift` is set after it.
    """

    mean: Tensor
    deviation: Tensor
    reach: Tensor
    shift: Tensor

    def __init__(
        self, parts: list[SiteStatistics], width: int | None, reach: float, start: float, steepness: float
    ) -> None:
        super().__init__()
        self.register_buffer("mean", torch.cat([part.mean for part in parts]))
        self.register_buffer("deviation", torch.cat([part.deviation for part in parts]))
        self.register_buffer("reach", torch.tensor(reach))
        self.register_buffer("shift", torch.tensor(0.0))
        inputs, hidden = len(self.mean), width or max(32, len(parts[-1].mean) // 4)
        self.hidden = nn.Linear(inputs, hidden)
        self.vote = nn.Linear(hidden, 1)
        nn.init.normal_(self.hidden.weight, std=steepness / inputs**0.5)
        nn.init.uniform_(self.hidden.bias, -2 / 3 * steepness, 2 / 3 * steepness)
        nn.init.zeros_(self.vote.weight)
        nn.init.constant_(self.vote.bias, math.atanh(start / reach))
        self.to(self.mean.dtype)

    def forward(self, states: Float[Tensor, "row token width"]) -> Float[Tensor, "row token"]:
        """Logit of each token's gate."""
        # W (x - mean) / deviation + c with the weights standardised: the states are many, the weights few.
        weight = self.hidden.weight / self.deviation
        features = torch.tanh(linear(states, weight, self.hidden.bias - weight @ self.mean))
        return self.reach * torch.tanh(self.vote(features).squeeze(-1)) + self.shift
