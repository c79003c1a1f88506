"""Search over token sets: the smallest sets that keep the prediction, and the best order of tokens.

`TokenBeam` is the one beam search of the package. `SubsetSearch` uses it once exhaustive search is too expensive,
`GreedySearch` uses it to order tokens, and the bounds of `diffmask.metrics.faithfulness` use it too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from diffmask.core.baseline_states import Baseline, BaselineExplainer, baseline_state
from diffmask.core.batch import Attribution, Batch
from diffmask.core.distributions import Quantity, log_odds, predicted_outcome, predicts, target_score
from diffmask.core.explainer import Method
from diffmask.core.hooks import erase_states
from diffmask.core.task import Task
from diffmask.errors import ConfigError

TokenSet = tuple[int, ...]
"""Positions of tokens: ascending for a set, in order of selection for an order."""


@dataclass
class TokenBeam:
    """Beam search over token sets: `expand` adds one token to every set in the beam, `prune` keeps the best sets."""

    tokens: Sequence[int]
    width: int
    """Sets in the beam."""
    ordered: bool = False
    """Whether a set remembers the order in which its tokens were added."""
    values: dict[TokenSet, float] = field(default_factory=lambda: {(): 0.0})
    """Sets in the beam and their values; larger is better."""

    def expand(self) -> dict[TokenSet, float]:
        """Return every set with one token more, with the best value among the sets it extends."""
        extended: dict[frozenset[int], TokenSet] = {}
        inherited: dict[TokenSet, float] = {}
        for tokens, value in self.values.items():
            for token in self.tokens:
                if token in tokens:
                    continue
                grown = (*tokens, token) if self.ordered else tuple(sorted((*tokens, token)))
                known = extended.setdefault(frozenset(grown), grown)
                inherited[known] = max(inherited.get(known, value), value)
        return inherited

    def prune(self, values: Mapping[TokenSet, float], priority: Mapping[TokenSet, float] | None = None) -> None:
        """Keep the sets with the highest priority, by default the highest value; ties go to the smaller tuple."""
        ranked = rank_sets(values if priority is None else priority)
        self.values = {tokens: values[tokens] for tokens in ranked[: self.width]}


def rank_sets(values: Mapping[TokenSet, float]) -> list[TokenSet]:
    """Sort sets by falling value; ties go to the smaller tuple."""
    return sorted(values, key=lambda tokens: (-values[tokens], tokens))


@dataclass(frozen=True)
class MinimalSets:
    """Result of the search for the smallest sets in one text."""

    sets: tuple[TokenSet, ...]
    """Every sufficient set of the smallest size that has one, each in ascending order."""
    complete: bool
    """Whether all sets up to that size were evaluated; a beam may miss sets, also smaller ones."""
    evaluated: int
    """Number of sets that were evaluated."""


@dataclass
class MinimalSetSearch:
    """Search in one text: evaluate `candidates`, `record` each result, `advance`, until `done`."""

    tokens: Sequence[int]
    size: int
    """Size of the current candidates."""
    budget: int
    """Sets evaluated before exhaustive search ends."""
    beam_width: int
    complete: bool = True
    evaluated: int = 0
    sufficient: list[TokenSet] = field(default_factory=list)
    _scores: dict[TokenSet, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.size = min(self.size, len(self.tokens))

    @property
    def done(self) -> bool:
        """Whether a sufficient set was found or all sizes are exhausted."""
        return bool(self.sufficient) or self.size > len(self.tokens)

    def candidates(self) -> list[TokenSet]:
        """Return the sets of the current size: all of them, or those in reach of the beam."""
        if self.done:
            return []
        self.complete = self.complete and (
            not self._scores or self.evaluated + comb(len(self.tokens), self.size) <= self.budget
        )
        if self.complete:
            return list(combinations(self.tokens, self.size))
        beam = TokenBeam(self.tokens, self.beam_width)
        beam.prune(self._scores)
        return sorted(beam.expand())

    def record(self, tokens: TokenSet, sufficient: bool, score: float) -> None:
        """Store the result for a candidate; `score` orders sets that are not sufficient."""
        self.evaluated += 1
        self._scores[tokens] = score
        if sufficient:
            self.sufficient.append(tokens)

    def advance(self) -> None:
        """Continue with the next size."""
        if not self.done:
            self.size += 1
        self._scores = {tokens: score for tokens, score in self._scores.items() if len(tokens) == self.size - 1}

    def result(self) -> MinimalSets:
        """Return the sets found."""
        return MinimalSets(tuple(sorted(self.sufficient)), self.complete, self.evaluated)


@dataclass(frozen=True, kw_only=True)
class SubsetSearch(Method):
    """score_t = share of the smallest sufficient sets that contain token t. Li et al. 2016; De Cao et al. 2020.

    A set is sufficient if the prediction stays the same once every other maskable token is erased.
    """

    name: ClassVar[str] = "subset-search"

    site: str | None = None
    """Site whose states are erased. Default: the token embedding."""
    baseline: Baseline = "auto"
    """State of an erased token."""
    allow_empty: bool = False
    """Whether the empty set is a candidate; if it is sufficient, every score is 0."""
    budget: int = 1000
    """Rows per text for exhaustive search; a size that would exceed it is searched with a beam."""
    beam: int = 8
    """Width of the beam."""
    internal_batch_size: int = 256
    """Rows per forward pass."""

    def __post_init__(self) -> None:
        if min(self.budget, self.beam, self.internal_batch_size) < 1:
            raise ConfigError("subset-search: budget, beam and internal_batch_size must be at least 1")

    def build(self, task: Task, seed: int) -> "SubsetSearchExplainer":
        """Take the baseline from the training rows."""
        site = self.site_of(task, self.site)
        return SubsetSearchExplainer(self, task, site, baseline_state(task, site, self.baseline))


class SubsetSearchExplainer(BaselineExplainer[SubsetSearch]):
    """Searches all texts of a batch together, size by size; `search` returns the sets themselves."""

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Score tokens by the sets found; all scores are 0 if no set keeps the outcome."""
        scores = self.baseline.new_zeros(batch.tokens.shape)
        for row, result in enumerate(self.search(batch, target)):
            for tokens in result.sets:
                scores[row, list(tokens)] += 1 / len(result.sets)
        return Attribution(scores)

    @torch.no_grad()
    def search(self, batch: Batch, target: Shaped[Tensor, "row *event"] | None = None) -> list[MinimalSets]:
        """Return the smallest sufficient sets of each row; by default for the predicted outcome."""
        outcome = predicted_outcome(self.task.predict(batch)) if target is None else target
        first = 0 if self.method.allow_empty else 1
        searches = [
            MinimalSetSearch(row.nonzero().flatten().tolist(), first, self.method.budget, self.method.beam)
            for row in batch.maskable
        ]
        while any(not search.done for search in searches):
            self._evaluate_next(batch, outcome, searches)
        return [search.result() for search in searches]

    def _evaluate_next(
        self, batch: Batch, target: Shaped[Tensor, "row *event"], searches: list[MinimalSetSearch]
    ) -> None:
        """Evaluate the next size in every text that is not done."""
        candidates = [(row, tokens) for row, search in enumerate(searches) for tokens in search.candidates()]
        rows = torch.tensor([row for row, _ in candidates], device=batch.tokens.device)
        erased = batch.maskable[rows]
        for index, (_, tokens) in enumerate(candidates):
            erased[index, list(tokens)] = False

        def evaluate(items: slice) -> Float[Tensor, "pair 2"]:
            return self._evaluate(batch[rows[items]], target[rows[items]], erased[items])

        results = torch.cat(self.portion.split(len(candidates), evaluate)).tolist()
        for (row, tokens), (sufficient, score) in zip(candidates, results, strict=True):
            searches[row].record(tokens, sufficient > 0, score)
        for search in searches:
            search.advance()

    def _evaluate(
        self, batch: Batch, target: Shaped[Tensor, "row *event"], erased: Bool[Tensor, "row token"]
    ) -> Float[Tensor, "row 2"]:
        """Return whether each outcome is still predicted, and its log-odds."""
        prediction = self.task.predict(batch, {self.site: erase_states(erased, self.baseline)})
        score = log_odds(prediction, target)
        return torch.stack([predicts(prediction, target).to(score), score], dim=1)


