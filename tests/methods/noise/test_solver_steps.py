"""The steps of the solver one by one, against arithmetic done by hand."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from diffmask.errors import ConfigError
from diffmask.methods.noise.distortion import DistortionEstimate, Phi, define_problem
from diffmask.methods.noise.solver import (
    SolverSettings,
    SolverState,
    _average,
    _converged,
    _move,
    _restart,
    _solution,
    initial_log_sigma,
    initial_state,
    sample_noise,
    solve,
    uncertainty,
)

W = torch.tensor([10.0, 20.0, 5.0])


def weighted_sum(weights: Tensor) -> Phi:
    return lambda x, rows: torch.einsum("s,csd->cd", weights, x)


def whole(x: Tensor) -> Tensor:
    return torch.ones(x.shape[:2], dtype=torch.bool)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def state_of(log_sigma: Tensor, **values: Tensor) -> SolverState:
    return replace(initial_state(log_sigma), **values)


def test_a_new_state_has_no_estimates() -> None:
    state = initial_state(torch.tensor([[0.5, -1.0]]))
    for name in ("change", "curvature", "variance", "slope", "distortion", "count", "restarts", "steps"):
        assert not getattr(state, name).any(), name
    assert torch.equal(state.anchor, state.log_sigma)


def test_the_kth_estimate_has_weight_k_in_the_averages_and_their_uncertainty() -> None:
    slopes, distortions = [3.0, 5.0, 4.0, 8.0], [1.0, 2.0, 4.0, 3.0]
    state = state_of(torch.tensor([[-0.5]], dtype=torch.float64))
    for slope, distortion in zip(slopes, distortions, strict=True):
        estimate = DistortionEstimate(torch.tensor([distortion]).double(), torch.tensor([[slope]]).double())
        state = _average(state, estimate)
    weights = [k / 10 for k in (1, 2, 3, 4)]
    curvatures = [slope * math.e for slope in slopes]  # slope / sigma^2, with log sigma = -1/2
    mean = sum(w * c for w, c in zip(weights, curvatures, strict=True))
    variance = sum(w * (c - mean) ** 2 for w, c in zip(weights, curvatures, strict=True))
    assert state.count.tolist() == [4] and state.curvature.item() == pytest.approx(mean)
    assert state.variance.item() == pytest.approx(variance)
    assert state.slope.item() == pytest.approx(sum(w * s for w, s in zip(weights, slopes, strict=True)))
    assert state.distortion.item() == pytest.approx(sum(w * d for w, d in zip(weights, distortions, strict=True)))
    squares = sum(w * w for w in weights)
    expected = 0.5 * math.sqrt(variance * squares / (1 - squares)) / mean
    assert uncertainty(state, cap=0.0).item() == pytest.approx(expected)
    assert uncertainty(state, cap=-0.5).item() == 0.0  # at the cap
    single = replace(state, count=torch.tensor([1]))
    assert uncertainty(single, cap=0.0).item() == math.inf


def test_a_step_goes_to_the_fixed_point_but_not_far_and_not_above_the_cap() -> None:
    curvature = torch.tensor([[math.e**2, 1e-30, 1e30, math.e**-1]])
    state = state_of(torch.zeros(1, 4), curvature=curvature)
    moved = _move(state, torch.tensor([1.0]), cap=1.9)
    assert moved.log_sigma[0].tolist() == pytest.approx([-1.0, 1.9, -2.0, 0.5])
    assert moved.change[0].tolist() == pytest.approx([-1.0, 1.9, -2.0, 0.5]) and moved.steps.tolist() == [1]
    ignored = _move(state_of(torch.zeros(1, 1)), torch.tensor([1.0]), cap=9.0)  # a curvature of 0
    assert ignored.log_sigma.item() == 2.0


def test_averages_are_discarded_after_a_drift_that_grows_with_each_restart() -> None:
    log_sigma = torch.tensor([[0.5, 0.0], [0.51, 0.0], [-0.51, 0.1], [0.9, 0.0], [1.1, 0.0]])
    restarts = torch.tensor([0, 0, 0, 1, 1])
    state = state_of(log_sigma, anchor=torch.zeros(5, 2), count=torch.full((5,), 7), restarts=restarts)
    found = _restart(state)
    assert found.count.tolist() == [7, 0, 0, 7, 0]
    assert found.restarts.tolist() == [0, 1, 1, 1, 2]
    assert found.anchor[:, 0].tolist() == pytest.approx([0.0, 0.51, -0.51, 0.0, 1.1])


def test_a_row_has_converged_if_it_is_precise_and_steady_after_enough_steps() -> None:
    settings = SolverSettings(scale=1.0, tolerance=0.25, min_steps=3)
    at_cap = torch.zeros(4, 2)  # words at the cap are certain
    change = torch.tensor([[0.25, -0.25], [0.26, 0.0], [0.0, 0.0], [0.0, -0.3]])
    state = state_of(at_cap, change=change, count=torch.tensor([3, 3, 2, 9]))
    assert _converged(state, settings).tolist() == [True, False, False, False]


def test_a_solution_without_a_step_is_unknown() -> None:
    x = draw(2, 3, 4)
    found = solve(define_problem(weighted_sum(W[:3]), x, whole(x)), SolverSettings(max_steps=0))
    assert found.distortion.isinf().all() and found.loss.isinf().all() and found.residual.isinf().all()
    assert found.steps.tolist() == [0, 0] and not found.converged.any()
    size = x.square().mean(dim=(1, 2)).sqrt().clamp(max=0.5)
    torch.testing.assert_close(found.sigma, (0.01 * size)[:, None].expand(2, 3))


def test_a_solution_at_the_cap_violates_only_by_too_large_a_slope() -> None:
    x = draw(1, 2, 4)
    problem, settings = define_problem(weighted_sum(W[:2]), x, whole(x)), SolverSettings(scale=0.5, rate=0.2)
    target = 0.2 / 2
    log_sigma = torch.tensor([[math.log(0.5), math.log(0.25)]])
    slope = torch.tensor([[0.5 * target, 3 * target]])
    state = state_of(log_sigma, slope=slope, count=torch.tensor([4]), distortion=torch.tensor([1.5]))
    found = _solution(problem, settings, state)
    assert found.residual[0].tolist() == pytest.approx([0.0, 2.0], abs=1e-6)
    assert found.loss.item() == pytest.approx(1.5 - target * math.log(0.5))
    assert found.distortion.item() == 1.5 and found.sigma[0].tolist() == pytest.approx([0.5, 0.25])
    once = _solution(problem, settings, replace(state, count=torch.tensor([1])))
    assert once.distortion.item() == 1.5  # one estimate is an estimate


def test_the_start_is_one_percent_of_the_size_of_the_vectors_within_the_scale() -> None:
    x = torch.tensor([[[3.0, 4.0], [9.0, 9.0]], [[0.0, 0.0], [0.0, 0.0]], [[0.3, 0.4], [0.0, 0.0]]])
    mask = torch.tensor([[True, False], [True, True], [True, True]])
    found = initial_log_sigma(x, mask, 2.0).exp()
    # Root mean squares: sqrt(25 / 2), above the scale; 0; sqrt(0.25 / 4).
    assert found[0].tolist() == pytest.approx([0.02, 2.0]) and found[1].tolist() == pytest.approx([0.02] * 2)
    assert found[2].tolist() == pytest.approx([0.0025] * 2)


def test_every_seed_and_step_has_its_own_noise() -> None:
    assert torch.equal(sample_noise(1, 0, (2, 3, 4)), sample_noise(0, 1_000_003, (2, 3, 4)))
    assert not torch.equal(sample_noise(0, 1, (2, 3, 4)), sample_noise(0, 0, (2, 3, 4)))


def test_counts_of_one_are_allowed_and_the_defaults_are_those_of_the_published_code() -> None:
    settings = SolverSettings()
    assert (settings.scale, settings.rate, settings.reduction, settings.seed) == (0.5, 0.1, "mean", 0)
    assert (settings.samples, settings.tolerance, settings.min_steps) == (40, 0.03, 8)
    assert (settings.max_steps, settings.internal_batch_size) == (5000, 256)
    assert SolverSettings(samples=1, internal_batch_size=1, min_steps=1, max_steps=0).samples == 1
    for wrong in ({"samples": 0}, {"internal_batch_size": 0}, {"min_steps": 0}, {"max_steps": -1}):
        with pytest.raises(ConfigError, match="every count must be at least 1"):
            SolverSettings(**wrong)  # type: ignore[arg-type]
    for size in ({"scale": 0.0}, {"rate": 0.0}, {"scale": math.inf}, {"rate": math.inf}, {"rate": -1.0}):
        with pytest.raises(ConfigError, match="must be positive and finite"):
            SolverSettings(**size)  # type: ignore[arg-type]


def test_progress_is_reported_from_one_and_ends_when_every_row_is_solved() -> None:
    x, steps = draw(1, 3, 64) / 10, list[int]()
    problem = define_problem(weighted_sum(W[:3]), x, whole(x))
    found = solve(problem, SolverSettings(tolerance=0.2, min_steps=4), lambda step, _: steps.append(step))
    assert steps == list(range(1, int(found.steps.item()) + 1)) and len(steps) >= 4
