"""Fewest open gates subject to KL(original || masked) <= margin: the multiplier that holds the constraint.

Gradient ascent on a multiplier reacts to a violation only after it has added up; by then gates have closed, closed
gates pass no gradient, and the mask has collapsed. Three things keep it from that (measured by
`benchmarks/controllers.py`, told in `docs/architecture.md`):

* the multiplier is steered in its logarithm by a proportional-integral rule on the relative violation, after the nuPI
  controller of Sohrabi et al. 2024 (arXiv 2406.04558);
* the margin starts at the divergence of the first masks and shrinks to the one asked for;
* the multiplier never falls near 1 / KL(original || everything masked): below it, masking everything is the optimum.
"""

import math
from dataclasses import dataclass, field
from statistics import pstdev

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class PIController:
    """log lambda += integral * v + proportional * (trend_t - trend_{t-1}), v = clip(KL / margin_t - 1, -1, worst)."""

    margin: float
    integral: float = 0.02
    """Gain on each step's violation."""
    proportional: float = 1.0
    """Gain on changes of the violation's moving average."""
    memory: float = 0.8
    """Weight of the past in that average."""
    worst: float = 5.0
    """Largest relative violation that counts."""
    largest: float = 1e3
    """Bound of the multiplier: one that sits here asks for what cannot be had."""
    start: float = 1.0
    """First multiplier, in units of the critical one."""
    floor: tuple[float, float] = (0.7, 2.0)
    """Smallest multiplier in units of the critical one, at the start and from the settling on."""
    settle: float = 0.6
    """Share of the fit after which the margin is the one asked for."""

    def margin_at(self, progress: float, first: float) -> float:
        """The margin on the way from the first masks' divergence to the one asked for, geometrically."""
        target = max(self.margin, 1e-6)
        return target * (max(first, target) / target) ** max(0.0, 1 - progress / self.settle)

    def floor_at(self, progress: float, critical: float) -> float:
        """The smallest multiplier: below the critical one while masks are explored, above it once they settle."""
        near, far = self.floor
        return critical * (near + (far - near) * min(1.0, progress / self.settle))


@dataclass
class Multiplier:
    """The weight lambda of one site's constraint, and how it got there."""

    controller: PIController
    critical: float
    """1 / KL(original || everything masked): below it, masking everything is the optimum."""
    history: list[float] = field(default_factory=list)
    _log: float = field(init=False)
    _trend: float = 0.0
    _first: float | None = None

    def __post_init__(self) -> None:
        self._log = math.log(self.critical * self.controller.start)

    @property
    def value(self) -> float:
        """Nats of divergence are weighed this much against the share of open gates."""
        return math.exp(self._log)

    @property
    def at_bound(self) -> bool:
        """Whether it ended at the largest value allowed."""
        return self.value > 0.99 * self.controller.largest

    @property
    def swing(self) -> float:
        """Standard deviation of log lambda over the last third of the fit; 0 for a site that was never drawn."""
        tail = [math.log(value) for value in self.history[-max(2, len(self.history) // 3) :]]
        return pstdev(tail) if tail else 0.0

    def update(self, divergence: float, progress: float) -> float:
        """React to one step's mean divergence; the weight that this very step should have."""
        rule = self.controller
        self._first = divergence if self._first is None else self._first
        margin = rule.margin_at(progress, self._first)
        violation = min(max((divergence - margin) / margin, -1.0), rule.worst)
        trend = rule.memory * self._trend + (1 - rule.memory) * violation
        self._log += rule.integral * violation + rule.proportional * (trend - self._trend)
        self._log = min(max(self._log, math.log(rule.floor_at(progress, self.critical))), math.log(rule.largest))
        self._trend = trend
        self.history.append(self.value)
        return self.value


class RowMultipliers:
    """The same rule with a weight for each row, none of which depends on another."""

    def __init__(self, controller: PIController, alone: Float[Tensor, " row"]) -> None:
        """`alone` is KL(original || everything masked) of each row, whose reciprocal is its critical multiplier."""
        self.controller = controller
        self.critical = alone.clamp(min=1e-3).reciprocal().clamp(0.1, 100.0)
        self.value = self.critical.clone()
        self._trend = torch.zeros_like(alone)
        self._first: Float[Tensor, " row"] | None = None

    def update(self, divergence: Float[Tensor, " row"], progress: float) -> None:
        """React to each row's divergence in one step."""
        rule = self.controller
        self._first = divergence if self._first is None else self._first
        target = max(rule.margin, 1e-6)
        margin = target * (self._first.clamp(min=target) / target) ** max(0.0, 1 - progress / rule.settle)
        violation = (divergence / margin - 1).clamp(-1.0, rule.worst)
        trend = rule.memory * self._trend + (1 - rule.memory) * violation
        self.value = self.value * (rule.integral * violation + rule.proportional * (trend - self._trend)).exp()
        self.value = self.value.clamp(max=rule.largest).maximum(self.critical * rule.floor_at(progress, 1.0))
        self._trend = trend
