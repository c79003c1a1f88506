"""A verdict is wrong in at most one repeat of twenty, and right where the difference is large."""

import numpy as np
import pytest
from scipy import stats

from diffmask.results.benchmark_result import MethodResult, MetricInfo
from diffmask.results.comparison import FEWEST_ROWS, bootstrap, compare, estimate, holm, paired
from diffmask.results.verdict import VerdictInputs, verdict

UP = MetricInfo(name="up", title="Up", higher_is_better=True, interpretation="", limitation="Nothing of the sky.")
DOWN = MetricInfo(
    name="down", title="Down", higher_is_better=False, interpretation="", limitation="Nothing of the sea."
)
TRUE = {"a": 0.3, "b": 0.3, "c": 0.1, "random": 0.1}
"""What the methods really score: two ties, and four true differences."""


def drawn(source: np.random.Generator, rows: int, seeds: int = 1) -> dict[str, dict[str, np.ndarray]]:
    """Skewed scores in which the text, shared by all methods, makes most of the noise."""
    text = source.exponential(1.0, size=(1, rows))
    up = {name: value + 0.3 * text + source.exponential(0.4, (seeds, rows)) - 0.4 for name, value in TRUE.items()}
    down = {name: -value + 0.3 * text + source.normal(0, 0.4, (seeds, rows)) for name, value in TRUE.items()}
    return {"up": up, "down": down}


def is_false(metric: str, first: str, second: str, winner: str | None) -> bool:
    other = second if winner == first else first
    return winner is not None and not TRUE[winner] > TRUE[other]


@pytest.mark.parametrize(("rows", "seeds"), [(200, 1), (40, 1), (60, 3)])
def test_of_200_repeats_at_most_one_in_twenty_says_a_beats_b_where_it_does_not(rows: int, seeds: int) -> None:
    source = np.random.default_rng(1)
    wrong = found = 0
    for _ in range(200):
        results = compare([UP, DOWN], drawn(source, rows, seeds), resamples=1000)
        wrong += any(is_false(one.metric, one.first, one.second, one.winner) for one in results)
        found += sum(one.winner is not None for one in results)
    assert wrong <= 10
    # Eight of the twelve pairs differ; a test that never spoke would pass the line above.
    assert found / 200 > (7 if rows == 200 else 1)


def test_the_winner_is_the_lower_where_lower_is_better() -> None:
    source = np.random.default_rng(0)
    low = source.normal(0, 1, (1, 100))
    (one,) = compare([DOWN], {"down": {"low": low, "high": low + 1 + source.normal(0, 0.1, (1, 100))}})
    assert one.winner == "low"
    assert one.difference == pytest.approx(-1, abs=0.05) and one.low < one.difference < one.high < 0


def test_too_few_rows_have_no_winner() -> None:
    few = np.arange(FEWEST_ROWS - 1.0)[None]
    (one,) = compare([UP], {"up": {"a": few + 10 + few / 100, "b": few}})
    assert one.p_value < 0.05 and one.winner is None


def test_the_interval_of_a_mean_is_students_for_normal_values() -> None:
    values = np.random.default_rng(2).normal(3, 2, (1, 80))
    low, high = stats.t.interval(0.95, 79, loc=values.mean(), scale=stats.sem(values[0]))
    found = estimate(values)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.03)
    assert bootstrap(values - 2.8).p_value == pytest.approx(stats.ttest_1samp(values[0], 2.8).pvalue, abs=0.02)


@pytest.mark.parametrize("failures", [1, 3, 10])
def test_the_interval_of_a_share_stays_a_share_where_hardly_a_text_differs(failures: int) -> None:
    found = estimate(np.array([[1.0] * (200 - failures) + [0.0] * failures]))
    assert 0.8 < found.low < found.mean < found.high <= 1


def test_seeds_that_disagree_widen_the_interval() -> None:
    source = np.random.default_rng(3)
    one = source.normal(0, 1, (1, 100))
    same, apart = np.repeat(one, 3, axis=0), one + np.array([[-1.0], [0.0], [1.0]])
    assert bootstrap(same).high - bootstrap(same).low == pytest.approx(bootstrap(one).high - bootstrap(one).low)
    assert bootstrap(apart).high - bootstrap(apart).low > 3 * (bootstrap(same).high - bootstrap(same).low)


def test_equal_scores_are_a_tie_and_a_text_that_says_nothing_is_left_out() -> None:
    values = np.arange(50.0)[None]
    assert bootstrap(values - values).p_value == 1
    holed = values.copy()
    holed[0, 3] = np.nan
    assert estimate(holed).rows == 49
    difference = paired(values, holed)
    assert difference is not None and difference.shape == (1, 49)
    assert paired(values, np.full_like(values, np.inf)) is None
    assert paired(values, values[:, :5]) is None


def test_holm_is_the_definition() -> None:
    p_values = [0.001, 0.011, 0.02, 0.3, 0.0001]
    by_hand = [0.004, 0.033, 0.04, 0.3, 0.0005]
    assert holm(p_values) == pytest.approx(by_hand)


def findings(rows: int = 200) -> VerdictInputs:
    values = drawn(np.random.default_rng(5), rows)
    cost = {"seconds": 0.01, "forwards": 1.0, "backwards": 0.0, "fit_seconds": 0.0}
    fitted = {**cost, "fit_seconds": 90.0, "break_even": 42.0}
    methods = [
        MethodResult(
            name=name,
            recipe={},
            estimates={metric: estimate(by_method[name]) for metric, by_method in values.items()},
            cost=fitted if name == "a" else cost,
        )
        for name in TRUE
    ]
    return VerdictInputs(metrics=[UP, DOWN], methods=methods, comparisons=compare([UP, DOWN], values), texts=rows)


def test_the_verdict_says_who_beats_chance_who_ties_and_what_it_cannot_say() -> None:
    first, up, down, cost, limits = verdict(findings())
    assert first.startswith(
        "On 200 texts a and b beat a random order by every measure; c cannot be told from a random order."
    )
    assert "which cannot be told apart" in first
    assert (
        up.startswith("Up (higher is better)")
        and "4 of 6 pairs differ; cannot be told apart: a and b, c and random." in up
    )
    assert "4 of 6 pairs differ" in down
    assert "after a fit of 90 s (cheaper than IG-50 after 42 texts)" in cost
    assert "Nothing of the sky." in limits and "Nothing of the sea." in limits


def test_there_is_no_verdict_from_few_texts() -> None:
    assert verdict(findings(20))[0].startswith("No verdict: 20 texts are too few")
