"""Texts with human rationales: data sets in the ERASER format (DeYoung et al. 2020) and CoS-E (Rajani et al. 2019).

An ERASER folder, or an archive of one, holds `train.jsonl`, `val.jsonl`, `test.jsonl` and `docs/`. A document is lines
of tokens separated by spaces. A row names its documents, a query, a label, and as evidence the spans of tokens that
annotators marked.
"""

import hashlib
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from diffmask.datasets.tables import DataSet, Example, read_lines, read_table
from diffmask.errors import InputError
from diffmask.explanation.text_units import Span

FILE_NAMES = {"train": "train", "valid": "val", "test": "test"}


@dataclass(frozen=True)
class RationaleExample(Example):
    """Example with the characters that an annotator marked as the reason for its label."""

    evidence: tuple[Span, ...] = ()
    """Spans of the text: index of the first character, and of the one after the last."""
    evidence_segment: int = 0
    """0 if the spans are of the first text, 1 if they are of the second."""


def load_eraser(path: Path) -> DataSet:
    """Load the three splits of a folder or an archive; a single file is split 80, 10 and 10 % by document."""
    files = _read_files(path)
    splits = {split: _rows(files, name) for split, name in FILE_NAMES.items() if f"{name}.jsonl" in files}
    if not splits:
        expected = ", ".join(f"{name}.jsonl" for name in FILE_NAMES.values())
        raise InputError(f"{path} has no {expected}: not ERASER's format")
    rows = [row for split in splits.values() for row in split]
    if len(splits) < len(FILE_NAMES):
        splits = _split_by_document(rows)
    return DataSet(**splits, names=tuple(sorted({row.label for row in rows})))


def _split_by_document(rows: Sequence[Example]) -> dict[str, list[Example]]:
    """Assign every document to one split, with all its queries."""
    splits: dict[str, list[Example]] = {split: [] for split in FILE_NAMES}
    for row in rows:
        tenth = hashlib.sha256(row.text.encode()).digest()[0] * 10 // 256
        splits["valid" if tenth == 8 else "test" if tenth == 9 else "train"].append(row)
    return splits


def _read_files(path: Path) -> dict[str, str]:
    """Return the contents of the files by name, documents as `docs/NAME`."""
    if path.is_dir():
        files = [file for file in (*path.glob("*.jsonl"), *path.glob("docs/*")) if file.is_file()]
        return {_short_name(file.as_posix()): "".join(read_lines(file)) for file in files}
    if not path.is_file():
        raise InputError(f"there is no {path}; give a folder or an archive in ERASER's format")
    try:
        with tarfile.open(path) as archive:
            members = [member for member in archive.getmembers() if member.isfile()]
            return {_short_name(member.name): _read_member(archive, member) for member in members}
    except (tarfile.TarError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a tar archive of UTF-8 files: {error}") from None


def _short_name(path: str) -> str:
    *_, folder, name = ("", *path.split("/"))
    return f"docs/{name}" if folder == "docs" else name


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    stream = archive.extractfile(member)
    assert stream is not None
    return stream.read().decode("utf-8")


def _rows(files: Mapping[str, str], split: str) -> list[Example]:
    rows: list[Example] = []
    for number, line in enumerate(files[f"{split}.jsonl"].splitlines(), start=1):
        where = f"{split}.jsonl, line {number}"
        try:
            rows.append(_row(json.loads(line), files, where))
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(f"{where}: not JSON: {error}") from None
        except KeyError as error:
            raise InputError(f"{where}: the field {error} of ERASER's format is missing") from None
    return rows


def _row(node: Mapping[str, Any], files: Mapping[str, str], where: str) -> RationaleExample:
    spans = [span for group in node["evidences"] for span in group]
    documents = list(dict.fromkeys([*(node.get("docids") or []), *(span["docid"] for span in spans)]))
    # A row without document names refers to the document of its own id.
    names = documents or [node["annotation_id"]]
    for name in names:
        if f"docs/{name}" not in files:
            raise InputError(f"{where}: there is no docs/{name}")
    words = [files[f"docs/{name}"].split() for name in names]
    offsets = dict(zip(documents, accumulate((len(document) for document in words), initial=0), strict=False))
    token_spans = [
        (offsets[span["docid"]] + span["start_token"], offsets[span["docid"]] + span["end_token"]) for span in spans
    ]
    tokens = [word for document in words for word in document]
    evidence = _character_spans(tokens, token_spans)
    return RationaleExample(" ".join(tokens), node.get("query") or None, node["classification"], evidence)


def _character_spans(tokens: Sequence[str], token_spans: Sequence[Span]) -> tuple[Span, ...]:
    """Convert spans of tokens to spans of characters of the tokens joined by spaces.

    >>> _character_spans(["a", "bad", "film"], [(1, 3)])
    ((2, 10),)
    """
    starts = list(accumulate((len(token) + 1 for token in tokens), initial=0))
    return tuple(sorted({(starts[first], starts[last] - 1) for first, last in token_spans if first < last}))


def load_cose(questions: Path, explanations: Path) -> list[RationaleExample]:
    """Load CoS-E: questions with their choices as second text, and the words that annotators selected.

    A question is skipped if the selection does not occur in it, or is all of it.
    """
    return list(_selections(questions, explanations))


def _selections(questions: Path, explanations: Path) -> Iterator[RationaleExample]:
    selections = {row["id"]: row["explanation"]["selected"] for row in read_table(explanations)}
    for row in read_table(questions):
        text, selected = row["question"]["stem"], selections.get(row["id"], "")
        start = text.find(selected)
        if selected and start >= 0 and len(selected) < len(text):
            choices = " ".join(f"{choice['label']}: {choice['text']}" for choice in row["question"]["choices"])
            yield RationaleExample(text, choices, row["answerKey"], ((start, start + len(selected)),))
