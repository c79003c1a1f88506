"""RACU: how far below the random curve a method's curve lies, relative to what is possible. Madsen et al. 2022, eq. 3.

No torch here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from diffmask.errors import InputError
from diffmask.results.intervals import Spread, bootstrap


@dataclass(frozen=True, kw_only=True)
class Areas:
    """The area between two curves of performance over the share of tokens masked."""

    absolute: float
    """Between the random curve and the method's: positive where the method's lies below."""
    denominator: float
    """Between the random curve and its last point: what masking everything at once would give."""

    @property
    def relative(self) -> float:
        """RACU: 1 falls to the level of a text of masks at once, 0 is as good as random, negative is worse."""
        return self.absolute / self.denominator if self.denominator else math.nan

    @property
    def clipped(self) -> float:
        """RACU as published, cut to [-1, 1]."""
        return max(-1.0, min(1.0, self.relative))


def areas(*, measure: Sequence[float], random: Sequence[float], at: Sequence[float] | None = None) -> Areas:
    """Areas by the trapezoid rule; points lie at equal distances from 0 to 1 where `at` does not say otherwise."""
    places = [index / (len(random) - 1) for index in range(len(random))] if at is None else list(at)
    if not len(measure) == len(random) == len(places) >= 2:
        raise InputError(
            f"curves of {len(measure)} and {len(random)} points at {len(places)} places; give both at the same places"
        )
    below = [base - value for base, value in zip(random, measure, strict=True)]
    possible = [base - random[-1] for base in random]
    return Areas(absolute=_trapezoids(places, below), denominator=_trapezoids(places, possible))


def racu(*, measure: Sequence[float], random: Sequence[float], at: Sequence[float] | None = None) -> float:
    """The relative area between a method's curve and the random one; not clipped.

    >>> round(racu(measure=[1.0, 0.25, 0.0], random=[1.0, 0.5, 0.0]), 3)
    0.25
    """
    return areas(measure=measure, random=random, at=at).relative


def racu_over_seeds(pairs: Sequence[Areas], *, clip: bool = False) -> Spread:
    """The mean of the seeds' own RACU with its bootstrap interval."""
    return bootstrap([pair.clipped if clip else pair.relative for pair in pairs])


def _trapezoids(places: Sequence[float], values: Sequence[float]) -> float:
    return sum(
        (places[index + 1] - places[index]) * (values[index] + values[index + 1]) / 2
        for index in range(len(places) - 1)
    )