@dataclass(frozen=True, kw_only=True)
class GreedySearch(Method):
    """score_t = 1 - rank_t / n in the order S_1, S_2, ... that maximises sum_k f(only S_k) - f(all but S_k).

    The order is built from the front: a set grows by the token with the largest gain, and the tokens after the searched
    share are ordered by their gain in the last step. Slow; meant as a teacher of `amortised`.
    """

    name: ClassVar[str] = "greedy-search"

    beam: int = 1
    """Width of the beam; 1 is greedy."""
    share: float = 0.5
    """Share of a text's tokens, rounded up, whose order is searched."""
    site: str | None = None
    """Site whose states are erased. Default: the token embedding."""
    baseline: Baseline = "auto"
    """State of an erased token."""
    quantity: Quantity = "probability"
    """f: quantity of the target outcome."""
    internal_batch_size: int = 256
    """Rows per forward pass, two for each set."""

    def __post_init__(self) -> None:
        if min(self.beam, self.internal_batch_size) < 1 or not 0 < self.share <= 1:
            raise ConfigError("greedy-search: beam and internal_batch_size must be at least 1, share in (0, 1]")

    def build(self, task: Task, seed: int) -> "GreedySearchExplainer":
        """Take the baseline from the training rows."""
        site = self.site_of(task, self.site)
        return GreedySearchExplainer(self, task, site, baseline_state(task, site, self.baseline))


