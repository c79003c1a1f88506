"""Words that matter to a recommender: explanations of impressions, word importance per class, pictures, as files."""

import json
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch

from diffmask.core.explainer import Explainer
from diffmask.datasets.mind import Impression
from diffmask.errors import ExtraError, InputError, TaskError
from diffmask.explanation.explanation import Explanation
from diffmask.explanation.heatmap import html_document
from diffmask.metrics.ranks import rank_correlation
from diffmask.results.aggregation import aggregate
from diffmask.results.intervals import t_interval
from diffmask.results.records import write_text
from diffmask.tasks.recommender.news_recommender import NewsRecommender

HEATMAPS = 5
"""Explanations per class on the page of heat maps."""


@dataclass(frozen=True)
class WordReport:
    """Most important words per class, and the agreement with other methods on the same titles."""

    importance: Mapping[str, list[dict[str, Any]]]
    """By class: word, mean, deviation and count of its scores over all occurrences."""
    agreement: Mapping[str, dict[str, Any]]
    """By method: mean rank correlation per title with its 95 % interval, and share of titles with the same top word."""

    def __str__(self) -> str:
        lines = []
        for group, words in self.importance.items():
            lines.append(f"{group} candidates: mean importance, standard deviation, occurrences")
            for row in words:
                lines.append(f"  {row['word']:<20} {row['mean']:6.2f} {row['deviation']:6.2f} {row['count']:5d}")
        for name, values in self.agreement.items():
            between = f"{values['rank_correlation']:.2f} [{values['low']:.2f}, {values['high']:.2f}]"
            top = f"same top word in {values['same_top_word']:.0%} of {values['titles']} titles"
            lines.append(f"agreement with {name}: rank correlation {between}, {top}")
        return "\n".join(lines)


def write_word_report(
    explainer: Explainer,
    impressions: Sequence[Impression],
    out: str | Path,
    *,
    top_k: int = 15,
    min_count: int = 3,
    others: Sequence[Explainer] = (),
) -> WordReport:
    """Explain the clicked candidates of impressions, or the first choice where clicks are unknown, and write files.

    `explanations.json` has every explanation, `word_importance.json` mean, deviation and count of each word per class
    (`real` and `fake` candidates, or `all` if unknown), `explanations.html` heat maps of each class and
    `word_importance.png` bars with 95 % intervals. Every other explainer gets the same files in a folder with the name
    of its method, and `agreement.json` compares it with the first.
    """
    rows = [
        {"impression": impression, "candidate": index}
        for impression in impressions
        for index in impression.clicked or (None,)
    ]
    if not rows:
        raise InputError("there are no impressions to explain")
    explanations, importance = _write(explainer, rows, Path(out), top_k, min_count)
    agreement = {}
    for other in others:
        name = other.config.name if other.config else type(other).__name__
        agreement[name] = _agreement(explanations, _write(other, rows, Path(out) / name, top_k, min_count)[0])
    if agreement:
        write_text(Path(out) / "agreement.json", json.dumps(agreement, indent=1))
    return WordReport(importance, agreement)


def _write(
    explainer: Explainer, rows: Sequence[dict[str, Any]], home: Path, top_k: int, min_count: int
) -> tuple[list[Explanation], dict[str, list[dict[str, Any]]]]:
    task = explainer.task
    if not isinstance(task, NewsRecommender):
        raise TaskError(f"{type(task).__name__} has no impressions; explain its texts with --text or --data")
    titles = "history" if task.explained == "history" else "candidate"
    explained = task.explain(explainer, [{**row, "explain": titles} for row in rows], verify=False)
    explanations = explained if isinstance(explained, list) else [explained]
    groups = [_group(row["impression"], explanation) for row, explanation in zip(rows, explanations, strict=True)]
    importance = word_importance(explanations, groups, top_k, min_count)
    home.mkdir(parents=True, exist_ok=True)
    records = [
        {**explanation.to_dict(), "class": group} for explanation, group in zip(explanations, groups, strict=True)
    ]
    write_text(home / "explanations.json", json.dumps(records, indent=1))
    write_text(home / "word_importance.json", json.dumps(importance, indent=1))
    pictures = [explanation.heatmap() for explanation in _first_of_each(explanations, groups)]
    write_text(home / "explanations.html", html_document("Why these headlines?", pictures))
    _plot(explanations, groups, home / "word_importance.png", top_k, min_count)
    return explanations, importance


def _group(impression: Impression, explanation: Any) -> str:
    """Return the class of the explained candidate."""
    fakes = {candidate.title: candidate.is_fake for candidate in impression.candidates}
    is_fake = fakes[explanation.candidate]
    return "all" if is_fake is None else "fake" if is_fake else "real"


def _first_of_each(explanations: Iterable[Explanation], groups: Iterable[str]) -> list[Explanation]:
    by_group: dict[str, list[Explanation]] = defaultdict(list)
    for explanation, group in zip(explanations, groups, strict=True):
        by_group[group].append(explanation)
    return [member for _, members in sorted(by_group.items()) for member in members[:HEATMAPS]]


def word_importance(
    explanations: Sequence[Explanation], groups: Sequence[str], top_k: int, min_count: int
) -> dict[str, list[dict[str, Any]]]:
    """Return the words with the largest mean score per class, over all their occurrences, with deviation and count.

    Words that occur less than `min_count` times in a class are left out. Scores of methods without layers are divided
    by the largest of their title, as in pictures.
    """
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for explanation, group in zip(explanations, groups, strict=True):
        for word, score in zip(explanation.words, explanation.scored_text().scores, strict=True):
            scores[group][word.lower()].append(score)
    result = {}
    for group, words in sorted(scores.items()):
        rows: list[dict[str, Any]] = [
            {"word": word, "mean": fmean(values), "deviation": pstdev(values), "count": len(values)}
            for word, values in words.items()
            if len(values) >= min_count
        ]
        result[group] = sorted(rows, key=lambda row: -abs(row["mean"]))[:top_k]
    return result


def _agreement(first: Sequence[Explanation], second: Sequence[Explanation]) -> dict[str, Any]:
    """Return the mean rank correlation of the words' scores per title, and how often the top word is the same."""
    correlations, same = [], []
    for explanation, other in zip(first, second, strict=True):
        if len(explanation.words) > 1:
            scores = explanation.scores[None].double(), other.scores[None].double()
            correlations.append(float(rank_correlation(*scores, torch.ones_like(scores[0], dtype=torch.bool))))
            same.append(int(explanation.scores.argmax()) == int(other.scores.argmax()))
    if len(correlations) < 2:
        raise InputError("two or more titles with several words are needed to compare methods")
    low, high = t_interval(correlations)
    mean, top = fmean(correlations), fmean(same)
    return {"rank_correlation": mean, "low": low, "high": high, "same_top_word": top, "titles": len(same)}


def _plot(explanations: Sequence[Explanation], groups: Sequence[str], path: Path, top_k: int, min_count: int) -> None:
    """Draw the most important words of each class, if matplotlib is installed."""
    texts = [
        replace(explanation.scored_text(), group=group) for explanation, group in zip(explanations, groups, strict=True)
    ]
    try:
        figure = aggregate(texts, min_texts=min_count).plot(top_k)
    except ExtraError:
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # such as an emoji in a headline
        figure.savefig(path)
