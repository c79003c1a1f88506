"""Solver for the largest noise on each word that leaves a hidden state unchanged: Guan et al. 2019, eq. 7.

Minimise E[distortion] - t sum_i log(sigma_i / scale) over 0 < sigma_i <= scale, where t = rate / S for a sentence of S
words (`reduction="mean"`, the published code) or t = rate (`"sum"`, the paper). At the minimum every word below the
cap satisfies E[d distortion / d log sigma_i] = t, and a word at the cap at most t.

The iteration is a stochastic fixed point: sigma_i^2 = t / c_i, with the curvature c_i = slope_i / sigma_i^2 estimated
from noise. For a linear phi c_i does not depend on sigma: the first step is unbiased, and further steps only reduce
variance. Averaging c rather than log sigma avoids the bias of the logarithm of a noisy number.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffmask.core.training import normal_noise
from diffmask.errors import ConfigError, InputError
from diffmask.methods.noise.distortion import DistortionEstimate, DistortionProblem, estimate_distortion

SEED_STRIDE = 1_000_003

MAX_STEP = 2.0
"""Largest change of log sigma per step: a word that phi ignores would otherwise jump to infinity."""

RESTART_DISTANCE = 0.5
"""Drift of log sigma after which the averaged curvatures are discarded."""

ProgressCallback = Callable[[int, float], None]
"""Called after each step with its number and the largest uncertainty of the unsolved rows."""


@dataclass(frozen=True, kw_only=True)
class SolverSettings:
    """Settings of the solver; the first three are the paper's, with the defaults of the published code."""

    scale: float = 0.5
    """Largest sigma; ten times the standard deviation of the word embeddings is recommended."""
    rate: float = 0.1
    """Weight of the entropy of the noise: a larger rate allows more distortion."""
    reduction: Literal["mean", "sum"] = "mean"
    """Whether the entropy is averaged over words, so that longer sentences get smaller sigma, or summed."""
    seed: int = 0
    """Seed of the noise; no global generator is read or changed."""
    samples: int = 40
    """Noise samples per step."""
    tolerance: float = 0.03
    """A row has converged once the standard error of log sigma is below this for each of its words."""
    min_steps: int = 8
    """Steps in an average before its standard error is used."""
    max_steps: int = 5000
    """Steps after which a row is reported as not converged."""
    internal_batch_size: int = 256
    """Largest number of noisy sentences per call of phi."""

    def __post_init__(self) -> None:
        if not (0 < self.scale < math.inf and 0 < self.rate < math.inf):
            raise ConfigError(f"scale and rate must be positive and finite, not {self.scale} and {self.rate}")
        if min(self.samples, self.internal_batch_size, self.min_steps) < 1 or self.max_steps < 0:
            raise ConfigError(f"every count must be at least 1, and max_steps at least 0: {self}")


@dataclass(frozen=True)
class NoiseSolution:
    """Solution with its convergence diagnostics; padding has sigma 0."""

    sigma: Float[Tensor, "*row token"]
    """Largest noise on each word: the smaller it is, the more information about the word the state holds."""
    uncertainty: Float[Tensor, "*row token"]
    """Standard error of log sigma from the noise samples; 0 for a word at the cap."""
    residual: Float[Tensor, "*row token"]
    """(slope - t) / t, the violation of the optimality condition; at the cap only its positive part.

    Averaged over the last steps, each on noise drawn after its sigma was chosen. Its standard error is twice that of
    log sigma."""
    distortion: Float[Tensor, "*row"]
    """E[distortion] at sigma, averaged in the same way."""
    loss: Float[Tensor, "*row"]
    """Objective at sigma."""
    steps: Int[Tensor, "*row"]
    """Steps taken by each row."""
    converged: Bool[Tensor, "*row"]
    """Whether the row converged within `max_steps`."""

    def row(self, index: int) -> "NoiseSolution":
        """Return the solution of one row."""
        return NoiseSolution(*(getattr(self, field.name)[index] for field in fields(self)))


def solve(
    problem: DistortionProblem, settings: SolverSettings, progress: ProgressCallback | None = None
) -> NoiseSolution:
    """Solve for sigma of every word of every row.

    Rows converge one by one and share their noise, so a solution depends neither on the other rows nor on padding.
    """
    _check_rows(problem)
    state = initial_state(initial_log_sigma(problem.x, problem.mask, settings.scale))
    rows = torch.arange(len(problem.x), device=problem.x.device)
    for step in range(settings.max_steps):
        active = _step(problem, settings, state.take(rows), rows, step)
        state = state.put(rows, active)
        if progress is not None:
            progress(step + 1, uncertainty(active, math.log(settings.scale)).max().item())
        if step + 1 >= settings.min_steps:
            rows = rows[~_converged(active, settings)]
        if not len(rows):
            break
    return _solution(problem, settings, state)


