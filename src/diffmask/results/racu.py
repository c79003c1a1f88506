"""RACU: relative area between the curves of a method and of the random baseline. Madsen et al. 2022, eq. 3.

No torch here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from diffmask.errors import InputError
from diffmask.results.intervals import MeanInterval, bca_interval


@dataclass(frozen=True, kw_only=True)
class CurveAreas:
    """Areas between two curves of performance over the share of masked tokens."""

    absolute: float
    """Area between the random curve and the method's curve; positive if the method's curve is below."""
    denominator: float
    """Area between the random curve and its last point, where all tokens are masked."""

    @property
    def relative(self) -> float:
        """RACU: 1 if the curve falls at once to the level of a fully masked text, 0 if it equals the random curve."""
        return self.absolute / self.denominator if self.denominator else math.nan

    @property
    def clipped(self) -> float:
        """RACU clipped to [-1, 1], as published."""
        return max(-1.0, min(1.0, self.relative))


def areas_between(
    *, measure: Sequence[float], random: Sequence[float], at: Sequence[float] | None = None
) -> CurveAreas:
    """Compute areas by the trapezoidal rule. `at` are the x positions, by default equidistant from 0 to 1."""
    positions = [index / max(len(random) - 1, 1) for index in range(len(random))] if at is None else list(at)
    if not len(measure) == len(random) == len(positions) >= 2:
        raise InputError(
            f"curves of {len(measure)} and {len(random)} points at {len(positions)} positions; give both curves at "
            "the same two or more positions"
        )
    below = [base - value for base, value in zip(random, measure, strict=True)]
    possible = [base - random[-1] for base in random]
    return CurveAreas(absolute=_trapezoid(positions, below), denominator=_trapezoid(positions, possible))


def racu(*, measure: Sequence[float], random: Sequence[float], at: Sequence[float] | None = None) -> float:
    """Compute the relative area between the curve of an importance measure and the random curve, not clipped.

    >>> round(racu(measure=[1.0, 0.25, 0.0], random=[1.0, 0.5, 0.0]), 3)
    0.25
    """
    return areas_between(measure=measure, random=random, at=at).relative


def racu_over_seeds(areas: Sequence[CurveAreas], *, clip: bool = False) -> MeanInterval:
    """Compute the mean RACU of the seeds with its BCa bootstrap interval."""
    return bca_interval([area.clipped if clip else area.relative for area in areas])


def _trapezoid(positions: Sequence[float], values: Sequence[float]) -> float:
    return sum(
        (positions[index + 1] - positions[index]) * (values[index] + values[index + 1]) / 2
        for index in range(len(positions) - 1)
    )
