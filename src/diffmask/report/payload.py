"""How far methods are from one another on a text.

The texts as the page's script reads them: short, and within a budget.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from typing import Any

from diffmask.report.leaderboard import is_baseline
from diffmask.results.benchmark_result import BenchmarkResult, BoardText


def disagreement(scores: Sequence[Sequence[float]]) -> float | None:
    """1 - mean rank correlation over pairs of methods: 0 is one order, 1 is none; none where no pair has an order.

    >>> disagreement([[3.0, 2.0, 1.0], [30.0, 20.0, 10.0]])
    0.0
    >>> disagreement([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    2.0
    """
    units = [_unit(mean_ranks(one)) for one in scores if len(set(one)) > 1]
    pairs = [sum(a * b for a, b in zip(*pair, strict=True)) for pair in combinations(units, 2)]
    return round(1 - sum(pairs) / len(pairs), 3) if pairs else None


def mean_ranks(scores: Sequence[float]) -> list[float]:
    """Ranks from 1 up; equal scores share their mean rank.

    >>> mean_ranks([10.0, 30.0, 10.0])
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


BUDGET = 4_400_000
"""Bytes for all texts: the page stays under 5 MB."""


@dataclass(frozen=True, kw_only=True)
class Payload:
    """What the script is given."""

    json: str
    """Safe inside a script element: no `<`, `>` or `&`."""
    classes: tuple[str, ...]
    """Every prediction, in order of the alphabet."""
    texts: int
    """How many are on the page."""
    without_layers: int
    """How many lost their layers to the budget."""


def build_payload(board: BenchmarkResult, budget: int = BUDGET) -> Payload:
    """Texts in order while they fit; layers are given up first."""
    names = [method.name for method in board.methods]
    orderly = [method.name for method in board.methods if not is_baseline(method)]
    kept: list[str] = []
    left, without_layers = budget, 0
    bare = [_safe(_text(text, names, orderly, layered=False)) for text in board.texts]
    waiting = sum(map(_size, bare))
    for text, short in zip(board.texts, bare, strict=True):
        full = _safe(_text(text, names, orderly, layered=True))
        waiting -= _size(short)
        chosen = full if _size(full) + waiting <= left else short
        if _size(chosen) > left:
            break
        without_layers += chosen != full
        kept.append(chosen)
        left -= _size(chosen)
    return Payload(
        json=f'{{"methods":{_safe(names)},"texts":[{",".join(kept)}]}}',
        classes=tuple(sorted({text.prediction for text in board.texts})),
        texts=len(kept),
        without_layers=without_layers,
    )


def _text(text: BoardText, names: Sequence[str], orderly: Sequence[str], *, layered: bool) -> Mapping[str, Any]:
    return {
        "words": text.words,
        "gaps": text.gaps,
        "gold": text.gold,
        "prediction": text.prediction,
        "probability": round(text.probability, 4),
        "apart": disagreement([text.scores[name] for name in orderly if name in text.scores]),
        "scores": [_scores(text, name, layered) for name in names],
    }


def _scores(text: BoardText, name: str, layered: bool) -> Mapping[str, Any] | None:
    """Whole thousandths of the largest size, with that size; none for a method that did not see the text."""
    if name not in text.scores:
        return None
    rows = [text.scores[name], *text.by_layer.get(name, ())]
    scale = max((abs(score) for row in rows for score in row if math.isfinite(score)), default=0.0)
    per = 1000 / scale if scale else 0.0
    whole = [[round(per * score) if math.isfinite(score) else None for score in row] for row in rows]
    found: dict[str, Any] = {"scale": float(f"{scale:.4g}"), "all": whole[0]}
    if layered and len(whole) > 1:
        found |= {"layers": whole[1:], "names": text.layers.get(name, [str(index) for index in range(len(whole) - 1)])}
    return found


def _safe(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # Half of a surrogate pair alone is no character: UTF-8 cannot hold it, JSON can.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _size(text: str) -> int:
    return len(text.encode())