class GreedySearchExplainer(BaselineExplainer[GreedySearch]):
    """Searches all texts of a batch together, size by size."""

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Score the first token of the order 1, the last 1 / n."""
        searches = [OrderSearch(row.nonzero().flatten().tolist(), self.method) for row in batch.maskable]
        while any(not search.done for search in searches):
            candidates = [(row, tokens) for row, search in enumerate(searches) for tokens in search.candidates()]
            gains = self._gains(batch, target, candidates)
            for row, search in enumerate(searches):
                pairs = zip(candidates, gains, strict=True)
                search.advance({tokens: gain for (at, tokens), gain in pairs if at == row})
        scores = self.baseline.new_zeros(batch.tokens.shape)
        for row, search in enumerate(searches):
            for rank, token in enumerate(search.order):
                scores[row, token] = 1 - rank / len(search.order)
        return Attribution(scores)

    def _gains(
        self, batch: Batch, target: Shaped[Tensor, "row *event"], candidates: list[tuple[int, TokenSet]]
    ) -> list[float]:
        """Return f(only the set) - f(all but the set) for each candidate."""
        rows = torch.tensor([row for row, _ in candidates], device=batch.tokens.device)
        chosen = torch.zeros_like(batch.maskable[rows])
        for index, (_, tokens) in enumerate(candidates):
            chosen[index, list(tokens)] = True

        def gain(items: slice) -> Float[Tensor, " pair"]:
            texts, outcomes = batch[rows[items]], target[rows[items]]
            kept = (chosen[items], texts.maskable & ~chosen[items])
            only, without = (self._score_kept(texts, outcomes, tokens) for tokens in kept)
            return only - without

        return torch.cat(self.portion.split(len(candidates), gain, rows_each=2)).tolist()

    def _score_kept(
        self, batch: Batch, target: Shaped[Tensor, "row *event"], kept: Bool[Tensor, "row token"]
    ) -> Float[Tensor, " row"]:
        prediction = self.task.predict(batch, {self.site: erase_states(batch.maskable & ~kept, self.baseline)})
        return target_score(prediction, target, self.method.quantity)


class OrderSearch:
    """Search for the best order of one text's tokens: a beam of orders, each valued by the sum of its sets' gains."""

    def __init__(self, tokens: list[int], method: GreedySearch) -> None:
        self.size = max(1, -int(-method.share * len(tokens) // 1))
        self.beam = TokenBeam(tokens, method.beam, ordered=True)
        self.order: TokenSet = ()

    @property
    def done(self) -> bool:
        """Whether every token has a rank."""
        return len(self.order) == len(self.beam.tokens)

    def candidates(self) -> list[TokenSet]:
        """Return every order of the beam with one token more; of two orders of the same set, the better one."""
        return [] if self.done else list(self.beam.expand())

    def advance(self, gains: Mapping[TokenSet, float]) -> None:
        """Keep the best orders; at the last size, order the remaining tokens by their gain."""
        if self.done:
            return
        inherited = self.beam.expand()
        totals = {tokens: inherited[tokens] + gain for tokens, gain in gains.items()}
        best = rank_sets(totals)[0]
        if len(best) < self.size:
            self.beam.prune(totals)
            return
        front = best[:-1]
        gain_of_set = {frozenset(tokens): gain for tokens, gain in gains.items()}
        remaining = (token for token in self.beam.tokens if token not in front)
        last: dict[TokenSet, float] = {
            (token,): self.beam.values[front] + gain_of_set[frozenset((*front, token))] for token in remaining
        }
        self.order = (*front, *(tokens[0] for tokens in rank_sets(last)))
