"""How far methods are from one another on a text."""

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean, pstdev


def disagreement(scores: Sequence[Sequence[float]]) -> float | None:
    """1 - mean rank correlation over pairs of methods: 0 is one order, 1 is none; none where no pair has an order.

    >>> disagreement([[3, 2, 1], [30, 20, 10]]), disagreement([[3, 2, 1], [1, 2, 3]]), disagreement([[1, 1], [1, 2]])
    (0.0, 2.0, None)
    """
    ranked = [ranks(one) for one in scores if len(set(one)) > 1]
    pairs = [_correlation(first, second) for first, second in combinations(ranked, 2)]
    return round(1 - fmean(pairs), 3) if pairs else None


def ranks(scores: Sequence[float]) -> list[float]:
    """Ranks from 1 up; equal scores share their mean rank.

    >>> ranks([10.0, 30.0, 10.0])
    [1.5, 3.0, 1.5]
    """
    order = sorted(range(len(scores)), key=scores.__getitem__)
    found = [0.0] * len(scores)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and scores[order[end]] == scores[order[start]]:
            end += 1
        for place in order[start:end]:
            found[place] = (start + 1 + end) / 2
        start = end
    return found


def _correlation(first: Sequence[float], second: Sequence[float]) -> float:
    together = fmean(a * b for a, b in zip(first, second, strict=True)) - fmean(first) * fmean(second)
    return together / (pstdev(first) * pstdev(second))
