"""MIMIC-III: does a discharge summary speak of diabetes, or of which anemia? Johnson et al. 2016; Jain & Wallace 2019.

The data are the user's own: `NOTEEVENTS.csv` and `DIAGNOSES_ICD.csv`, packed or not, in one folder. For diabetes the
admissions of each split may be listed in `train_hadm.txt`, `valid_hadm.txt` and `test_hadm.txt`.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from diffmask.datasets.tables import DataSet, Example, read_table
from diffmask.errors import InputError

NAMES: Mapping[str, tuple[str, str]] = {"diabetes": ("no diabetes", "diabetes"), "anemia": ("chronic", "acute")}
ORDER = {"Report": 0, "Addendum": 1}
Subset = Literal["diabetes", "anemia"]


def load_mimic(folder: Path, subset: Subset) -> DataSet:
    """Every admission with a discharge summary and a label."""
    labels = {admission: label_of(codes, subset) for admission, codes in diagnoses(folder).items()}
    listed = _listed(folder) if subset == "diabetes" else {}
    parts: dict[str, list[Example]] = {"train": [], "valid": [], "test": []}
    for admission, text in notes(folder).items():
        label = labels.get(admission)
        if label is not None:
            split = listed.get(admission, "") if listed else _drawn(admission)
            if split:
                parts[split].append(Example(text, label=label))
    return DataSet(**parts, names=NAMES[subset])


def notes(folder: Path) -> dict[str, str]:
    """Each admission's discharge summary: its reports, then its addenda, in order of date."""
    found: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    for row in _table(folder, "NOTEEVENTS", ("HADM_ID", "CHARTDATE", "CATEGORY", "DESCRIPTION", "TEXT")):
        if row["CATEGORY"].strip() == "Discharge summary" and row["HADM_ID"]:
            place = ORDER.get(row["DESCRIPTION"].strip(), len(ORDER))
            found[_whole(row["HADM_ID"])].append((place, row["CHARTDATE"], row["TEXT"]))
    return {admission: "\n".join(text for *_, text in sorted(parts)) for admission, parts in found.items()}


def diagnoses(folder: Path) -> dict[str, list[str]]:
    """Each admission's ICD-9 codes, with a point after the third sign."""
    found: dict[str, list[str]] = defaultdict(list)
    for row in _table(folder, "DIAGNOSES_ICD", ("HADM_ID", "ICD9_CODE")):
        code = row["ICD9_CODE"].strip()
        found[_whole(row["HADM_ID"])].append(f"{code[:3]}.{code[3:]}")
    return found


def label_of(codes: list[str], subset: Subset) -> int | None:
    """Diabetes: any 250.00. Anemia: acute (285.1) or chronic (285.2), where it is not both.

    >>> label_of(["285.1"], "anemia"), label_of(["285.21"], "anemia"), label_of(["285.1", "285.21"], "anemia")
    (1, 0, None)
    """
    if subset == "diabetes":
        return int(any(code.startswith("250.00") for code in codes))
    acute, chronic = (any(code.startswith(start) for code in codes) for start in ("285.1", "285.2"))
    return int(acute) if acute != chronic else None


def _table(folder: Path, name: str, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    file = next((folder / f"{name}.csv{end}" for end in (".gz", "") if (folder / f"{name}.csv{end}").is_file()), None)
    if file is None:
        raise InputError(f"there is no {folder / name}.csv.gz: MIMIC-III is yours to bring (physionet.org)")
    for row in read_table(file):
        missing = [column for column in columns if row.get(column) is None]
        if missing:
            raise InputError(f"{file} has no column {', '.join(missing)}")
        yield row


def _whole(number: str) -> str:
    """Tables that went through pandas write 145834 as 145834.0."""
    return str(int(float(number)))


def _listed(folder: Path) -> dict[str, str]:
    found = {}
    for split in ("train", "valid", "test"):
        file = folder / f"{split}_hadm.txt"
        if file.is_file():
            found.update({_whole(line): split for line in file.read_text().split()})
    return found


def _drawn(admission: str) -> str:
    """68, 12 and 20 % of the admissions; one is always in the same split."""
    share = int.from_bytes(hashlib.sha256(admission.encode()).digest()[:4], "big") / 2**32
    return "train" if share < 0.68 else "valid" if share < 0.80 else "test"