def solve_layers(problems: Sequence[DistortionProblem], settings: SolverSettings) -> NoiseSolution:
    """Solve one problem per layer on the same rows and stack the solutions: sigma is [row, layer, token].

    Each layer has its own phi, which may stop the forward pass at that layer.
    """
    solutions = [solve(problem, settings) for problem in problems]
    return NoiseSolution(
        *(torch.stack([getattr(item, field.name) for item in solutions], dim=1) for field in fields(NoiseSolution))
    )


def sample_noise(seed: int, step: int, size: tuple[int, int, int]) -> Float[Tensor, "sample token width"]:
    """Sample standard normal noise, drawn token by token: additional tokens do not change the first ones.

    Each (seed, step) has its own generator, so the size of one step does not shift the noise of the next.
    """
    sample, token, width = size
    source = torch.Generator().manual_seed(seed * SEED_STRIDE + step)
    return normal_noise((token, sample, width), source, torch.float32).transpose(0, 1).contiguous()


@dataclass(frozen=True)
class SolverState:
    """Iterate and running averages of each row."""

    log_sigma: Float[Tensor, "row token"]
    change: Float[Tensor, "row token"]
    """Last change of log sigma."""
    anchor: Float[Tensor, "row token"]
    """log sigma at the start of the averages."""
    curvature: Float[Tensor, "row token"]
    """Average of c_i."""
    variance: Float[Tensor, "row token"]
    """Variance of c_i about its average."""
    slope: Float[Tensor, "row token"]
    """Average of the slope, each estimated on noise drawn after its sigma was chosen."""
    distortion: Float[Tensor, " row"]
    """Average of the distortion, estimated in the same way."""
    count: Int[Tensor, " row"]
    """Estimates in the averages."""
    restarts: Int[Tensor, " row"]
    steps: Int[Tensor, " row"]

    def take(self, rows: Int[Tensor, " active"]) -> "SolverState":
        """Return the state of the given rows."""
        if len(rows) == len(self.steps):
            return self
        return SolverState(*(getattr(self, field.name)[rows] for field in fields(self)))

    def put(self, rows: Int[Tensor, " active"], new: "SolverState") -> "SolverState":
        """Return a copy in which the given rows are replaced."""
        if len(rows) == len(self.steps):
            return new
        pairs = ((getattr(self, field.name), getattr(new, field.name)) for field in fields(self))
        return SolverState(*(old.index_copy(0, rows, changed) for old, changed in pairs))


def initial_state(log_sigma: Float[Tensor, "row token"]) -> SolverState:
    """Return a state without estimates."""
    zero, none = torch.zeros_like(log_sigma), torch.zeros(len(log_sigma), dtype=torch.long, device=log_sigma.device)
    return SolverState(log_sigma, zero, log_sigma, zero, zero, zero, zero[:, 0], none, none, none)


def initial_log_sigma(
    x: Float[Tensor, "row token width"], mask: Bool[Tensor, "row token"], scale: float
) -> Float[Tensor, "row token"]:
    """Return log of 1 % of the root mean square of the row's vectors, at most of the scale; padding is at the cap.

    The start is small because a bounded phi has a second, saturated optimum at large sigma.
    """
    entries = mask.sum(1) * x.shape[2]
    size = ((x.square() * mask[..., None]).sum((1, 2)) / entries).sqrt()
    size = torch.where(size > 0, size.clamp(max=scale), scale)
    return (0.01 * size).log()[:, None].where(mask, math.log(scale))


def target_slope(problem: DistortionProblem, settings: SolverSettings) -> Float[Tensor, " row"]:
    """Return t = rate / S ("mean", the published code) or rate ("sum", the paper)."""
    words = problem.mask.sum(1).to(problem.x.dtype)
    return settings.rate / words if settings.reduction == "mean" else torch.full_like(words, settings.rate)


