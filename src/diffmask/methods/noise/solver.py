"""Standard normal noise that does not change with the size of the batch, with padding, or with the device.

A stochastic fixed point for log sigma: sigma_i^2 = t / c_i, where c_i = slope_i / sigma_i^2 is measured with noise.

For a linear phi the curvature c_i does not depend on sigma, so the first step is right on average and the others only
average the noise away. Averaging c, and not log sigma, avoids the bias of the logarithm of a noisy number.

The largest noise on each word that a hidden state does not notice: a solver for Guan et al. 2019, eq. 7.

Minimise E[distortion] - t sum_i log(sigma_i / scale) over 0 < sigma_i <= scale, where t = rate / S for a sentence of S
words (`reduction="mean"`, the published code) or t = rate (`"sum"`, the paper). At the minimum every word below the
cap satisfies E[d distortion / d log sigma_i] = t, and a word at the cap at most that.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffmask.errors import ConfigError, InputError
from diffmask.methods.noise.distortion import Measurement, Problem, measure

STREAM = 1_000_003
HALF_STEP = 2.0**-24


def standard_normal(seed: int, step: int, size: tuple[int, int, int]) -> Float[Tensor, "sample token width"]:
    """eps = sqrt(2) erfinv(2u - 1), u uniform and drawn token by token: more tokens leave the first ones as they were.

    Each (seed, step) opens its own stream, so that a longer step never shifts the noise of the next one. `torch.randn`
    is not used: it fills blocks of 16, which makes a value depend on how many values were asked for.
    """
    sample, token, width = size
    generator = torch.Generator().manual_seed(seed * STREAM + step)
    uniform = torch.rand(token, sample, width, generator=generator)
    # Half a step of the 24-bit grid makes it symmetric about 0 and keeps -1, where erfinv is infinite, out of it.
    normal = uniform.mul_(2).add_(HALF_STEP - 1).erfinv_().mul_(math.sqrt(2))
    return normal.transpose(0, 1).contiguous()


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


Progress = Callable[[int, float], None]
"""Told, after each step, its number and the largest uncertainty of a row still being solved."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to solve; the first three are the paper's, with the published code's defaults."""

    scale: float = 0.5
    """Largest sigma; ten times the standard deviation of the word embeddings is recommended."""
    rate: float = 0.1
    """Weight of the entropy of the noise: more of it tolerates more distortion."""
    reduction: Literal["mean", "sum"] = "mean"
    """Whether the entropy is averaged over words, so that longer sentences get smaller sigma, or summed."""
    seed: int = 0
    """Chooses the noise; nothing global is read or changed."""
    samples: int = 40
    """Noise samples a step."""
    tolerance: float = 0.03
    """A row is solved once the standard error of log sigma is below this for each of its words."""
    least_steps: int = 8
    """Steps that an average must hold before its standard error is believed."""
    most_steps: int = 5000
    """Steps after which a row is given up and reported as not converged."""
    copies_per_call: int = 256
    """Most noisy sentences that phi is given at once: lower it when memory is short."""

    def __post_init__(self) -> None:
        """Stop at the door what could not be solved."""
        if not (0 < self.scale < math.inf and 0 < self.rate < math.inf):
            raise ConfigError(f"scale and rate must be positive and finite, not {self.scale} and {self.rate}")
        if min(self.samples, self.copies_per_call, self.least_steps) < 1 or self.most_steps < 0:
            raise ConfigError(f"every count must be at least 1, and most_steps at least 0: {self}")


@dataclass(frozen=True)
class Tolerance:
    """The answer, and how far it can be trusted; padding has sigma 0."""

    sigma: Float[Tensor, "*row token"]
    """Noise tolerated on each word: the smaller, the more of the word the state holds."""
    uncertainty: Float[Tensor, "*row token"]
    """Standard error of log sigma from the noise samples; 0 for a word at the cap."""
    residual: Float[Tensor, "*row token"]
    """(slope - t) / t, the violation of the condition above; at the cap only its positive part.

    Averaged over the last steps, each on noise that its sigma had not seen: nothing is marked on what it was fitted to.
    Its standard error is twice that of log sigma."""
    distortion: Float[Tensor, "*row"]
    """E[distortion] at sigma, averaged likewise."""
    loss: Float[Tensor, "*row"]
    """The objective at sigma."""
    steps: Int[Tensor, "*row"]
    """Steps taken by each row."""
    converged: Bool[Tensor, "*row"]
    """Whether the row was solved within the steps allowed."""

    def row(self, index: int) -> "Tolerance":
        """The answer for one row alone."""
        return Tolerance(*(getattr(self, field.name)[index] for field in fields(self)))


