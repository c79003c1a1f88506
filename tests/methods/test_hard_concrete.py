"""The hard concrete gate against Monte Carlo, the closed forms of the reference, and integrals by hand."""

import math

import pytest
import torch

from diffmask.methods.diffmask.hard_concrete import HardConcrete

LOGITS = torch.tensor([-4.0, -1.0, 0.0, 0.7, 2.5, 5.0])
SAMPLES = 200_000


@pytest.fixture(scope="module")
def samples() -> torch.Tensor:
    return HardConcrete(LOGITS.expand(SAMPLES, -1)).sample(torch.Generator().manual_seed(0))


def test_open_probability_is_the_share_of_samples_above_zero(samples: torch.Tensor) -> None:
    share = (samples > 0).float().mean(dim=0)
    torch.testing.assert_close(HardConcrete(LOGITS).open_probability(), share, atol=4e-3, rtol=0)


def test_mean_is_the_mean_of_samples(samples: torch.Tensor) -> None:
    torch.testing.assert_close(HardConcrete(LOGITS).mean(), samples.mean(dim=0), atol=4e-3, rtol=0)


@pytest.mark.parametrize("value", [0.0, 0.2, 0.5, 0.9])
def test_cdf_is_the_share_of_samples_at_or_below(samples: torch.Tensor, value: float) -> None:
    share = (samples <= value).float().mean(dim=0)
    torch.testing.assert_close(HardConcrete(LOGITS).cdf(torch.full_like(LOGITS, value)), share, atol=4e-3, rtol=0)


def test_cdf_is_zero_below_zero_and_one_from_one_on() -> None:
    gate = HardConcrete(LOGITS)
    assert (gate.cdf(torch.full_like(LOGITS, -0.01)) == 0).all()
    assert (gate.cdf(torch.full_like(LOGITS, 1.0)) == 1).all()


def test_log_open_is_the_reference_closed_form() -> None:
    # With temperature 0.2 on (-0.2, 1): log sigmoid(logit + 0.2 ln 5).
    expected = torch.tensor([math.log(1 / (1 + math.exp(-(x + 0.2 * math.log(5))))) for x in LOGITS.tolist()])
    torch.testing.assert_close(HardConcrete(LOGITS).log_open(), expected)


def test_a_gate_at_the_published_start_is_open_with_probability_0_9951() -> None:
    assert HardConcrete(torch.tensor(5.0)).open_probability().item() == pytest.approx(0.9951, abs=5e-5)


def test_open_probability_and_the_mass_at_zero_add_up_to_one() -> None:
    gate = HardConcrete(LOGITS)
    torch.testing.assert_close(gate.open_probability() + gate.cdf(torch.zeros_like(LOGITS)), torch.ones_like(LOGITS))


def test_samples_stay_within_zero_and_one_and_are_shut_exactly(samples: torch.Tensor) -> None:
    assert samples.min() == 0
    assert samples.max() <= 1
    assert (samples == 0).float().mean() > 0.1


def test_samples_pass_a_gradient_where_they_are_neither_shut_nor_open() -> None:
    logits = torch.zeros(1000, requires_grad=True)
    sample = HardConcrete(logits).sample(torch.Generator().manual_seed(1))
    sample.sum().backward()
    assert logits.grad is not None
    partly = (sample > 0) & (sample < 0.999)
    assert (logits.grad[partly] > 0).all()
    assert (logits.grad[sample == 0] == 0).all()


def test_the_same_generator_gives_the_same_gates() -> None:
    gate = HardConcrete(LOGITS)
    first, second = (gate.sample(torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_gates_from_log_open_have_that_open_probability(temperature: float) -> None:
    wanted = torch.tensor([0.001, 0.3, 0.5, 0.97])
    gates = HardConcrete.from_log_open(wanted.log(), temperature)
    torch.testing.assert_close(gates.open_probability(), wanted)


def test_bounded_gates_open_with_the_smallest_probability_and_pass_a_gradient() -> None:
    logits = torch.tensor([-20.0, 0.0, 20.0], requires_grad=True)
    gates, unbounded = HardConcrete(logits, 0.2).at_least(0.05), HardConcrete(logits, 0.2).open_probability()
    torch.testing.assert_close(gates.open_probability(), torch.stack([torch.tensor(0.05), *unbounded[1:]]))
    gates.sample(torch.Generator().manual_seed(0))
    gates.log_open().sum().backward()
    assert logits.grad is not None
    assert logits.grad[0].item() == pytest.approx(1.0, abs=1e-3)


def test_gates_with_other_bounds_have_the_closed_form_and_samples_within_zero_and_one() -> None:
    gate = HardConcrete(torch.tensor([0.5]), temperature=0.5, low=-0.1, high=1.1)
    assert gate.open_logit().item() == pytest.approx(0.5 - 0.5 * math.log(0.1 / 1.1))
    assert gate.from_uniform(torch.tensor([0.9999])).item() == 1.0 and gate.from_uniform(torch.tensor([1e-4])) == 0


def test_a_larger_uniform_number_opens_a_gate_wider_and_the_ends_are_not_infinite() -> None:
    gate = HardConcrete(torch.zeros(3))
    low, middle, high = gate.from_uniform(torch.tensor([0.4, 0.5, 0.6])).tolist()
    assert low < middle < high and middle == pytest.approx(0.4)
    # Noise is cut at 1e-6, or 13.8 in log-odds: it cannot open a gate at -20 or shut one at 20.
    assert HardConcrete(torch.tensor(-20.0)).from_uniform(torch.tensor(1.0)).item() == 0.0
    assert HardConcrete(torch.tensor(20.0)).from_uniform(torch.tensor(0.0)).item() == 1.0


def test_probabilities_next_to_zero_and_one_give_finite_log_odds() -> None:
    gate = HardConcrete.from_log_open(torch.tensor([-1000.0, 0.0], dtype=torch.float64), temperature=0.3)
    assert gate.open_logit().tolist() == pytest.approx([-60.0, -math.log(1e-6)], abs=1e-3)


def test_the_mean_has_the_shape_of_the_gates() -> None:
    logits = torch.tensor([[-1.0, 0.0, 2.0], [0.3, 5.0, -4.0]])
    found = HardConcrete(logits).mean()
    assert found.shape == (2, 3)
    for row in range(2):
        for column in range(3):
            assert found[row, column].item() == pytest.approx(HardConcrete(logits[row, column]).mean().item())
