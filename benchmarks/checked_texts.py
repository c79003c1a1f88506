"""Texts whose explanations are verified: a second measurement of their kept words, and greedy search as a reference.

Nothing here uses the search of the product: its sets are checked one text at a time, with all single removals.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.distributions import Distribution

from diffmask.core.batch import Batch
from diffmask.core.distributions import agreement, divergence
from diffmask.core.explainer import Explainer
from diffmask.core.verification.masks import MaskedTexts, TextUnits, run_searches, select_rows
from diffmask.core.verification.search import Kept, Measurement, Search, SearchResult
from diffmask.explanation.text_units import is_punctuation
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.text.explain_texts import row_words

ROUNDING = 1e-4
"""Nats by which two measurements of one set may differ."""


@dataclass(frozen=True)
class Texts:
    """Texts as a batch, with the token columns of their words and the model's answers."""

    task: TextClassification
    batch: Batch
    units: list[tuple[tuple[int, ...], ...]]
    words: list[tuple[str, ...]]
    answer: Distribution

    @staticmethod
    def of(task: TextClassification, split: str, count: int) -> "Texts":
        """Read `count` texts of a split, spread evenly."""
        total = len(task.texts[split])
        examples = [task.texts[split][number * total // count] for number in range(min(count, total))]
        encoded = task.encode_examples(examples)
        read = [row_words(example, encoded, row) for row, example in enumerate(examples)]
        answer = task.head.distribution(task.logits(encoded.batch))
        return Texts(task, encoded.batch, [row.columns for row in read], [row.words for row in read], answer)

    @property
    def text_units(self) -> list[TextUnits]:
        """Return the words as units, one row per text; punctuation is avoided, as in explanations."""
        return [
            replace(
                TextUnits.of_row(row, columns),
                avoided=tuple(number for number, word in enumerate(words) if is_punctuation(word)),
            )
            for row, (columns, words) in enumerate(zip(self.units, self.words, strict=True))
        ]

    def unit_counts(self, kept: Tensor) -> list[int]:
        """Count the words of which some token is kept."""
        return [sum(bool(row[list(unit)].any()) for unit in units) for row, units in zip(kept, self.units, strict=True)]

    def whole_words(self, kept: Tensor) -> Tensor:
        """Keep every token of a word of which one token is kept."""
        full = torch.zeros_like(self.batch.maskable)
        for row, units in enumerate(self.units):
            for unit in units:
                full[row, list(unit)] = bool(kept[row, list(unit)].any())
        return full


@dataclass(frozen=True)
class Check:
    """Second measurement of kept sets, one text at a time and without any code of the search."""

    holds: list[bool]
    flips: list[bool]
    minimal: list[bool]


def check(explainer: Explainer, texts: Texts, kept: Tensor, margin: float, removals: bool = True) -> Check:
    """Measure each kept set and, by default, all of its single removals."""
    holds, flips, minimal = [], [], []
    for row, units in enumerate(texts.units):
        batch = texts.batch[row : row + 1].trim()
        width = batch.tokens.shape[1]
        mask = kept[row : row + 1, :width]
        inside = [unit for unit in units if mask[0, list(unit)].any()] if removals else []
        masks = mask.repeat(1 + len(inside), 1)
        for number, unit in enumerate(inside, start=1):
            masks[number, list(unit)] = False
        with torch.no_grad():
            original = select_rows(texts.task.predict(batch), torch.zeros(len(masks), dtype=torch.long))
            masked = explainer.predict_kept(batch.repeat(len(masks)), masks, None)
        same = agreement(original, masked).tolist()
        distance = divergence(original, masked).tolist()
        # One text alone and many together differ in the last digits: a set at the very margin is on both sides of it.
        within = [ok and value <= margin + ROUNDING for ok, value in zip(same, distance, strict=True)]
        inner = [ok and value <= margin - ROUNDING for ok, value in zip(same, distance, strict=True)]
        holds.append(within[0])
        flips.append(not same[0])
        minimal.append(not any(inner[1:]))
    return Check(holds, flips, minimal)


def greedy_forward(count: int, original: Measurement, margin: float) -> Search:
    """Add the unit that brings the answer closest, until it holds."""
    kept: Kept = frozenset()
    (best,) = yield [kept]
    rows = 1
    while not best.holds(margin):
        grown = [kept | {unit} for unit in range(count) if unit not in kept]
        if len(grown) <= 1:
            return SearchResult(frozenset(range(count)), original, False, rows)
        measured = yield grown
        rows += len(grown)
        number = min(range(len(grown)), key=lambda n: (not measured[n].holds(margin), measured[n].divergence))
        kept, best = grown[number], measured[number]
    return SearchResult(kept, best, False, rows)


def greedy_backward(count: int, original: Measurement, margin: float) -> Search:
    """Drop the unit whose removal moves the answer least, while it holds."""
    kept, best, rows = frozenset(range(count)), original, 0
    while kept:
        shrunk = [kept - {unit} for unit in sorted(kept)]
        measured = yield shrunk
        rows += len(shrunk)
        holding = [number for number, measurement in enumerate(measured) if measurement.holds(margin)]
        if not holding:
            break
        number = min(holding, key=lambda n: measured[n].divergence)
        kept, best = shrunk[number], measured[number]
    return SearchResult(kept, best, True, rows)


GREEDY = {"forward": greedy_forward, "backward": greedy_backward}


def references(
    explainer: Explainer, texts: Texts, margin: float, cache: Path, directions: Sequence[str]
) -> dict[str, list[tuple[int, int]]]:
    """Return the size of the set and the rows of greedy search on the model, for each direction and text."""
    file = cache / f"greedy-{texts.task.fingerprint()}-{len(texts.batch)}-{margin}-{'-'.join(directions)}.json"
    if file.exists():
        return {name: [(size, rows) for size, rows in pairs] for name, pairs in json.loads(file.read_text()).items()}
    copies = MaskedTexts(
        lambda batch, kept: explainer.predict_kept(batch, kept, None), texts.batch, texts.answer, texts.text_units
    )
    results = {}
    for direction in directions:
        searches = [
            GREEDY[direction](len(units), original, margin)
            for units, original in zip(texts.units, copies.originals(), strict=True)
        ]
        with torch.no_grad():
            results[f"greedy {direction}"] = [
                (len(result.kept), result.sets) for result in run_searches(searches, copies.measure)
            ]
    file.write_text(json.dumps(results))
    return results
