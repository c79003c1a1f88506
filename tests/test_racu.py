"""RACU against the published figures, its intervals against SciPy."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import bootstrap as scipy_bootstrap

import diffmask
from diffmask.errors import InputError
from diffmask.results.intervals import bca_interval
from diffmask.results.racu import CurveAreas, areas_between, racu_over_seeds

REFERENCE = Path(os.environ.get("DIFFMASK_REFERENCE", Path(__file__).parents[2] / "shared" / "reference"))
RANDOM = [0.90, 0.86, 0.72, 0.61, 0.55, 0.50, 0.45, 0.38, 0.29, 0.24, 0.20]
MEASURE = [0.90, 0.70, 0.45, 0.32, 0.29, 0.28, 0.27, 0.24, 0.20, 0.20, 0.20]


def test_the_published_example() -> None:
    found = areas_between(measure=MEASURE, random=RANDOM)
    assert found.absolute == pytest.approx(0.165)
    assert found.denominator == pytest.approx(0.315)
    assert diffmask.racu(measure=MEASURE, random=RANDOM) == pytest.approx(0.52381, abs=1e-5)


def published() -> dict[str, float]:
    """RACU in percent by `dataset/model/measure`, from the table under the published curves."""
    text = REFERENCE / "roar.md"
    if not text.is_file():
        pytest.skip("the published curves are not here; set DIFFMASK_REFERENCE")
    lines = text.read_text().partition("## Appendix A")[2].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")][1:]
    return {"/".join(row[:3]): float(row[-1]) for row in rows if not row[-1].startswith("den")}


def test_racu_of_every_published_curve() -> None:
    table = published()
    curves = json.loads((REFERENCE / "roar_curves.json").read_text())
    checked = 0
    for key, value in table.items():
        random = curves[key.rpartition("/")[0] + "/Random"]
        assert 100 * diffmask.racu(measure=curves[key], random=random) == pytest.approx(value, abs=0.1), key
        checked += 1
    assert checked == 42


def test_random_against_itself_is_zero_and_falling_at_once_is_one() -> None:
    assert diffmask.racu(measure=RANDOM, random=RANDOM) == 0
    at_once = [RANDOM[-1]] * len(RANDOM)
    assert diffmask.racu(measure=at_once, random=RANDOM) == pytest.approx(1)


def test_only_the_clipped_one_is_clipped() -> None:
    bad = areas_between(measure=[3.0, 3.0], random=[0.5, 0.4])
    assert bad.relative < -1
    assert bad.clipped == -1


def test_unequal_steps_weigh_by_their_width() -> None:
    found = areas_between(measure=[1.0, 0.0, 0.0], random=[1.0, 1.0, 0.0], at=[0.0, 0.2, 1.0])
    assert found.absolute == pytest.approx(0.2 * 0.5 + 0.8 * 0.5)


def test_curves_of_different_lengths_are_refused() -> None:
    with pytest.raises(InputError, match="3 and 2 points"):
        areas_between(measure=[1.0, 1.0, 1.0], random=[1.0, 1.0])


@pytest.mark.parametrize("values", [[0.1, 0.4, 0.35, 0.3, 0.9], [0.2, 0.21, 0.5], list(np.linspace(0, 3, 12) ** 2)])
def test_the_interval_is_that_of_scipy(values: list[float]) -> None:
    expected = scipy_bootstrap((values,), np.mean, confidence_level=0.95, random_state=np.random.default_rng(0))
    found = bca_interval(values)
    assert found.low == pytest.approx(expected.confidence_interval.low, abs=1e-9)
    assert found.high == pytest.approx(expected.confidence_interval.high, abs=1e-9)


def test_the_mean_over_seeds_is_a_mean_of_ratios() -> None:
    pairs = [areas_between(measure=[1.0, 0.2], random=[1.0, 0.5]), areas_between(measure=[1.0, 0.5], random=[0.5, 0.0])]
    assert racu_over_seeds(pairs).mean == pytest.approx(np.mean([pair.relative for pair in pairs]))
    assert racu_over_seeds(pairs, clip=True).mean == pytest.approx(np.mean([pair.clipped for pair in pairs]))


def test_positions_are_equidistant_from_0_to_1() -> None:
    assert areas_between(measure=[0.0, 0.0], random=[1.0, 0.0]) == CurveAreas(absolute=0.5, denominator=0.5)
    assert areas_between(measure=[0.0] * 3, random=[1.0] * 2 + [0.0]).absolute == pytest.approx(0.75)


def test_a_curve_far_above_random_is_clipped_to_one() -> None:
    found = CurveAreas(absolute=3.0, denominator=2.0)
    assert found.relative == 1.5 and found.clipped == 1.0
