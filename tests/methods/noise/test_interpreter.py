"""The published interface: the toy example of its README, its report, its figure, and invalid inputs."""

import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import diffmask
from diffmask.errors import InputError, NumericsError
from diffmask.methods.noise.interpreter import Interpreter, SentencePhi, batch_phi, calculate_regularization

torch.set_num_threads(1)
W = torch.tensor([10.0, 20.0, 5.0, -20.0, -10.0])
with torch.random.fork_rng():
    LSTM = nn.LSTM(8, 6, batch_first=True).requires_grad_(False)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def toy_phi(x: Tensor) -> Tensor:
    return W @ x


def closed_form(x: Tensor) -> Tensor:
    return (0.1 * (W @ x).square().mean() / 10).sqrt() / W.abs()


def test_the_toy_of_the_readme_runs_with_only_the_import_changed(capfd: pytest.CaptureFixture[str]) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = draw(5, 256).to(device) / 100
    words = ["1", "2", "3", "4", "5"]

    def Phi(x: Tensor) -> Tensor:  # noqa: N802 -- as the README spells it
        weights = torch.tensor([10.0, 20.0, 5.0, -20.0, -10.0]).to(device)
        return weights @ x

    sampled_x = [draw(5, 256, seed=1 + seed) / 100 for seed in range(100)]
    regularization = calculate_regularization(sampled_x, Phi, device=device)
    interpreter = Interpreter(x=x, Phi=Phi, regularization=regularization, scale=10 * 0.1, words=words).to(device)
    interpreter.optimize(iteration=5000, lr=0.5, show_progress=True)
    expected = math.sqrt(0.1 / (2 * 5 * (regularization**-2.0).mean())) / W.abs().numpy()
    np.testing.assert_allclose(interpreter.get_sigma(), expected, rtol=0.02)
    assert interpreter.visualize().axes
    assert "uncertainty" in capfd.readouterr().err


def test_the_older_toy_without_regularization_reaches_the_closed_form() -> None:
    x = draw(5, 256) / 10
    interpreter = Interpreter(x, toy_phi)
    report = interpreter.optimize()
    np.testing.assert_allclose(interpreter.get_sigma(), closed_form(x).numpy(), rtol=0.02)
    assert report.converged.item() and report.steps.item() < 20
    assert report.residual.abs().max() < 0.05
    assert interpreter.solution is report


def test_arguments_keep_their_published_order() -> None:
    x, spread = draw(5, 32), np.ones(32)
    by_place = Interpreter(x, toy_phi, 0.7, 0.2, spread, ["a", "b", "c", "d", "e"])
    by_name = Interpreter(x=x, Phi=toy_phi, words=["a", "b", "c", "d", "e"], scale=0.7, rate=0.2, regularization=spread)
    by_place.optimize(), by_name.optimize()
    np.testing.assert_array_equal(by_place.get_sigma(), by_name.get_sigma())


def test_the_same_seed_gives_the_same_sigma_whatever_the_global_generator_does() -> None:
    interpreter = Interpreter(draw(5, 32), toy_phi)
    sigma = []
    for seed in (1, 1, 2):
        torch.rand(3)
        interpreter.optimize(seed=seed)
        sigma.append(interpreter.get_sigma())
    np.testing.assert_array_equal(sigma[0], sigma[1])
    assert not np.array_equal(sigma[0], sigma[2])


def test_without_iterations_sigma_is_the_start_and_not_converged() -> None:
    interpreter = Interpreter(draw(5, 32), toy_phi)
    before = interpreter.get_sigma()
    report = interpreter.optimize(0)
    np.testing.assert_allclose(interpreter.get_sigma(), before, rtol=1e-5)
    assert not report.converged.item() and report.steps.item() == 0


def test_too_few_iterations_warn() -> None:
    with pytest.warns(RuntimeWarning, match="not converged in 2 steps"):
        Interpreter(draw(5, 32), toy_phi).optimize(2)


def test_the_loss_is_that_of_the_solver_on_average_and_has_a_gradient() -> None:
    interpreter = Interpreter(draw(5, 256) / 10, toy_phi)
    report = interpreter.optimize()
    draws = torch.stack([interpreter() for _ in range(200)])
    torch.testing.assert_close(draws.mean().detach(), report.loss, rtol=0.02, atol=0)
    (gradient,) = torch.autograd.grad(draws.mean(), interpreter.ratio)
    assert 0 < gradient.abs().max() < 0.005


def test_the_sum_of_the_paper_and_the_mean_of_the_code_are_both_available() -> None:
    x = draw(5, 64) / 10
    paper, code = Interpreter(x, toy_phi, reduction="sum"), Interpreter(x, toy_phi, rate=0.5)
    paper.optimize(), code.optimize()
    np.testing.assert_allclose(paper.get_sigma(), code.get_sigma(), rtol=1e-4)


def test_moving_the_interpreter_moves_its_sentence() -> None:
    interpreter = Interpreter(draw(5, 8), toy_phi, regularization=[1.0] * 8).to(torch.float64)
    assert interpreter.x.dtype == torch.float64
    assert interpreter.regular is not None and interpreter.regular.dtype == torch.float64


def test_a_state_dict_brings_sigma_back() -> None:
    x = draw(5, 32)
    solved, fresh = Interpreter(x, toy_phi), Interpreter(x, toy_phi)
    solved.optimize()
    fresh.load_state_dict(solved.state_dict())
    np.testing.assert_array_equal(fresh.get_sigma(), solved.get_sigma())


def test_a_zero_in_the_regularization_is_left_out() -> None:
    x, spread = draw(5, 32), np.ones(32)
    spread[0] = 0
    interpreter = Interpreter(x, toy_phi, regularization=spread)
    interpreter.optimize()
    np.testing.assert_allclose(interpreter.get_sigma(), np.sqrt(0.01) / np.abs(W.numpy()), rtol=0.05)


