"""Erasure search: the smallest sets of tokens that keep the decision. Li et al. 2016; De Cao et al. 2020."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from diffmask.answer import decides, decision, log_odds
from diffmask.batch import Attribution, Batch
from diffmask.errors import RecipeError
from diffmask.explainer import Explainer, Method
from diffmask.memory import Portion
from diffmask.methods.erasure import fill
from diffmask.methods.subsets import Found, Search
from diffmask.probe import Baseline, baseline_state
from diffmask.task import Task


@dataclass(frozen=True, kw_only=True)
class ErasureSearch(Method):
    """score_t = share, of the smallest sets that keep the decision, of those that hold token t.

    A set keeps it if the decision is the same once every other maskable token is replaced by the baseline.
    """

    name: ClassVar[str] = "erasure-search"

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
            raise RecipeError("erasure-search: budget, beam and internal_batch_size are at least 1")

    def build(self, task: Task, seed: int) -> "ErasureSearchExplainer":
        """The baseline is taken from the training rows."""
        site = self.site_of(task, self.site)
        return ErasureSearchExplainer(self, task, site, baseline_state(task, site, self.baseline))


class ErasureSearchExplainer(Explainer):
    """Texts are searched together, size by size; `search` lists the sets themselves."""

    def __init__(self, method: ErasureSearch, task: Task, site: str, baseline: Float[Tensor, " width"]) -> None:
        super().__init__(task)
        self.method, self.site = method, site
        self.baseline = nn.Parameter(baseline, requires_grad=False)
        self.portion = Portion(method.internal_batch_size)

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
        wanted = decision(self.task.predict(batch)) if target is None else target
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
        answer = self.task.predict(batch, {self.site: fill(erased, self.baseline)})
        lean = log_odds(answer, target)
        return torch.stack([decides(answer, target).to(lean), lean], dim=1)
