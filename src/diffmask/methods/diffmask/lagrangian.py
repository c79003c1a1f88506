"""Lagrange multipliers for the constraint KL(original || masked) <= margin.

Plain gradient ascent on a multiplier reacts to a violation only after it has accumulated. By then gates have closed,
closed gates pass no gradient, and the mask has collapsed. Three measures prevent this (`benchmarks/controllers.py`
compares them, `docs/architecture.md` has the results):

* a proportional-integral rule on the relative violation updates the logarithm of the multiplier, after the nuPI
  controller of Sohrabi et al. 2024 (arXiv 2406.04558);
* the margin starts at the divergence of the first masks and shrinks to its target;
* the multiplier stays near or above 1 / KL(original || everything masked): below that, masking everything is optimal.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import pstdev
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class PIController:
    """Rule log lambda += integral * v + proportional * (trend_t - trend_{t-1}), v the relative violation of the margin.

    v = clip(KL / margin_t - 1, -1, max_violation); trend is its moving average.
    """

    margin: float
    integral: float = 0.02
    """Gain on the violation of each step."""
    proportional: float = 1.0
    """Gain on changes of the violation's moving average."""
    memory: float = 0.8
    """Weight of the past in the moving average."""
    max_violation: float = 5.0
    """Largest relative violation that counts."""
    max_multiplier: float = 1e3
    """Upper bound of the multiplier. One that ends here has a margin that cannot be met."""
    start: float = 1.0
    """First multiplier, in units of the critical one."""
    floor: tuple[float, float] = (0.7, 2.0)
    """Smallest multiplier at the start and after annealing, in units of the critical one."""
    anneal_fraction: float = 0.6
    """Share of the fit after which the margin has shrunk to its target."""

    def margin_at(self, progress: float, first: float) -> float:
        """Return the margin at a share of the fit: geometrically from the first divergence to the target."""
        target = max(self.margin, 1e-6)
        return target * (max(first, target) / target) ** max(0.0, 1 - progress / self.anneal_fraction)

    def floor_at(self, progress: float, critical: float) -> float:
        """Return the smallest multiplier at a share of the fit."""
        first, last = self.floor
        return critical * (first + (last - first) * min(1.0, progress / self.anneal_fraction))


def critical_multiplier(full_mask_kl: float) -> float:
    """Return 1 / KL(original || everything masked), clipped to [0.1, 100]: below it, masking everything is optimal.

    >>> critical_multiplier(0.5), critical_multiplier(0.0)
    (2.0, 100.0)
    """
    return min(max(1 / max(full_mask_kl, 1e-3), 0.1), 100.0)


@dataclass
class Multiplier:
    """Weight lambda of one site's constraint, with its history."""

    controller: PIController
    critical: float
    """Critical multiplier, 1 / KL(original || everything masked)."""
    history: list[float] = field(default_factory=list)
    _log: float = field(init=False)
    _trend: float = 0.0
    _first: float | None = None

    def __post_init__(self) -> None:
        self._log = math.log(self.critical * self.controller.start)

    @property
    def state(self) -> dict[str, Any]:
        """All that changes during a fit, for a checkpoint."""
        return {"history": self.history, "log": self._log, "trend": self._trend, "first": self._first}

    @state.setter
    def state(self, state: Mapping[str, Any]) -> None:
        self.history, self._log = list(state["history"]), state["log"]
        self._trend, self._first = state["trend"], state["first"]

    @property
    def value(self) -> float:
        """Weight of one nat of divergence against the share of open gates."""
        return math.exp(self._log)

    @property
    def at_bound(self) -> bool:
        """Whether the multiplier is at its upper bound."""
        return self.value > 0.99 * self.controller.max_multiplier

    @property
    def swing(self) -> float:
        """Standard deviation of log lambda over the last third of the fit; 0 without any update."""
        tail = [math.log(value) for value in self.history[-max(2, len(self.history) // 3) :]]
        return pstdev(tail) if tail else 0.0

    def update(self, divergence: float, progress: float) -> float:
        """Update lambda with the mean divergence of one step; return the weight to use in that same step."""
        rule = self.controller
        self._first = divergence if self._first is None else self._first
        margin = rule.margin_at(progress, self._first)
        violation = min(max((divergence - margin) / margin, -1.0), rule.max_violation)
        trend = rule.memory * self._trend + (1 - rule.memory) * violation
        self._log += rule.integral * violation + rule.proportional * (trend - self._trend)
        floor = math.log(rule.floor_at(progress, self.critical))
        self._log = min(max(self._log, floor), math.log(rule.max_multiplier))
        self._trend = trend
        self.history.append(self.value)
        return self.value


class RowMultipliers:
    """The rule of `Multiplier` with one independent weight per row."""

    def __init__(self, controller: PIController, full_mask_kl: Float[Tensor, " row"]) -> None:
        """Start at the critical multiplier of each row, from its KL(original || everything masked)."""
        self.controller = controller
        self.critical = full_mask_kl.clamp(min=1e-3).reciprocal().clamp(0.1, 100.0)
        self.value = self.critical.clone()
        self._trend = torch.zeros_like(full_mask_kl)
        self._first: Float[Tensor, " row"] | None = None

    def update(self, divergence: Float[Tensor, " row"], progress: float) -> None:
        """Update every weight with its row's divergence in one step."""
        rule = self.controller
        self._first = divergence if self._first is None else self._first
        target = max(rule.margin, 1e-6)
        margin = target * (self._first.clamp(min=target) / target) ** max(0.0, 1 - progress / rule.anneal_fraction)
        violation = (divergence / margin - 1).clamp(-1.0, rule.max_violation)
        trend = rule.memory * self._trend + (1 - rule.memory) * violation
        self.value = self.value * (rule.integral * violation + rule.proportional * (trend - self._trend)).exp()
        self.value = self.value.clamp(max=rule.max_multiplier).maximum(self.critical * rule.floor_at(progress, 1.0))
        self._trend = trend
