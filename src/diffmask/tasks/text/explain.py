"""Explanations of texts: rows that were one long text are put together again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.core.batch import Attribution, Batch
from diffmask.core.distributions import average, divergence
from diffmask.core.explainer import Explainer
from diffmask.core.verification.masks import TextUnits, VerifiedMasks
from diffmask.core.verification.masks import verify as verify_units
from diffmask.datasets.tables import Example
from diffmask.explanation.explanation import Explanation, Prediction, split_units
from diffmask.explanation.text_units import ReadRow, Token, Unit
from diffmask.explanation.verified_set import VerifiedSet
from diffmask.tasks.text.encoding import EncodedBatch

if TYPE_CHECKING:
    from diffmask.tasks.classification import TextClassification

MARGIN = 0.1
"""Largest KL(original || masked) of a verified set, in nats, for methods without a margin of their own."""
TOKENS_AT_ONCE = 2_048
"""With their padding, however long the rows are: enough to keep a processor busy, and memory stays as it is."""


def explain_examples(
    task: "TextClassification", explainer: Explainer, examples: Sequence[Example], *, verify: bool = False
) -> list[Explanation]:
    """Explain each text; with `verify` the words that are enough are searched for on the model."""
    if not examples:
        return []
    encoded = task.read(examples)
    rows_at_once = max(1, min(256, TOKENS_AT_ONCE // encoded.batch.tokens.shape[1]))
    numbers, attribution = explainer.explain_with_answer(encoded.batch, rows_at_once=rows_at_once)
    rows_of: dict[int, list[int]] = {}
    for row, source in enumerate(encoded.sources):
        rows_of.setdefault(source, []).append(row)
    texts = [
        _Text(task, explainer, example, encoded, rows)
        for example, rows in zip(examples, (rows_of[number] for number in range(len(examples))), strict=True)
    ]
    explanations = [_explanation(text, numbers, attribution) for text in texts]
    return verified_explanations(texts, explanations, numbers, attribution) if verify else explanations


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

    def units(self, units: Sequence[Unit]) -> TextUnits:
        """Return the rows and columns of the tokens of each unit."""
        places = list(self.places.values())
        columns = [[(self.rows[line], column) for t in unit.tokens for line, column in places[t]] for unit in units]
        return TextUnits(tuple(self.rows), tuple(map(tuple, columns)))

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
        verifier=lambda units: verified_sets([text], [units], numbers, attribution)[0],
    )


def verified_explanations(
    texts: Sequence[_Text],
    explanations: Sequence[Explanation],
    numbers: Float[Tensor, "row feature"],
    attribution: Attribution,
) -> list[Explanation]:
    """Add to each explanation the smallest set of its units that is measured to be enough."""
    sets = verified_sets(texts, [explanation.units for explanation in explanations], numbers, attribution)
    return [replace(explanation, verified=verified) for explanation, verified in zip(explanations, sets, strict=True)]


def verified_sets(
    texts: Sequence[_Text],
    units: Sequence[tuple[Unit, ...]],
    numbers: Float[Tensor, "row feature"],
    attribution: Attribution,
) -> list[VerifiedSet]:
    """Search the sets of several texts together."""
    explainer = texts[0].explainer
    margin = float(getattr(explainer.config, "margin", MARGIN))
    masks = verify_units(
        lambda batch, kept: explainer.predict_kept(batch, kept, None),
        texts[0].encoded.batch,
        texts[0].task.head.answer(numbers),
        attribution.scores,
        [text.units(text_units) for text, text_units in zip(texts, units, strict=True)],
        margin,
    )
    return [
        _verified_set(text, text_units, masks, number, margin)
        for number, (text, text_units) in enumerate(zip(texts, units, strict=True))
    ]


def _verified_set(
    text: _Text, units: tuple[Unit, ...], masks: VerifiedMasks, number: int, margin: float
) -> VerifiedSet:
    chosen = masks.units[number]
    outside = torch.ones(len(text.places), dtype=torch.bool)
    outside[[token for unit in units for token in unit.tokens]] = False
    return VerifiedSet(
        words=tuple(units[unit].text for unit in chosen),
        kept=tuple(unit in chosen for unit in range(len(units))),
        kl=float(masks.divergence[number]),
        margin=margin,
        same_prediction=bool(masks.same_prediction[number]),
        minimal=bool(masks.minimal[number]),
        rows=int(masks.rows_used[number]),
        prior=None if chosen else str(text.measure(outside, None)[1]),
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
