"""Is a method fitted again, with another seed, of the same opinion?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from diffmask.bench import Bench
from diffmask.beside import ReseededBench
from diffmask.board import Measure
from diffmask.errors import RecipeError
from diffmask.evaluate.ranks import rank_correlation
from diffmask.evaluation import Evaluation, record_of
from diffmask.explainer import Method
from diffmask.record import Record


@dataclass(frozen=True, kw_only=True)
class StabilityOverSeeds(Evaluation):
    """Mean of Spearman's rho between the scores of a fit with seed s and those of fits with s + 1, s + 2, ..."""

    name: ClassVar[str] = "stability"
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure(
            name="seed_correlation",
            title="agreement between seeds",
            better="higher",
            says="A fit with another seed ranks a text's tokens alike: the order is not an accident of the fit.",
            cannot_say="A method that draws nothing at random agrees with itself whatever it says.",
        ),
    )

    split: str = "test"
    others: int = 1
    """Further fits, on the same model."""

    def __post_init__(self) -> None:
        if self.others < 1:
            raise RecipeError(f"stability: others is at least 1; found {self.others}")

    def beside(self, bench: Bench) -> Sequence[Bench]:
        """The same task at other seeds."""
        return [ReseededBench.of(bench, bench.seed + further) for further in range(1, self.others + 1)]

    def run(self, method: Method, bench: Bench) -> Iterator[Record]:
        """One number."""
        own = bench.explained(method, self.split)
        maskable = bench.task().data[self.split].maskable
        others = [beside.explained(method, self.split).attribution for beside in self.beside(bench)]
        found = [rank_correlation(own.attribution.scores, other.scores, maskable) for other in others]
        values = torch.stack(found).mean(dim=0)
        yield record_of(bench, method, own, "input", "seed_correlation", values, keep_rows=True)
