"""Explanations of several texts: a list that is also a table, a page and an aggregate."""

from typing import Any

from diffmask.errors import InputError, nearest
from diffmask.explanation.explanation import Explanation
from diffmask.results.aggregation import Aggregate, By, aggregate, to_frame


class ExplanationList(list[Explanation]):
    """Explanations in the order of their texts."""

    def to_pandas(self, per: str = "word") -> Any:
        """Return a data frame with one row per word, or per text with `per="text"`; `text` numbers the texts."""
        if per not in ("word", "text"):
            raise InputError(f"per='{per}': {nearest(per, ('word', 'text'))}")
        return to_frame(self._text_columns() if per == "text" else self._word_columns())

    def _word_columns(self) -> dict[str, list[Any]]:
        tables = [explanation.word_columns() for explanation in self]
        names = list(dict.fromkeys(name for table in tables for name in table))
        columns: dict[str, list[Any]] = {"text": [], "prediction": [], **{name: [] for name in names}}
        for number, (explanation, table) in enumerate(zip(self, tables, strict=True)):
            words = len(table["word"])
            columns["text"] += [number] * words
            columns["prediction"] += [explanation.prediction.label] * words
            for name in names:
                columns[name] += table.get(name, [None] * words)
        return columns

    def _text_columns(self) -> dict[str, list[Any]]:
        return {
            "text": list(range(len(self))),
            "content": [explanation.text for explanation in self],
            "prediction": [explanation.prediction.label for explanation in self],
            "probability": [explanation.prediction.probability for explanation in self],
            "words": [explanation.words for explanation in self],
            "scores": [tuple(explanation.scores.tolist()) for explanation in self],
            "enough": [None if explanation.verified is None else explanation.verified.words for explanation in self],
            "kl": [None if explanation.verified is None else explanation.verified.kl for explanation in self],
        }

    def aggregate(self, by: By = "word", *, min_texts: int = 2) -> Aggregate:
        """Aggregate the explanations by class; see `diffmask.aggregate`."""
        return aggregate(self, by, min_texts=min_texts)

    def show(self, threshold: float | None = None) -> None:
        """Show one picture after another."""
        for explanation in self:
            explanation.show(threshold)
            print()

    def to_html(self, threshold: float | None = None) -> str:
        """Return one HTML fragment with all pictures."""
        return "<hr>".join(explanation.to_html(threshold) for explanation in self)

    def _repr_html_(self) -> str:
        return self.to_html()
