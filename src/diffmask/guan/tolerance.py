"""The largest noise on each word that a hidden state does not notice: a solver for Guan et al. 2019, eq. 7.

Minimise E[distortion] - t sum_i log(sigma_i / scale) over 0 < sigma_i <= scale, where t = rate / S for a sentence of S
words (`reduction="mean"`, the published code) or t = rate (`"sum"`, the paper). At the minimum every word below the
cap satisfies E[d distortion / d log sigma_i] = t, and a word at the cap at most that.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffmask.errors import InputError, RecipeError
from diffmask.guan.distortion import Problem, measure
from diffmask.guan.fixed_point import State, advance, start, uncertainty
from diffmask.guan.gaussian import standard_normal

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
            raise RecipeError(f"scale and rate must be positive and finite, not {self.scale} and {self.rate}")
        if min(self.samples, self.copies_per_call, self.least_steps) < 1 or self.most_steps < 0:
            raise RecipeError(f"every count must be at least 1, and most_steps at least 0: {self}")


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
    """sigma of every word of every row, by the fixed point of `diffmask.guan.fixed_point`.

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
