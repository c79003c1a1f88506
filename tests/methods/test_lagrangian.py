"""The multiplier's rule against arithmetic done by hand."""

import math

import pytest
import torch

from diffmask.methods.diffmask.lagrangian import Multiplier, PIController, RowMultipliers, critical_multiplier

RULE = PIController(margin=0.1, integral=0.1, proportional=1.0, memory=0.5, anneal_fraction=0.5)


def multiplier_of(critical: float = 1.0) -> Multiplier:
    return Multiplier(RULE, critical)


def test_one_step_is_the_integral_and_the_change_of_the_trend() -> None:
    multiplier = multiplier_of()
    multiplier.update(divergence=0.15, progress=1.0)
    # Violation 0.5; the trend moves from 0 to 0.25; the floor, twice the critical 1, is below.
    multiplier.update(divergence=0.5, progress=1.0)
    # Violation 4; the trend moves from 0.25 to 2.125. The first step had been lifted to the floor.
    assert math.log(multiplier.value) == pytest.approx(math.log(2.0) + 0.1 * 4 + 1.875)


def test_a_violation_counts_at_most_max_violation() -> None:
    multiplier = multiplier_of()
    multiplier.update(divergence=100.0, progress=1.0)
    # Violation cut to 5: 0.1 * 5 + 2.5 above log 1.
    assert math.log(multiplier.value) == pytest.approx(3.0)


def test_it_starts_at_the_critical_value_and_never_falls_below_its_floor() -> None:
    multiplier = multiplier_of(critical=4.0)
    assert multiplier.value == pytest.approx(4.0)
    for _ in range(100):
        multiplier.update(divergence=0.0, progress=0.0)
    assert multiplier.value == pytest.approx(0.7 * 4.0)
    multiplier.update(divergence=0.0, progress=1.0)
    assert multiplier.value == pytest.approx(2.0 * 4.0)


def test_it_never_exceeds_max_multiplier_and_reports_that_it_is_at_its_bound() -> None:
    multiplier = multiplier_of()
    for _ in range(1000):
        multiplier.update(divergence=1.0, progress=1.0)
    assert multiplier.value == pytest.approx(RULE.max_multiplier)
    assert multiplier.at_bound


def test_the_margin_shrinks_geometrically_from_the_first_divergence_to_its_target() -> None:
    assert RULE.margin_at(0.0, first=1.6) == pytest.approx(1.6)
    assert RULE.margin_at(0.25, first=1.6) == pytest.approx(0.4)
    assert RULE.margin_at(0.5, first=1.6) == pytest.approx(0.1)
    assert RULE.margin_at(1.0, first=1.6) == pytest.approx(0.1)


def test_a_first_divergence_below_the_margin_leaves_the_margin_alone() -> None:
    assert RULE.margin_at(0.0, first=0.01) == pytest.approx(0.1)


def test_swing_is_the_deviation_of_the_logarithm_over_the_last_third() -> None:
    multiplier = multiplier_of()
    multiplier.history[:] = [5.0] * 6 + [1.0, math.e**2, 1.0]
    mean = 2 / 3
    assert multiplier.swing == pytest.approx(math.sqrt((2 * mean**2 + (2 - mean) ** 2) / 3))


def test_the_defaults_are_those_of_the_documentation() -> None:
    rule = PIController(margin=0.1)
    assert (rule.integral, rule.proportional, rule.memory, rule.max_violation) == (0.02, 1.0, 0.8, 5.0)
    assert (rule.max_multiplier, rule.start, rule.floor, rule.anneal_fraction) == (1e3, 1.0, (0.7, 2.0), 0.6)


def test_a_multiplier_is_at_its_bound_within_one_percent_only() -> None:
    assert not Multiplier(PIController(margin=0.1, max_multiplier=100.0), 98.0).at_bound
    assert Multiplier(PIController(margin=0.1, max_multiplier=100.0), 99.5).at_bound


def test_without_updates_nothing_swings_and_the_last_two_of_few_count() -> None:
    multiplier = multiplier_of()
    assert multiplier.swing == 0.0
    multiplier.history[:] = [9.0, 1.0, math.e]
    assert multiplier.swing == pytest.approx(0.5)


@pytest.mark.parametrize(("kl", "expected"), [(0.5, 2.0), (20.0, 0.1), (0.005, 100.0), (0.0, 100.0), (0.02, 50.0)])
def test_the_critical_multiplier_is_the_reciprocal_within_bounds(kl: float, expected: float) -> None:
    assert critical_multiplier(kl) == pytest.approx(expected)
    assert RowMultipliers(RULE, torch.tensor([kl, kl])).value.tolist() == pytest.approx([expected] * 2)


def test_a_margin_of_zero_is_a_millionth_of_a_nat() -> None:
    rule = PIController(margin=0.0, anneal_fraction=0.5)
    assert rule.margin_at(1.0, first=1.0) == pytest.approx(1e-6)
    assert rule.margin_at(0.25, first=1.0) == pytest.approx(1e-3)


@pytest.mark.parametrize("margin", [0.1, 0.0])
def test_rows_follow_the_rule_of_one_multiplier_each(margin: float) -> None:
    rule = PIController(margin=margin, integral=0.1, proportional=0.7, memory=0.6, max_multiplier=50.0)
    source = torch.Generator().manual_seed(0)
    full = torch.tensor([0.0005, 0.4, 2.0, 30.0], dtype=torch.float64)
    together = RowMultipliers(rule, full)
    alone = [Multiplier(rule, critical_multiplier(kl)) for kl in full.tolist()]
    for step in range(40):
        divergence = 0.4 * torch.rand(4, generator=source, dtype=torch.float64) * torch.tensor([0.0, 0.5, 1.0, 3.0])
        together.update(divergence, step / 40)
        expected = [each.update(kl, step / 40) for each, kl in zip(alone, divergence.tolist(), strict=True)]
        # A floor above the largest multiplier: `Multiplier` ends at the largest, rows at their floor.
        assert together.value[1:].tolist() == pytest.approx(expected[1:])
    assert together.value[0].item() == pytest.approx(2.0 * 100.0)