def test_nan_from_phi_is_an_error() -> None:
    with pytest.raises(NumericsError, match="NaN"):
        Interpreter(draw(5, 8), lambda x: x.sqrt()).optimize()


def test_words_that_do_not_match_the_sentence_are_refused() -> None:
    with pytest.raises(InputError, match="2 words for 5 vectors"):
        Interpreter(draw(5, 8), toy_phi, words=["a", "b"])


def test_a_phi_that_returns_a_tuple_is_refused() -> None:
    with pytest.raises(InputError, match="one tensor, not tuple"):
        Interpreter(draw(5, 8), lambda x: (x, x)).optimize()  # type: ignore[arg-type, return-value]  # on purpose


def test_a_phi_that_can_only_run_alone_is_run_in_a_loop() -> None:
    x = draw(5, 64) / 10
    calls = []

    def alone(x: Tensor) -> Tensor:
        assert x.shape == (5, 64)
        calls.append(float(x.detach().sum()))
        return W @ x

    interpreter = Interpreter(x, alone)
    interpreter.optimize()
    assert len(calls) > 100
    np.testing.assert_allclose(interpreter.get_sigma(), closed_form(x).numpy(), rtol=0.04)


@pytest.mark.parametrize(
    "phi",
    [
        toy_phi,
        lambda sentence: sentence.mean(0),
        lambda sentence: sentence.softmax(0)[1],
        lambda sentence: LSTM(sentence[None])[0][0, -1],
        lambda sentence: sentence.flatten() if float(sentence.detach().sum()) > 0 else -sentence.flatten(),
    ],
    ids=["takes a leading axis", "averages the first axis", "normalises the first axis", "recurrent", "branches"],
)
def test_a_phi_of_one_sentence_gives_the_same_states_for_many(phi: SentencePhi) -> None:
    x = draw(4, 5, 8)
    torch.testing.assert_close(batch_phi(phi, x[0])(x, torch.arange(4)), torch.stack([phi(sentence) for sentence in x]))


def test_a_scalar_phi_is_explained_too() -> None:
    interpreter = Interpreter(1 + draw(5, 64) / 10, lambda x: (W @ x).sum(), rate=1e-3)
    interpreter.optimize()
    ratio = interpreter.get_sigma() * np.abs(W.numpy())
    np.testing.assert_allclose(ratio / ratio.mean(), 1, rtol=0.1)


def test_the_figure_has_one_label_per_word_or_number_and_a_colour_bar() -> None:
    interpreter = Interpreter(draw(5, 8), toy_phi, words=["price", "of", "$5", "not", "$10"])
    strip, bar = interpreter.visualize().axes
    assert [label.get_text() for label in strip.get_xticklabels()] == ["price", "of", r"\$5", "not", r"\$10"]
    assert "dark" in bar.get_ylabel()
    strip, _ = Interpreter(draw(5, 8), toy_phi).visualize().axes
    assert [label.get_text() for label in strip.get_xticklabels()] == ["0", "1", "2", "3", "4"]


def test_a_long_sentence_wraps_into_strips_whose_words_do_not_overlap(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(37)]
    interpreter = Interpreter(draw(37, 8), lambda x: x.sum(0), words=words)
    figure = interpreter.visualize(tmp_path / "sentence.png")
    assert (tmp_path / "sentence.png").stat().st_size > 1000
    *strips, _ = figure.axes
    assert len(strips) == 4
    assert [label.get_text() for strip in strips for label in strip.get_xticklabels()] == words
    for strip in strips:
        boxes = [label.get_window_extent() for label in strip.get_xticklabels()]
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_matplotlib_is_loaded_only_to_draw() -> None:
    code = "import sys, diffmask.methods.noise.interpreter; sys.exit('matplotlib' in sys.modules)"
    package = Path(diffmask.__file__).parent.parent
    assert subprocess.run([sys.executable, "-c", code], cwd=package, check=False).returncode == 0


def test_dark_cells_are_the_important_words() -> None:
    interpreter = Interpreter(draw(5, 64), toy_phi)
    interpreter.optimize()
    image = interpreter.visualize().axes[0].images[0]
    darkness = [3 - sum(image.cmap(image.norm(value))[:3]) for value in interpreter.get_sigma()]
    assert int(np.argmax(darkness)) == int(np.argmin(interpreter.get_sigma()))


def test_regularization_is_the_population_standard_deviation_over_samples() -> None:
    samples = [draw(5, 8, seed=seed) for seed in range(20)]
    expected = np.std([toy_phi(sample).numpy() for sample in samples], axis=0)
    np.testing.assert_allclose(calculate_regularization(samples, toy_phi), expected, rtol=1e-5)


def test_regularization_of_sentences_of_several_lengths_needs_reduced_axes() -> None:
    samples = [draw(length, 8) for length in (3, 5, 4)]
    expected = np.std([sample.mean(0, keepdim=True).numpy() for sample in samples], axis=0)
    found = calculate_regularization(samples, lambda x: x, reduced_axes=[0])
    assert found.shape == (1, 8)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    with pytest.raises(InputError, match="reduced_axes"):
        calculate_regularization(samples, lambda x: x)
    with pytest.raises(InputError, match="no sample"):
        calculate_regularization([], toy_phi)


def test_regularization_builds_no_graph() -> None:
    weights = W.clone().requires_grad_()
    assert calculate_regularization([draw(5, 8), draw(5, 8, seed=1)], lambda x: weights @ x).shape == (8,)


def test_the_published_names_are_names_of_the_package() -> None:
    assert diffmask.Interpreter is Interpreter
    assert diffmask.calculate_regularization is calculate_regularization
