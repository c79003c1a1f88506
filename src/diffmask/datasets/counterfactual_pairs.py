"""Pairs of texts that differ by a minimal edit which changes the label. Kaushik, Hovy and Lipton 2020."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from diffmask.datasets.tables import Example, read_table
from diffmask.errors import InputError
from diffmask.explanation.text_units import Span, is_punctuation, word_spans

EDITS_PER_PAIR = 4
"""Edited versions of each pair of SNLI: two of the premise and two of the hypothesis, one per other label."""
PAIR_COLUMNS = (("text",), ("label", "sentiment"), ("pair", "batch_id"))
"""Names of the columns of a table of pairs, in lower case: the text, its label, and the number that joins two texts."""


@dataclass(frozen=True)
class EditedPair:
    """A text and its edited version, which have different labels."""

    original: Example
    edited: Example


def load_edited_pairs(source: str) -> list[EditedPair]:
    """Read `imdb:FOLDER` or `snli:FOLDER` with counterfactually augmented data, or a table of pairs.

    A table has the columns `text`, `label` and `pair`: two rows with the same `pair` belong together.
    """
    kind, colon, folder = source.partition(":")
    if colon and kind == "imdb":
        return _table_pairs(_only(Path(folder), "cad_sentiment_dev_paired.tsv*"))
    if colon and kind == "snli":
        return list(_snli_pairs(Path(folder)))
    return _table_pairs(Path(source))


def changed_words(text: str, other: str) -> tuple[Span, ...]:
    """Return the words of `text` that are not in the longest matching blocks with `other`.

    Case and punctuation do not count.

    >>> text = "I liked it, a good plot."
    >>> [text[a:b] for a, b in changed_words(text, "I hated it: a bad plot!")]
    ['liked', 'good']
    """
    spans, others = _words(text), _words(other)
    blocks = SequenceMatcher(
        None, [text[a:b].lower() for a, b in spans], [other[a:b].lower() for a, b in others], autojunk=False
    ).get_matching_blocks()
    shared = {place for block in blocks for place in range(block.a, block.a + block.size)}
    return tuple(span for place, span in enumerate(spans) if place not in shared)


def _words(text: str) -> list[Span]:
    return [(first, last) for first, last in word_spans(text) if not is_punctuation(text[first:last])]


def _table_pairs(file: Path) -> list[EditedPair]:
    rows: dict[str, list[Example]] = {}
    for number, row in enumerate(read_table(file), start=1):
        text, label, pair = (_cell(row, names, file, number) for names in PAIR_COLUMNS)
        rows.setdefault(pair, []).append(Example(text, label=label))
    wrong = next((pair for pair, texts in rows.items() if len(texts) != 2), None)
    if wrong is not None or not rows:
        raise InputError(f"{file}: pair '{wrong}' has not two rows" if rows else f"{file} has no rows")
    return [EditedPair(*texts) for texts in rows.values()]


def _cell(row: dict[str, str], names: tuple[str, ...], file: Path, number: int) -> str:
    lower = {name.lower(): value for name, value in row.items()}
    cell = next((lower[name] for name in names if lower.get(name)), None)
    if cell is None:
        raise InputError(f"{file}, row {number}: no column '{names[0]}' with a value; there are {', '.join(row)}")
    return str(cell)


def _snli_pairs(folder: Path) -> Iterator[EditedPair]:
    """Yield every original with each of its edited versions."""
    original = list(read_table(_only(folder, "cad_original_dev.tsv*")))
    revised = list(read_table(_only(folder, "cad_revised_combined_dev.tsv*")))
    if len(revised) != EDITS_PER_PAIR * len(original):
        raise InputError(f"{folder}: {len(revised)} edited pairs for {len(original)}, not {EDITS_PER_PAIR} each")
    for number, row in enumerate(revised):
        source = original[number // EDITS_PER_PAIR]
        yield EditedPair(*(Example(side["sentence1"], side["sentence2"], side["gold_label"]) for side in (source, row)))


def _only(folder: Path, pattern: str) -> Path:
    files = sorted(folder.glob(pattern))
    if not files:
        raise InputError(f"{folder} has no {pattern}: give the folder with counterfactually augmented data")
    return files[0]
