"""Search for a small set of units that keeps a model's answer, one text at a time.

The search never calls the model. It yields sets to measure and receives the measurements, so that a caller can put the
sets of many texts into one forward pass (`core.verification.masks`). It starts from nested prefixes of an order of the
units, learns from every measurement what each unit adds to the log-odds of the original prediction (a Bayesian linear
model), proposes the smaller sets that are most likely to hold (Thompson sampling), grows sets from the units of the
largest estimated effects, and ends with a set of which every single removal was measured to break the answer.
"""

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Kept = frozenset[int]
"""Numbers of the units that are kept; all others are erased."""
Values = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]
Places = NDArray[np.intp]
BISECTIONS = 40
FARTHEST = 60.0
"""Change of the log-odds beyond which every margin is broken."""


@dataclass(frozen=True)
class Measurement:
    """The model's answer when only some units are kept."""

    divergence: float
    """KL(original || masked), in nats."""
    same_prediction: bool
    log_odds: float
    """Log-odds of the original prediction."""
    logits: Tensor | None = None
    """Logits of the answer, one row per row of the text; a search stores those of its best set only."""

    def holds(self, margin: float) -> bool:
        """Return whether the answer is within the margin and the prediction is the same."""
        return self.same_prediction and self.divergence <= margin


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Effort of the search for a small set; the defaults were chosen on validation sentences of SST-2."""

    prefixes: tuple[tuple[int, ...], ...] = ((0, 1), (2, 4))
    """Sizes of the prefixes of the order that are measured, batch by batch, until one holds.

    Where none does, all sizes that are twice the one before follow."""
    proposals: int = 3
    """Sets that the linear model proposes per batch, at most."""
    batches: int = 1
    """Batches of proposals per round, at most."""
    least_chance: float = 0.01
    """Smallest share of posterior samples in which a proposed set is the smallest that holds."""
    draws: int = 512
    """Samples from the posterior of the linear model per batch of proposals."""
    restarts: int = 2
    """Further rounds of proposals and removals after sets were grown, while the best set shrinks."""
    growth_units: int = 2
    """Units of the largest estimated effects by which a set is grown, times the size of the grown set."""
    replacements: int = 4
    """Units that may replace an avoided unit: those of the largest estimated effects."""
    growth_sizes: int = 5
    """Size up to which sets are grown from nothing, one unit at a time, where the first minimal set has two or more."""
    most_rows: int = 256
    """Masked rows of one text that go through the model, at most. A search that is cut short has `minimal=False`."""


@dataclass(frozen=True)
class SearchResult:
    """A set that holds, and that no single removal leaves holding."""

    kept: Kept
    measurement: Measurement
    minimal: bool
    """Whether every single removal was measured to break."""
    sets: int
    """Sets that were measured."""


Search = Generator[list[Kept], list[Measurement], SearchResult]
Measuring = Generator[list[Kept], list[Measurement], bool | None]
"""Part of a search; its return value, where it has one, says whether all wanted sets are measured."""


def search_minimal_set(
    order: Sequence[int],
    original: Measurement,
    margin: float,
    config: SearchConfig | None = None,
    *,
    rows_per_set: int = 1,
    avoided: Collection[int] = (),
) -> Search:
    """Yield sets to measure, receive their measurements, return a small set that holds and is 1-minimal.

    `order` has the units from most to least important; `original` is the measurement with every unit kept. Of two sets
    of one size the one with fewer `avoided` units is better.
    """
    config = config or SearchConfig()
    most = max(1, config.most_rows // rows_per_set)
    return _Search(order, original, margin, config, most, frozenset(avoided)).run()


class _Search:
    """All measurements of one text, and the best set so far."""

    def __init__(
        self,
        order: Sequence[int],
        original: Measurement,
        margin: float,
        config: SearchConfig,
        most_sets: int,
        avoided: Kept,
    ) -> None:
        self.order, self.margin, self.config = order, margin, config
        self.most_sets, self.avoided = most_sets, avoided
        self.known: dict[Kept, Measurement] = {frozenset(order): original}
        self.best: Kept = frozenset(order)
        self.effects = LinearEffects(order, original)

    def run(self) -> Search:
        """Prefixes first, then rounds of proposals of smaller sets followed by single removals."""
        for sizes in prefix_batches(len(self.order), self.config.prefixes):
            yield from self._measure(map(self._prefix, sizes))
            if len(self.best) < len(self.order):
                break
        between = map(self._prefix, sizes_between(len(self.best), [len(kept) for kept in self.known]))
        for number in range(1 + self.config.restarts):
            before = self.best
            yield from self._measure_proposals(between if number == 0 else ())
            yield from self._remove_units()
            if len(self.best) <= 1 or (number and self.best == before):
                break
            if number == 0 and self.config.restarts and frozenset() in self.known:
                yield from self._grow_sets()
                if len(self.best) <= 2:
                    yield from self._remove_units()
                    break
        yield from self._replace_avoided()
        return SearchResult(self.best, self.known[self.best], self._is_minimal(), len(self.known) - 1)

    def _measure_proposals(self, others: Iterable[Kept]) -> Measuring:
        """Measure proposals, batch by batch; other sets go with the first batch."""
        wanted = [*others, *self._proposals()]
        for _ in range(self.config.batches):
            if not wanted:
                break
            yield from self._measure(wanted)
            wanted = self._proposals()
        return None

    def _grow_sets(self) -> Measuring:
        """Grow sets smaller than the best one: each is the one before and the unit with which it comes closest."""
        grown: Kept = frozenset()
        for size in range(1, self.config.growth_sizes + 1):
            if size >= len(self.best):
                break
            self.effects.update(self.known)
            units = [unit for unit in self.effects.ranked() if unit not in grown][: size * self.config.growth_units]
            affordable = yield from self._measure(grown | {unit} for unit in units)
            if not affordable:
                break
            measured = [kept for kept in self.known if len(kept) == size]
            grown = min(measured, key=lambda kept: self.known[kept].divergence)
        return None

    def _replace_avoided(self) -> Measuring:
        """Measure the best set with another unit in place of each avoided one, the largest estimated effects first."""
        avoided = self.best & self.avoided
        if not avoided or frozenset() not in self.known:
            return None
        self.effects.update(self.known)
        others = [unit for unit in self.effects.ranked() if unit not in self.avoided | self.best]
        others = others[: self.config.replacements]
        yield from self._measure(self.best - {unit} | {other} for unit in sorted(avoided) for other in others)
        return (yield from self._remove_units())

    def _prefix(self, size: int) -> Kept:
        return frozenset(self.order[:size])

    def _measure(self, wanted: Iterable[Kept]) -> Measuring:
        """Measure the sets that are not known yet; the smallest that holds becomes the best.

        Return whether all of them are known: not, if this takes more rows than allowed.
        """
        unknown = [kept for kept in dict.fromkeys(wanted) if kept not in self.known]
        affordable = unknown[: self.most_sets - (len(self.known) - 1)]
        if affordable:
            measurements = yield affordable
            self.known.update(zip(affordable, measurements, strict=True))
            previous = self.best
            self.best = min([self.best, *filter(self._holds, affordable)], key=self._cost)
            self._drop_logits({previous, *affordable})
        return len(affordable) == len(unknown)

    def _drop_logits(self, measured: Iterable[Kept]) -> None:
        """Store the logits of the best set alone, and as a copy: a row of a tensor holds the memory of all rows."""
        for kept in measured:
            logits = self.known[kept].logits if kept == self.best else None
            self.known[kept] = replace(self.known[kept], logits=None if logits is None else logits.clone())

    def _holds(self, kept: Kept) -> bool:
        return self.known[kept].holds(self.margin)

    def _is_minimal(self) -> bool:
        removals = [self.best - {unit} for unit in self.best]
        return all(kept in self.known and not self._holds(kept) for kept in removals)

    def _cost(self, kept: Kept) -> tuple[int, int, float]:
        """Fewer units first, then fewer avoided ones, then the smaller divergence."""
        return len(kept), len(kept & self.avoided), self.known[kept].divergence

    def _proposals(self) -> list[Kept]:
        """Sets smaller than the best that are likely to hold."""
        if len(self.best) <= 1 or frozenset() not in self.known:
            return []
        self.effects.update(self.known)
        return self.effects.propose(len(self.best) - 1, self.margin, self.known, self.config)

    def _remove_units(self) -> Measuring:
        """Drop units until every single removal is measured to break.

        Each cycle measures all single removals, then nested removals of the units whose own removal holds, the one
        with the smallest divergence first.
        """
        while True:
            current = self.best
            removals = {unit: current - {unit} for unit in current}
            complete = yield from self._measure(removals.values())
            free = [unit for unit, kept in removals.items() if kept in self.known and self._holds(kept)]
            if not free or not complete:
                return complete
            free.sort(key=lambda unit: self.known[removals[unit]].divergence)
            yield from self._remove_nested(free)

    def _remove_nested(self, free: Sequence[int]) -> Measuring:
        """Drop as many of the first units as can be dropped together, then go on behind the unit that cannot."""
        while free:
            current = self.best
            counts = {1, len(free), *(2**power for power in range(1, len(free).bit_length()))}
            yield from self._measure(current - set(free[:count]) for count in sorted(counts))
            between = sizes_between(len(self.best), [len(current) - count for count in counts])
            counts = {len(current) - size for size in between if size > len(current) - len(free)}
            yield from self._measure(current - set(free[:count]) for count in sorted(counts))
            dropped = len(current) - len(self.best)
            if not dropped:
                break
            free = free[dropped + 1 :]
        return None


def sizes_between(holding: int, measured: Collection[int]) -> list[int]:
    """Return three sizes, evenly spaced, between the smallest prefix that holds and the largest measured one below it.

    >>> sizes_between(16, [0, 1, 2, 4, 8, 16, 50])
    [10, 12, 14]
    >>> sizes_between(4, [0, 1, 2, 4])
    [3]
    """
    broken = max((size for size in measured if size < holding), default=0)
    step = (holding - broken) / 4
    return sorted({round(broken + step * part) for part in (1, 2, 3)} - {broken, holding})


def prefix_batches(length: int, first: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return batches of sizes below `length`: those to measure first, then twice the last, and so on.

    >>> prefix_batches(50, ((0, 1), (2, 4, 8)))
    [[0, 1], [2, 4, 8], [16, 32]]
    """
    later = []
    size = 2 * first[-1][-1]
    while size < length:
        later.append(size)
        size *= 2
    return [[size for size in sizes if size < length] for sizes in (*first, later)]


