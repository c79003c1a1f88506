"""SNLI: does a premise entail a hypothesis? Pairs of sentences, three classes. Bowman et al. 2015."""

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from diffmask.datasets.tables import DataSet, Example
from diffmask.errors import InputError

NAMES = ("entailment", "neutral", "contradiction")
NUMBERED = {"1": "neutral", "2": "contradiction", "3": "entailment"}
"""What the classes are called in the subset of the training split."""


def load_snli(folder: Path) -> DataSet:
    """18,000 and 2,000 pairs of the training split, and the official development split without its open cases."""
    return DataSet(
        train=list(_subset(folder / "snli_train_subset_18000.csv.gz")),
        valid=list(_subset(folder / "snli_train_subset_2000_test.csv.gz")),
        test=list(_official(folder / "snli_1.0_dev.jsonl.gz")),
        names=NAMES,
    )


def _subset(file: Path) -> Iterator[Example]:
    """Lines of label, label, premise, hypothesis between tabs."""
    for _, label, premise, hypothesis in csv.reader(_lines(file), delimiter="\t"):
        yield Example(premise, hypothesis, NAMES.index(NUMBERED[label]))


def _official(file: Path) -> Iterator[Example]:
    for line in _lines(file):
        row = json.loads(line)
        # '-' is a pair on which the annotators found no majority.
        if row["gold_label"] != "-":
            yield Example(row["sentence1"], row["sentence2"], NAMES.index(row["gold_label"]))


def _lines(file: Path) -> Iterator[str]:
    if not file.is_file():
        raise InputError(f"there is no {file}: give the folder of SNLI")
    with gzip.open(file, "rt", encoding="utf-8", newline="") as stream:
        yield from stream
