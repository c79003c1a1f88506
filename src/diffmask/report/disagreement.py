"""How far methods are from one another on a text."""

from collections.abc import Sequence
from itertools import combinations
from math import sqrt


def disagreement(scores: Sequence[Sequence[float]]) -> float | None:
    """1 - mean rank correlation over pairs of methods: 0 is one order, 1 is none; none where no pair has an order.

    >>> disagreement([[3.0, 2.0, 1.0], [30.0, 20.0, 10.0]])
    0.0
    >>> disagreement([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    2.0
    """
    units = [_unit(ranks(one)) for one in scores if len(set(one)) > 1]
    pairs = [sum(a * b for a, b in zip(*pair, strict=True)) for pair in combinations(units, 2)]
    return round(1 - sum(pairs) / len(pairs), 3) if pairs else None


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


def _unit(values: Sequence[float]) -> list[float]:
    """Centred and of length 1: the product of two such is their correlation."""
    mean = sum(values) / len(values)
    length = sqrt(sum((value - mean) ** 2 for value in values))
    return [(value - mean) / length for value in values]
