"""Gates that are exactly shut with positive probability, and yet have gradients: the hard concrete distribution."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid


@dataclass(frozen=True)
class HardConcrete:
    """Gate z = clip(s * (high - low) + low, 0, 1), s ~ BinaryConcrete(logits, temperature).

    Louizos et al. 2018, eq. 10-12. DiffMask uses temperature 0.2 on (-0.2, 1): all the mass at an end is at z = 0.
    """

    logits: Float[Tensor, "*gate"]
    temperature: float = 0.2
    low: float = -0.2
    high: float = 1.0

    @staticmethod
    def opening(log_open: Float[Tensor, "*gate"], temperature: float) -> "HardConcrete":
        """The gates that are open with a given probability, exp(log_open)."""
        shut = HardConcrete(log_open, temperature)
        inside = log_open.clamp(-60.0, -1e-6)
        logit = inside - torch.log(-torch.expm1(inside))
        return HardConcrete(logit + temperature * math.log(-shut.low / shut.high), temperature)

    def alive(self, least: float) -> "HardConcrete":
        """The same gates with P(z > 0) held within [least, 1 - least], and gradients as if it were not.

        A gate that is all but shut, or open, is always drawn so and passes no gradient: it could not come back.
        """
        exact = self.log_open()
        held = exact.clamp(math.log(least), math.log1p(-least))
        return HardConcrete.opening(exact + (held - exact).detach(), self.temperature)

    def sample(self, source: torch.Generator | None = None) -> Float[Tensor, "*gate"]:
        """One differentiable draw of each gate."""
        return self.at(torch.rand(self.logits.shape, generator=source, dtype=self.logits.dtype))

    def at(self, uniform: Float[Tensor, "..."]) -> Float[Tensor, "*gate"]:
        """The draw that a uniform number in (0, 1) stands for; several gates may share one."""
        uniform = uniform.to(self.logits).clamp(1e-6, 1 - 1e-6)
        noise = uniform.log() - torch.log1p(-uniform)
        soft = torch.sigmoid((self.logits + noise) / self.temperature)
        return (soft * (self.high - self.low) + self.low).clamp(0.0, 1.0)

    def log_open(self) -> Float[Tensor, "*gate"]:
        """log P(z > 0) = log sigmoid(logits - temperature * log(-low / high))."""
        return logsigmoid(self.logits - self.temperature * math.log(-self.low / self.high))

    def open(self) -> Float[Tensor, "*gate"]:
        """P(z > 0): the expected L0 norm of the gate, and DiffMask's attribution."""
        return self.log_open().exp()

    def cdf(self, value: Float[Tensor, "*gate"]) -> Float[Tensor, "*gate"]:
        """P(z <= value); 0 below 0, a step at 0, 1 from 1 on."""
        inside = (value - self.low) / (self.high - self.low)
        probability = torch.sigmoid(self.temperature * torch.logit(inside, eps=1e-7) - self.logits)
        return torch.where(value < 0, 0.0, torch.where(value >= 1, 1.0, probability))

    def mean(self, points: int = 64) -> Float[Tensor, "*gate"]:
        """E[z] = integral over (0, 1) of P(z > v) dv, by Gauss-Legendre quadrature: it has no closed form."""
        nodes, weights = _quadrature(points, self.logits)
        inside = torch.logit((nodes - self.low) / (self.high - self.low), eps=1e-7)
        above = torch.sigmoid(self.logits[..., None] - self.temperature * inside)
        return (above * weights).sum(dim=-1)


def _quadrature(points: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights on (0, 1)."""
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(points)
    return torch.as_tensor((nodes + 1) / 2).to(like), torch.as_tensor(weights / 2).to(like)
