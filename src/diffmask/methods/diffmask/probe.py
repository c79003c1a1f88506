"""Probes of DiffMask: shallow networks that read states and vote on whether a token can be erased; rules for votes.

`Probe` is that of De Cao et al. 2020. `SimpleProbe` and `LayerwiseProbe` are those of a published news recommender.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from diffmask.core.baseline_states import SiteStatistics
from diffmask.methods.diffmask.hard_concrete import HardConcrete


class GateProbe(nn.Module, ABC):
    """logit = logit_range * tanh(v' f(W x + c) + d) + shift, x = the standardised states.

    The output is bounded as in the code of De Cao et al. 2020. `logit_range` grows during a fit: while it is small no
    gate saturates, open or shut, before its effect is known. Calibration sets `shift`.
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
        inputs, hidden = len(self.mean), width or self.default_width(len(parts[-1].mean))
        self.hidden = nn.Linear(inputs, hidden)
        self.vote = nn.Linear(hidden, 1)
        nn.init.normal_(self.hidden.weight, std=init_scale / inputs**0.5)
        nn.init.uniform_(self.hidden.bias, -2 / 3 * init_scale, 2 / 3 * init_scale)
        nn.init.zeros_(self.vote.weight)
        nn.init.constant_(self.vote.bias, math.atanh(start / logit_range))
        self.to(self.mean.dtype)

    @staticmethod
    @abstractmethod
    def default_width(state_width: int) -> int:
        """Return the number of hidden units for a state of this width."""

    @abstractmethod
    def activation(self, values: Float[Tensor, "row token unit"]) -> Float[Tensor, "row token unit"]:
        """Return the nonlinearity f of the hidden units."""

    def forward(self, states: Float[Tensor, "row token width"]) -> Float[Tensor, "row token"]:
        """Return the logit of each token's gate."""
        # W (x - mean) / deviation + c, with the deviation folded into W: there are more states than weights.
        weight = self.hidden.weight / self.deviation
        features = self.activation(linear(states, weight, self.hidden.bias - weight @ self.mean))
        return self.logit_range * torch.tanh(self.vote(features).squeeze(-1)) + self.shift


class Probe(GateProbe):
    """Tanh units, a quarter as many as the state is wide, at least 32."""

    @staticmethod
    def default_width(state_width: int) -> int:
        """Return a quarter of the state's width, at least 32."""
        return max(32, state_width // 4)

    def activation(self, values: Float[Tensor, "row token unit"]) -> Float[Tensor, "row token unit"]:
        """Return tanh."""
        return torch.tanh(values)


class ReluProbe(GateProbe, ABC):
    """ReLU units, with dropout during a fit."""

    dropout: ClassVar[float] = 0.1

    def activation(self, values: Float[Tensor, "row token unit"]) -> Float[Tensor, "row token unit"]:
        """Return ReLU with dropout."""
        return nn.functional.dropout(values.relu(), self.dropout, self.training)


class SimpleProbe(ReluProbe):
    """Half as many ReLU units as the state is wide; one probe alone decides on the mask."""

    @staticmethod
    def default_width(state_width: int) -> int:
        """Return half of the state's width."""
        return max(1, state_width // 2)


class LayerwiseProbe(ReluProbe):
    """As many ReLU units as the state is wide; reads the states of its own and all earlier sites."""

    @staticmethod
    def default_width(state_width: int) -> int:
        """Return the state's width."""
        return state_width


class Votes(ABC):
    """Rule that combines the gates which several probes predict for one token."""

    nested: ClassVar[bool]
    """Whether a further vote can only close a gate."""

    @staticmethod
    @abstractmethod
    def share(keep_probability: float, votes: int) -> float:
        """Return the open probability of each of several equal votes that keep a token with a given probability."""

    @abstractmethod
    def log_open(self, votes: Sequence[HardConcrete]) -> Float[Tensor, "row token"]:
        """Return log P(z > 0) of the combined gates."""

    @abstractmethod
    def excess(self, votes: Sequence[HardConcrete]) -> Float[Tensor, "row token"]:
        """Return how far the last vote's logit is above the one with which the combined gate opens half of the time."""

    def combine(self, votes: Sequence[HardConcrete]) -> HardConcrete:
        """Return gates to sample, each open with the combined probability."""
        if len(votes) == 1:
            return votes[0]
        return HardConcrete.from_log_open(self.log_open(votes), votes[-1].temperature)


class ProductOfVotes(Votes):
    """P(z > 0) = prod_k P(z_k > 0). De Cao et al. sample every vote and multiply the samples.

    One sample from the product has the same P(z > 0), less noise, and a gradient for every vote: a product of samples
    has none where two votes are shut.
    """

    nested: ClassVar[bool] = True

    @staticmethod
    def share(keep_probability: float, votes: int) -> float:
        """Return the root."""
        return keep_probability ** (1 / votes)

    def log_open(self, votes: Sequence[HardConcrete]) -> Float[Tensor, "row token"]:
        """Return the sum of the votes' log-probabilities."""
        return sum((vote.log_open() for vote in votes[1:]), votes[0].log_open())

    def excess(self, votes: Sequence[HardConcrete]) -> Float[Tensor, "row token"]:
        """Return the distance, -inf for tokens that the votes before erase."""
        *earlier, last = votes
        # P(kept) = e^inherited * P(vote open) > 1/2 where the vote's log-probability is above log(1/2) - inherited.
        inherited = sum((vote.log_open() for vote in earlier), torch.zeros_like(last.logits))
        required = math.log(0.5) - inherited
        return last.open_logit() - (required - torch.log((-torch.expm1(required)).clamp(min=0)))


class MeanOfVotes(Votes):
    """log-odds of z > 0 = mean_k of the votes' log-odds: a later vote can open a gate again."""

    nested: ClassVar[bool] = False

    @staticmethod
    def share(keep_probability: float, votes: int) -> float:
        """Return the same probability."""
        return keep_probability

    def log_open(self, votes: Sequence[HardConcrete]) -> Float[Tensor, "row token"]:
        """Return the log-probability of the mean log-odds."""
        return nn.functional.logsigmoid(self.excess(votes) / len(votes))

    def excess(self, votes: Sequence[HardConcrete]) -> Float[Tensor, "row token"]:
        """Return the sum of the votes' log-odds, to which the last vote's logit adds one to one."""
        return sum((vote.open_logit() for vote in votes[1:]), votes[0].open_logit())
