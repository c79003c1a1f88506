"""Confidence intervals of a mean: Student's t, BCa bootstrap and bootstrap-t. No torch here."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

Values = Any
"""Numpy array [seed, text]. A text for which the metric is undefined is NaN."""

RESAMPLES = 10_000

# 97.5 % quantiles of Student's t by degrees of freedom, from 1; beyond them the normal quantile.
_T_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306),
    *(2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120),
)


@dataclass(frozen=True)
class MeanInterval:
    """A mean with its confidence interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class BootstrapTest:
    """A mean over seeds and texts with its 95 % interval and the p-value of the hypothesis that it is 0."""

    mean: float
    low: float
    high: float
    p_value: float
    """Two-sided, not corrected for several comparisons."""
    rows: int


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """Compute the 95 % interval of the mean of independent values by Student's t.

    >>> t_interval([1.0, 2.0, 3.0])
    (-0.48..., 4.48...)
    """
    mean = sum(values) / len(values)
    if not all(math.isfinite(value) for value in values) or len(values) < 2:
        return mean, mean
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    half = (_T_QUANTILES[len(values) - 2] if len(values) - 2 < len(_T_QUANTILES) else 1.96) * error
    return mean - half, mean + half


def bca_interval(values: Sequence[float], *, level: float = 0.95, resamples: int = 9999, seed: int = 0) -> MeanInterval:
    """Compute the mean with its bias-corrected and accelerated (BCa) bootstrap interval. Efron 1987.

    With the defaults it equals `scipy.stats.bootstrap` with `default_rng(0)`. Equal values have an interval of width 0.
    If a value is not finite, both ends are the mean.

    >>> bca_interval([0.5, 0.5])
    MeanInterval(mean=0.5, low=0.5, high=0.5)
    """
    import numpy as np

    sample = np.asarray(values, dtype=float)
    mean = float(sample.mean())
    if len(sample) < 2 or not np.isfinite(sample).all() or np.ptp(sample) == 0:
        return MeanInterval(mean, mean, mean)
    indices = np.random.default_rng(seed).integers(0, len(sample), (resamples, len(sample)))
    means = sample[indices].mean(axis=1)
    normal = NormalDist()
    share_below = ((means < mean).mean() + (means <= mean).mean()) / 2
    bias = normal.inv_cdf(float(share_below.clip(1e-12, 1 - 1e-12)))
    jackknife = (sample.sum() - sample) / (len(sample) - 1)
    deviation = jackknife.mean() - jackknife
    acceleration = float((deviation**3).sum() / (6 * (deviation**2).sum() ** 1.5))
    low, high = (
        float(np.quantile(means, _bca_quantile(normal, bias, acceleration, tail)))
        for tail in ((1 - level) / 2, (1 + level) / 2)
    )
    return MeanInterval(mean, low, high)


def _bca_quantile(normal: NormalDist, bias: float, acceleration: float, tail: float) -> float:
    shifted = bias + normal.inv_cdf(tail)
    return normal.cdf(bias + shifted / (1 - acceleration * shifted))


def bootstrap_t(values: Values, resamples: int = RESAMPLES) -> BootstrapTest:
    """Test whether the mean of seeds x texts is 0, by the bootstrap-t: t* = (mean* - mean) / standard error*.

    Efron & Tibshirani 1993, chapter 12. With skewed differences it keeps its level, unlike the percentile bootstrap.
    """
    import numpy as np

    rows = values.shape[1]
    mean, error = float(values.mean()), _standard_error(values.mean(axis=0))
    if (values == values[:1]).all():
        values = values[:1]  # the values do not depend on the seed
    means, errors = _resample(values, resamples)
    deviation = means - mean
    if error == 0 and not deviation.any():
        return BootstrapTest(mean, mean, mean, 1.0 if mean == 0 else 1 / (resamples + 1), rows)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(deviation == 0, 0.0, deviation / errors)
        extreme = np.abs(ratios) >= abs(mean / error) if error else np.abs(deviation) >= abs(mean)
    low, high = np.quantile(ratios, [0.025, 0.975], method="nearest")
    ends = (mean - high * error, mean - low * error)
    if not np.isfinite(ends).all():
        # Resamples with a standard error of 0: hardly any text differs. The percentiles of their means remain.
        ends = tuple(np.quantile(means, [0.025, 0.975]))
    p_value = (1 + int(extreme.sum())) / (resamples + 1)
    return BootstrapTest(mean, float(ends[0]), float(ends[1]), p_value, rows)


def _resample(values: Values, resamples: int) -> tuple[Values, Values]:
    """Draw texts, and seeds if there are several, with replacement; return means and standard errors."""
    import numpy as np

    seeds, rows = values.shape
    row_weights = _resampling_weights(rows, resamples, 0)
    centre = values.mean()
    if seeds == 1:
        centred = values[0] - centre
        mean, square = row_weights @ centred, row_weights @ centred**2
    else:
        # Few resampled seeds vary too little, by the factor (seeds - 1) / seeds of the variance.
        stretch = math.sqrt(seeds / (seeds - 1))
        seed_weights = 1 / seeds + (_resampling_weights(seeds, resamples, 1) - 1 / seeds) * stretch
        centred = seed_weights @ (values - centre)
        mean, square = (row_weights * centred).sum(axis=1), (row_weights * centred**2).sum(axis=1)
    variance = np.maximum(square - mean**2, 0) / (rows - 1)
    # For equal texts the difference of two equal numbers is rounding error, not variance.
    return mean + centre, np.where(variance > 1e-12 * np.abs(centred).max() ** 2, np.sqrt(variance), 0.0)


@lru_cache(maxsize=8)
def _resampling_weights(count: int, resamples: int, stream: int) -> Values:
    """Draw how often each of `count` items is resampled, as shares [resample, item]; the same on every call."""
    import numpy as np

    source = np.random.default_rng([count, resamples, stream])
    return source.multinomial(count, np.full(count, 1 / count), size=resamples) / count


def _standard_error(values: Values) -> float:
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return error if error > 1e-12 else 0.0
