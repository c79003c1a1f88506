"""SNLI: does a premise entail a hypothesis? Pairs of sentences in three classes. Bowman et al. 2015."""

import csv
from collections.abc import Iterator
from pathlib import Path

from diffmask.datasets.tables import DataSet, Example, read_lines, read_table
from diffmask.errors import InputError

SNLI_CLASSES = ("entailment", "neutral", "contradiction")
SUBSET_LABELS = {"1": "neutral", "2": "contradiction", "3": "entailment"}
"""Codes of the classes in the files of the training subset."""


def load_snli(folder: Path) -> DataSet:
    """Load 18,000 training and 2,000 validation pairs of the training split, and the development split as test.

    Pairs of the development split on which the annotators have no majority are skipped.
    """
    return DataSet(
        train=list(_read_subset(folder / "snli_train_subset_18000.csv.gz")),
        valid=list(_read_subset(folder / "snli_train_subset_2000_test.csv.gz")),
        test=list(_read_official(folder / "snli_1.0_dev.jsonl.gz")),
        names=SNLI_CLASSES,
    )


def _read_subset(file: Path) -> Iterator[Example]:
    """Yield pairs from lines of label, label, premise and hypothesis, separated by tabs."""
    for number, cells in enumerate(csv.reader(_lines(file), delimiter="\t"), start=1):
        if len(cells) != 4 or cells[1] not in SUBSET_LABELS:
            raise InputError(f"{file}, row {number}: not label, label, premise and hypothesis between tabs")
        yield Example(cells[2], cells[3], SNLI_CLASSES.index(SUBSET_LABELS[cells[1]]))


def _read_official(file: Path) -> Iterator[Example]:
    for number, row in enumerate(read_table(file), start=1):
        try:
            # '-' marks a pair without a majority label.
            if row["gold_label"] != "-":
                yield Example(row["sentence1"], row["sentence2"], SNLI_CLASSES.index(row["gold_label"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{file}, row {number}: not a row of SNLI: {error!r}") from None


def _lines(file: Path) -> Iterator[str]:
    if not file.is_file():
        raise InputError(f"there is no {file}: give the folder of SNLI")
    return read_lines(file)
