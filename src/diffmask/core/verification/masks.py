"""Verify explanations on the model itself: find, per text, a smallest set of units that keeps the answer.

A verified set is *sufficient*: with only its units kept, KL(original || masked) <= margin and the prediction is the
same. It is *1-minimal*: every single removal was measured to break one of the two. Any method's scores will do: they
only order the units. The candidate sets of many texts go through the model together, sorted by length.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, Normal

from diffmask.core.answers import TokenCategoricals
from diffmask.core.batch import Batch
from diffmask.core.distributions import (
    agreement,
    divergence,
    flat_logits,
    flatten_features,
    from_logits,
    log_odds,
    predicted_outcome,
    with_base,
)
from diffmask.core.progress import progress_bar
from diffmask.core.resources import AdaptiveBatchSize
from diffmask.core.verification.search import Kept, Measurement, Search, SearchConfig, SearchResult, search_minimal_set
from diffmask.errors import InputError, TaskError

MaskedPredictor = Callable[[Batch, Bool[Tensor, "row token"]], Distribution]
"""The model's answer when every maskable token that is not kept is erased."""

TOKENS_AT_ONCE = 4096
"""Tokens per forward pass, padding included."""


@dataclass(frozen=True)
class TextUnits:
    """The words, sentences or tokens of one text that are kept or erased as a whole."""

    rows: tuple[int, ...]
    """Rows of the batch that the text was read as: several where a long text was cut into overlapping parts."""
    tokens: tuple[tuple[tuple[int, int], ...], ...]
    """For each unit the row and column of each of its tokens."""
    avoided: tuple[int, ...] = ()
    """Units such as punctuation: of two sets of one size, the one with fewer of them is better."""

    @staticmethod
    def of_row(row: int, columns: Iterable[Iterable[int]]) -> "TextUnits":
        """Return the units of a text that is one row, given the token columns of each unit."""
        return TextUnits((row,), tuple(tuple((row, column) for column in unit) for unit in columns))

    def order(self, scores: Float[Tensor, "row token"]) -> list[int]:
        """Return the units from most to least important: by the largest score of their tokens, ties by position.

        >>> TextUnits.of_row(0, [[1], [2, 3]]).order(torch.tensor([[0.0, 0.3, 0.1, 0.9]]))
        [1, 0]
        """
        largest = [max(float(scores[row, column]) for row, column in unit) for unit in self.tokens]
        return sorted(range(len(self.tokens)), key=lambda unit: -largest[unit])


@dataclass(frozen=True)
class VerifiedMasks:
    """The smallest sufficient set found for each text, as it was measured on the model."""

    kept: Bool[Tensor, "row token"]
    """Maskable tokens that stay; all other maskable tokens were erased."""
    divergence: Float[Tensor, " text"]
    """KL(original || masked) in nats; the mean over the rows of a text."""
    same_prediction: Bool[Tensor, " text"]
    minimal: Bool[Tensor, " text"]
    """Whether every single removal was measured to break the margin or the prediction."""
    holds_empty: Bool[Tensor, " text"]
    """Whether the answer holds with nothing kept: the model answers so whatever the text says."""
    rows_used: Int[Tensor, " text"]
    """Masked rows of each text that went through the model."""
    units: tuple[tuple[int, ...], ...]
    """Numbers of the units that stay, for each text."""
    answer: Distribution
    """The model's answer to each row of the batch with only these tokens kept."""

    def __len__(self) -> int:
        return len(self.units)

    def select(self, text: int, rows: Sequence[int]) -> "VerifiedMasks":
        """Return the masks of one text, given its rows of the batch."""
        one, places = slice(text, text + 1), torch.tensor(rows)
        return VerifiedMasks(
            self.kept[places],
            self.divergence[one],
            self.same_prediction[one],
            self.minimal[one],
            self.holds_empty[one],
            self.rows_used[one],
            self.units[one],
            select_rows(self.answer, places),
        )


