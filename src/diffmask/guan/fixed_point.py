"""A stochastic fixed point for log sigma: sigma_i^2 = t / c_i, where c_i = slope_i / sigma_i^2 is measured with noise.

For a linear phi the curvature c_i does not depend on sigma, so the first step is right on average and the others only
average the noise away. Averaging c, and not log sigma, avoids the bias of the logarithm of a noisy number.
"""

from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from diffmask.guan.distortion import Measurement

LARGEST_MOVE = 2.0
"""Most that log sigma may change in a step: a word that phi ignores would otherwise jump to infinity."""

NEIGHBOURHOOD = 0.5
"""How far log sigma may drift before curvatures measured on the way are forgotten."""


@dataclass(frozen=True)
class State:
    """What is known of each row."""

    log_sigma: Float[Tensor, "row token"]
    moved: Float[Tensor, "row token"]
    """The last change of log sigma."""
    anchor: Float[Tensor, "row token"]
    """log sigma when the average began."""
    curvature: Float[Tensor, "row token"]
    """Average of c_i."""
    variance: Float[Tensor, "row token"]
    """Variance of c_i about its average."""
    slope: Float[Tensor, "row token"]
    """Average of the slope, each measured on noise drawn after its sigma was chosen."""
    distortion: Float[Tensor, " row"]
    """Average of the distortion, likewise."""
    count: Int[Tensor, " row"]
    """Measurements in the averages."""
    restarts: Int[Tensor, " row"]
    steps: Int[Tensor, " row"]

    def take(self, rows: Int[Tensor, " active"]) -> "State":
        """Some of the rows, in their order."""
        if len(rows) == len(self.steps):
            return self
        return State(*(getattr(self, field.name)[rows] for field in fields(self)))

    def put(self, rows: Int[Tensor, " active"], new: "State") -> "State":
        """The same with some rows replaced."""
        if len(rows) == len(self.steps):
            return new
        pairs = ((getattr(self, field.name), getattr(new, field.name)) for field in fields(self))
        return State(*(old.index_copy(0, rows, changed) for old, changed in pairs))


def start(log_sigma: Float[Tensor, "row token"]) -> State:
    """Nothing measured yet."""
    zero, none = torch.zeros_like(log_sigma), torch.zeros(len(log_sigma), dtype=torch.long, device=log_sigma.device)
    return State(log_sigma, zero, log_sigma, zero, zero, zero, zero[:, 0], none, none, none)


def advance(state: State, measured: Measurement, target: Float[Tensor, " row"], cap: float) -> State:
    """One step: start over where sigma has gone far, average what was measured, and move."""
    return _move(_average(_restart(state), measured), target, cap)


def uncertainty(state: State, cap: float) -> Float[Tensor, "row token"]:
    """Standard error of log sigma = -1/2 log c + const: half the relative standard error of the averaged curvature.

    The weights k / (1 + ... + K) have squares that sum to 2 (2K + 1) / (3 K (K + 1)). A word at the cap has none.
    """
    count = state.count.to(state.variance)[:, None]
    squares = 2 * (2 * count + 1) / (3 * count * (count + 1))
    error = (state.variance * squares / (1 - squares)).sqrt()
    relative = 0.5 * error / state.curvature.abs().clamp(min=torch.finfo(error.dtype).tiny)
    return torch.where(count < 2, torch.inf, relative).where(state.log_sigma < cap, 0)


def _restart(state: State) -> State:
    """Forget the average of rows whose sigma left the neighbourhood in which it was collected.

    The neighbourhood widens with each restart, so that noise alone cannot cause them for ever.
    """
    left = (state.log_sigma - state.anchor).abs().amax(1) > NEIGHBOURHOOD * (1 + state.restarts)
    anchor = torch.where(left[:, None], state.log_sigma, state.anchor)
    return replace(state, anchor=anchor, count=torch.where(left, 0, state.count), restarts=state.restarts + left)


def _average(state: State, measured: Measurement) -> State:
    """Means in which the k-th measurement weighs k: early ones, made farther from the answer, fade."""
    count = state.count + 1
    gain = (2 / (count + 1)).to(measured.slope)
    surprise = measured.slope * (-2 * state.log_sigma).exp() - state.curvature
    return replace(
        state,
        count=count,
        curvature=state.curvature + gain[:, None] * surprise,
        variance=(1 - gain[:, None]) * (state.variance + gain[:, None] * surprise.square()),
        slope=torch.lerp(state.slope, measured.slope, gain[:, None]),
        distortion=torch.lerp(state.distortion, measured.distortion, gain),
    )


def _move(state: State, target: Float[Tensor, " row"], cap: float) -> State:
    """log sigma_i = 1/2 log(t / c_i), at most LARGEST_MOVE away and at most the cap."""
    smallest = torch.finfo(target.dtype).tiny
    wanted = 0.5 * (target[:, None].log() - state.curvature.clamp(min=smallest).log())
    move = (wanted - state.log_sigma).clamp(-LARGEST_MOVE, LARGEST_MOVE)
    log_sigma = (state.log_sigma + move).clamp(max=cap)
    return replace(state, log_sigma=log_sigma, moved=log_sigma - state.log_sigma, steps=state.steps + 1)