def uncertainty(state: SolverState, cap: float) -> Float[Tensor, "row token"]:
    """Return the standard error of log sigma = -1/2 log c + const: half the relative standard error of the curvature.

    The weights k / (1 + ... + K) have squares that sum to 2 (2K + 1) / (3 K (K + 1)). It is 0 for a word at the cap.
    """
    count = state.count.to(state.variance)[:, None]
    squares = 2 * (2 * count + 1) / (3 * count * (count + 1))
    error = (state.variance * squares / (1 - squares)).sqrt()
    relative = 0.5 * error / state.curvature.abs().clamp(min=torch.finfo(error.dtype).tiny)
    return torch.where(count < 2, torch.inf, relative).where(state.log_sigma < cap, 0)


def _step(
    problem: DistortionProblem, settings: SolverSettings, state: SolverState, rows: Int[Tensor, " active"], step: int
) -> SolverState:
    """Estimate the distortion at sigma, restart or extend the averages, and move to the new fixed point."""
    noise = sample_noise(settings.seed, step, (settings.samples, *problem.x.shape[1:])).to(problem.x)
    estimate = estimate_distortion(problem, state.log_sigma, rows, noise, settings.internal_batch_size)
    averaged = _average(_restart(state), estimate)
    return _move(averaged, target_slope(problem, settings)[rows], math.log(settings.scale))


def _restart(state: SolverState) -> SolverState:
    """Discard the averages of rows whose sigma has drifted from where they were collected.

    The allowed drift grows with each restart, so noise alone cannot cause restarts for ever.
    """
    drifted = (state.log_sigma - state.anchor).abs().amax(1) > RESTART_DISTANCE * (1 + state.restarts)
    anchor = torch.where(drifted[:, None], state.log_sigma, state.anchor)
    return replace(state, anchor=anchor, count=torch.where(drifted, 0, state.count), restarts=state.restarts + drifted)


def _average(state: SolverState, estimate: DistortionEstimate) -> SolverState:
    """Update averages in which the k-th estimate has weight k: early ones, farther from the solution, fade."""
    count = state.count + 1
    gain = (2 / (count + 1)).to(estimate.slope)
    innovation = estimate.slope * (-2 * state.log_sigma).exp() - state.curvature
    return replace(
        state,
        count=count,
        curvature=state.curvature + gain[:, None] * innovation,
        variance=(1 - gain[:, None]) * (state.variance + gain[:, None] * innovation.square()),
        slope=torch.lerp(state.slope, estimate.slope, gain[:, None]),
        distortion=torch.lerp(state.distortion, estimate.distortion, gain),
    )


def _move(state: SolverState, target: Float[Tensor, " row"], cap: float) -> SolverState:
    """Set log sigma_i = 1/2 log(t / c_i), at most MAX_STEP away and at most the cap."""
    smallest = torch.finfo(target.dtype).tiny
    fixed_point = 0.5 * (target[:, None].log() - state.curvature.clamp(min=smallest).log())
    move = (fixed_point - state.log_sigma).clamp(-MAX_STEP, MAX_STEP)
    log_sigma = (state.log_sigma + move).clamp(max=cap)
    return replace(state, log_sigma=log_sigma, change=log_sigma - state.log_sigma, steps=state.steps + 1)


def _converged(state: SolverState, settings: SolverSettings) -> Bool[Tensor, " row"]:
    precise = uncertainty(state, math.log(settings.scale)).amax(1) <= settings.tolerance
    steady = state.change.abs().amax(1) <= settings.tolerance
    return precise & steady & (state.count >= settings.min_steps)


def _solution(problem: DistortionProblem, settings: SolverSettings, state: SolverState) -> NoiseSolution:
    target, excess = target_slope(problem, settings), state.log_sigma - math.log(settings.scale)
    residual = state.slope / target[:, None] - 1
    estimated = state.count > 0
    return NoiseSolution(
        sigma=state.log_sigma.exp() * problem.mask,
        uncertainty=uncertainty(state, math.log(settings.scale)),
        residual=torch.where(excess >= 0, residual.clamp(min=0), residual.where(estimated[:, None], torch.inf)),
        distortion=state.distortion.where(estimated, torch.inf),
        loss=(state.distortion - target * excess.sum(1)).where(estimated, torch.inf),
        steps=state.steps,
        converged=_converged(state, settings),
    )


def _check_rows(problem: DistortionProblem) -> None:
    empty = ~problem.mask.any(1)
    if empty.any():
        raise InputError(f"rows {empty.nonzero().flatten().tolist()} have no word to put noise on")
