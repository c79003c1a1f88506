"""Tagged sentences in the format of CoNLL: one word and its tag a line, a blank line between sentences.

Spans are read and scored as by seqeval: a span starts at a B- tag, at an I- tag after O, and at an I- tag of another
type; a predicted span counts if its borders and its type are right.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from diffmask.datasets.tables import DataSet, Example, read_lines
from diffmask.errors import InputError
from diffmask.explanation.text_units import Span

OUTSIDE = "O"


@dataclass(frozen=True)
class TaggedSentence(Example):
    """Sentence (`text`: its words with spaces between); `label` holds one tag per word, or None."""

    words: tuple[Span, ...] = ()
    """Characters of each word."""


@dataclass(frozen=True)
class TagSpan:
    """Words `first` to `last` (inclusive) of a sentence, with the type of their tags."""

    kind: str
    first: int
    last: int


def tagged_sentence(words: Sequence[str], tags: Sequence[str] | None = None) -> TaggedSentence:
    """Return a sentence of words that may be tagged."""
    if tags is not None and len(tags) != len(words):
        raise InputError(f"{len(words)} words with {len(tags)} tags; give one tag per word")
    starts = [0, *accumulate(len(word) + 1 for word in words)]
    spans = tuple((start, start + len(word)) for start, word in zip(starts, words, strict=False))
    return TaggedSentence(" ".join(words), None, None if tags is None else tuple(tags), spans)


def read_conll(path: Path) -> Iterator[TaggedSentence]:
    """Yield the sentences of a file whose lines hold a word first and its tag last; `.gz` is decompressed."""
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split()
        if not cells or cells[0].startswith("-DOCSTART-"):
            if words:
                yield tagged_sentence(words, tags)
            words, tags = [], []
            continue
        if len(cells) < 2:
            raise InputError(f"{path}, line {number}: '{cells[0]}' has no tag; a line is a word and its tag")
        words.append(cells[0])
        tags.append(cells[-1])
    if words:
        yield tagged_sentence(words, tags)


def is_conll_file(source: object) -> bool:
    """Return whether a source is the path of a file in the format of CoNLL."""
    name = str(source).removesuffix(".gz")
    return isinstance(source, str | Path) and name.endswith((".conll", ".bio", ".iob", ".iob2"))


def load_conll(folder: Path) -> DataSet:
    """Load the files of a folder by their names: `train`, `dev` or `valid`, and `test`.

    Without test sentences the validation sentences serve as such, and a tenth of the training sentences for validation.
    """
    files = sorted(file for file in folder.iterdir() if is_conll_file(file)) if folder.is_dir() else []
    splits = {
        split: [row for file in files if any(name in file.name for name in names) for row in read_conll(file)]
        for split, names in (("train", ("train",)), ("valid", ("dev", "valid")), ("test", ("test",)))
    }
    train, valid, test = (list[Example](rows) for rows in splits.values())
    if not train or not (valid or test):
        raise InputError(f"{folder} needs files such as train.conll and dev.conll or test.conll")
    if not valid or not test:
        test, valid, train = test or valid, train[9::10], [row for at, row in enumerate(train) if at % 10 != 9]
    tags = sorted({tag for row in [*train, *valid, *test] for tag in row.label} - {OUTSIDE})
    return DataSet(train=train, valid=valid, test=test, names=(OUTSIDE, *tags))


def tag_spans(tags: Sequence[str]) -> list[TagSpan]:
    """Return the spans of a sentence's tags.

    >>> tag_spans(["B-loc", "I-loc", "O", "I-per", "B-per"])
    [TagSpan(kind='loc', first=0, last=1), TagSpan(kind='per', first=3, last=3), TagSpan(kind='per', first=4, last=4)]
    """
    spans: list[TagSpan] = []
    for place, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if tag == OUTSIDE:
            continue
        kind = kind or prefix  # tags without prefix, such as parts of speech
        inside = bool(spans) and spans[-1].last == place - 1 and spans[-1].kind == kind and prefix != "B"
        if inside and prefix == "I":
            spans[-1] = TagSpan(kind, spans[-1].first, place)
        else:
            spans.append(TagSpan(kind, place, place))
    return spans


def span_f1(predicted: Iterable[Sequence[str]], gold: Iterable[Sequence[str]]) -> float:
    """Return the micro-averaged F1 of spans, as seqeval computes it; 0 if there is no span at all.

    >>> span_f1([["B-loc", "I-loc", "O"]], [["B-loc", "I-loc", "B-per"]])
    0.6666666666666666
    """
    predicted_count = wanted = right = 0
    for first, second in zip(predicted, gold, strict=True):
        ours, theirs = set(tag_spans(first)), set(tag_spans(second))
        predicted_count, wanted, right = predicted_count + len(ours), wanted + len(theirs), right + len(ours & theirs)
    return 2 * right / (predicted_count + wanted) if predicted_count + wanted else 0.0
