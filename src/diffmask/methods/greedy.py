"""A search for the order of tokens that is best for sufficiency and comprehensiveness at once. Slow: a teacher."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from diffmask.answer import Quantity, explained
from diffmask.batch import Attribution, Batch
from diffmask.errors import RecipeError
from diffmask.explainer import Explainer, Method
from diffmask.memory import Portion
from diffmask.methods.erasure import fill
from diffmask.probe import Baseline, baseline_state
from diffmask.task import Task

Path = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Greedy(Method):
    """score_t = 1 - place of t in the order S_1, S_2, ... that makes sum_k f(only S_k) - f(all but S_k) large.

    Built from the front: a set grows by the token that gains most, and the rest is ordered by what it would gain last.
    """

    name: ClassVar[str] = "greedy"

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
            raise RecipeError("greedy: beam and internal_batch_size are at least 1, share is in (0, 1]")

    def build(self, task: Task, seed: int) -> "GreedyExplainer":
        """The baseline is taken from the training rows."""
        site = self.site_of(task, self.site)
        return GreedyExplainer(self, task, site, baseline_state(task, site, self.baseline))


class GreedyExplainer(Explainer):
    """Texts are searched together, size by size."""

    def __init__(self, method: Greedy, task: Task, site: str, baseline: Float[Tensor, " width"]) -> None:
        super().__init__(task)
        self.method, self.site = method, site
        self.baseline = nn.Parameter(baseline, requires_grad=False)
        self.portion = Portion(method.internal_batch_size)

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
        answer = self.task.predict(batch, {self.site: fill(batch.maskable & ~kept, self.baseline)})
        return explained(answer, target, self.method.quantity)


class Beam:
    """One text's search: the best orders so far, each with the sum of its sets' gains."""

    def __init__(self, items: list[int], method: Greedy) -> None:
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
