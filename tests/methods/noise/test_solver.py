"""The solver against the closed form for linear phi, eight invariants of the optimum, and its diagnostics."""

import math

import pytest
import torch
from torch import Tensor, nn

from diffmask.errors import ConfigError, InputError, NumericsError
from diffmask.methods.noise.distortion import Phi, define_problem, estimate_distortion
from diffmask.methods.noise.solver import NoiseSolution, SolverSettings, sample_noise, solve, solve_layers

torch.set_num_threads(1)
W = torch.tensor([10.0, 20.0, 5.0, -20.0, -10.0])
PRECISE = SolverSettings(tolerance=0.004)


def weighted_sum(weights: Tensor) -> Phi:
    return lambda x, rows: torch.einsum("s,csd->cd", weights, x)


def whole(x: Tensor) -> Tensor:
    return torch.ones(x.shape[:2], dtype=torch.bool)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def toy_solution(weights: Tensor, settings: SolverSettings, x: Tensor, **normalise: Tensor) -> NoiseSolution:
    return solve(define_problem(weighted_sum(weights), x, whole(x), **normalise), settings)


class Encoder(nn.Module):
    """A two-layer transformer with random weights, frozen."""

    def __init__(self, width: int = 16, seed: int = 0) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval().requires_grad_(False)
        generator = torch.Generator().manual_seed(seed)
        for name, value in self.body.named_parameters():
            random = torch.randn(value.shape, generator=generator) / math.sqrt(width)
            value.copy_(torch.ones_like(value) if "norm" in name and "weight" in name else random)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        state: Tensor = self.body(x, src_key_padding_mask=~mask)
        return state


def encoder_solution(x: Tensor, mask: Tensor, settings: SolverSettings) -> NoiseSolution:
    encoder = Encoder(x.shape[2])
    problem = define_problem(lambda noisy, rows: encoder(noisy, mask[rows]), x, mask, feature_mask=mask[..., None])
    return solve(problem, settings)


def test_sigma_of_a_linear_phi_is_the_closed_form_without_regularization() -> None:
    x = draw(1, 5, 256) / 10
    second_moment = (W @ x[0]).square().mean()
    closed_form = (0.1 * second_moment / (2 * 5)).sqrt() / W.abs()
    torch.testing.assert_close(toy_solution(W, PRECISE, x).sigma[0], closed_form, rtol=0.015, atol=0)


def test_sigma_of_a_dense_linear_phi_with_regularization_is_the_closed_form() -> None:
    matrix, spread, x = draw(12, 4, 32), 0.5 + draw(12, seed=1).abs(), draw(1, 4, 32, seed=2)
    curvature = (matrix.square().sum(2) / spread.square()[:, None]).mean(0)
    closed_form = (0.1 / (2 * 4 * curvature)).sqrt()
    problem = define_problem(lambda x, rows: torch.einsum("ksd,csd->ck", matrix, x), x, whole(x), regularization=spread)
    torch.testing.assert_close(solve(problem, PRECISE).sigma[0], closed_form, rtol=0.02, atol=0)


def test_a_word_that_phi_ignores_and_one_it_hardly_uses_are_at_the_cap_exactly() -> None:
    solution = toy_solution(torch.tensor([1.0, 0.0, 1e-4]), SolverSettings(), draw(1, 3, 64))
    assert solution.sigma[0, 1:].tolist() == [0.5, 0.5]
    assert solution.sigma[0, 0] < 0.5
    assert solution.residual[0, 1:].tolist() == [0.0, 0.0] == solution.uncertainty[0, 1:].tolist()
    assert solution.converged.all()


def test_i1_at_the_optimum_every_word_has_slope_rate_over_words() -> None:
    x = draw(1, 6, 16)
    encoder = Encoder(16)
    problem = define_problem(lambda noisy, rows: encoder(noisy, whole(x)[rows]), x, whole(x))
    solution = solve(problem, SolverSettings(tolerance=0.01, scale=5.0))
    fresh = estimate_distortion(problem, solution.sigma.log(), torch.tensor([0]), sample_noise(77, 0, (4096, 6, 16)))
    torch.testing.assert_close(fresh.slope[0], torch.full((6,), 0.1 / 6), rtol=0.1, atol=0)
    assert solution.residual.abs().max() < 0.1


def test_i2_a_linear_phi_is_distorted_by_half_the_rate() -> None:
    solution = toy_solution(W, PRECISE, draw(1, 5, 256) / 10)
    torch.testing.assert_close(solution.distortion[0], torch.tensor(0.05), rtol=0.02, atol=0)
    loss = solution.distortion - 0.1 * (solution.sigma / 0.5).log().mean(1)
    torch.testing.assert_close(solution.loss, loss)


