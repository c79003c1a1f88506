"""A search for the smallest subsets that pass a test: every subset of a size while that is cheap, then a beam."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import comb

Subset = tuple[int, ...]


@dataclass(frozen=True)
class Found:
    """The outcome of one search."""

    sets: tuple[Subset, ...]
    """Every passing subset of the smallest size that has one, each in ascending order."""
    complete: bool
    """Whether all subsets up to that size were tried; after a beam there may be more, and smaller ones."""
    tried: int
    """Subsets that were tested."""


@dataclass
class Search:
    """One text's search. Ask for `candidates`, `note` the verdict on each, then `advance`; until `done`."""

    items: Sequence[int]
    size: int
    """The size being tried."""
    budget: int
    beam: int
    complete: bool = True
    tried: int = 0
    passed: list[Subset] = field(default_factory=list)
    _leans: dict[Subset, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.size = min(self.size, len(self.items))

    @property
    def done(self) -> bool:
        """Something passed, or nothing is left to try."""
        return bool(self.passed) or self.size > len(self.items)

    def candidates(self) -> list[Subset]:
        """Subsets of the present size: all, or the best of one size less grown by an item."""
        if self.done:
            return []
        self.complete = self.complete and (
            not self._leans or self.tried + comb(len(self.items), self.size) <= self.budget
        )
        if self.complete:
            return list(combinations(self.items, self.size))
        best = sorted(self._leans, key=lambda subset: (-self._leans[subset], subset))[: self.beam]
        return sorted({tuple(sorted((*subset, item))) for subset in best for item in self.items if item not in subset})

    def note(self, subset: Subset, passes: bool, lean: float) -> None:
        """The verdict on a candidate; `lean` says how near it came."""
        self.tried += 1
        self._leans[subset] = lean
        if passes:
            self.passed.append(subset)

    def advance(self) -> None:
        """Go on to the next size."""
        if not self.done:
            self.size += 1
        self._leans = {subset: lean for subset, lean in self._leans.items() if len(subset) == self.size - 1}

    def found(self) -> Found:
        """What the search came to."""
        return Found(tuple(sorted(self.passed)), self.complete, self.tried)
