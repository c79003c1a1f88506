"""Named data sets, and tables of the reader's own, as three splits: train, valid, test."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from diffmask.data import packaged, snli, sst
from diffmask.data.tables import Columns, Example, examples, rows_of_file
from diffmask.errors import InputError, nearest

Splits = dict[str, list[Example]]


def load_splits(name: str, columns: Columns) -> Splits:
    """The splits that a name stands for.

    `rotten-tomatoes` and `imdb-reviews` are packaged; `sst2:FOLDER`, `sst5:FOLDER` and `snli:FOLDER` read a folder; a
    path to a table is split by a hash of its texts; a folder holds a table for each split.
    """
    kind, colon, folder = name.partition(":")
    if colon and kind in FOLDERS:
        return FOLDERS[kind](Path(folder))
    if name in PACKAGED:
        table = rows_of_file(packaged.reviews())
        return by_hash(examples((row for row in table if row["source"] == PACKAGED[name]), Columns()))
    if Path(name).is_dir():
        return _folder(Path(name), columns)
    if not Path(name).is_file():
        known = [*PACKAGED, *(f"{kind}:FOLDER" for kind in FOLDERS)]
        raise InputError(f"'{name}' is neither a data set nor a table's path; {nearest(name, known)}")
    return by_hash(examples(name, columns))


def by_hash(rows: Iterable[Example]) -> Splits:
    """80, 10 and 10 % of the rows; a text is always in the same split, whatever stands beside it."""
    parts: Splits = {"train": [], "valid": [], "test": []}
    for row in rows:
        tenth = hashlib.sha256(f"{row.text}\0{row.pair or ''}".encode()).digest()[0] * 10 // 256
        parts["valid" if tenth == 8 else "test" if tenth == 9 else "train"].append(row)
    return parts


def _folder(folder: Path, columns: Columns) -> Splits:
    found = {}
    for split in ("train", "valid", "test"):
        files = sorted(folder.glob(f"{split}.*"))
        if not files:
            raise InputError(f"{folder} has no table '{split}.csv' (or .tsv, .jsonl, .parquet)")
        found[split] = list(examples(files[0], columns))
    return found


PACKAGED = {"rotten-tomatoes": "rotten_tomatoes", "imdb-reviews": "imdb"}
FOLDERS: Mapping[str, Callable[[Path], Splits]] = {
    "sst2": lambda folder: sst.splits(folder, classes=2),
    "sst5": lambda folder: sst.splits(folder, classes=5),
    "snli": snli.splits,
}
