"""JSON of the texts for the script of the report, within a size budget."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from typing import Any

from diffmask.results.benchmark_result import BenchmarkResult, BenchmarkText


def disagreement(scores: Sequence[Sequence[float]]) -> float | None:
    """Compute 1 - mean rank correlation over pairs of methods; None without a pair of non-constant scores.

    >>> disagreement([[3.0, 2.0, 1.0], [30.0, 20.0, 10.0]])
    0.0
    >>> disagreement([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    2.0
    """
    units = [_unit(mean_ranks(method_scores)) for method_scores in scores if len(set(method_scores)) > 1]
    pairs = [sum(a * b for a, b in zip(*pair, strict=True)) for pair in combinations(units, 2)]
    return round(1 - sum(pairs) / len(pairs), 3) if pairs else None


def mean_ranks(scores: Sequence[float]) -> list[float]:
    """Compute ranks from 1; equal scores share their mean rank.

    >>> mean_ranks([10.0, 30.0, 10.0])
    [1.5, 3.0, 1.5]
    """
    order = sorted(range(len(scores)), key=scores.__getitem__)
    ranks = [0.0] * len(scores)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and scores[order[end]] == scores[order[start]]:
            end += 1
        for place in order[start:end]:
            ranks[place] = (start + 1 + end) / 2
        start = end
    return ranks


def _unit(values: Sequence[float]) -> list[float]:
    """Centre and scale to length 1, so that dot products are correlations."""
    mean = sum(values) / len(values)
    length = sqrt(sum((value - mean) ** 2 for value in values))
    return [(value - mean) / length for value in values]


BUDGET = 4_400_000
"""Bytes for all texts; keeps the page under 5 MB."""


@dataclass(frozen=True, kw_only=True)
class Payload:
    """Data of the page's script."""

    json: str
    """JSON without `<`, `>` and `&`, safe inside a script element."""
    classes: tuple[str, ...]
    """Predicted labels in alphabetical order."""
    texts: int
    """Number of texts on the page."""
    without_layers: int
    """Number of texts whose layers were dropped to meet the budget."""


def build_payload(results: Sequence[BenchmarkResult], budget: int = BUDGET) -> Payload:
    """Add the texts of all results in order while they fit the budget; drop layers first."""
    names = list(dict.fromkeys(method.name for result in results for method in result.methods))
    compared = [[method.name for method in result.methods if not method.is_baseline] for result in results]
    texts = [(number, text) for number, result in enumerate(results) for text in result.texts]
    kept: list[str] = []
    left, without_layers = budget, 0
    bare = [_safe(_text(number, text, names, compared[number], layered=False)) for number, text in texts]
    waiting = sum(map(_size, bare))
    for (number, text), short in zip(texts, bare, strict=True):
        full = _safe(_text(number, text, names, compared[number], layered=True))
        waiting -= _size(short)
        chosen = full if _size(full) + waiting <= left else short
        if _size(chosen) > left:
            break
        without_layers += chosen != full
        kept.append(chosen)
        left -= _size(chosen)
    return Payload(
        json=f'{{"methods":{_safe(names)},"texts":[{",".join(kept)}]}}',
        classes=tuple(sorted({text.prediction for _, text in texts})),
        texts=len(kept),
        without_layers=without_layers,
    )


def _text(
    task: int, text: BenchmarkText, names: Sequence[str], compared: Sequence[str], *, layered: bool
) -> Mapping[str, Any]:
    return {
        "task": task,
        "words": text.words,
        "gaps": text.gaps,
        "gold": text.gold,
        "prediction": text.prediction,
        "probability": round(text.probability, 4),
        "apart": disagreement([text.scores[name] for name in compared if name in text.scores]),
        "scores": [_scores(text, name, layered) for name in names],
    }


def _scores(text: BenchmarkText, name: str, layered: bool) -> Mapping[str, Any] | None:
    """Quantise scores to thousandths of the largest; None for a method without scores of this text."""
    if name not in text.scores:
        return None
    rows = [text.scores[name], *text.by_layer.get(name, ())]
    scale = max((abs(score) for row in rows for score in row if math.isfinite(score)), default=0.0)
    per = 1000 / scale if scale else 0.0
    whole = [[round(per * score) if math.isfinite(score) else None for score in row] for row in rows]
    payload: dict[str, Any] = {"scale": float(f"{scale:.4g}"), "all": whole[0]}
    if layered and len(whole) > 1:
        payload |= {
            "layers": whole[1:],
            "names": text.layers.get(name, [str(index) for index in range(len(whole) - 1)]),
        }
    return payload


def _safe(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # JSON can hold a lone surrogate, UTF-8 cannot.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _size(text: str) -> int:
    return len(text.encode())
