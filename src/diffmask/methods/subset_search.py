"""A search for the smallest subsets that pass a test: every subset of a size while that is cheap, then a beam.

Erasure search: the smallest sets of tokens that keep the decision. Li et al. 2016; De Cao et al. 2020.

A search for the order of tokens that is best for sufficiency and comprehensiveness at once. Slow: a teacher.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from diffmask.core.baselines import Baseline, baseline_state
from diffmask.core.batch import Attribution, Batch
from diffmask.core.distributions import Quantity, log_odds, predicted_outcome, predicts, target_score
from diffmask.core.explainer import Explainer, Method
from diffmask.core.hooks import erase_states
from diffmask.core.resources import AdaptiveBatchSize
from diffmask.core.task import Task
from diffmask.errors import ConfigError

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


@dataclass(frozen=True, kw_only=True)
class SubsetSearch(Method):
    """score_t = share, of the smallest sets that keep the decision, of those that hold token t.

    A set keeps it if the decision is the same once every other maskable token is replaced by the baseline.
    """

    name: ClassVar[str] = "subset-search"

    site: str | None = None
    """Where states are replaced; the token embedding where none is named."""
    baseline: Baseline = "auto"
    """What they are replaced by."""
    allow_empty: bool = False
    """Whether to ask first if the decision needs any token at all; every score is 0 where it needs none."""
    budget: int = 1000
    """Rows a text may cost while every set of a size is tried; from the size that would cost more on, a beam."""
    beam: int = 8
    """Sets that the beam lets grow by a token."""
    internal_batch_size: int = 256
    """Rows the model is given at once."""

    def __post_init__(self) -> None:
        if min(self.budget, self.beam, self.internal_batch_size) < 1:
            raise ConfigError("subset-search: budget, beam and internal_batch_size are at least 1")

    def build(self, task: Task, seed: int) -> "ErasureSearchExplainer":
        """The baseline is taken from the training rows."""
        site = self.site_of(task, self.site)
        return ErasureSearchExplainer(self, task, site, baseline_state(task, site, self.baseline))


class ErasureSearchExplainer(Explainer):
    """Texts are searched together, size by size; `search` lists the sets themselves."""

    def __init__(self, method: SubsetSearch, task: Task, site: str, baseline: Float[Tensor, " width"]) -> None:
        super().__init__(task)
        self.method, self.site = method, site
        self.baseline = nn.Parameter(baseline, requires_grad=False)
        self.portion = AdaptiveBatchSize(method.internal_batch_size)

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Zero for all where no set keeps the outcome, as when the outcome is not the model's own."""
        scores = self.baseline.new_zeros(batch.tokens.shape)
        for row, found in enumerate(self.search(batch, target)):
            for kept in found.sets:
                scores[row, list(kept)] += 1 / len(found.sets)
        return Attribution(scores)

    @torch.no_grad()
    def search(self, batch: Batch, target: Shaped[Tensor, "row *event"] | None = None) -> list[Found]:
        """Every smallest set found, for each row; by default for the model's own answer."""
        wanted = predicted_outcome(self.task.predict(batch)) if target is None else target
        first = 0 if self.method.allow_empty else 1
        searches = [
            Search(row.nonzero().flatten().tolist(), first, self.method.budget, self.method.beam)
            for row in batch.maskable
        ]
        while any(not search.done for search in searches):
            self._try_next(batch, wanted, searches)
        return [search.found() for search in searches]

    def _try_next(self, batch: Batch, target: Shaped[Tensor, "row *event"], searches: list[Search]) -> None:
        """One size further in every text that is not solved."""
        tried = [(row, kept) for row, search in enumerate(searches) for kept in search.candidates()]
        rows = torch.tensor([row for row, _ in tried], device=batch.tokens.device)
        erased = batch.maskable[rows]
        for index, (_, kept) in enumerate(tried):
            erased[index, list(kept)] = False

        def judge(items: slice) -> Float[Tensor, "pair 2"]:
            return self._judge(batch[rows[items]], target[rows[items]], erased[items])

        verdicts = torch.cat(self.portion.split(len(tried), judge)).tolist()
        for (row, kept), (keeps, lean) in zip(tried, verdicts, strict=True):
            searches[row].note(kept, keeps > 0, lean)
        for search in searches:
            search.advance()

    def _judge(
        self, batch: Batch, target: Shaped[Tensor, "row *event"], erased: Bool[Tensor, "row token"]
    ) -> Float[Tensor, "row 2"]:
        """Whether each row's outcome is still decided for, and how far the answer leans towards it."""
        answer = self.task.predict(batch, {self.site: erase_states(erased, self.baseline)})
        lean = log_odds(answer, target)
        return torch.stack([predicts(answer, target).to(lean), lean], dim=1)


