"""Which methods differ: a paired bootstrap over texts and seeds, corrected for many comparisons. No torch here.

Methods are compared on the same texts. What is resampled is the difference of two methods on a text, studentised
(Efron & Tibshirani 1993, chapter 12): with skewed differences this keeps its level where a plain percentile does not.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

from diffmask.results.benchmark_result import Comparison, Estimate, MetricInfo

Values = Any
"""A numpy array: one number for each seed and text; a text on which a measure says nothing is NaN."""

LEVEL = 0.025
"""Chance of even one false difference on a board: half of the one in twenty that is promised, since a bootstrap of
few texts is not exact."""
FEWEST_ROWS = 30
"""Texts below which no method is said to beat another: so few do not tell what their bootstrap would need to know."""
RESAMPLES = 10_000


@dataclass(frozen=True)
class Bootstrapped:
    """A mean over seeds and texts, and what chance makes of it."""

    mean: float
    low: float
    high: float
    p_value: float
    """That the true mean is 0, two-sided, not corrected."""
    rows: int


def compare(
    metrics: Sequence[MetricInfo],
    values: Mapping[str, Mapping[str, Values]],
    resamples: int = RESAMPLES,
) -> list[Comparison]:
    """Every pair of methods on every measure, `values` by measure and method; Holm's correction over all of them."""
    found = []
    for metric in metrics:
        for first, second in combinations(values.get(metric.name, {}), 2):
            difference = paired(values[metric.name][first], values[metric.name][second])
            if difference is not None:
                found.append((metric, first, second, difference))
    enough = max(resamples, 40 * len(found))
    results = [bootstrap(difference, enough) for *_, difference in found]
    corrected = holm([result.p_value for result in results])
    return [
        Comparison(
            metric=metric.name,
            first=first,
            second=second,
            difference=result.mean,
            low=result.low,
            high=result.high,
            p_value=p_value,
            winner=_winner(metric, first, second, result, p_value),
        )
        for (metric, first, second, _), result, p_value in zip(found, results, corrected, strict=True)
    ]


def _winner(metric: MetricInfo, first: str, second: str, result: Bootstrapped, p_value: float) -> str | None:
    if p_value > LEVEL or result.rows < FEWEST_ROWS or result.mean == 0:
        return None
    return first if (result.mean > 0) == (metric.higher_is_better) else second


def paired(first: Values, second: Values) -> Values | None:
    """First less second on the texts that both speak of; None where that cannot be had."""
    import numpy as np

    if first.shape != second.shape:
        return None
    both = np.isfinite(first).all(axis=0) & np.isfinite(second).all(axis=0)
    infinite = np.isinf(first).any() or np.isinf(second).any()
    return None if infinite or both.sum() < 2 else first[:, both] - second[:, both]


def estimate(values: Values) -> Estimate:
    """The mean with its interval; an infinite value makes it infinite, and a text that says nothing is left out."""
    import numpy as np

    seeds = len(values)
    kept = values[:, ~np.isnan(values).any(axis=0)]
    if not kept.size or not np.isfinite(kept).all() or kept.shape[1] < 2:
        mean = float(kept.mean()) if kept.size else math.nan
        return Estimate(mean=mean, low=mean, high=mean, rows=kept.shape[1], seeds=seeds)
    found = bootstrap(kept)
    return Estimate(mean=found.mean, low=found.low, high=found.high, rows=found.rows, seeds=seeds)


def bootstrap(values: Values, resamples: int = RESAMPLES) -> Bootstrapped:
    """The mean of seeds x texts, its 95 % interval, and whether it is 0, by t* = (mean* - mean) / error*."""
    import numpy as np

    rows = values.shape[1]
    mean, error = float(values.mean()), _error(values.mean(axis=0))
    if (values == values[:1]).all():
        values = values[:1]  # nothing depends on the seed
    drawn, spread = _resampled(values, resamples)
    away = drawn - mean
    if error == 0 and not away.any():
        return Bootstrapped(mean, mean, mean, 1.0 if mean == 0 else 1 / (resamples + 1), rows)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(away == 0, 0.0, away / spread)
        extreme = np.abs(ratios) >= abs(mean / error) if error else np.abs(away) >= abs(mean)
    low, high = np.quantile(ratios, [0.025, 0.975], method="nearest")
    ends = (mean - high * error, mean - low * error)
    if not np.isfinite(ends).all():
        # Resamples without any spread: hardly a text differs. Their means still say how far that may go.
        ends = tuple(np.quantile(drawn, [0.025, 0.975]))
    p_value = (1 + int(extreme.sum())) / (resamples + 1)
    return Bootstrapped(mean, float(ends[0]), float(ends[1]), p_value, rows)


def _resampled(values: Values, resamples: int) -> tuple[Values, Values]:
    """Means and standard errors of texts, and of seeds where there are several, drawn again with replacement."""
    import numpy as np

    seeds, rows = values.shape
    of_rows = _weights(rows, resamples, 0)
    centre = values.mean()
    if seeds == 1:
        off = values[0] - centre
        mean, square = of_rows @ off, of_rows @ off**2
    else:
        # Few seeds drawn again vary too little, by (seeds - 1) / seeds.
        of_seeds = 1 / seeds + (_weights(seeds, resamples, 1) - 1 / seeds) * math.sqrt(seeds / (seeds - 1))
        off = of_seeds @ (values - centre)
        mean, square = (of_rows * off).sum(axis=1), (of_rows * off**2).sum(axis=1)
    variance = np.maximum(square - mean**2, 0) / (rows - 1)
    # Of texts that are all alike the difference of two equal numbers is left, which is rounding and no spread.
    return mean + centre, np.where(variance > 1e-12 * np.abs(off).max() ** 2, np.sqrt(variance), 0.0)


@lru_cache(maxsize=8)
def _weights(count: int, resamples: int, stream: int) -> Values:
    """How often each of `count` items is drawn, as shares, a line a resample; always the same."""
    import numpy as np

    source = np.random.default_rng([count, resamples, stream])
    drawn = source.multinomial(count, np.full(count, 1 / count), size=resamples)
    return drawn / count


def _error(rows: Values) -> float:
    found = float(rows.std(ddof=1)) / math.sqrt(len(rows))
    return found if found > 1e-12 else 0.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm 1979: the chance of even one false difference among all comparisons stays below the level.

    >>> [round(p, 2) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = largest
    return corrected
