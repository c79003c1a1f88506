"""Rows in ERASER's format, from a folder, an archive and the published files; marks end up on the right tokens."""

import json
import os
import tarfile
from pathlib import Path

import pytest
import torch

from diffmask.datasets.eraser import RationaleExample, load_cose, load_eraser
from diffmask.datasets.loading import load_data
from diffmask.datasets.tables import Columns, Example
from diffmask.errors import InputError, TaskError
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.text.encoding import EVIDENCE
from support.tiny_models import tiny_model, word_pieces

SHARED = Path(os.environ.get("DIFFMASK_DATA", Path(__file__).parents[2].parent / "shared" / "data")) / "rationales"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="there are no rationales in the data folder; set DIFFMASK_DATA")


def span(document: str, first: int, last: int) -> dict[str, object]:
    return {"docid": document, "start_token": first, "end_token": last, "text": "as it is published, not read"}


ROWS = [
    {
        "annotation_id": "1",
        "classification": "NEG",
        "docids": ["one"],
        "evidences": [[span("one", 4, 5)], [span("one", 1, 3)]],
        "query": "is it good ?",
    },
    {"annotation_id": "2", "classification": "POS", "docids": None, "evidences": [[span("two", 0, 2)]], "query": None},
]
DOCUMENTS = {"one": "the film was\nvery dull .\n", "two": "great fun !\n"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "movies"
    (home / "docs").mkdir(parents=True)
    for name, text in DOCUMENTS.items():
        (home / "docs" / name).write_text(text)
    for split in ("train", "val", "test"):
        (home / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return home


def evidence_texts(row: Example) -> list[str]:
    assert isinstance(row, RationaleExample)
    return [row.text[first:last] for first, last in row.evidence]


def test_evidence_is_found_in_the_text(folder: Path) -> None:
    first, second = load_eraser(folder).train
    assert (first.text, first.pair, first.label) == ("the film was very dull .", "is it good ?", "NEG")
    assert evidence_texts(first) == ["film was", "dull"]
    assert second.pair is None and evidence_texts(second) == ["great fun"]
    assert load_eraser(folder).names == ("NEG", "POS")


def test_an_archive_reads_as_its_folder(folder: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "movies.tar.xz", "w:xz") as archive:
        archive.add(folder, "movies")
    assert load_eraser(tmp_path / "movies.tar.xz") == load_eraser(folder)
    assert load_data(f"eraser:{folder}", Columns()) == load_eraser(folder)


def test_a_file_alone_is_split_by_document(folder: Path) -> None:
    (folder / "train.jsonl").unlink()
    (folder / "test.jsonl").unlink()
    (folder / "val.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS * 3))
    data = load_eraser(folder)
    for row in (*data.train, *data.valid, *data.test):
        assert sum(row in part for part in (data.train, data.valid, data.test)) == 1
    assert len(data.train) + len(data.valid) + len(data.test) == 6


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no train\.jsonl, val\.jsonl, test\.jsonl"):
        load_eraser(tmp_path)
    with pytest.raises(InputError, match="give a folder or an archive"):
        load_eraser(tmp_path / "none")
    (folder / "docs" / "two").unlink()
    with pytest.raises(InputError, match=r"train\.jsonl, line 2: there is no docs/two"):
        load_eraser(folder)


def test_marks_lie_on_the_tokens_of_the_first_text_and_the_model_never_sees_them() -> None:
    rows = [
        RationaleExample("the film was very dull", "dull film", 0, ((4, 8), (18, 22))),
        RationaleExample("great", "fun", 1, ((0, 5),)),
    ]
    task = TextClassification(tiny_model("bert", labels=2), word_pieces(), test=rows)
    batch = task.data["test"]
    words = task.describe(batch)
    data = [
        [word for word, mark in zip(row, marks, strict=False) if mark]
        for row, marks in zip(words, task.ground_truth(batch), strict=True)
    ]
    assert data == [["film", "dull"], ["great"]]
    assert batch.token_inputs[EVIDENCE][0].sum() == 2
    plain = task.encode([("the film was very dull", "dull film")])
    assert torch.allclose(task.logits(batch)[0], task.logits(plain)[0], atol=1e-5)
    with pytest.raises(TaskError, match="no known truth"):
        task.ground_truth(plain)


@shared
@pytest.mark.parametrize(("name", "rows"), [("multirc", 3214), ("fever", 6122)])
def test_the_evidence_spans_are_the_published_texts(name: str, rows: int) -> None:
    archive = SHARED / f"eraser_{name}_val.tar.xz"
    data = load_eraser(archive)
    examples = [*data.train, *data.valid, *data.test]
    assert len(examples) == rows
    with tarfile.open(archive) as files:
        stream = files.extractfile(f"{name}/val.jsonl")
        assert stream is not None
        nodes = [json.loads(line) for line in stream.read().decode().splitlines()]
    published = {
        (node["query"], " ".join(sorted({part["text"] for group in node["evidences"] for part in group})))
        for node in nodes
    }
    assert {(row.pair, " ".join(sorted(set(evidence_texts(row))))) for row in examples} == published


@shared
def test_selections_of_cose_occur_in_their_questions() -> None:
    data = load_cose(SHARED / "commonsenseqa_v1.0_dev_rand_split.jsonl.gz", SHARED / "cose_dev_v1.0.jsonl.gz")
    assert 500 < len(data) <= 758
    assert all(len(evidence_texts(row)[0]) < len(row.text) and row.label in ("A", "B", "C") for row in data)


@shared
def test_rationales_of_movies_are_a_table_like_any_other() -> None:
    from diffmask.datasets.tables import read_examples

    data = list(read_examples(SHARED / "eraser_movies_test_human_rationale_text.csv.gz", Columns()))
    assert len(data) == 100
    assert {row.label for row in data} == {"0", "1"}
