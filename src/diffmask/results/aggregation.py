"""Explanations of many texts, aggregated by class: which words matter, where in the text, up to which layer.

Every mean is over texts, with a 95 % interval by Student's t: a word that occurs twice in one text counts once there.
"""

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from diffmask.errors import ExtraError, InputError, nearest
from diffmask.results.formatting import format_number, harmless_cells
from diffmask.results.intervals import t_interval
from diffmask.results.records import write_text
from diffmask.results.word_tags import TAGS, WordTagger

By = str | Callable[[str], str]
"""Key of an aggregate: `word` in lower case, `position` (fifth of the text), `layer` that drops the word,
`part-of-speech` or `entity-type` (by a spaCy pipeline), or a function from a word to a key."""
KEYS = ("word", "position", "layer", "part-of-speech", "entity-type")
WordKeys = Callable[[Iterable[Sequence[str]]], Iterable[list[str]]]
"""Function from the words of texts to the key of each word, text by text."""
ORDERED = ("layer", "position")
"""Keys that have an order of their own."""
POSITIONS = ("first fifth", "second fifth", "third fifth", "fourth fifth", "last fifth")


@dataclass(frozen=True, kw_only=True)
class ScoredText:
    """Words of one explained text, as plain values."""

    group: str
    """The explained class, or any other name of a group of texts."""
    words: Sequence[str]
    scores: Sequence[float]
    """Score of each word, comparable between texts."""
    kept: Sequence[bool] | None = None
    """Whether each word is in the verified set; None if the text was not verified."""
    dropped_at: Sequence[str | None] | None = None
    """First layer that no longer needs each word; None for a word that the last layer needs."""


def divide_by_largest(scores: Sequence[float]) -> list[float]:
    """Divide the scores of one text by the largest absolute one, as pictures do, so that texts can be compared.

    >>> divide_by_largest([1.0, -4.0]), divide_by_largest([0.0])
    ([0.25, -1.0], [0.0])
    """
    largest = max(map(abs, scores), default=0.0) or 1.0
    return [score / largest for score in scores]


