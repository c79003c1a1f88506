"""MIMIC in small files of its schema, IMDB in both of its forms."""

import gzip
import json
import os
from pathlib import Path

import pytest

from diffmask.datasets import mimic
from diffmask.datasets import sentiment as imdb
from diffmask.datasets.loading import load_data
from diffmask.datasets.tables import Columns
from diffmask.errors import InputError
from diffmask.tasks.bilstm.bilstm_config import find_preset

SHARED = Path(os.environ.get("DIFFMASK_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
NOTES = """ROW_ID,SUBJECT_ID,HADM_ID,CHARTDATE,CATEGORY,DESCRIPTION,TEXT
1,10,100,2150-01-02,Discharge summary,Addendum,"Added later."
2,10,100,2150-01-03,Discharge summary,Report,"Seen on [**2150-1-2**] for 2 days."
3,10,100,2150-01-01,Nursing,Report,"Not a summary."
4,11,101.0,2150-01-01,Discharge summary,Report,"No sugar ---- problem."
5,12,102,2150-01-01,Discharge summary,Report,"Bled."
"""
CODES = """ROW_ID,SUBJECT_ID,HADM_ID,SEQ_NUM,ICD9_CODE
1,10,100,1,25000
2,10,100,2,2851
3,11,101,1,28521
4,12,102,1,2851
5,12,102,2,28529
"""


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    (tmp_path / "NOTEEVENTS.csv.gz").write_bytes(gzip.compress(NOTES.encode()))
    (tmp_path / "DIAGNOSES_ICD.csv").write_text(CODES)
    return tmp_path


def test_reports_come_before_addenda_and_other_notes_are_left_out(hospital: Path) -> None:
    assert mimic.read_notes(hospital)["100"] == "Seen on [**2150-1-2**] for 2 days.\nAdded later."


def test_diabetes_is_any_250_00_and_splits_may_be_listed(hospital: Path) -> None:
    for split, admission in (("train", "100"), ("valid", "101"), ("test", "102")):
        (hospital / f"{split}_hadm.txt").write_text(admission)
    data = load_data(f"mimic-diabetes:{hospital}", Columns())
    assert [[row.label for row in split] for split in (data.train, data.valid, data.test)] == [[1], [0], [0]]


def test_anemia_is_acute_or_chronic_but_not_both(hospital: Path) -> None:
    data = mimic.load_mimic(hospital, "anemia")
    rows = [*data.train, *data.valid, *data.test]
    assert sorted(row.label for row in rows) == [0, 1]
    assert not any("Bled" in row.text for row in rows)


def test_notes_become_words(hospital: Path) -> None:
    data = find_preset("mimic-diabetes").load(hospital)
    words = {word for text in (*data.train, *data.valid, *data.test) for word in text.words}
    assert {"<de>", "[DIGITS]", "seen"} <= words
    assert "----" not in words


def test_missing_files_and_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"DIAGNOSES_ICD\.csv\.gz"):
        mimic.load_mimic(tmp_path, "anemia")
    (tmp_path / "DIAGNOSES_ICD.csv").write_text("HADM_ID,CODE\n1,2\n")
    with pytest.raises(InputError, match="no column ICD9_CODE"):
        mimic.load_mimic(tmp_path, "anemia")


def test_reviews_from_tables_and_from_folders(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        row = json.dumps({"text": f"{split} review", "label": 1})
        (tmp_path / f"imdb_{split}_1.jsonl.gz").write_bytes(gzip.compress(row.encode()))
    assert [row.text for row in imdb.load_imdb(tmp_path).valid] == ["dev review"]
    other = tmp_path / "aclImdb"
    for split in ("train", "test"):
        for label, kind in enumerate(("neg", "pos")):
            (other / split / kind).mkdir(parents=True)
            for number in range(5):
                (other / split / kind / f"{number}_{label}.txt").write_text(f"{split} {kind} {number}")
    data = imdb.load_imdb(other)
    assert len(data.train) + len(data.valid) == 10
    assert [row.label for row in data.test] == [0] * 5 + [1] * 5
    with pytest.raises(InputError, match="neither"):
        imdb.load_imdb(tmp_path / "none")


def test_the_shared_reviews_are_read() -> None:
    if not (SHARED / "imdb").is_dir():
        pytest.skip("there is no imdb in the data folder; set DIFFMASK_DATA")
    data = imdb.load_imdb(SHARED / "imdb")
    assert [len(split) for split in (data.train, data.valid, data.test)] == [6000, 1000, 2000]


def test_the_treebank_for_words_has_the_published_sizes() -> None:
    if not (SHARED / "sst").is_dir():
        pytest.skip("there is no sst in the data folder; set DIFFMASK_DATA")
    data = find_preset("sst").load(SHARED / "sst")
    assert [len(split) for split in data.splits().values()] == [6579, 848, 1776]
