"""The Stanford Sentiment Treebank: sentences with a sentiment from 0 to 4 on every word. Socher et al. 2013.

IMDB: film reviews, negative or positive. Maas et al. 2011.
"""

import gzip
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diffmask.datasets.tables import Columns, DataSet, Example, examples
from diffmask.errors import InputError

SST_NAMES = ("very negative", "negative", "neutral", "positive", "very positive")
ESCAPES = {"-LRB-": "(", "-RRB-": ")"}
LEAF = re.compile(r"\((\d) ([^() ]+)\)")


@dataclass(frozen=True)
class Tree:
    """One sentence: its words, the sentiment of each and of the whole."""

    words: tuple[str, ...]
    sentiments: tuple[int, ...]
    label: int

    @property
    def text(self) -> str:
        """The words with spaces between them, as the treebank was published."""
        return " ".join(self.words)


def parse_tree(line: str) -> Tree:
    """A sentence from its bracketed tree.

    >>> parse_tree("(3 (2 It) (4 (4 works) (2 .)))")
    Tree(words=('It', 'works', '.'), sentiments=(2, 4, 2), label=3)
    """
    # Not str.split: some words hold a no-break space.
    leaves = LEAF.findall(line)
    if not line.startswith("(") or not leaves:
        raise InputError(f"not a tree of the Sentiment Treebank: {line[:60]!r}")
    words = tuple(ESCAPES.get(word, word.replace("\\", "")) for _, word in leaves)
    return Tree(words, tuple(int(sentiment) for sentiment, _ in leaves), int(line[1]))


def trees(folder: Path, split: str) -> Iterator[Tree]:
    """The sentences of `train`, `dev` or `test`, from `trees/SPLIT.txt.gz` or `SPLIT.txt`, packed or not."""
    places = [folder / part / f"{split}.txt{end}" for part in ("trees", "") for end in (".gz", "")]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise InputError(f"there is no {places[0]} (nor {places[-1]}): give the folder of the Sentiment Treebank")
    raw = gzip.decompress(found.read_bytes()) if found.suffix == ".gz" else found.read_bytes()
    for line in raw.decode().strip("\n").split("\n"):
        yield parse_tree(line)


def load_sst(folder: Path, classes: int) -> DataSet:
    """Five classes, or two: without the neutral sentences."""
    found = {}
    for name, split in (("train", "train"), ("valid", "dev"), ("test", "test")):
        kept = (tree for tree in trees(folder, split) if classes == 5 or tree.label != 2)
        found[name] = [Example(tree.text, label=tree.label if classes == 5 else int(tree.label > 2)) for tree in kept]
    return DataSet(**found, names=SST_NAMES if classes == 5 else ("negative", "positive"))


IMDB_NAMES = ("negative", "positive")


def load_imdb(folder: Path) -> DataSet:
    """From tables `imdb_train*`, `imdb_dev*` and `imdb_test*`, or from the folders of aclImdb.

    Of aclImdb's training reviews a fifth, chosen by a hash of the text, are for validation.
    """
    tables = {split: sorted(folder.glob(f"imdb_{split}*.jsonl*")) for split in ("train", "dev", "test")}
    if all(tables.values()):
        train, valid, test = (list(examples(files[0], Columns())) for files in tables.values())
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
