"""Information in nats by hand, layers and timestamps of three kinds of models, concepts, and figures."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal  # type: ignore[import-untyped]  # it ships without types
from torch import Tensor, nn

from diffmask.errors import InputError
from diffmask.methods.noise.distortion import Phi, define_problem
from diffmask.methods.noise.information import (
    ConceptClassifier,
    concept_information,
    fit_concept_classifier,
    layer_curve,
    layer_phis,
    sentence_entropy,
    timestamp_phis,
    word_entropy,
    word_information,
)
from diffmask.methods.noise.plotting import plot_curves, plot_layers
from diffmask.methods.noise.solver import NoiseSolution, SolverSettings, solve_layers

torch.set_num_threads(1)
LENGTHS = torch.tensor([6, 4, 3])
MASK = torch.arange(6) < LENGTHS[:, None]
SETTINGS = SolverSettings(scale=10.0, samples=16, tolerance=0.1)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def frozen(module: nn.Module, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for value in module.requires_grad_(False).parameters():
        value.copy_(torch.randn(value.shape, generator=generator) / math.sqrt(value.shape[-1]))
    return module.eval()


def solve_phis(phis: list[Phi], x: Tensor) -> NoiseSolution:
    return solve_layers([define_problem(phi, x, MASK) for phi in phis], SETTINGS)


def pooled(state: Tensor, rows: Tensor) -> Tensor:
    """A state of fixed size: the mean over the words of each sentence."""
    weight = MASK[rows][..., None].to(state)
    return (state * weight).sum(1) / weight.sum(1)


def convolution_phis() -> list[Phi]:
    layers = [frozen(nn.Conv1d(8, 8, 3, padding=1), seed) for seed in range(2)]

    def states(x: Tensor, rows: Tensor) -> list[Tensor]:
        kept = MASK[rows][..., None].to(x)
        first = layers[0]((x * kept).mT).mT.tanh() * kept
        second = layers[1](first.mT).mT.tanh() * kept
        return [pooled(first, rows), pooled(second, rows)]

    return layer_phis(states, 2)


def transformer_phis() -> list[Phi]:
    layers = [frozen(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), seed) for seed in (5, 6)]

    def states(x: Tensor, rows: Tensor) -> list[Tensor]:
        first = layers[0](x, src_key_padding_mask=~MASK[rows])
        return [pooled(first, rows), pooled(layers[1](first, src_key_padding_mask=~MASK[rows]), rows)]

    return layer_phis(states, 2)


def recurrent_phis() -> list[Phi]:
    lstm = frozen(nn.LSTM(8, 8, batch_first=True), 9)
    return timestamp_phis(lambda x: lstm(x)[0], MASK)


def test_the_entropy_of_a_word_is_that_of_scipys_gaussian() -> None:
    sigma = torch.tensor([[0.1, 2.0, 0.0]])
    expected = [multivariate_normal(np.zeros(7), value**2 * np.eye(7)).entropy() for value in (0.1, 2.0)]
    np.testing.assert_allclose(word_entropy(sigma, 7)[0, :2], expected, rtol=1e-5)
    assert word_entropy(sigma, 7)[0, 2] == 0
    np.testing.assert_allclose(sentence_entropy(sigma, 7), [sum(expected)], rtol=1e-5)


def test_information_is_the_entropy_of_the_word_minus_its_conditional_entropy() -> None:
    sigma = torch.tensor([[0.1, 2.0]])
    difference = word_entropy(torch.full((1, 2), 3.0), 7) - word_entropy(sigma, 7)
    torch.testing.assert_close(word_information(sigma, 7, deviation=3.0), difference)


def test_a_curve_averages_words_and_leaves_padding_out() -> None:
    values = torch.tensor([[[1.0, 3.0], [2.0, 4.0]], [[5.0, 99.0], [6.0, 99.0]]])
    mask = torch.tensor([[True, True], [True, False]])
    assert layer_curve(values, mask).tolist() == [3.0, 4.0]


def test_a_convolution_an_lstm_and_a_transformer_can_be_compared() -> None:
    x = draw(3, 6, 8)
    models = {"CNN": convolution_phis(), "LSTM": recurrent_phis(), "Transformer": transformer_phis()}
    curves = {}
    for name, phis in models.items():
        answer = solve_phis(phis, x)
        assert answer.converged.all(), name
        curves[name] = layer_curve(word_entropy(answer.sigma, 8), MASK).numpy()
    assert {name: len(curve) for name, curve in curves.items()} == {"CNN": 2, "LSTM": 6, "Transformer": 2}
    (axes,) = plot_curves(curves).axes
    assert [line.get_label() for line in axes.get_lines()] == list(curves)


def test_a_timestamp_ignores_the_words_that_come_after_it() -> None:
    sigma = solve_phis(recurrent_phis(), draw(3, 6, 8)).sigma
    times, words = torch.arange(6)[:, None], torch.arange(6)
    later = (words > times) & MASK[:, None]
    assert (sigma[later] == 10.0).all()
    assert (sigma[0].diagonal() < 10.0).all()


def test_a_sentence_that_has_ended_keeps_its_last_state() -> None:
    sigma = solve_phis(recurrent_phis(), draw(3, 6, 8)).sigma
    torch.testing.assert_close(sigma[2, 2, :3], sigma[2, 5, :3])


def test_concepts_are_classified_and_the_classifier_minimises_its_loss() -> None:
    x = torch.cat([draw(40, 4) + 1.5, draw(40, 4, seed=1) - 1.5])
    concept = torch.arange(80) // 40
    classifier = fit_concept_classifier(x, concept, penalty=0.1)
    assert (classifier(x).argmax(1) == concept).float().mean() > 0.95
    residual = classifier(x).exp() - torch.nn.functional.one_hot(concept)
    torch.testing.assert_close(residual.T @ x / 80 + 0.1 * classifier.weight, torch.zeros(2, 4), atol=1e-4, rtol=0)


def test_concept_information_of_a_hand_made_classifier_is_the_integral() -> None:
    """log p(1|x) = -log(1 + exp(-x)) at x = 1 and sigma = 2, integrated on a grid."""
    classifier = ConceptClassifier(torch.tensor([[0.0], [1.0]]), torch.zeros(2))
    grid = np.linspace(-8, 8, 4001)
    density = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
    expected = np.trapezoid(-np.logaddexp(0, -(1 + 2 * grid)) * density, grid) + np.logaddexp(0, -1)
    found = concept_information(
        classifier, torch.ones(1, 2, 1), torch.tensor([[2.0, 0.0]]), torch.ones(1, 2, dtype=torch.long), samples=20000
    )
    assert found[0, 0].item() == pytest.approx(expected, abs=0.03)
    assert found[0, 1] == 0


def test_a_state_that_ignores_a_word_has_lost_its_concept() -> None:
    concept = torch.tensor([[0, 1, 0, 1]])
    x = draw(1, 4, 8) / 10 + (2.0 * concept - 1)[..., None]
    classifier = fit_concept_classifier(x[0], concept[0])
    phi: Phi = lambda x, rows: x[:, :2].flatten(1)  # noqa: E731
    sigma = solve_layers([define_problem(phi, x, torch.ones(1, 4, dtype=torch.bool))], SolverSettings(scale=5.0)).sigma[
        :, 0
    ]
    lost = concept_information(classifier, x, sigma, concept)[0]
    assert lost[:2].min() > -0.2 > -1 > lost[2:].max()


def test_concepts_without_words_are_refused() -> None:
    with pytest.raises(InputError, match="at least one word"):
        fit_concept_classifier(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))


def test_a_heat_map_has_a_row_per_layer_a_column_per_word_and_a_colour_bar() -> None:
    axes, bar = plot_layers(np.arange(6.0).reshape(2, 3), ["a", "b", "c"], ["first", "second"]).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b", "c"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["first", "second"]
    assert bar.get_ylabel() == "H(X|s), nats"
    with pytest.raises(InputError, match="2 words for 3 numbers"):
        plot_layers(np.zeros((2, 3)), ["a", "b"])