def solve(problem: Problem, settings: Settings, progress: Progress | None = None) -> Tolerance:
    """sigma of every word of every row, by the fixed point of `diffmask.methods.noise.solver`.

    Rows stop one by one and share their noise, so none depends on which others, or how much padding, came along.
    """
    _check_rows(problem)
    state = start(starting_log_sigma(problem.x, problem.mask, settings.scale))
    rows = torch.arange(len(problem.x), device=problem.x.device)
    for step in range(settings.most_steps):
        active = _step(problem, settings, state.take(rows), rows, step)
        state = state.put(rows, active)
        if progress is not None:
            progress(step + 1, uncertainty(active, math.log(settings.scale)).max().item())
        if step + 1 >= settings.least_steps:
            rows = rows[~_converged(active, settings)]
        if not len(rows):
            break
    return _report(problem, settings, state)


def solve_layers(problems: Sequence[Problem], settings: Settings) -> Tolerance:
    """One problem a layer, all on the same rows, stacked: sigma is [row, layer, token].

    Each layer has its own phi, which need not run the model further than that layer.
    """
    answers = [solve(problem, settings) for problem in problems]
    return Tolerance(*(torch.stack([getattr(a, field.name) for a in answers], dim=1) for field in fields(Tolerance)))


def starting_log_sigma(
    x: Float[Tensor, "row token width"], mask: Bool[Tensor, "row token"], scale: float
) -> Float[Tensor, "row token"]:
    """log of 1 % of the size of the row's vectors, or of the scale where that is smaller; padding stays at the cap.

    Small on purpose: a bounded phi has a second, saturated optimum at large sigma, and a start near it ends there.
    """
    numbers = mask.sum(1) * x.shape[2]
    size = ((x.square() * mask[..., None]).sum((1, 2)) / numbers).sqrt()
    size = torch.where(size > 0, size.clamp(max=scale), scale)
    return (0.01 * size).log()[:, None].where(mask, math.log(scale))


def target_slope(problem: Problem, settings: Settings) -> Float[Tensor, " row"]:
    """t = rate / S ("mean", as published in code) or rate ("sum", as in the paper)."""
    words = problem.mask.sum(1).to(problem.x.dtype)
    return settings.rate / words if settings.reduction == "mean" else torch.full_like(words, settings.rate)


def _step(problem: Problem, settings: Settings, state: State, rows: Int[Tensor, " active"], step: int) -> State:
    noise = standard_normal(settings.seed, step, (settings.samples, *problem.x.shape[1:])).to(problem.x)
    measured = measure(problem, state.log_sigma, rows, noise, settings.copies_per_call)
    return advance(state, measured, target_slope(problem, settings)[rows], math.log(settings.scale))


def _converged(state: State, settings: Settings) -> Bool[Tensor, " row"]:
    precise = uncertainty(state, math.log(settings.scale)).amax(1) <= settings.tolerance
    settled = state.moved.abs().amax(1) <= settings.tolerance
    return precise & settled & (state.count >= settings.least_steps)


def _report(problem: Problem, settings: Settings, state: State) -> Tolerance:
    target, excess = target_slope(problem, settings), state.log_sigma - math.log(settings.scale)
    residual = state.slope / target[:, None] - 1
    measured = state.count > 0
    return Tolerance(
        sigma=state.log_sigma.exp() * problem.mask,
        uncertainty=uncertainty(state, math.log(settings.scale)),
        residual=torch.where(excess >= 0, residual.clamp(min=0), residual.where(measured[:, None], torch.inf)),
        distortion=state.distortion.where(measured, torch.inf),
        loss=(state.distortion - target * excess.sum(1)).where(measured, torch.inf),
        steps=state.steps,
        converged=_converged(state, settings),
    )


def _check_rows(problem: Problem) -> None:
    empty = ~problem.mask.any(1)
    if empty.any():
        raise InputError(f"rows {empty.nonzero().flatten().tolist()} have no word to put noise on")
