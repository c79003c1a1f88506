"""What a benchmark will take, told before it starts; what is in the store takes nothing."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from diffmask.bench import Bench
from diffmask.benchmarking.plan import Plan, short_names
from diffmask.benchmarking.rehearsal import fit_seconds, rehearsal, shortened, timed
from diffmask.errors import DiffMaskError, FitWarning
from diffmask.evaluation import Evaluation
from diffmask.explainer import Method
from diffmask.graph import FitNode, MeasureNode
from diffmask.parts import part_digest
from diffmask.verdict import listed, seconds


@dataclass(frozen=True)
class Forecast:
    """Seconds by method, and what is not in them."""

    by_method: dict[str, float]
    unknown: tuple[str, ...]
    """Evaluations whose work does not grow with the texts: a few texts do not tell what they take."""

    @property
    def seconds(self) -> float:
        """In all."""
        return sum(self.by_method.values())

    def __str__(self) -> str:
        if not any(self.by_method.values()) and not self.unknown:
            return "forecast: everything is there already"
        dearest = sorted(self.by_method, key=lambda name: -self.by_method[name])[:3]
        parts = ", ".join(f"{name} {seconds(self.by_method[name])}" for name in dearest if self.by_method[name])
        said = f"forecast: about {seconds(self.seconds)} ({parts})"
        return said + (f", and what {listed(self.unknown)} will take" if self.unknown else "")


def forecast(plan: Plan, benches: Sequence[Bench]) -> Forecast:
    """Measured on a few texts, method by method and evaluation by evaluation."""
    unknown = tuple(evaluation.name for evaluation in plan.evaluations if not evaluation.per_text)
    todo = {
        name: _Missing(plan, method, benches)
        for name, method in zip(short_names(plan.methods), plan.methods, strict=True)
    }
    found = dict.fromkeys(todo, 0.0)
    if not any(missing.anything for missing in todo.values()):
        return Forecast(found, ())
    with warnings.catch_warnings(), rehearsal(benches[0].task(), plan.split, benches[0].seed) as small:
        warnings.simplefilter("ignore", FitWarning)
        for name, missing in todo.items():
            if missing.anything:
                found[name] = missing.seconds(small)
    return Forecast(found, unknown)


class _Missing:
    """What is not yet there of one method."""

    def __init__(self, plan: Plan, method: Method, benches: Sequence[Bench]) -> None:
        self.plan, self.method = plan, method
        self.texts = len(benches[0].task().data[plan.split])
        self.explanations = sum(self._unexplained(bench) for bench in benches)
        self.fits = sum(not FitNode(bench, method).is_done() and self._unexplained(bench) > 0 for bench in benches)
        self.measurements = {
            evaluation: sum(not MeasureNode(bench, method, evaluation).is_done() for bench in benches)
            for evaluation in plan.evaluations
            if evaluation.per_text
        }

    @property
    def anything(self) -> bool:
        """Whether anything is missing."""
        return bool(self.explanations or any(self.measurements.values()))

    def _unexplained(self, bench: Bench) -> float:
        """The share of the texts that is not explained yet."""
        digest = bench.explain_digest(self.method, self.plan.split)
        if bench.store.has("explain", digest):
            return 0.0
        rows = bench.part_rows or self.texts
        parts = -(-self.texts // rows)
        done = sum(bench.store.has("part", part_digest(digest, number, rows)) for number in range(parts))
        return 1 - done / parts

    def seconds(self, small: Bench) -> float:
        """What the rest will take; nothing for a method that cannot do it."""
        try:
            spent = self.fits * fit_seconds(self.method, small) if self.fits else 0.0
            method = shortened(self.method)
            few = len(small.task().data[self.plan.split])
            spent += self.explanations * self.texts * small.explained(method, self.plan.split).cost.seconds / few
            for evaluation, times in self.measurements.items():
                if times:
                    spent += (
                        times
                        * self.texts
                        / few
                        * timed(lambda evaluation=evaluation: _measure(evaluation, method, small))
                    )
        except DiffMaskError:
            return 0.0
        return spent


def _measure(evaluation: Evaluation, method: Method, bench: Bench) -> None:
    for _ in evaluation.run(method, bench):
        pass