@torch.no_grad()
def verify(
    masked: MaskedPredictor,
    batch: Batch,
    answer: Distribution,
    scores: Float[Tensor, "row token"],
    texts: Sequence[TextUnits],
    margin: float,
    config: SearchConfig | None = None,
) -> VerifiedMasks:
    """Find for every text a small, 1-minimal set of units with KL(answer || masked) <= margin and the same prediction.

    `answer` is the model's unmasked answer to `batch`. The units of a text are tried in the order of their largest
    token score. Maskable tokens that belong to no unit are always kept.
    """
    if margin < 0:
        raise InputError(f"the margin is a divergence in nats and not negative; found {margin}")
    copies = MaskedTexts(masked, batch, answer, texts)
    values = scores.cpu()
    searches = [
        search_minimal_set(
            text.order(values), original, margin, config, rows_per_set=len(text.rows), avoided=text.avoided
        )
        for text, original in zip(texts, copies.originals(), strict=True)
    ]
    return _masks(copies, run_searches(searches, copies.measure))


def run_searches(
    searches: Sequence[Search],
    measure: Callable[[list[tuple[int, Kept]]], list[Measurement]],
    label: str = "verify which words are enough",
) -> list[SearchResult]:
    """Advance all searches together: their sets are measured in common batches until every search is done.

    `measure` is given pairs of a search's number and a set. The number of finished searches is shown under the label.
    """
    results: dict[int, SearchResult] = {}

    def advance(number: int, measurements: list[Measurement] | None) -> list[Kept]:
        try:
            return next(searches[number]) if measurements is None else searches[number].send(measurements)
        except StopIteration as end:
            results[number] = end.value
            finished.update()
            return []

    with progress_bar(range(len(searches)), label) as finished:
        wanted = {number: advance(number, None) for number in range(len(searches))}
        while any(wanted.values()):
            items = [(number, kept) for number, sets in wanted.items() for kept in sets]
            measurements = iter(measure(items))
            wanted = {
                number: advance(number, [next(measurements) for _ in sets]) for number, sets in wanted.items() if sets
            }
    return [results[number] for number in range(len(searches))]


