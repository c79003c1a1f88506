"""Comparison of methods: paired bootstrap over texts and seeds with Holm's correction. No torch here."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

from diffmask.results.benchmark_result import Comparison, Estimate, MetricInfo
from diffmask.results.intervals import RESAMPLES, BootstrapTest, Values, bootstrap_t

SIGNIFICANCE_LEVEL = 0.025
"""Probability of at least one false difference per benchmark. Half of the promised 5 %, because a bootstrap of few
texts is not exact."""
MIN_ROWS = 30
"""Smallest number of texts for a significant difference. A bootstrap of fewer texts is not reliable."""


def compare(
    metrics: Sequence[MetricInfo],
    values: Mapping[str, Mapping[str, Values]],
    resamples: int = RESAMPLES,
) -> list[Comparison]:
    """Compare every pair of methods on every metric, with Holm's correction over all pairs.

    `values` are by name of the metric and of the method.
    """
    pairs = []
    for metric in metrics:
        for first, second in combinations(values.get(metric.name, {}), 2):
            differences = paired_differences(values[metric.name][first], values[metric.name][second])
            if differences is not None:
                pairs.append((metric, first, second, differences))
    # Holm's correction multiplies the smallest p-value by the number of pairs.
    enough = max(resamples, 40 * len(pairs))
    tests = [bootstrap_t(differences, enough) for *_, differences in pairs]
    corrected = holm_correction([test.p_value for test in tests])
    return [
        Comparison(
            metric=metric.name,
            first=first,
            second=second,
            difference=test.mean,
            low=test.low,
            high=test.high,
            p_value=p_value,
            winner=_winner(metric, first, second, test, p_value),
        )
        for (metric, first, second, _), test, p_value in zip(pairs, tests, corrected, strict=True)
    ]


def _winner(metric: MetricInfo, first: str, second: str, test: BootstrapTest, p_value: float) -> str | None:
    if p_value > SIGNIFICANCE_LEVEL or test.rows < MIN_ROWS or test.mean == 0:
        return None
    return first if (test.mean > 0) == metric.higher_is_better else second


def paired_differences(first: Values, second: Values) -> Values | None:
    """Subtract the values of two methods on their common texts; None if these are fewer than two or not all finite."""
    import numpy as np

    if first.shape != second.shape:
        return None
    both = np.isfinite(first).all(axis=0) & np.isfinite(second).all(axis=0)
    infinite = np.isinf(first).any() or np.isinf(second).any()
    return None if infinite or both.sum() < 2 else first[:, both] - second[:, both]


def estimate(values: Values) -> Estimate:
    """Compute the mean with its 95 % interval. NaN texts are left out; an infinite value makes the mean infinite."""
    import numpy as np

    seeds = len(values)
    defined = values[:, ~np.isnan(values).any(axis=0)]
    if not defined.size or not np.isfinite(defined).all() or defined.shape[1] < 2:
        mean = float(defined.mean()) if defined.size else math.nan
        return Estimate(mean=mean, low=mean, high=mean, rows=defined.shape[1], seeds=seeds)
    test = bootstrap_t(defined)
    return Estimate(mean=test.mean, low=test.low, high=test.high, rows=test.rows, seeds=seeds)


def holm_correction(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for the number of comparisons. Holm 1979.

    >>> [round(p, 2) for p in holm_correction([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
