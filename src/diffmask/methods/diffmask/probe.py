"""The probe of DiffMask: a shallow network that reads a state and predicts whether its token can be erased."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from diffmask.core.baselines import SiteStatistics


class Probe(nn.Module):
    """logit = logit_range * tanh(v' tanh(W x + c) + d) + shift, x = the standardised states.

    De Cao et al. 2020, with the bounded output of the original code. `logit_range` grows during a fit: while it is
    small no gate saturates, open or shut, before its effect is known. Calibration sets `shift`.
    """

    mean: Tensor
    deviation: Tensor
    logit_range: Tensor
    shift: Tensor

    def __init__(
        self, parts: list[SiteStatistics], width: int | None, logit_range: float, start: float, init_scale: float
    ) -> None:
        super().__init__()
        self.register_buffer("mean", torch.cat([part.mean for part in parts]))
        self.register_buffer("deviation", torch.cat([part.deviation for part in parts]))
        self.register_buffer("logit_range", torch.tensor(logit_range))
        self.register_buffer("shift", torch.tensor(0.0))
        inputs, hidden = len(self.mean), width or max(32, len(parts[-1].mean) // 4)
        self.hidden = nn.Linear(inputs, hidden)
        self.vote = nn.Linear(hidden, 1)
        nn.init.normal_(self.hidden.weight, std=init_scale / inputs**0.5)
        nn.init.uniform_(self.hidden.bias, -2 / 3 * init_scale, 2 / 3 * init_scale)
        nn.init.zeros_(self.vote.weight)
        nn.init.constant_(self.vote.bias, math.atanh(start / logit_range))
        self.to(self.mean.dtype)

    def forward(self, states: Float[Tensor, "row token width"]) -> Float[Tensor, "row token"]:
        """Return the logit of each token's gate."""
        # W (x - mean) / deviation + c, with the deviation folded into W: there are more states than weights.
        weight = self.hidden.weight / self.deviation
        features = torch.tanh(linear(states, weight, self.hidden.bias - weight @ self.mean))
        return self.logit_range * torch.tanh(self.vote(features).squeeze(-1)) + self.shift
