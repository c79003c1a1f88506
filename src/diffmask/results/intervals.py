"""Intervals. No torch here.

The mean of a few values with an interval that follows their skew. No torch here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from diffmask.results.records import Record, grouped

# 97.5 % quantiles of Student's t by degrees of freedom; the normal's beyond.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of independent values, by Student's t.

    >>> interval([1.0, 2.0, 3.0])
    (-0.48..., 4.48...)
    """
    mean = sum(values) / len(values)
    if not all(math.isfinite(value) for value in values) or len(values) < 2:
        return mean, mean
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    half = (_T[len(values) - 2] if len(values) - 2 < len(_T) else 1.96) * error
    return mean - half, mean + half


def summarise(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One entry per task, method, site and metric: mean, 95 % interval, number of seeds.

    The interval is over seeds where there are several, over rows where there is one. Points of curves are left out.
    """
    return [_entry(*key, group) for key, group in grouped(record for record in records if record.at is None).items()]


def _entry(task: str, method: str, site: str, metric: str, group: Sequence[Record]) -> dict[str, Any]:
    values = [record.value for record in group]
    mean = sum(values) / len(values)
    over = "seeds" if len(values) > 1 else "rows"
    low, high = interval(values) if len(values) > 1 else _over_rows(group[0])
    return {
        "task": task,
        "method": method,
        "site": site,
        "metric": metric,
        "mean": mean,
        "interval": [low, high],
        "interval_over": over,
        "seeds": len(values),
        "rows": group[0].rows,
        "worst": max(values),
        "median": sorted(values)[len(values) // 2]
        if len(values) % 2
        else sum(sorted(values)[len(values) // 2 - 1 :][:2]) / 2,
        "cost": _mean_cost(group),
    }


def _over_rows(record: Record) -> tuple[float, float]:
    if not math.isfinite(record.value) or not math.isfinite(record.deviation):
        return record.value, record.value
    half = 1.96 * record.deviation / math.sqrt(max(record.rows, 1))
    return record.value - half, record.value + half


def _mean_cost(group: Sequence[Record]) -> dict[str, float]:
    names = group[0].cost
    return {name: round(sum(record.cost.get(name, 0.0) for record in group) / len(group), 3) for name in names}


@dataclass(frozen=True)
class Spread:
    """A mean with its interval."""

    mean: float
    low: float
    high: float


def bootstrap(values: Sequence[float], *, level: float = 0.95, resamples: int = 9999, seed: int = 0) -> Spread:
    """The mean with its bias-corrected and accelerated bootstrap interval. Efron 1987.

    With the defaults it is what `scipy.stats.bootstrap` gives from `default_rng(0)`. Values that are all the same have
    an interval of no width; one that is not finite, none.

    >>> bootstrap([0.5, 0.5])
    Spread(mean=0.5, low=0.5, high=0.5)
    """
    import numpy as np

    sample = np.asarray(values, dtype=float)
    mean = float(sample.mean())
    if len(sample) < 2 or not np.isfinite(sample).all() or np.ptp(sample) == 0:
        return Spread(mean, mean, mean)
    drawn = np.random.default_rng(seed).integers(0, len(sample), (resamples, len(sample)))
    means = sample[drawn].mean(axis=1)
    normal = NormalDist()
    share = ((means < mean).mean() + (means <= mean).mean()) / 2
    bias = normal.inv_cdf(float(share.clip(1e-12, 1 - 1e-12)))
    without = (sample.sum() - sample) / (len(sample) - 1)
    off = without.mean() - without
    acceleration = float((off**3).sum() / (6 * (off**2).sum() ** 1.5))
    low, high = (
        float(np.quantile(means, _accelerated(normal, bias, acceleration, tail)))
        for tail in ((1 - level) / 2, (1 + level) / 2)
    )
    return Spread(mean, low, high)


def _accelerated(normal: NormalDist, bias: float, acceleration: float, tail: float) -> float:
    shifted = bias + normal.inv_cdf(tail)
    return normal.cdf(bias + shifted / (1 - acceleration * shifted))