class LinearEffects:
    """Bayesian linear model of the log-odds: f(kept) = f(nothing) + sum of the kept units' effects + noise.

    All deviations are in units of |f(everything) - f(nothing)|. A priori the effect of the unit of rank r has mean 0
    and deviation 0.5 / r + 0.03: an order is all that is known. The noise grows with the size of a set, because effects
    do not add up where the model is sure.
    """

    FIRST_DEVIATION, LEAST_DEVIATION = 0.5, 0.03
    NOISE, NOISE_OF_ALL, PROPOSAL_NOISE = 0.05, 0.3, 0.15

    def __init__(self, order: Sequence[int], original: Measurement) -> None:
        self.order, self.original = np.array(order, dtype=np.int64), original
        self.column = {unit: column for column, unit in enumerate(order)}
        self.mean: Values = np.zeros(len(order))
        self.root: Values = np.eye(len(order))
        self.empty, self.scale = 0.0, 1.0

    def update(self, known: Mapping[Kept, Measurement]) -> None:
        """Condition the prior on all measurements."""
        count = len(self.order)
        self.empty = known[frozenset()].log_odds
        self.scale = max(abs(self.original.log_odds - self.empty), 1.0)
        variance = (self.scale * (self.FIRST_DEVIATION / np.arange(1, count + 1) + self.LEAST_DEVIATION)) ** 2
        sets = [kept for kept in known if kept]
        design = np.zeros((len(sets), count))
        for row, kept in enumerate(sets):
            design[row, [self.column[unit] for unit in kept]] = 1.0
        observed = np.array([known[kept].log_odds for kept in sets]) - self.empty
        noise = self.scale * (self.NOISE + self.NOISE_OF_ALL * design.mean(axis=1))
        spread = design * variance
        gain = np.linalg.solve(spread @ design.T + np.diag(noise**2), spread).T
        self.mean = gain @ observed
        covariance = np.diag(variance + 1e-6 * self.scale**2) - gain @ spread
        self.root = np.linalg.cholesky((covariance + covariance.T) / 2)

    def ranked(self) -> list[int]:
        """Return the units by the posterior mean of their effect, the largest first."""
        return [int(unit) for unit in self.order[np.argsort(-self.mean, kind="stable")]]

    def propose(self, size: int, margin: float, known: Mapping[Kept, Measurement], config: SearchConfig) -> list[Kept]:
        """Return unknown sets of at most `size` units, those first that most samples of the posterior call smallest."""
        low, high = log_odds_bounds(self.original.log_odds, margin)
        generator = np.random.default_rng(0)
        effects = self.mean + generator.standard_normal((config.draws, len(self.order))) @ self.root.T
        start = self.empty + self.PROPOSAL_NOISE * self.scale * generator.standard_normal((config.draws, 1))
        largest = np.argsort(-effects, axis=1, kind="stable")[:, :size]
        sums = start + np.cumsum(np.take_along_axis(effects, largest, axis=1), axis=1)
        holding = sums[:, -1] >= low if size else np.zeros(config.draws, dtype=bool)
        effects, start, largest, sums = effects[holding], start[holding], largest[holding], sums[holding]
        needed = (sums >= low).argmax(axis=1)[:, None]
        chosen = np.zeros(effects.shape, dtype=bool)
        np.put_along_axis(chosen, largest, np.arange(size) <= needed, axis=1)
        last = np.take_along_axis(largest, needed, axis=1)
        total = np.take_along_axis(sums, needed, axis=1)
        self._replace_last(chosen, last, total - np.take_along_axis(effects, last, axis=1), effects, total > high)
        sets, votes = np.unique(chosen, axis=0, return_counts=True)
        ranked = sorted(zip(votes.tolist(), map(self._units, sets), strict=True), key=lambda pair: -pair[0])
        likely = [kept for count, kept in ranked if count >= config.least_chance * config.draws and kept not in known]
        return likely[: config.proposals]

    def _replace_last(self, chosen: Flags, last: Places, before: Values, effects: Values, too_sure: Flags) -> None:
        """Replace the last unit, where the sum is over the range, by the one that comes closest to the original."""
        distance = np.abs(before + effects - self.original.log_odds)
        np.put_along_axis(chosen, last, ~too_sure, axis=1)
        closest = np.where(chosen, np.inf, distance).argmin(axis=1)[:, None]
        np.put_along_axis(chosen, np.where(too_sure, closest, last), True, axis=1)

    def _units(self, chosen: Flags) -> Kept:
        return frozenset(self.order[chosen].tolist())


