"""A verdict is wrong in at most one repeat of twenty, and right where the difference is large."""

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from diffmask.results.benchmark_result import MethodResult, MetricInfo
from diffmask.results.comparison import (
    MIN_ROWS,
    SIGNIFICANCE_LEVEL,
    _winner,
    compare,
    estimate,
    holm_correction,
    paired_differences,
)
from diffmask.results.intervals import BootstrapTest, bootstrap_t
from diffmask.results.verdict import VerdictInputs, verdict

UP = MetricInfo(
    name="up",
    title="Up",
    higher_is_better=True,
    definition="height",
    interpretation="",
    limitation="Nothing of the sky.",
)
DOWN = MetricInfo(
    name="down",
    title="Down",
    higher_is_better=False,
    definition="depth",
    interpretation="",
    limitation="Nothing of the sea.",
)
TRUE = {"a": 0.3, "b": 0.3, "c": 0.1, "random": 0.1}
"""What the methods really score: two ties, and four true differences."""


def drawn(
    source: np.random.Generator, rows: int, seeds: int = 1, means: dict[str, float] = TRUE
) -> dict[str, dict[str, np.ndarray]]:
    """Skewed scores in which the text, shared by all methods, makes most of the noise."""
    text = source.exponential(1.0, size=(1, rows))
    up = {name: value + 0.3 * text + source.exponential(0.4, (seeds, rows)) - 0.4 for name, value in means.items()}
    down = {name: -value + 0.3 * text + source.normal(0, 0.4, (seeds, rows)) for name, value in means.items()}
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
    few = np.arange(MIN_ROWS - 1.0)[None]
    (one,) = compare([UP], {"up": {"a": few + 10 + few / 100, "b": few}})
    assert one.p_value < 0.05 and one.winner is None


def test_the_interval_of_a_mean_is_students_for_normal_values() -> None:
    values = np.random.default_rng(2).normal(3, 2, (1, 80))
    low, high = stats.t.interval(0.95, 79, loc=values.mean(), scale=stats.sem(values[0]))
    found = estimate(values)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.03)
    assert bootstrap_t(values - 2.8).p_value == pytest.approx(stats.ttest_1samp(values[0], 2.8).pvalue, abs=0.02)


@pytest.mark.parametrize("failures", [1, 3, 10])
def test_the_interval_of_a_share_stays_a_share_where_hardly_a_text_differs(failures: int) -> None:
    found = estimate(np.array([[1.0] * (200 - failures) + [0.0] * failures]))
    assert 0.8 < found.low < found.mean < found.high <= 1


def test_seeds_that_disagree_widen_the_interval() -> None:
    source = np.random.default_rng(3)
    one = source.normal(0, 1, (1, 100))
    same, apart = np.repeat(one, 3, axis=0), one + np.array([[-1.0], [0.0], [1.0]])
    assert bootstrap_t(same).high - bootstrap_t(same).low == pytest.approx(bootstrap_t(one).high - bootstrap_t(one).low)
    assert bootstrap_t(apart).high - bootstrap_t(apart).low > 3 * (bootstrap_t(same).high - bootstrap_t(same).low)


def test_equal_scores_are_a_tie_and_a_text_that_says_nothing_is_left_out() -> None:
    values = np.arange(50.0)[None]
    assert bootstrap_t(values - values).p_value == 1
    holed = values.copy()
    holed[0, 3] = np.nan
    assert estimate(holed).rows == 49
    difference = paired_differences(values, holed)
    assert difference is not None and difference.shape == (1, 49)
    assert paired_differences(values, np.full_like(values, np.inf)) is None
    assert paired_differences(values, values[:, :5]) is None


def test_holm_is_the_definition() -> None:
    p_values = [0.001, 0.011, 0.02, 0.3, 0.0001]
    by_hand = [0.004, 0.033, 0.04, 0.3, 0.0005]
    assert holm_correction(p_values) == pytest.approx(by_hand)


def verdict_inputs(rows: int = 200, means: dict[str, float] = TRUE) -> VerdictInputs:
    values = drawn(np.random.default_rng(5), rows, means=means)
    cost = {"seconds": 0.01, "forwards": 1.0, "backwards": 0.0, "fit_seconds": 0.0}
    fitted = {**cost, "fit_seconds": 90.0, "break_even": 42.0}
    methods = [
        MethodResult(
            name=name,
            config={},
            estimates={metric: estimate(by_method[name]) for metric, by_method in values.items()},
            cost=fitted if name == "a" else cost,
        )
        for name in means
    ]
    comparisons = compare([UP, DOWN], values)
    return VerdictInputs(metrics=[UP, DOWN], methods=methods, comparisons=comparisons, texts=rows, baseline="random")