@dataclass(frozen=True, kw_only=True)
class AggregateRow:
    """Mean score of one key in one group."""

    group: str
    key: str
    mean: float
    low: float | None
    """Lower end of the 95 % interval; None with fewer than two texts."""
    high: float | None
    count: int
    """Occurrences."""
    texts: int
    """Texts in which the key occurs."""
    kept: float | None
    """Share of the occurrences that are in a verified set; None if no text was verified."""

    @property
    def evidence(self) -> float:
        """Distance of the interval from 0, with the sign of the mean; rows are sorted by it."""
        if self.low is None or self.high is None:
            return 0.0
        return max(self.low, 0.0) if self.mean >= 0 else min(self.high, 0.0)


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """Rows of an aggregate, those with the clearest evidence first."""

    by: str
    rows: tuple[AggregateRow, ...]
    texts: Mapping[str, int]
    """Number of texts of each group."""

    HEADINGS = ("group", "key", "mean", "low", "high", "count", "texts", "kept")

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups."""
        return tuple(self.texts)

    def top(self, group: str, count: int = 10) -> tuple[AggregateRow, ...]:
        """Return the first rows of a group."""
        if group not in self.texts:
            raise InputError(f"there is no group '{group}'; {nearest(group, self.texts)}")
        return tuple(row for row in self.rows if row.group == group)[:count]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as plain dictionaries."""
        return [{name: getattr(row, name) for name in self.HEADINGS} for row in self.rows]

    def to_pandas(self) -> Any:
        """Return the rows as a data frame."""
        return to_frame({name: [getattr(row, name) for row in self.rows] for name in self.HEADINGS})

    def to_csv(self, path: str | Path) -> None:
        """Write the rows as a CSV file in full precision."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.HEADINGS)
        writer.writerows(harmless_cells(row.values()) for row in self.to_dicts())
        write_text(Path(path), text.getvalue())

    def show(self, count: int = 10) -> None:
        """Print the first rows of every group."""
        print(self.to_text(count))

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, count: int = 10) -> str:
        """Return the first rows of every group as a table."""
        lines = []
        for group, texts in self.texts.items():
            rows = self.top(group, count)
            width = min(max((len(row.key) for row in rows), default=0), 24)
            lines.append(f"{group} ({texts} texts)")
            lines += [_line(row, width) for row in rows] or ["  nothing occurs often enough; lower min_texts"]
        return "\n".join([*lines, self._legend()])

    def _legend(self) -> str:
        dropped = "share of a text's words that the layer is the first not to need"
        score = dropped if self.by == "layer" else "mean score over texts"
        columns = [f"{score} [95 % interval]", "number of texts in which it occurs"]
        if any(row.kept is not None for row in self.rows):
            columns.append("share of its occurrences in verified sets")
        order = "" if self.by in ORDERED else "; first the rows whose interval is farthest above 0"
        return f"Columns: {', '.join(columns)}{order}."

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(self.to_text())}</pre>"

    def plot(self, count: int = 10) -> Any:
        """Draw the first rows of every group as bars with their intervals; one panel per group."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise ExtraError("drawing needs matplotlib; pip install 'diffmask[plot]'") from None
        panels = [(group, self.top(group, count)) for group in self.groups]
        rows = max((len(panel) for _, panel in panels), default=1)
        figure = Figure(figsize=(3.6 * max(len(panels), 1), 0.9 + 0.28 * rows), layout="constrained")
        for index, (group, panel) in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), index + 1)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_title(f"{group} ({self.texts[group]} texts)".replace("$", r"\$"), fontsize=10)
            places = range(len(panel))
            axes.barh(places, [row.mean for row in panel], xerr=_errors(panel), color="#f09030", ecolor="#5b6472")
            axes.set_yticks(places, [row.key[:24].replace("$", r"\$") for row in panel])
            axes.invert_yaxis()
        return figure


def _line(row: AggregateRow, width: int) -> str:
    interval = "" if row.low is None or row.high is None else f"[{format_number(row.low)}, {format_number(row.high)}]"
    kept = "" if row.kept is None else f"  {row.kept:.0%}"
    return f"  {row.key[:width]:<{width}}  {format_number(row.mean):>6} {interval:<18} {row.texts:>5}{kept}"


def _errors(rows: Sequence[AggregateRow]) -> list[list[float]]:
    low = [0.0 if row.low is None else row.mean - row.low for row in rows]
    high = [0.0 if row.high is None else row.high - row.mean for row in rows]
    return [low, high]


def aggregate(
    explanations: Iterable[Any], by: By = "word", *, min_texts: int = 2, pipeline: str | None = None
) -> Aggregate:
    """Aggregate explanations by class: by word, position, layer, part of speech, entity type, or a function's keys.

    Args:
        explanations: Explanations of texts, or `ScoredText`s. Scores of a method without layers are divided by the
            largest score of their text, as in pictures.
        by: Key of a row. With "layer", the mean is the share of a text's words that the layer is the first not to need.
        min_texts: Least number of texts in which a key occurs; an interval needs two.
        pipeline: Name of an installed spaCy pipeline for "part-of-speech" and "entity-type", such as
            "de_core_news_sm"; by default the English one.
    """
    if isinstance(by, str) and by not in KEYS:
        raise InputError(f"by='{by}': {nearest(by, KEYS)}, or give a function from a word")
    keys = WordTagger(by, pipeline).tag if isinstance(by, str) and by in TAGS else partial(map, partial(_keys, by=by))
    texts = [item if isinstance(item, ScoredText) else item.scored_text() for item in explanations]
    if not texts:
        raise InputError("there are no explanations to aggregate")
    groups: dict[str, list[ScoredText]] = defaultdict(list)
    for text in texts:
        groups[text.group].append(text)
    largest = max([1.0, *(abs(score) for text in texts for score in text.scores)])
    lowest, highest = (0.0, 1.0) if by == "layer" else (-largest, largest)
    rows = [
        _bounded(row, lowest, highest)
        for group, members in sorted(groups.items())
        for row in _rows(group, members, by, keys)
    ]
    enough = [row for row in rows if row.texts >= min_texts]
    ranked = enough if by in ORDERED else sorted(enough, key=lambda row: (-row.evidence, -row.mean))
    counts = {group: len(members) for group, members in sorted(groups.items())}
    return Aggregate(by=by if isinstance(by, str) else "key", rows=tuple(ranked), texts=counts)


