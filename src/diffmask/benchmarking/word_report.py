"""Words that matter to a recommender: explanations of impressions, word importance per class, pictures, as files."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from diffmask.core.explainer import Explainer
from diffmask.datasets.mind import Impression
from diffmask.errors import ExtraError, InputError, TaskError
from diffmask.explanation.aggregation import aggregate
from diffmask.explanation.explanation import Explanation
from diffmask.explanation.heatmap import html_document
from diffmask.results.records import write_text
from diffmask.tasks.recommender.news_recommender import NewsRecommender

HEATMAPS = 10
"""Explanations on the page of heat maps."""


def write_word_report(
    explainer: Explainer, impressions: Sequence[Impression], out: str | Path, *, top_k: int = 15, min_count: int = 3
) -> dict[str, list[dict[str, Any]]]:
    """Explain the clicked candidates of impressions and write what matters; return the most important words per class.

    `explanations.json` has every explanation, `word_importance.json` mean, deviation and count of each word per class
    (`real` and `fake` candidates, or `all`), `explanations.html` the heat maps, `word_importance.png` a bar plot.
    """
    if not isinstance(explainer.task, NewsRecommender):
        raise TaskError(f"{type(explainer.task).__name__} has no impressions; explain its texts with --text or --data")
    rows = [(one, index) for one in impressions for index in one.clicked or (0,)]
    if not rows:
        raise InputError("there are no impressions to explain")
    fields = [{"impression": one, "candidate": index, "explain": "candidate"} for one, index in rows]
    explained = explainer.task.explain(explainer, fields, verify=False)
    explanations = explained if isinstance(explained, list) else [explained]
    groups = [_group(one.candidates[index].is_fake) for one, index in rows]
    importance = word_importance(explanations, groups, top_k, min_count)
    home = Path(out)
    home.mkdir(parents=True, exist_ok=True)
    records = [{**one.to_dict(), "class": group} for one, group in zip(explanations, groups, strict=True)]
    write_text(home / "explanations.json", json.dumps(records, indent=1))
    write_text(home / "word_importance.json", json.dumps(importance, indent=1))
    pictures = [one.heatmap() for one in explanations[:HEATMAPS]]
    write_text(home / "explanations.html", html_document("Why these headlines?", pictures))
    _plot(explanations, home / "word_importance.png", top_k)
    return importance


def _group(is_fake: bool | None) -> str:
    return "all" if is_fake is None else "fake" if is_fake else "real"


def word_importance(
    explanations: Sequence[Explanation], groups: Sequence[str], top_k: int, min_count: int
) -> dict[str, list[dict[str, Any]]]:
    """Return the words with the largest mean score per class, over all their occurrences, with deviation and count.

    Words that occur less than `min_count` times in a class are left out.
    """
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for explanation, group in zip(explanations, groups, strict=True):
        for word, score in zip(explanation.words, explanation.scores.tolist(), strict=True):
            scores[group][word.lower()].append(score)
    result = {}
    for group, words in sorted(scores.items()):
        found = [
            {"word": word, "mean": fmean(values), "deviation": pstdev(values), "count": len(values)}
            for word, values in words.items()
            if len(values) >= min_count
        ]
        result[group] = sorted(found, key=lambda row: -abs(float(str(row["mean"]))))[:top_k]
    return result


def _plot(explanations: Sequence[Explanation], path: Path, top_k: int) -> None:
    """Draw the most important words, if matplotlib is installed."""
    try:
        figure = aggregate(explanations).plot(top_k)
    except (ExtraError, TaskError, InputError):
        return
    figure.savefig(path)
