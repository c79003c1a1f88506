"""Ranking metrics of MIND: AUC, MRR, nDCG@5 and nDCG@10, each the mean over impressions. Wu et al. 2020."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RankingMetrics:
    """Means over the impressions that have clicked and unclicked candidates."""

    auc: float
    mrr: float
    ndcg5: float
    ndcg10: float
    accuracy: float
    """Share of impressions whose highest score is a clicked candidate."""
    impressions: int

    def __str__(self) -> str:
        """Describe the metrics in one line.

        >>> print(RankingMetrics(0.9, 0.877, 0.909, 0.909, 0.775, 40))
        AUC 0.900, MRR 0.877, nDCG@5 0.909, nDCG@10 0.909, accuracy 0.775 (40 impressions)
        """
        return (
            f"AUC {self.auc:.3f}, MRR {self.mrr:.3f}, nDCG@5 {self.ndcg5:.3f}, nDCG@10 {self.ndcg10:.3f}, "
            f"accuracy {self.accuracy:.3f} ({self.impressions} impressions)"
        )


def ranking_metrics(scores: Sequence[Sequence[float]], clicks: Sequence[Sequence[bool]]) -> RankingMetrics:
    """Average the metrics over impressions; those where all or no candidates are clicked are left out."""
    rows = [
        (
            auc(values, labels),
            mrr(values, labels),
            ndcg(values, labels, 5),
            ndcg(values, labels, 10),
            hit(values, labels),
        )
        for values, labels in zip(scores, clicks, strict=True)
        if any(labels) and not all(labels)
    ]
    if not rows:
        return RankingMetrics(math.nan, math.nan, math.nan, math.nan, math.nan, 0)
    auc_mean, mrr_mean, ndcg5, ndcg10, accuracy = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    return RankingMetrics(auc_mean, mrr_mean, ndcg5, ndcg10, accuracy, len(rows))


def auc(scores: Sequence[float], clicks: Sequence[bool]) -> float:
    """Return the share of pairs of a clicked and an unclicked candidate in the right order; ties count one half.

    >>> auc([3.0, 2.0, 1.0], [True, False, True])
    0.5
    """
    clicked = [score for score, click in zip(scores, clicks, strict=True) if click]
    others = [score for score, click in zip(scores, clicks, strict=True) if not click]
    won = sum((first > second) + 0.5 * (first == second) for first in clicked for second in others)
    return won / (len(clicked) * len(others))


def mrr(scores: Sequence[float], clicks: Sequence[bool]) -> float:
    """Return the mean of 1 / rank over the clicked candidates, as MIND defines it.

    >>> mrr([3.0, 2.0, 1.0], [False, True, True])
    0.4166...
    """
    ranked = _by_score(scores, clicks)
    return sum(click / rank for rank, click in enumerate(ranked, start=1)) / sum(ranked)


def ndcg(scores: Sequence[float], clicks: Sequence[bool], k: int) -> float:
    """Return DCG@k over its largest value, DCG@k = sum over the first k ranks of click / log2(rank + 1).

    >>> ndcg([3.0, 2.0, 1.0], [False, True, False], 5)
    0.6309...
    """
    gain = _dcg(_by_score(scores, clicks)[:k])
    return gain / _dcg(sorted(map(bool, clicks), reverse=True)[:k])


def hit(scores: Sequence[float], clicks: Sequence[bool]) -> float:
    """Return 1 if the candidate with the highest score was clicked, else 0."""
    return float(_by_score(scores, clicks)[0])


def _by_score(scores: Sequence[float], clicks: Sequence[bool]) -> list[bool]:
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return [bool(clicks[index]) for index in order]


def _dcg(clicks: Sequence[bool]) -> float:
    return sum(click / math.log2(rank + 1) for rank, click in enumerate(clicks, start=1))
