"""Word vectors in the text format of word2vec, GloVe and fastText: a word and its numbers per line."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from diffmask.datasets.tables import read_lines
from diffmask.errors import InputError
from diffmask.results.records import write_text

Vectors = Float32[np.ndarray, "word size"]


def load_word_vectors(file: Path, words: Sequence[str]) -> Vectors:
    """Return a vector per word, zero for a word that the file does not contain.

    A first line with two numbers is the header of word2vec and fastText: the number of words and their width.
    """
    row_of = {word: row for row, word in enumerate(words)}
    vectors: Vectors | None = None
    for line, word, numbers in _entries(file):
        if vectors is None:
            vectors = np.zeros((len(words), len(numbers)), np.float32)
        if len(numbers) != vectors.shape[1]:
            raise InputError(f"{file}, line {line}: {len(numbers)} numbers, but {vectors.shape[1]} on the first line")
        if word in row_of:
            vectors[row_of[word]] = _parse(numbers, file, line)
    if vectors is None:
        raise InputError(f"{file} has no word vectors; a line is a word and its numbers, separated by spaces")
    if not vectors.any():
        raise InputError(f"{file} has a vector of none of the {len(words)} words")
    return vectors


def write_word_vectors(file: Path, words: Sequence[str], vectors: Vectors) -> None:
    """Write vectors with the header of word2vec, atomically."""
    lines = (f"{word} {' '.join(f'{value:.5g}' for value in row)}" for word, row in zip(words, vectors, strict=True))
    write_text(file, "\n".join([f"{len(words)} {vectors.shape[1]}", *lines, ""]))


def _entries(file: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the line number, the word and the numbers as text."""
    for line, text in enumerate(read_lines(file), start=1):
        word, *numbers = text.rstrip().split(" ")
        is_header = line == 1 and len(numbers) == 1 and word.isdecimal()
        if numbers and not is_header:
            yield line, word, numbers


def _parse(numbers: Sequence[str], file: Path, line: int) -> Float32[np.ndarray, " size"]:
    try:
        vector = np.array(numbers, np.float32)
    except ValueError:
        raise InputError(f"{file}, line {line}: not a word and its numbers: {' '.join(numbers)[:60]!r}") from None
    if not np.isfinite(vector).all():
        raise InputError(f"{file}, line {line}: a number is not finite")
    return vector
