"""Explanations of texts: rows that were one long text are put together again."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.core.batch import Attribution, Batch
from diffmask.core.distributions import average, divergence
from diffmask.core.explainer import Explainer
from diffmask.datasets.tables import Example
from diffmask.explanation.explanation import Explanation, Prediction, split_units
from diffmask.explanation.text_units import ReadRow, Token
from diffmask.tasks.text.encoding import EncodedBatch

if TYPE_CHECKING:
    from diffmask.tasks.classification import TextClassification

TOKENS_AT_ONCE = 2_048
"""With their padding, however long the rows are: enough to keep a processor busy, and memory stays as it is."""


def explain_examples(
    task: "TextClassification", explainer: Explainer, examples: Sequence[Example]
) -> list[Explanation]:
    """One explanation a text."""
    if not examples:
        return []
    encoded = task.read(examples)
    rows_at_once = max(1, min(256, TOKENS_AT_ONCE // encoded.batch.tokens.shape[1]))
    numbers, attribution = explainer.explain_with_answer(encoded.batch, rows_at_once=rows_at_once)
    rows_of: dict[int, list[int]] = {}
    for row, source in enumerate(encoded.sources):
        rows_of.setdefault(source, []).append(row)
    return [
        _explanation(_Text(task, explainer, example, encoded, rows), numbers, attribution)
        for example, rows in zip(examples, (rows_of[number] for number in range(len(examples))), strict=True)
    ]


@dataclass(frozen=True)
class _Text:
    """One text and the rows it was read as."""

    task: "TextClassification"
    explainer: Explainer
    example: Example
    encoded: EncodedBatch
    rows: list[int]

    @cached_property
    def batch(self) -> Batch:
        return self.encoded.batch[torch.tensor(self.rows)].trim()

    @cached_property
    def places(self) -> dict[Token, list[tuple[int, int]]]:
        """Each maskable token with the rows and columns where it stands: several where rows overlap."""
        return places_of(self.encoded, self.rows)

    def measure(self, kept: Bool[Tensor, " token"], layer: str | None) -> tuple[float, Prediction]:
        """Mean divergence over the text's rows, and what the model then says of them together."""
        batch = self.batch
        inside = torch.zeros_like(batch.maskable)
        for where, stays in zip(self.places.values(), kept.tolist(), strict=True):
            for line, column in where:
                inside[line, column] = stays
        with torch.no_grad():
            original = self.task.predict(batch)
            masked = self.explainer.predict_kept(batch, inside, layer)
        return float(divergence(original, masked).mean()), self.task.predictions(average(masked))[0]


def places_of(encoded: EncodedBatch, rows: Sequence[int]) -> dict[Token, list[tuple[int, int]]]:
    """Each maskable token of a text with the rows, counted from its first, and columns where it stands."""
    found: dict[Token, list[tuple[int, int]]] = {}
    for line, row in enumerate(rows):
        encoding = encoded.encodings[row]
        maskable = encoded.batch.maskable[row].tolist()
        seen: dict[Token, int] = {}
        for column, (piece, span, segment) in enumerate(
            zip(encoding.tokens, encoding.offsets, encoding.sequence_ids, strict=True)
        ):
            if maskable[column]:
                token = Token(piece, span, segment)
                # Several byte pieces of one character have the same span, and may be spelt the same.
                token = Token(piece, span, segment, seen.setdefault(token, 0))
                seen[Token(piece, span, segment)] += 1
                found.setdefault(token, []).append((line, column))
    return found


def row_words(example: Example, encoded: EncodedBatch, row: int) -> ReadRow:
    """The words of one row's text; what lies between them, tokens that may not be masked included, are gaps."""
    places = places_of(encoded, [row])
    columns = [column for where in places.values() for _, column in where]
    units = split_units(example.text, example.pair, tuple(places), "word")
    gaps, segment, end = [], 0, 0
    texts = (example.text, example.pair or "")
    for unit in units:
        if unit.segment == segment:
            gaps.append(texts[segment][end : unit.span[0]])
        else:
            gaps.append(f"{texts[0][end:]}\n{texts[1][: unit.span[0]]}")
        segment, end = unit.segment, unit.span[1]
    rest = texts[segment][end:] + (f"\n{texts[1]}" if segment == 0 and example.pair else "")
    members = tuple(tuple(columns[token] for token in unit.tokens) for unit in units)
    return ReadRow(tuple(unit.text for unit in units), (*gaps, rest), members)


def _explanation(text: _Text, numbers: Float[Tensor, "row feature"], attribution: Attribution) -> Explanation:
    places = text.places
    tokens = tuple(places)
    rows = torch.tensor(text.rows)
    by_layer = None if attribution.by_layer is None else _largest(attribution.by_layer[rows], places)
    return Explanation(
        text=text.example.text,
        pair=text.example.pair,
        prediction=text.task.predictions(average(text.task.head.answer(numbers[rows])))[0],
        tokens=tokens,
        units=split_units(text.example.text, text.example.pair, tokens, "word"),
        token_scores=_largest(attribution.scores[rows], places),
        token_by_layer=by_layer,
        layers=attribution.layers,
        method=text.explainer.config.label if text.explainer.config else type(text.explainer).__name__,
        mask_effect=text.measure,
    )


def _largest(
    scores: Float[Tensor, "row *layer column"], places: dict[Token, list[tuple[int, int]]]
) -> Float[Tensor, "*layer token"]:
    """The largest score of each token over the rows in which it stands."""
    if len(scores) == 1 or not places:
        return scores[0][..., [column for where in places.values() for _, column in where]]
    columns = [
        torch.stack([scores[row, ..., column] for row, column in where]).amax(dim=0) for where in places.values()
    ]
    return torch.stack(columns, dim=-1)
