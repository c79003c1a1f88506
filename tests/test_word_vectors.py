"""Files of word vectors: two headers, missing words, and files that cannot be read."""

from pathlib import Path

import numpy as np
import pytest

from diffmask.datasets.word_vectors import load_word_vectors, write_word_vectors
from diffmask.errors import InputError


@pytest.mark.parametrize("header", ["", "2 3\n"])
def test_a_word_has_the_numbers_of_its_line_and_an_unknown_word_zeros(tmp_path: Path, header: str) -> None:
    file = tmp_path / "words.vec"
    file.write_text(f"{header}film 1 -2.5 3e-1\nplot 4 5 6\n")
    vectors = load_word_vectors(file, ["plot", "acting", "film"])
    np.testing.assert_allclose(vectors, np.array([[4, 5, 6], [0, 0, 0], [1, -2.5, 0.3]]))


def test_written_vectors_are_read_again(tmp_path: Path) -> None:
    words, vectors = ["a", "caf\u00e9"], np.array([[0.25, -1.5], [3e-05, 7.0]], np.float32)
    write_word_vectors(tmp_path / "own.vec", words, vectors)
    np.testing.assert_allclose(load_word_vectors(tmp_path / "own.vec", words), vectors, rtol=1e-4)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no word vectors"),
        ("film 1 2\nplot 1\n", "line 2: 1 numbers, but 2"),
        ("film 1 two\n", "line 1: not a word and its numbers"),
        ("film 1 nan\n", "line 1: a number is not finite"),
        ("other 1 2\n", "has a vector of none of the 1 words"),
    ],
)
def test_a_file_that_cannot_be_used_says_where(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "words.vec"
    file.write_text(text)
    with pytest.raises(InputError, match=problem):
        load_word_vectors(file, ["film"])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.vec"):
        load_word_vectors(tmp_path / "nowhere.vec", ["film"])