def test_the_verdict_names_methods_that_beat_random_ties_costs_and_limits() -> None:
    first, up, down, cost, limits = verdict(verdict_inputs())
    assert first.startswith("Up is the height (higher is better). Down is the depth (lower is better). ")
    assert "On 200 texts a and b beat the random baseline by every metric. c was not shown to beat it." in first
    assert re.search(r"Best by up: [ab] \([\d.]+\) and [ab] \([\d.]+\), without a significant difference", first)
    assert up.startswith("Up (higher is better)")
    assert "4 of 6 pairs differ significantly. No significant difference: a and b, c and random." in up
    assert "4 of 6 pairs differ significantly" in down
    assert (
        "1 forward pass, after a fit of 90 s (cheaper than integrated gradients with 50 steps after 42 texts)" in cost
    )
    assert "Nothing of the sky." in limits and "Nothing of the sea." in limits


def test_no_method_is_best_unless_it_was_shown_to_beat_random() -> None:
    """All three methods are as good as random; one of them has the best mean all the same."""
    first, *_ = verdict(verdict_inputs(means={"a": 0.1, "b": 0.1, "c": 0.1, "random": 0.1}))
    assert "no method beats the random baseline by every metric. a, b and c were not shown to beat it." in first
    assert "Best by" not in first
    assert "By up no method is best, because none was shown to beat the random baseline." in first


def test_a_method_as_good_as_random_is_not_tied_for_best() -> None:
    inputs = verdict_inputs(means={"a": 0.3, "b": 0.1, "random": 0.1})
    assert [method.name for method in inputs.leaders("up")] == ["a"]
    noisy = [
        replace(pair, winner=None) if {pair.first, pair.second} == {"a", "b"} else pair for pair in inputs.comparisons
    ]
    tied = replace(inputs, comparisons=noisy)
    assert [method.name for method in tied.leaders("up")] == ["a"], "b does not differ from a, nor from random"
    assert re.search(
        r"Best by up: a \([\d.]+\)\. b does not differ significantly from a, but also not", verdict(tied)[0]
    )


def test_there_is_no_verdict_from_few_texts() -> None:
    assert verdict(verdict_inputs(20))[0].startswith("No verdict: 20 texts are too few")


def test_thirty_texts_are_enough_for_a_winner_and_a_mean_difference_of_one_is_a_difference() -> None:
    noise = np.tile([0.5, -0.5], 15)[None]
    texts = np.arange(30.0)[None]
    (one,) = compare([UP], {"up": {"a": texts + 1 + noise, "b": texts}})
    assert one.difference == 1 and one.winner == "a"
    (few,) = compare([UP], {"up": {"a": (texts + 1 + noise)[:, :29], "b": texts[:, :29]}})
    assert few.p_value < 0.001 and few.winner is None


def test_a_p_value_at_the_level_is_significant() -> None:
    # A constant difference is as extreme as no resample: p = 1 / (40 + 1), above the level; with 39 resamples, 1 / 40.
    texts = np.arange(30.0)[None]
    (one,) = compare([UP], {"up": {"a": texts + 1, "b": texts}}, resamples=1)
    assert one.p_value == 1 / 41 < SIGNIFICANCE_LEVEL and one.winner == "a"
    test = BootstrapTest(mean=1.0, low=0.5, high=1.5, p_value=SIGNIFICANCE_LEVEL, rows=30)
    assert _winner(UP, "a", "b", test, SIGNIFICANCE_LEVEL) == "a" and _winner(UP, "a", "b", test, 0.026) is None


def test_resamples_grow_with_the_number_of_pairs() -> None:
    texts = np.arange(30.0)[None]
    three = {"up": {name: texts + shift for name, shift in (("a", 0), ("b", 1), ("c", 3))}}
    # Three pairs: 120 resamples, if fewer are asked for. Holm multiplies every p-value, all alike, by three.
    assert [one.p_value for one in compare([UP], three, resamples=5)] == pytest.approx([3 / 121] * 3)
    assert [one.p_value for one in compare([UP], three, resamples=500)] == pytest.approx([3 / 501] * 3)


def test_a_text_that_one_seed_does_not_define_is_left_out() -> None:
    whole = np.arange(8.0).reshape(2, 4)
    holed = whole.copy()
    holed[1, 2] = np.nan
    assert estimate(holed).rows == 3 and estimate(holed).mean == np.delete(whole, 2, axis=1).mean()
    for first, second in ((whole, holed), (holed, whole)):
        difference = paired_differences(first, second)
        assert difference is not None and difference.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_two_texts_have_an_interval_and_one_has_none() -> None:
    two, one = estimate(np.array([[1.0, 3.0]])), estimate(np.array([[1.0]]))
    assert two.low < two.mean == 2 < two.high
    assert one.low == one.mean == one.high == 1


def test_corrected_p_values_are_probabilities() -> None:
    assert holm_correction([0.6, 0.7]) == [1.0, 1.0]
