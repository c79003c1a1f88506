"""Hard concrete distribution: gates that are exactly 0 with positive probability and still have gradients."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid


@dataclass(frozen=True)
class HardConcrete:
    """Gate z = clip(s * (high - low) + low, 0, 1), s ~ BinaryConcrete(logits, temperature).

    Louizos et al. 2018, eq. 10-12. DiffMask uses temperature 0.2 on (-0.2, 1): only z = 0 has a point mass.
    """

    logits: Float[Tensor, "*gate"]
    temperature: float = 0.2
    low: float = -0.2
    high: float = 1.0

    @staticmethod
    def from_log_open(log_open: Float[Tensor, "*gate"], temperature: float) -> "HardConcrete":
        """Return the gates with P(z > 0) = exp(log_open)."""
        shut = HardConcrete(log_open, temperature)
        inside = log_open.clamp(-60.0, -1e-6)
        logit = inside - torch.log(-torch.expm1(inside))
        return HardConcrete(logit + temperature * math.log(-shut.low / shut.high), temperature)

    def at_least(self, smallest: float) -> "HardConcrete":
        """Return gates with P(z > 0) >= smallest, and gradients as if it were not bounded.

        A gate that is almost surely shut is always sampled so and passes no gradient: it could not open again. An open
        gate passes the gradients of its state, and needs no bound.
        """
        exact = self.log_open()
        bounded = exact.clamp(min=math.log(smallest))
        return HardConcrete.from_log_open(exact + (bounded - exact).detach(), self.temperature)

    def sample(self, source: torch.Generator | None = None) -> Float[Tensor, "*gate"]:
        """Draw one differentiable sample of each gate."""
        return self.from_uniform(torch.rand(self.logits.shape, generator=source, dtype=self.logits.dtype))

    def from_uniform(self, uniform: Float[Tensor, "..."]) -> Float[Tensor, "*gate"]:
        """Return the samples that belong to uniform numbers in (0, 1). Several gates may share one number."""
        uniform = uniform.to(self.logits).clamp(1e-6, 1 - 1e-6)
        noise = uniform.log() - torch.log1p(-uniform)
        soft = torch.sigmoid((self.logits + noise) / self.temperature)
        return (soft * (self.high - self.low) + self.low).clamp(0.0, 1.0)

    def open_logit(self) -> Float[Tensor, "*gate"]:
        """Return the log-odds of z > 0: logits - temperature * log(-low / high)."""
        return self.logits - self.temperature * math.log(-self.low / self.high)

    def log_open(self) -> Float[Tensor, "*gate"]:
        """Return log P(z > 0)."""
        return logsigmoid(self.open_logit())

    def open_probability(self) -> Float[Tensor, "*gate"]:
        """Return P(z > 0), the expected L0 norm of the gate. It is DiffMask's attribution."""
        return self.log_open().exp()

    def cdf(self, value: Float[Tensor, "*gate"]) -> Float[Tensor, "*gate"]:
        """Return P(z <= value): 0 below 0, a step at 0, 1 from 1 on."""
        inside = (value - self.low) / (self.high - self.low)
        probability = torch.sigmoid(self.temperature * torch.logit(inside, eps=1e-7) - self.logits)
        return torch.where(value < 0, 0.0, torch.where(value >= 1, 1.0, probability))

    def mean(self, points: int = 64) -> Float[Tensor, "*gate"]:
        """Return E[z] = integral over (0, 1) of P(z > v) dv, by Gauss-Legendre quadrature: it has no closed form."""
        nodes, weights = _quadrature(points, self.logits)
        inside = torch.logit((nodes - self.low) / (self.high - self.low), eps=1e-7)
        above = torch.sigmoid(self.logits[..., None] - self.temperature * inside)
        return (above * weights).sum(dim=-1)


def _quadrature(points: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return Gauss-Legendre nodes and weights on (0, 1)."""
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(points)
    return torch.as_tensor((nodes + 1) / 2).to(like), torch.as_tensor(weights / 2).to(like)