Path = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class GreedySearch(Method):
    """score_t = 1 - place of t in the order S_1, S_2, ... that makes sum_k f(only S_k) - f(all but S_k) large.

    Built from the front: a set grows by the token that gains most, and the rest is ordered by what it would gain last.
    """

    name: ClassVar[str] = "greedy-search"

    beam: int = 1
    """Orders that are followed at once."""
    share: float = 0.5
    """Share of a text's tokens, rounded up, whose order is searched for."""
    site: str | None = None
    """Where states are replaced; the token embedding where none is named."""
    baseline: Baseline = "auto"
    """What they are replaced by."""
    quantity: Quantity = "probability"
    """f: what is kept and broken of the outcome."""
    internal_batch_size: int = 256
    """Rows the model is given at once, two for each set tried."""

    def __post_init__(self) -> None:
        if min(self.beam, self.internal_batch_size) < 1 or not 0 < self.share <= 1:
            raise ConfigError("greedy: beam and internal_batch_size are at least 1, share is in (0, 1]")

    def build(self, task: Task, seed: int) -> "GreedyExplainer":
        """The baseline is taken from the training rows."""
        site = self.site_of(task, self.site)
        return GreedyExplainer(self, task, site, baseline_state(task, site, self.baseline))


class GreedyExplainer(Explainer):
    """Texts are searched together, size by size."""

    def __init__(self, method: GreedySearch, task: Task, site: str, baseline: Float[Tensor, " width"]) -> None:
        super().__init__(task)
        self.method, self.site = method, site
        self.baseline = nn.Parameter(baseline, requires_grad=False)
        self.portion = AdaptiveBatchSize(method.internal_batch_size)

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """The first token of an order scores 1, the last nearly 0."""
        searches = [Beam(row.nonzero().flatten().tolist(), self.method) for row in batch.maskable]
        while any(not search.done for search in searches):
            tried = [(row, path) for row, search in enumerate(searches) for path in search.candidates()]
            gains = self._gains(batch, target, tried)
            for row, search in enumerate(searches):
                search.advance({path: gain for (at, path), gain in zip(tried, gains, strict=True) if at == row})
        scores = self.baseline.new_zeros(batch.tokens.shape)
        for row, search in enumerate(searches):
            for place, token in enumerate(search.order):
                scores[row, token] = 1 - place / len(search.order)
        return Attribution(scores)

    def _gains(self, batch: Batch, target: Shaped[Tensor, "row *event"], tried: list[tuple[int, Path]]) -> list[float]:
        """f(only the set) - f(all but the set), for each set."""
        rows = torch.tensor([row for row, _ in tried], device=batch.tokens.device)
        inside = torch.zeros_like(batch.maskable[rows])
        for index, (_, path) in enumerate(tried):
            inside[index, list(path)] = True

        def gain(items: slice) -> Float[Tensor, " pair"]:
            some, chosen = batch[rows[items]], inside[items]
            only, without = (
                self._keeping(some, target[rows[items]], kept) for kept in (chosen, some.maskable & ~chosen)
            )
            return only - without

        return torch.cat(self.portion.split(len(tried), gain, rows_each=2)).tolist()

    def _keeping(
        self, batch: Batch, target: Shaped[Tensor, "row *event"], kept: Bool[Tensor, "row token"]
    ) -> Float[Tensor, " row"]:
        answer = self.task.predict(batch, {self.site: erase_states(batch.maskable & ~kept, self.baseline)})
        return target_score(answer, target, self.method.quantity)


class Beam:
    """One text's search: the best orders so far, each with the sum of its sets' gains."""

    def __init__(self, items: list[int], method: GreedySearch) -> None:
        self.items, self.beam = items, method.beam
        self.size = max(1, -int(-method.share * len(items) // 1))
        self.paths: dict[Path, float] = {(): 0.0}
        self.order: Path = ()

    @property
    def done(self) -> bool:
        """Every token has its place."""
        return len(self.order) == len(self.items)

    def candidates(self) -> list[Path]:
        """Each order grown by one token; of orders of the same set only the best is followed."""
        if self.done:
            return []
        return [(*path, item) for path in self.paths for item in self.items if item not in path]

    def advance(self, gains: dict[Path, float]) -> None:
        """Keep the best orders; at the last size, order the rest by what each token would have gained."""
        if self.done:
            return
        totals = {path: self.paths[path[:-1]] + gain for path, gain in gains.items()}
        ranked = sorted(totals, key=lambda path: (-totals[path], path))
        if len(ranked[0]) == self.size:
            front = ranked[0][:-1]
            self.order = (*front, *(path[-1] for path in ranked if path[:-1] == front))
            return
        sets: dict[frozenset[int], Path] = {}
        for path in ranked:
            sets.setdefault(frozenset(path), path)
        self.paths = {path: totals[path] for path in list(sets.values())[: self.beam]}