@pytest.mark.parametrize(("rate", "scale", "words"), [(0.1, 0.5, 2), (0.03, 4.0, 2), (0.1, 0.5, 6)])
def test_i3_ratios_of_sigma_are_those_of_the_weights_whatever_rate_scale_and_length(
    rate: float, scale: float, words: int
) -> None:
    weights = torch.cat([torch.tensor([4.0, 16.0]), torch.ones(words - 2)])
    solution = toy_solution(weights, SolverSettings(tolerance=0.004, rate=rate, scale=scale), draw(1, words, 128) / 10)
    assert solution.sigma[0, 0] / solution.sigma[0, 1] == pytest.approx(4.0, rel=0.02)


def test_i4_four_times_the_rate_doubles_sigma() -> None:
    x = draw(1, 5, 64) / 10
    one, four = (toy_solution(W, SolverSettings(rate=rate, tolerance=0.004), x).sigma for rate in (0.1, 0.4))
    torch.testing.assert_close(four, 2 * one, rtol=0.02, atol=0)


def test_i4_a_multiple_of_phi_changes_nothing_without_regularization_or_when_it_is_scaled_too() -> None:
    x, spread = draw(1, 5, 64) / 10, 1 + draw(64, seed=1).abs()
    torch.testing.assert_close(
        toy_solution(W, SolverSettings(), x).sigma, toy_solution(3 * W, SolverSettings(), x).sigma
    )
    one, three = (toy_solution(k * W, SolverSettings(), x, regularization=k * spread).sigma for k in (1.0, 3.0))
    torch.testing.assert_close(one, three)


def test_i4_sigma_moves_with_its_word() -> None:
    x, order = draw(1, 5, 256), torch.tensor([3, 1, 4, 0, 2])
    straight, permuted = toy_solution(W, PRECISE, x), toy_solution(W[order], PRECISE, x[:, order])
    torch.testing.assert_close(permuted.sigma, straight.sigma[:, order], rtol=0.02, atol=0)


def test_i5_a_constant_added_to_phi_matters_only_without_regularization() -> None:
    x, spread = draw(1, 5, 64), torch.full((64,), 2.0)
    phis: list[Phi] = [weighted_sum(W), lambda x, rows: weighted_sum(W)(x, rows) + 100]
    with_spread = [
        solve(define_problem(phi, x, whole(x), regularization=spread), SolverSettings()).sigma for phi in phis
    ]
    without = [solve(define_problem(phi, x, whole(x)), SolverSettings(scale=50.0)).sigma for phi in phis]
    torch.testing.assert_close(with_spread[0], with_spread[1], rtol=1e-3, atol=0)
    assert (without[1] / without[0]).min() > 2


@pytest.mark.parametrize(("reduction", "factor"), [("mean", 1 / math.sqrt(2)), ("sum", 1.0)])
def test_i6_as_many_unused_words_again_shrink_sigma_only_when_the_entropy_is_averaged(
    reduction: str, factor: float
) -> None:
    settings = SolverSettings(reduction=reduction, scale=1.0, tolerance=0.004)  # type: ignore[arg-type]  # a parameter of the test is a str
    x = draw(1, 10, 128) / 10
    short = toy_solution(W, settings, x[:, :5]).sigma
    double = toy_solution(torch.cat([W, torch.zeros(5)]), settings, x).sigma
    torch.testing.assert_close(double[:, :5], factor * short, rtol=0.02, atol=0)


def test_the_paper_sums_the_entropy_so_its_sigma_is_that_of_a_rate_as_many_times_larger_as_there_are_words() -> None:
    x = draw(1, 5, 64) / 10
    paper, code = toy_solution(W, SolverSettings(reduction="sum"), x), toy_solution(W, SolverSettings(rate=0.5), x)
    torch.testing.assert_close(paper.sigma, code.sigma)


def test_i7_for_little_noise_the_jacobian_gives_sigma() -> None:
    x, encoder = draw(1, 4, 16), Encoder(16)
    jacobian: Tensor = torch.autograd.functional.jacobian(  # type: ignore[no-untyped-call]  # torch leaves it untyped
        lambda x: encoder(x, whole(x)), x
    )[0, :, :, 0]
    weight = encoder(x, whole(x)).square().mean().reciprocal()
    curvature = jacobian.square().sum((0, 1, 3)) * weight / (4 * 16)
    settings = SolverSettings(rate=1e-5, tolerance=0.005)
    torch.testing.assert_close(
        encoder_solution(x, whole(x), settings).sigma[0], (1e-5 / (2 * 4 * curvature)).sqrt(), rtol=0.03, atol=0
    )


