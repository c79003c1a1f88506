"""Who is best on a measure, and who cannot be told from the best."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diffmask.results.benchmark_result import BenchmarkResult, Comparison, MethodResult, MetricInfo

BASELINES = frozenset({"random", "uniform"})
"""Recipes that look at nothing: what every method has to beat."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The head of the field on one measure."""

    leader: str | None
    """The best mean."""
    tied: frozenset[str]
    """Methods that were not shown to differ from the leader, itself among them."""
    chance: frozenset[str]
    """Methods that were not shown to be better than a baseline."""

    def mark(self, method: str) -> str:
        """`best`, `tie`, or nothing; the best of one method is no best."""
        if method not in self.tied:
            return ""
        return "best" if len(self.tied) == 1 else "tie"


def standings(board: BenchmarkResult) -> Mapping[str, Standing]:
    """Of every measure, by its name."""
    return {metric.name: _standing(board, metric) for metric in board.metrics}


def is_baseline(method: MethodResult) -> bool:
    """Whether the method looks at nothing."""
    return method.recipe.get("name", method.name) in BASELINES


def _standing(board: BenchmarkResult, metric: MetricInfo) -> Standing:
    means = {method.name: method.estimates[metric.name].mean for method in board.methods
             if metric.name in method.estimates}  # fmt: skip
    if len(means) < 2:
        return Standing(leader=None, tied=frozenset(), chance=frozenset())
    leader = (max if metric.higher_is_better else min)(means, key=means.__getitem__)
    winners = _winners(board.comparisons, metric.name)
    baselines = [method.name for method in board.methods if is_baseline(method) and method.name in means]
    return Standing(
        leader=leader,
        tied=frozenset(name for name in means if name == leader or winners.get(frozenset({name, leader})) != leader),
        chance=frozenset(
            name
            for name in means
            if name not in baselines and any(winners.get(frozenset({name, base})) != name for base in baselines)
        ),
    )


def _winners(comparisons: Sequence[Comparison], metric: str) -> dict[frozenset[str], str | None]:
    return {frozenset({one.first, one.second}): one.winner for one in comparisons if one.metric == metric}
