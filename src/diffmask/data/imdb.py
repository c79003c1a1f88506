"""IMDB: film reviews, negative or positive. Maas et al. 2011."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from diffmask.data.tables import Columns, DataSet, Example, examples
from diffmask.errors import InputError

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
