"""Words that people edited to change the answer: does an explanation rank them first?

The words are known to matter to the model where its prediction changes with the edit. Other pairs are left out.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from diffmask.core.batch import spread_indices
from diffmask.core.distributions import predicted_outcome
from diffmask.core.explainer import Method
from diffmask.core.resources import Cost
from diffmask.datasets.counterfactual_pairs import EditedPair, changed_words, load_edited_pairs
from diffmask.datasets.tables import Example
from diffmask.errors import ConfigError, InputWarning, TaskError
from diffmask.explanation.text_units import Unit, is_punctuation, split_units
from diffmask.metrics.metric import Metric, record_of
from diffmask.results.benchmark_result import MetricInfo
from diffmask.results.records import Record
from diffmask.tasks.text.encoding import EncodedBatch
from diffmask.tasks.text.explain_texts import token_positions
from diffmask.tasks.text.text_task import TextTask
from diffmask.workspace.workspace import CachedAttribution, Workspace

Edits = tuple[tuple[int, int, int], ...]
"""Segment, start and end of each changed word; segment 1 is the second text of a pair."""


@dataclass(frozen=True, kw_only=True)
class CounterfactualEdits(Metric):
    """Precision of the k highest-scoring words for the k words that an edit changed, where it changes the prediction.

    Both texts of a pair are explained. The score of a word is the maximum over its tokens; punctuation has no score.
    """

    name: ClassVar[str] = "counterfactual-edits"
    infos: ClassVar[tuple[MetricInfo, ...]] = (
        MetricInfo(
            name="edited_precision",
            title="precision for edited words",
            higher_is_better=True,
            definition="share of edited words among the k highest-scoring words, k the number of edited words",
            interpretation="The highest scores lie on the words whose edit changed the prediction.",
            limitation="An edit may change more words than the model needs, and the model may use others as well.",
        ),
    )

    pairs: str = ""
    """Pairs of texts: `imdb:FOLDER` or `snli:FOLDER` with counterfactual data, or a table with text, label and pair."""
    most: int = 200
    """Largest number of pairs, evenly spaced."""

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ConfigError(f"{self.name}: most must be at least 1, found {self.most}")

    def run(self, method: Method, workspace: Workspace) -> Iterator[Record]:
        """Yield the mean precision over the texts of all pairs whose prediction changes."""
        task = workspace.task()
        if not self.pairs:
            raise ConfigError(f"{self.name}: give the pairs, such as pairs=imdb:FOLDER")
        if not isinstance(task, TextTask):
            raise TaskError(f"{self.name} needs a task on texts, not {type(task).__name__}")
        pairs = load_edited_pairs(self.pairs)
        texts = flipped_texts(task, [pairs[index] for index in spread_indices(len(pairs), self.most)])
        if not texts:
            return
        explainer = workspace.explainer(method)
        examples = [example for example, _ in texts]
        encoded = _encode(task, examples)
        attribution = explainer(encoded.batch)
        values = []
        for row, (example, edited) in enumerate(texts):
            units = _scored_units(example, encoded, row)
            scores = [_score(unit, attribution.scores[row], columns) for unit, columns in units]
            marked = [_touches(unit, edited) for unit, _ in units]
            if 0 < sum(marked) < len(marked):
                values.append(precision_at_marked(torch.tensor(scores), torch.tensor(marked)))
        if values:
            explained = CachedAttribution(attribution, Cost(), explainer.fit_cost)
            yield record_of(
                workspace, method, explained, "input", "edited_precision", torch.tensor(values), keep_rows=True
            )


def flipped_texts(task: TextTask, pairs: Sequence[EditedPair]) -> list[tuple[Example, Edits]]:
    """Return the texts of the pairs whose prediction differs, each with the words that the edit changed."""
    with torch.no_grad():
        sides = [_encode(task, [getattr(pair, side) for pair in pairs]) for side in ("original", "edited")]
        first, second = (predicted_outcome(task.distribution(task.logits(side.batch))) for side in sides)
    differs = (first != second).reshape(len(pairs), -1).any(dim=1).tolist()
    texts = []
    for pair, differ in zip(pairs, differs, strict=True):
        for text, other in ((pair.original, pair.edited), (pair.edited, pair.original)) if differ else ():
            texts.append((text, _edited_spans(text, other)))
    return texts


def precision_at_marked(scores: Float[Tensor, " word"], marked: Tensor) -> float:
    """Return the share of marked words among the k highest scores, k the number of marked words.

    Words that tie at the edge count by the share of them that fits.

    >>> precision_at_marked(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([True, True, False]))
    0.5
    >>> precision_at_marked(torch.tensor([1.0, 1.0]), torch.tensor([True, False]))
    0.5
    """
    count = int(marked.sum())
    edge = scores.sort(descending=True).values[count - 1]
    above, tied = scores > edge, scores == edge
    share = (count - int(above.sum())) / int(tied.sum())
    return float((above & marked).sum() + share * (tied & marked).sum()) / count


def _edited_spans(text: Example, other: Example) -> Edits:
    """Return the changed words of a text, or of both texts of a pair."""
    spans = [(0, *span) for span in changed_words(text.text, other.text)]
    return (*spans, *((1, *span) for span in changed_words(text.pair or "", other.pair or "")))


def _encode(task: TextTask, examples: Sequence[Example]) -> EncodedBatch:
    """Encode texts without their labels, whose names may not be those of the model; long texts are cut."""
    unlabelled = [Example(example.text, example.pair) for example in examples]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        encoded = task.encode_examples(unlabelled)
    first = [encoded.sources.index(number) for number in range(len(examples))]
    return EncodedBatch(
        encoded.batch[torch.tensor(first)], list(range(len(examples))), [encoded.encodings[row] for row in first]
    )


def _scored_units(example: Example, encoded: EncodedBatch, row: int) -> list[tuple[Unit, list[int]]]:
    """Return the words of a text, without punctuation, and the columns of its tokens."""
    positions = token_positions(encoded, [row])
    columns = [places[0][1] for places in positions.values()]
    units = split_units(example.text, example.pair, tuple(positions), "word")
    return [(unit, columns) for unit in units if not is_punctuation(unit.text)]


def _score(unit: Unit, scores: Float[Tensor, " token"], columns: Sequence[int]) -> float:
    return max(float(scores[columns[token]]) for token in unit.tokens)


def _touches(unit: Unit, edited: Edits) -> bool:
    first, last = unit.span
    return any(segment == unit.segment and start < last and first < end for segment, start, end in edited)
