"""Leaders per metric, the methods tied with them, and the methods not better than a baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diffmask.results.benchmark_result import BenchmarkResult, Comparison, MetricInfo


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Leader, ties and chance level on one metric."""

    leader: str | None
    """Method with the best mean."""
    tied: frozenset[str]
    """Methods without a significant difference from the leader, including the leader; never a baseline."""
    chance: frozenset[str]
    """Methods not significantly better than a baseline."""

    def mark(self, method: str) -> str:
        """Return `best`, `tie` or an empty string. A method that was not shown to beat a baseline has no mark."""
        if method not in self.tied or method in self.chance:
            return ""
        return "best" if len(self.tied) == 1 else "tie"


def standings(board: BenchmarkResult) -> Mapping[str, Standing]:
    """Compute the standing of every metric, by name."""
    return {metric.name: _standing(board, metric) for metric in board.metrics}


def _standing(board: BenchmarkResult, metric: MetricInfo) -> Standing:
    means = {method.name: method.estimates[metric.name].mean for method in board.methods
             if metric.name in method.estimates}  # fmt: skip
    if len(means) < 2:
        return Standing(leader=None, tied=frozenset(), chance=frozenset())
    leader = (max if metric.higher_is_better else min)(means, key=means.__getitem__)
    winners = _winners(board.comparisons, metric.name)
    baselines = [method.name for method in board.methods if method.is_baseline and method.name in means]
    return Standing(
        leader=leader,
        tied=frozenset(
            name
            for name in means
            if name not in baselines and (name == leader or winners.get(frozenset({name, leader})) != leader)
        ),
        chance=frozenset(
            name
            for name in means
            if name not in baselines and any(winners.get(frozenset({name, base})) != name for base in baselines)
        ),
    )


def _winners(comparisons: Sequence[Comparison], metric: str) -> dict[frozenset[str], str | None]:
    return {
        frozenset({comparison.first, comparison.second}): comparison.winner
        for comparison in comparisons
        if comparison.metric == metric
    }
