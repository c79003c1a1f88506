"""Sentiment of film reviews: the Stanford Sentiment Treebank (Socher et al. 2013) and IMDB (Maas et al. 2011).

The treebank labels every word and phrase of a sentence from 0 to 4; IMDB labels whole reviews negative or positive.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diffmask.datasets.tables import Columns, DataSet, Example, read_examples, read_lines
from diffmask.errors import InputError

SST_NAMES = ("very negative", "negative", "neutral", "positive", "very positive")
BRACKETS = {"-LRB-": "(", "-RRB-": ")"}
LEAF = re.compile(r"\((\d) ([^() ]+)\)")


@dataclass(frozen=True)
class Tree:
    """Sentence of the treebank: its words, the sentiment of each word and of the sentence."""

    words: tuple[str, ...]
    sentiments: tuple[int, ...]
    label: int

    @property
    def text(self) -> str:
        """Words joined by spaces, as the treebank is published."""
        return " ".join(self.words)


def parse_tree(line: str) -> Tree:
    """Parse a sentence from its bracketed tree.

    >>> parse_tree("(3 (2 It) (4 (4 works) (2 .)))")
    Tree(words=('It', 'works', '.'), sentiments=(2, 4, 2), label=3)
    """
    # Not str.split: some words contain a no-break space.
    leaves = LEAF.findall(line)
    if not line.startswith("(") or not leaves:
        raise InputError(f"not a tree of the Sentiment Treebank: {line[:60]!r}")
    words = tuple(BRACKETS.get(word, word.replace("\\", "")) for _, word in leaves)
    return Tree(words, tuple(int(sentiment) for sentiment, _ in leaves), int(line[1]))


def read_trees(folder: Path, split: str) -> Iterator[Tree]:
    """Yield the sentences of `train`, `dev` or `test`, from `trees/SPLIT.txt` or `SPLIT.txt`, with or without `.gz`."""
    candidates = [folder / inner / f"{split}.txt{end}" for inner in ("trees", "") for end in (".gz", "")]
    file = next((path for path in candidates if path.is_file()), None)
    if file is None:
        raise InputError(f"there is no {candidates[0]} (nor {candidates[-1]}): give the folder of the treebank")
    for line in read_lines(file):
        if line.strip("\r\n"):
            yield parse_tree(line)


def load_sst(folder: Path, classes: int) -> DataSet:
    """Load the sentences in five classes, or in two without the neutral ones."""
    splits = {}
    for name, split in (("train", "train"), ("valid", "dev"), ("test", "test")):
        trees = (tree for tree in read_trees(folder, split) if classes == 5 or tree.label != 2)
        splits[name] = [Example(tree.text, label=tree.label if classes == 5 else int(tree.label > 2)) for tree in trees]
    return DataSet(**splits, names=SST_NAMES if classes == 5 else ("negative", "positive"))


IMDB_NAMES = ("negative", "positive")


def load_imdb(folder: Path) -> DataSet:
    """Load the tables `imdb_train*`, `imdb_dev*` and `imdb_test*`, or the folders of aclImdb.

    A hash of the text assigns a fifth of aclImdb's training reviews to the validation split.
    """
    tables = {split: sorted(folder.glob(f"imdb_{split}*.jsonl*")) for split in ("train", "dev", "test")}
    if all(tables.values()):
        train, valid, test = (list(read_examples(files[0], Columns())) for files in tables.values())
        return DataSet(train=train, valid=valid, test=test, names=IMDB_NAMES)
    if (folder / "train" / "pos").is_dir():
        rows = list(_reviews(folder / "train"))
        held_out = [hashlib.sha256(row.text.encode()).digest()[0] % 5 == 0 for row in rows]
        return DataSet(
            train=[row for row, held in zip(rows, held_out, strict=True) if not held],
            valid=[row for row, held in zip(rows, held_out, strict=True) if held],
            test=list(_reviews(folder / "test")),
            names=IMDB_NAMES,
        )
    raise InputError(f"{folder} holds neither imdb_train*.jsonl (with dev and test) nor aclImdb's train/pos")


def _reviews(folder: Path) -> Iterator[Example]:
    for label, name in enumerate(("neg", "pos")):
        for file in sorted((folder / name).glob("*.txt")):
            yield Example(file.read_text(encoding="utf-8"), label=label)