def _bounded(row: AggregateRow, lowest: float, highest: float) -> AggregateRow:
    """Return the row with its interval cut to the range of the scores: with few texts an interval is wider."""
    if row.low is None or row.high is None:
        return row
    return replace(row, low=max(row.low, lowest), high=min(row.high, highest))


def _rows(group: str, texts: Sequence[ScoredText], by: By, keys: WordKeys) -> list[AggregateRow]:
    if by == "layer":
        return _layer_rows(group, texts)
    values: dict[str, list[list[float]]] = defaultdict(list)
    kept: dict[str, list[bool]] = defaultdict(list)
    for text, word_keys in zip(texts, keys(text.words for text in texts), strict=True):
        inside: dict[str, list[float]] = defaultdict(list)
        for index, (key, score) in enumerate(zip(word_keys, text.scores, strict=True)):
            inside[key].append(score)
            kept[key] += [] if text.kept is None else [text.kept[index]]
        for key, scores in inside.items():
            values[key].append(scores)
    row_keys = [key for key in POSITIONS if key in values] if by == "position" else values
    return [_row(group, key, values[key], kept[key]) for key in row_keys]


def _keys(words: Sequence[str], by: By) -> list[str]:
    """Return the key of each word of a text."""
    if callable(by):
        return [by(word) for word in words]
    if by == "word":
        return [word.casefold() for word in words]
    return [POSITIONS[index * len(POSITIONS) // len(words)] for index in range(len(words))]


def _row(group: str, key: str, values: Sequence[Sequence[float]], kept: Sequence[bool]) -> AggregateRow:
    means = [sum(scores) / len(scores) for scores in values]
    low, high = t_interval(means) if len(means) > 1 else (None, None)
    return AggregateRow(
        group=group,
        key=key,
        mean=sum(means) / len(means),
        low=low,
        high=high,
        count=sum(map(len, values)),
        texts=len(values),
        kept=sum(kept) / len(kept) if kept else None,
    )


def _layer_rows(group: str, texts: Sequence[ScoredText]) -> list[AggregateRow]:
    """Return per layer the share of a text's words that it is the first not to need."""
    layered = [text.dropped_at for text in texts if text.dropped_at]
    if not layered:
        raise InputError("by='layer' needs scores per layer; use a method that has them, such as surrogate-mask")
    names = list(dict.fromkeys(layer or "never" for text in layered for layer in text))
    rows = []
    for name in sorted(names, key=layer_order):
        hits = [[float((layer or "never") == name) for layer in text] for text in layered]
        rows.append(_row(group, name, hits, []))
    return rows


def layer_order(name: str) -> tuple[int, int]:
    """Return the place of a layer in the model, for sorting; words that are never dropped come last.

    >>> sorted(["never", "block10", "output", "block2", "embedding"], key=layer_order)
    ['embedding', 'block2', 'block10', 'output', 'never']
    """
    digits = "".join(filter(str.isdigit, name))
    return {"embedding": 0, "output": 2, "never": 3}.get(name, 1), int(digits or 0)


def to_frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    """Return columns as a pandas data frame."""
    try:
        from pandas import DataFrame
    except ImportError:
        raise ExtraError("data frames need pandas; pip install pandas") from None
    return DataFrame(dict(columns))
