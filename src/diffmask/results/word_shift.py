"""Words whose importance differs between two models that explain the same texts. No torch here."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diffmask.results.comparison import SIGNIFICANCE_LEVEL, holm_correction
from diffmask.results.intervals import RESAMPLES, BootstrapTest, bootstrap_t
from diffmask.results.records import write_text

SMALLEST_CHANGE = 0.1
"""Change of a word's mean importance, on a scale where 1 is decisive, that two equally good models may differ by."""
MIN_TEXTS = 10


@dataclass(frozen=True, kw_only=True)
class WordShift:
    """Importance of one word to two models, as means over the texts that contain it."""

    word: str
    first: float
    second: float
    difference: float
    """Second minus first."""
    low: float
    """Lower end of the 95 % interval of the difference, by the bootstrap-t over texts."""
    high: float
    p_value: float
    """Of the hypothesis that the difference is at most the smallest change; corrected by Holm for all words."""
    texts: int
    significant: bool

    @property
    def flips(self) -> bool:
        """Whether the word speaks for the outcome in one model and against it in the other."""
        return self.first * self.second < 0 and min(abs(self.first), abs(self.second)) > 0.05


@dataclass(frozen=True, kw_only=True)
class ExplainedText:
    """One text with the importance of its words to both models."""

    text: str
    words: tuple[str, ...]
    first: tuple[float, ...]
    second: tuple[float, ...]
    predictions: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class ModelComparison:
    """Two models on the same texts; words with the largest change first."""

    names: tuple[str, str]
    method: str
    texts: int
    smallest_change: float
    words: tuple[WordShift, ...]
    examples: tuple[ExplainedText, ...]
    """Texts whose importances changed most."""

    @property
    def significant(self) -> tuple[WordShift, ...]:
        """Words whose importance changed by more than the smallest change."""
        return tuple(word for word in self.words if word.significant)

    @property
    def sign_flips(self) -> tuple[WordShift, ...]:
        """Words that speak for the outcome in one model and against it in the other."""
        return tuple(word for word in self.words if word.flips)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def to_json(self, path: str | Path) -> None:
        """Write plain values."""
        write_text(Path(path), json.dumps(self.to_dict(), indent=1))

    def to_html(self, path: str | Path | None = None) -> str:
        """Return one self-contained page, and write it if a path is given."""
        from diffmask.report.comparison_page import comparison_page

        page = comparison_page(self)
        if path is not None:
            write_text(Path(path), page)
        return page

    def __str__(self) -> str:
        lines = [
            f"{self.names[0]} against {self.names[1]}: {self.texts} texts, {len(self.words)} words, by {self.method}",
            f"{len(self.significant)} words changed by more than {self.smallest_change:g} (Holm, {SIGNIFICANCE_LEVEL})",
        ]
        for word in self.words[:15]:
            mark = "*" if word.significant else " "
            interval = f"[{word.low:+.2f}, {word.high:+.2f}]"
            change = f"{word.first:+.2f} -> {word.second:+.2f}"
            lines.append(f"{mark} {word.word:<18} {change}  {interval}  {word.texts} texts")
        return "\n".join(lines)


def compare_words(
    texts: Sequence[ExplainedText], *, smallest_change: float = SMALLEST_CHANGE, min_texts: int = MIN_TEXTS
) -> tuple[WordShift, ...]:
    """Compare the importance of every word that occurs in at least `min_texts` texts; largest change first.

    The hypothesis is |difference| <= smallest change: two models that were trained with other seeds are never equal,
    and with enough texts every difference would be significant.
    """
    import numpy as np

    pairs: Mapping[str, list[tuple[float, float]]] = _by_word(texts)
    frequent_words = {word: np.array(values) for word, values in pairs.items() if len(values) >= min_texts}
    tests = [
        _test(values[:, 1] - values[:, 0], smallest_change, len(frequent_words)) for values in frequent_words.values()
    ]
    corrected = holm_correction([p_value for _, p_value in tests])
    shifts = [
        WordShift(
            word=word,
            first=float(values[:, 0].mean()),
            second=float(values[:, 1].mean()),
            difference=test.mean,
            low=test.low,
            high=test.high,
            p_value=p_value,
            texts=len(values),
            significant=p_value <= SIGNIFICANCE_LEVEL,
        )
        for (word, values), (test, _), p_value in zip(frequent_words.items(), tests, corrected, strict=True)
    ]
    return tuple(sorted(shifts, key=lambda shift: -abs(shift.difference)))


def _by_word(texts: Sequence[ExplainedText]) -> dict[str, list[tuple[float, float]]]:
    """Return a pair of importances per word and text; of a repeated word, its largest ones."""
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for text in texts:
        own: dict[str, tuple[float, float]] = {}
        for word, first, second in zip(text.words, text.first, text.second, strict=True):
            before = own.get(word.lower(), (0.0, 0.0))
            own[word.lower()] = (max(first, before[0], key=abs), max(second, before[1], key=abs))
        for word, both in own.items():
            pairs[word].append(both)
    return pairs


def _test(differences: Any, smallest_change: float, words: int) -> tuple[BootstrapTest, float]:
    """Return the interval of the mean difference, and the p-value that it is beyond the smallest change."""
    enough = max(RESAMPLES, 40 * words)
    if float(differences.max() - differences.min()) < 1e-9:
        # Equal differences up to rounding: resampling them would divide one rounding error by another.
        mean = float(differences.mean())
        p_value = 1.0 if abs(mean) <= smallest_change else 1 / (enough + 1)
        return BootstrapTest(mean, mean, mean, p_value, len(differences)), p_value
    test = bootstrap_t(differences[None], enough)
    if abs(test.mean) <= smallest_change:
        return test, 1.0
    shift = smallest_change if test.mean > 0 else -smallest_change
    return test, bootstrap_t(differences[None] - shift, enough).p_value