class MaskedTexts:
    """Masked copies of texts, measured against the model's answer to the unmasked texts."""

    def __init__(self, masked: MaskedPredictor, batch: Batch, answer: Distribution, texts: Sequence[TextUnits]) -> None:
        self.masked, self.batch, self.answer, self.texts = masked, batch, answer, texts
        self.portion = AdaptiveBatchSize(max(1, TOKENS_AT_ONCE // batch.tokens.shape[1]))
        self.lengths = batch.present.sum(dim=1)
        # Tokens of no unit, such as a lone space, always stay.
        self.always = batch.maskable.clone()
        for text in texts:
            for unit in text.tokens:
                for row, column in unit:
                    self.always[row, column] = False

    def originals(self) -> list[Measurement]:
        """Return each text's measurement with everything kept, which needs no forward pass."""
        rows = _measurements(self.answer, self.answer)
        return [_mean([rows[row] for row in text.rows]) for text in self.texts]

    def measure(self, items: list[tuple[int, Kept]]) -> list[Measurement]:
        """Measure each pair of a text and its kept units; rows go through the model in order of length."""
        rows = torch.tensor([row for text, _ in items for row in self.texts[text].rows])
        kept = self.tokens_of(items)
        order = self.lengths[rows].argsort(stable=True)

        def work(some: slice) -> list[Measurement]:
            places = order[some]
            part = self.batch[rows[places]].trim()
            answer = self.masked(part, kept[places, : part.tokens.shape[1]])
            return _measurements(select_rows(self.answer, rows[places]), answer)

        measured = [one for part in self.portion.split(len(rows), work) for one in part]
        by_row = iter([measured[place] for place in order.argsort().tolist()])
        return [_mean([next(by_row) for _ in self.texts[text].rows]) for text, _ in items]

    def tokens_of(self, items: list[tuple[int, Kept]]) -> Bool[Tensor, "row token"]:
        """Return the token masks of pairs of a text and its kept units: one for each of the text's rows."""
        rows = [(item, row) for item, (text, _) in enumerate(items) for row in self.texts[text].rows]
        place = {pair: number for number, pair in enumerate(rows)}
        kept = self.always[[row for _, row in rows]]
        inside = [
            (place[item, row], column)
            for item, (text, chosen) in enumerate(items)
            for unit in chosen
            for row, column in self.texts[text].tokens[unit]
        ]
        if inside:
            lines, columns = zip(*inside, strict=True)
            kept[list(lines), list(columns)] = True
        return kept


def _measurements(original: Distribution, changed: Distribution) -> list[Measurement]:
    """Return one measurement per row."""
    distance = divergence(original, changed)
    lead = flatten_features(log_odds(changed, predicted_outcome(original))).sum(dim=1)
    # A predicted number is never exactly the same: there the margin alone decides.
    same = agreement(original, changed) if _is_discrete(original) else torch.ones_like(distance, dtype=torch.bool)
    values = zip(distance.tolist(), same.tolist(), lead.tolist(), flat_logits(changed).split(1), strict=True)
    return [Measurement(*row) for row in values]


def _is_discrete(answer: Distribution) -> bool:
    return bool(getattr(answer.support, "is_discrete", True))


def _mean(parts: Sequence[Measurement]) -> Measurement:
    """Return the measurement of a text: the mean over its rows; the prediction is the same if it is in every row."""
    if len(parts) == 1:
        return parts[0]
    return Measurement(
        sum(part.divergence for part in parts) / len(parts),
        all(part.same_prediction for part in parts),
        sum(part.log_odds for part in parts) / len(parts),
        torch.cat([logits_of(part) for part in parts]),
    )


def logits_of(measurement: Measurement) -> Float[Tensor, "row feature"]:
    """Return the stored logits of a measurement, one row per row of its text."""
    if measurement.logits is None:
        raise TaskError("the logits of this measurement were dropped; only those of a search's best set are stored")
    return measurement.logits


def _masks(copies: MaskedTexts, results: Sequence[SearchResult]) -> VerifiedMasks:
    device = copies.batch.tokens.device
    kept, logits = copies.always.clone(), flat_logits(copies.answer).clone()
    rows = [row for text in copies.texts for row in text.rows]
    kept[rows] = copies.tokens_of([(text, result.kept) for text, result in enumerate(results)])
    if rows:
        logits[rows] = torch.cat([logits_of(result.measurement) for result in results])
    rows_used = [result.sets * len(text.rows) for text, result in zip(copies.texts, results, strict=True)]
    return VerifiedMasks(
        kept=kept,
        divergence=torch.tensor([result.measurement.divergence for result in results], device=device),
        same_prediction=torch.tensor([result.measurement.same_prediction for result in results], device=device),
        minimal=torch.tensor([result.minimal for result in results], device=device),
        holds_empty=torch.tensor([not result.kept for result in results], device=device),
        rows_used=torch.tensor(rows_used, device=device),
        units=tuple(tuple(sorted(result.kept)) for result in results),
        answer=from_logits(copies.answer, logits),
    )


@singledispatch
def select_rows(answer: Distribution, rows: Int[Tensor, " item"]) -> Distribution:
    """Return the distribution of some rows, in the order given and as often as given."""
    raise TaskError(
        f"rows of {type(answer).__name__} cannot be selected; "
        "register it with diffmask.core.verification.masks.select_rows"
    )


@select_rows.register
def _(answer: Bernoulli, rows: Tensor) -> Distribution:
    return Bernoulli(logits=answer.logits[rows], validate_args=False)


@select_rows.register
def _(answer: Categorical, rows: Tensor) -> Distribution:
    return Categorical(logits=answer.logits[rows], validate_args=False)


@select_rows.register
def _(answer: Normal, rows: Tensor) -> Distribution:
    return Normal(answer.loc[rows], answer.scale[rows], validate_args=False)


@select_rows.register
def _(answer: TokenCategoricals, rows: Tensor) -> Distribution:
    return TokenCategoricals(answer.base_dist.logits[rows], answer.scored[rows])


@select_rows.register(Independent)
def _(answer: Any, rows: Tensor) -> Distribution:
    return with_base(answer, select_rows(answer.base_dist, rows))