def test_i8_a_feature_with_regularization_zero_is_left_out_as_if_phi_did_not_return_it() -> None:
    x, spread = draw(1, 5, 64), torch.ones(64)
    spread[10:] = 0
    solution = toy_solution(W, SolverSettings(), x, regularization=spread)
    short = define_problem(lambda x, rows: weighted_sum(W)(x, rows)[:, :10], x, whole(x), regularization=torch.ones(10))
    torch.testing.assert_close(solution.sigma, solve(short, SolverSettings()).sigma, rtol=1e-4, atol=0)


@pytest.mark.parametrize("spread", [torch.zeros(64), torch.full((64,), -1.0), torch.full((64,), math.nan)])
def test_a_regularization_that_is_zero_everywhere_negative_or_nan_is_refused(spread: Tensor) -> None:
    with pytest.raises(InputError, match="regularization"):
        toy_solution(W, SolverSettings(), draw(1, 5, 64), regularization=spread)


def test_a_regularization_of_the_wrong_shape_is_refused_with_both_shapes() -> None:
    with pytest.raises(InputError, match=r"\(7,\).*\(1, 64\)"):
        toy_solution(W, SolverSettings(), draw(1, 5, 64), regularization=torch.ones(7))


def test_a_row_does_not_depend_on_the_other_rows_or_on_padding() -> None:
    settings = SolverSettings(scale=5.0, tolerance=0.1)
    lengths = torch.tensor([3, 7, 5, 2])
    mask = torch.arange(9) < lengths[:, None]
    x = draw(4, 9, 16) * (1 + torch.arange(4))[:, None, None]
    together = encoder_solution(x, mask, settings)
    for row, length in enumerate(lengths.tolist()):
        alone = encoder_solution(x[row : row + 1, :length], mask[row : row + 1, :length], settings)
        torch.testing.assert_close(together.sigma[row, :length], alone.sigma[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(together.residual[row, :length], alone.residual[0], rtol=1e-4, atol=1e-4)
        assert together.steps[row] == alone.steps[0]
        assert (together.sigma[row, length:] == 0).all()


def test_rows_stop_one_by_one() -> None:
    x = torch.cat([draw(1, 5, 8), draw(1, 5, 8, seed=1)])
    steps: Phi = lambda x, rows: weighted_sum(W)(x, rows) + (rows[:, None] == 1) * x[:, 0, :1] * 300  # noqa: E731
    solution = solve(define_problem(steps, x, whole(x), regularization=torch.ones(8)), SolverSettings())
    assert solution.converged.all()
    assert solution.steps[0] != solution.steps[1]


def test_calls_of_phi_are_no_larger_than_allowed_and_give_the_same_answer() -> None:
    x, sizes = draw(3, 5, 32), []

    def phi(x: Tensor, rows: Tensor) -> Tensor:
        sizes.append(len(x))
        return weighted_sum(W)(x, rows)

    small = solve(define_problem(phi, x, whole(x)), SolverSettings(internal_batch_size=2))
    assert max(sizes[2:]) == 2
    torch.testing.assert_close(small.sigma, toy_solution(W, SolverSettings(), x).sigma, rtol=1e-4, atol=0)


def test_all_layers_are_solved_in_one_call_with_the_layer_as_second_axis() -> None:
    x = draw(2, 5, 64)
    problems = [
        define_problem(weighted_sum(k * W), x, whole(x), regularization=torch.ones(64)) for k in (1.0, 2.0, 4.0)
    ]
    solution = solve_layers(problems, SolverSettings())
    assert solution.sigma.shape == (2, 3, 5)
    assert solution.converged.shape == (2, 3)
    torch.testing.assert_close(solution.sigma[:, 0], 4 * solution.sigma[:, 2], rtol=1e-4, atol=0)
    assert solution.row(1).sigma.shape == (3, 5)


def test_the_same_seed_gives_the_same_answer_and_nothing_global_is_drawn() -> None:
    x, before = draw(1, 5, 64), torch.get_rng_state()
    one, again, other = (toy_solution(W, SolverSettings(seed=seed), x).sigma for seed in (3, 3, 4))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(before, torch.get_rng_state())


def test_noise_is_standard_normal_and_does_not_depend_on_the_number_of_tokens() -> None:
    noise = sample_noise(5, 2, (64, 20, 128))
    assert torch.equal(sample_noise(5, 2, (64, 7, 128)), noise[:, :7])
    assert not torch.equal(sample_noise(5, 3, (64, 20, 128)), noise)
    moments = torch.tensor([noise.mean(), noise.square().mean(), noise.pow(4).mean()])
    torch.testing.assert_close(moments, torch.tensor([0.0, 1.0, 3.0]), rtol=0.05, atol=0.02)


def test_it_stops_early_once_precise_and_reports_convergence() -> None:
    solution = toy_solution(W, SolverSettings(), draw(1, 5, 256))
    assert solution.converged.item() and 10 <= solution.steps.item() < 20
    assert solution.uncertainty.max() <= 0.03


def test_the_uncertainty_is_the_spread_of_the_answer_over_seeds() -> None:
    x = draw(1, 5, 32)
    solutions = [toy_solution(W, SolverSettings(seed=seed), x) for seed in range(40)]
    spread = torch.stack([solution.sigma[0].log() for solution in solutions]).std(0).mean()
    reported = torch.stack([solution.uncertainty[0] for solution in solutions]).mean()
    assert 0.6 < reported / spread < 1.5


def test_too_few_steps_are_reported_as_not_converged() -> None:
    solution = toy_solution(W, SolverSettings(max_steps=3), draw(1, 5, 64))
    assert solution.steps.tolist() == [3]
    assert not solution.converged.any()


def test_without_steps_sigma_is_the_start_and_its_uncertainty_infinite() -> None:
    x = draw(1, 5, 64)
    solution = toy_solution(W, SolverSettings(max_steps=0), x)
    torch.testing.assert_close(solution.sigma, (0.01 * x.square().mean().sqrt().clamp(max=0.5)).expand(1, 5))
    assert not solution.converged.any()
    assert solution.uncertainty.isinf().all() and solution.residual.isinf().all()


def test_a_bounded_phi_is_not_left_in_the_saturated_optimum() -> None:
    """sin(50 x) has slope 1/2 near 0 and none at large sigma, so that a large start stays at the cap."""
    x = torch.full((1, 3, 64), 0.01)
    problem = define_problem(lambda x, rows: (50 * x).sin(), x, whole(x), regularization=torch.ones(1))
    solution = solve(problem, SolverSettings(scale=10.0, rate=0.02))
    assert solution.sigma.max() < 0.02
    assert (
        solution.loss
        < estimate_distortion(
            problem, torch.full((1, 3), math.log(9.99)), torch.tensor([0]), draw(64, 3, 64)
        ).distortion
    )


def test_nan_without_noise_names_the_rows() -> None:
    x = torch.ones(3, 5, 8)
    x[1] = -1
    with pytest.raises(NumericsError, match=r"without any noise, in rows \[1\]"):
        define_problem(lambda x, rows: x.sqrt(), x, whole(x))


def test_nan_from_noise_names_the_rows_and_the_sigma_reached() -> None:
    x = torch.full((2, 5, 8), 2.0)
    x[1] = 1000.0
    with pytest.raises(NumericsError, match=r"noisy copies of rows \[0\].*largest sigma tried was"):
        solve(define_problem(lambda x, rows: x.log(), x, whole(x)), SolverSettings(rate=100.0))


def test_a_phi_that_cannot_be_differentiated_is_refused() -> None:
    x = draw(1, 5, 8)
    with pytest.raises(InputError, match="no gradient"):
        solve(define_problem(lambda x, rows: x.detach(), x, whole(x)), SolverSettings())


def test_a_phi_that_answers_differently_each_time_is_refused() -> None:
    x, dropout = draw(1, 5, 8), nn.Dropout(0.5)
    with torch.random.fork_rng(), pytest.raises(InputError, match=r"model\.eval\(\)"):
        define_problem(lambda x, rows: dropout(x), x, whole(x))


def test_a_phi_that_is_zero_needs_a_regularization() -> None:
    x = torch.zeros(2, 5, 8)
    with pytest.raises(InputError, match=r"zero everywhere in rows \[0, 1\].*regularization"):
        define_problem(weighted_sum(W), x, whole(x))


def test_a_row_without_words_and_invalid_settings_are_refused() -> None:
    x, mask = draw(2, 5, 8), torch.tensor([[True] * 5, [False] * 5])
    with pytest.raises(InputError, match=r"rows \[1\] have no word"):
        solve(define_problem(weighted_sum(W), x, mask), SolverSettings())
    with pytest.raises(ConfigError, match="positive"):
        SolverSettings(rate=0.0)
    with pytest.raises(ConfigError, match="at least 1"):
        SolverSettings(samples=0)