def log_odds_bounds(original: float | Sequence[float] | Values, margin: float) -> tuple[Values, Values]:
    """Return the log-odds between which the prediction is the same and KL(original || changed) <= margin.

    Exact for two classes, by bisection; with more it takes the other classes' shares as unchanged.

    >>> [round(float(bound), 2) for bound in log_odds_bounds(3.5, 0.1)]
    [1.59, 7.91]
    """
    start = np.asarray(original, dtype=np.float64)
    sure, unsure = _log_sigmoid(start), _log_sigmoid(-start)
    probability = np.exp(sure)

    def bound(farthest: float) -> Values:
        inside, outside = start, np.asarray(start + farthest)
        for _ in range(BISECTIONS):
            middle = np.asarray((inside + outside) / 2)
            gain, loss = sure - _log_sigmoid(middle), unsure - _log_sigmoid(-middle)
            breaks = probability * gain + (1 - probability) * loss > margin
            inside, outside = np.where(breaks, inside, middle), np.where(breaks, middle, outside)
        return inside

    low = bound(-FARTHEST)
    return np.where(start > 0, np.maximum(low, 0.0), low), bound(FARTHEST)


def _log_sigmoid(value: Any) -> Values:
    return np.asarray(np.minimum(value, 0.0) - np.log1p(np.exp(-np.abs(value))))
