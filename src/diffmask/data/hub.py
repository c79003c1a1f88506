"""Data sets of the Hugging Face hub, by the library `datasets`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from diffmask.data.tables import Columns, DataSet, Example, examples
from diffmask.errors import ExtraError, InputError

USUAL: Sequence[tuple[str, str | None]] = (
    ("sentence", None),
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question", "sentence"),
)
"""What columns of texts are called where there is none of the name asked for."""
SPLITS = (("train",), ("validation", "valid", "dev"), ("test",))


def load_hub(name: str, columns: Columns) -> DataSet:
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
