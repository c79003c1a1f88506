"""Named data sets, and tables of the reader's own, as three splits: train, valid, test."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from diffmask.data.eraser import load_eraser
from diffmask.data.hub import load_hub
from diffmask.data.imdb import load_imdb
from diffmask.data.mimic import load_mimic
from diffmask.data.packaged import packaged_reviews
from diffmask.data.snli import load_snli
from diffmask.data.sst import load_sst
from diffmask.data.tables import Columns, DataSet, Example, examples, rows_of_file
from diffmask.errors import InputError, nearest

PACKAGED = {"rotten-tomatoes": "rotten_tomatoes", "imdb-reviews": "imdb"}
FOLDERS: Mapping[str, Callable[[Path], DataSet]] = {
    "sst2": lambda folder: load_sst(folder, classes=2),
    "sst5": lambda folder: load_sst(folder, classes=5),
    "snli": load_snli,
    "eraser": load_eraser,
    "imdb": load_imdb,
    "mimic-diabetes": lambda folder: load_mimic(folder, "diabetes"),
    "mimic-anemia": lambda folder: load_mimic(folder, "anemia"),
}


def load_data(name: str, columns: Columns) -> DataSet:
    """The data set that a name stands for.

    `rotten-tomatoes` and `imdb-reviews` are packaged; `sst2:FOLDER`, `sst5:FOLDER`, `snli:FOLDER` and
    `eraser:FOLDER` (or its archive) read a folder; `hub:OWNER/NAME` asks the Hugging Face hub; a path to a table is
    split by a hash of its texts; a folder holds a table for each split.
    """
    kind, colon, folder = name.partition(":")
    if colon and kind == "hub":
        return filled(load_hub(folder, columns))
    if colon and kind in FOLDERS:
        return FOLDERS[kind](Path(folder))
    if name in PACKAGED:
        rows = (row for row in rows_of_file(packaged_reviews()) if row["source"] == PACKAGED[name])
        return by_hash(examples(rows, Columns()), ("negative", "positive"))
    if Path(name).is_dir():
        return _folder(Path(name), columns)
    if not Path(name).is_file():
        known = [*PACKAGED, *(f"{kind}:FOLDER" for kind in FOLDERS), "hub:OWNER/NAME"]
        raise InputError(f"'{name}' is neither a data set nor a table's path; {nearest(name, known)}")
    return by_hash(examples(name, columns))


def by_hash(rows: Iterable[Example], names: tuple[str, ...] = ()) -> DataSet:
    """80, 10 and 10 % of the rows; a text is always in the same split, whatever stands beside it."""
    parts: dict[str, list[Example]] = {"train": [], "valid": [], "test": []}
    for row in rows:
        tenth = hashlib.sha256(f"{row.text}\0{row.pair or ''}".encode()).digest()[0] * 10 // 256
        parts["valid" if tenth == 8 else "test" if tenth == 9 else "train"].append(row)
    return DataSet(**parts, names=names)


def filled(found: DataSet) -> DataSet:
    """No split is empty: validation rows stand in for the test's, and some training rows for the validation's."""
    if found.valid and found.test:
        return found
    test = found.test or found.valid
    parted = by_hash(found.train, found.names)
    return replace(parted, train=[*parted.train, *parted.test], test=test) if test else parted


def _folder(folder: Path, columns: Columns) -> DataSet:
    found = {}
    for split in ("train", "valid", "test"):
        files = sorted(folder.glob(f"{split}.*"))
        if not files:
            raise InputError(f"{folder} has no table '{split}.csv' (or .tsv, .jsonl, .parquet)")
        found[split] = list(examples(files[0], columns))
    return DataSet(**found, names=())
