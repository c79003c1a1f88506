"""MIMIC-III: discharge summaries labelled with diabetes or a kind of anemia. Johnson et al. 2016; Jain & Wallace 2019.

The user provides the data: `NOTEEVENTS.csv` and `DIAGNOSES_ICD.csv`, with or without `.gz`, in one folder. The files
`train_hadm.txt`, `valid_hadm.txt` and `test_hadm.txt` may list the admissions of each split for diabetes.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from diffmask.datasets.tables import DataSet, Example, read_table
from diffmask.errors import InputError

MIMIC_CLASSES: Mapping[str, tuple[str, str]] = {
    "diabetes": ("no diabetes", "diabetes"),
    "anemia": ("chronic", "acute"),
}
NOTE_ORDER = {"Report": 0, "Addendum": 1}
Subset = Literal["diabetes", "anemia"]


def load_mimic(folder: Path, subset: Subset) -> DataSet:
    """Load every admission that has a discharge summary and a label."""
    labels = {admission: label_admission(codes, subset) for admission, codes in read_diagnoses(folder).items()}
    listed = _listed_splits(folder) if subset == "diabetes" else {}
    splits: dict[str, list[Example]] = {"train": [], "valid": [], "test": []}
    for admission, text in read_notes(folder).items():
        label = labels.get(admission)
        if label is not None:
            split = listed.get(admission, "") if listed else _hash_split(admission)
            if split:
                splits[split].append(Example(text, label=label))
    return DataSet(**splits, names=MIMIC_CLASSES[subset])


def read_notes(folder: Path) -> dict[str, str]:
    """Return the discharge summary of each admission: reports first, then addenda, each by date."""
    notes: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    for row in _table(folder, "NOTEEVENTS", ("HADM_ID", "CHARTDATE", "CATEGORY", "DESCRIPTION", "TEXT")):
        if row["CATEGORY"].strip() == "Discharge summary" and row["HADM_ID"]:
            order = NOTE_ORDER.get(row["DESCRIPTION"].strip(), len(NOTE_ORDER))
            notes[_integer(row["HADM_ID"])].append((order, row["CHARTDATE"], row["TEXT"]))
    return {admission: "\n".join(text for *_, text in sorted(entries)) for admission, entries in notes.items()}


def read_diagnoses(folder: Path) -> dict[str, list[str]]:
    """Return the ICD-9 codes of each admission, with a point after the third character."""
    codes: dict[str, list[str]] = defaultdict(list)
    for row in _table(folder, "DIAGNOSES_ICD", ("HADM_ID", "ICD9_CODE")):
        code = row["ICD9_CODE"].strip()
        codes[_integer(row["HADM_ID"])].append(f"{code[:3]}.{code[3:]}")
    return codes


def label_admission(codes: list[str], subset: Subset) -> int | None:
    """Return the class of an admission, or None if it has both kinds of anemia or neither.

    Diabetes is any 250.00; anemia is acute (285.1) or chronic (285.2).

    >>> [label_admission(codes, "anemia") for codes in (["285.1"], ["285.21"], ["285.1", "285.21"])]
    [1, 0, None]
    """
    if subset == "diabetes":
        return int(any(code.startswith("250.00") for code in codes))
    acute, chronic = (any(code.startswith(start) for code in codes) for start in ("285.1", "285.2"))
    return int(acute) if acute != chronic else None


def _table(folder: Path, name: str, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    file = next((folder / f"{name}.csv{end}" for end in (".gz", "") if (folder / f"{name}.csv{end}").is_file()), None)
    if file is None:
        raise InputError(f"there is no {folder / name}.csv.gz: get MIMIC-III from physionet.org")
    for row in read_table(file):
        missing = [column for column in columns if row.get(column) is None]
        if missing:
            raise InputError(f"{file} has no column {', '.join(missing)}")
        yield row


def _integer(number: str) -> str:
    """Undo the float format of tables that pandas wrote: 145834.0 becomes 145834."""
    return str(int(float(number)))


def _listed_splits(folder: Path) -> dict[str, str]:
    splits = {}
    for split in ("train", "valid", "test"):
        file = folder / f"{split}_hadm.txt"
        if file.is_file():
            splits.update({_integer(line): split for line in file.read_text().split()})
    return splits


def _hash_split(admission: str) -> str:
    """Assign 68, 12 and 20 % of the admissions to the splits by a hash, so that an admission never moves."""
    fraction = int.from_bytes(hashlib.sha256(admission.encode()).digest()[:4], "big") / 2**32
    return "train" if fraction < 0.68 else "valid" if fraction < 0.80 else "test"
