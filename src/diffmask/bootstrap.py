"""The mean of a few values with an interval that follows their skew. No torch here."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist


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
