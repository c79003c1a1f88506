"""Texts in which people marked the reason for a label, in the format of ERASER. DeYoung et al. 2020.

A folder, or an archive of one, holds `SPLIT.jsonl` and `docs/`. A document is lines of tokens between spaces; a row
names its documents, a query, a label, and as evidence the spans of tokens that people marked.
"""

import hashlib
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from diffmask.datasets.tables import DataSet, Example, read_table
from diffmask.errors import InputError
from diffmask.explanation.text_units import Span

SPLITS = {"train": "train", "valid": "val", "test": "test"}


@dataclass(frozen=True)
class RationaleExample(Example):
    """An example in which a person marked the characters that give the reason for its label."""

    evidence: tuple[Span, ...] = ()
    """In the first text: first character, and the one after the last."""


def load_eraser(place: Path) -> DataSet:
    """The three splits of a folder or an archive; one file alone is split by document, 80, 10 and 10 %."""
    files = _texts(place)
    found = {split: _rows(files, name) for split, name in SPLITS.items() if f"{name}.jsonl" in files}
    if not found:
        raise InputError(
            f"{place} has no {', '.join(f'{name}.jsonl' for name in SPLITS.values())}: not ERASER's format"
        )
    rows = [row for split in found.values() for row in split]
    parts = found if len(found) == len(SPLITS) else _by_document(rows)
    return DataSet(**parts, names=tuple(sorted({row.label for row in rows})))


def _by_document(rows: Sequence[Example]) -> dict[str, list[Example]]:
    """No document is in two splits, however many questions are asked of it."""
    parts: dict[str, list[Example]] = {split: [] for split in SPLITS}
    for row in rows:
        tenth = hashlib.sha256(row.text.encode()).digest()[0] * 10 // 256
        parts["valid" if tenth == 8 else "test" if tenth == 9 else "train"].append(row)
    return parts


def _texts(place: Path) -> dict[str, str]:
    """The files by name, documents with `docs/` before theirs."""
    if place.is_dir():
        listed = [path for path in (*place.glob("*.jsonl"), *place.glob("docs/*")) if path.is_file()]
        return {_short(path.as_posix()): path.read_text(encoding="utf-8") for path in listed}
    if not place.is_file():
        raise InputError(f"there is no {place}; give a folder or an archive in ERASER's format")
    with tarfile.open(place) as archive:
        return {_short(member.name): _read(archive, member) for member in archive.getmembers() if member.isfile()}


def _short(path: str) -> str:
    *_, folder, name = ("", *path.split("/"))
    return f"docs/{name}" if folder == "docs" else name


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    stream = archive.extractfile(member)
    assert stream is not None
    return stream.read().decode("utf-8")


def _rows(files: Mapping[str, str], split: str) -> list[Example]:
    lines = files[f"{split}.jsonl"].splitlines()
    return [
        _row(json.loads(line), files, f"{split}.jsonl, line {number}") for number, line in enumerate(lines, start=1)
    ]


def _row(node: Mapping[str, Any], files: Mapping[str, str], where: str) -> RationaleExample:
    spans = [span for group in node["evidences"] for span in group]
    documents = list(dict.fromkeys([*(node.get("docids") or []), *(span["docid"] for span in spans)]))
    for name in documents or [node["annotation_id"]]:
        if f"docs/{name}" not in files:
            raise InputError(f"{where}: there is no docs/{name}")
    words = [files[f"docs/{name}"].split() for name in documents or [node["annotation_id"]]]
    starts = dict(zip(documents, accumulate((len(part) for part in words), initial=0), strict=False))
    places = [
        (starts[span["docid"]] + span["start_token"], starts[span["docid"]] + span["end_token"]) for span in spans
    ]
    tokens = [word for part in words for word in part]
    return RationaleExample(
        " ".join(tokens), node.get("query") or None, node["classification"], _characters(tokens, places)
    )


def _characters(tokens: Sequence[str], places: Sequence[Span]) -> tuple[Span, ...]:
    """Spans of tokens as spans of characters of the tokens joined by spaces.

    >>> _characters(["a", "bad", "film"], [(1, 3)])
    ((2, 10),)
    """
    begins = list(accumulate((len(token) + 1 for token in tokens), initial=0))
    return tuple(sorted({(begins[first], begins[last] - 1) for first, last in places if first < last}))


def load_cose(questions: Path, explanations: Path) -> list[RationaleExample]:
    """CoS-E: questions with their choices as second text, and what people selected; Rajani et al. 2019.

    A selection that is not to be found in its question, or that is all of it, is left out.
    """
    return list(_selected(questions, explanations))


def _selected(questions: Path, explanations: Path) -> Iterator[RationaleExample]:
    chosen = {row["id"]: row["explanation"]["selected"] for row in read_table(explanations)}
    for row in read_table(questions):
        text, selected = row["question"]["stem"], chosen.get(row["id"], "")
        start = text.find(selected)
        if selected and start >= 0 and len(selected) < len(text):
            choices = " ".join(f"{choice['label']}: {choice['text']}" for choice in row["question"]["choices"])
            yield RationaleExample(text, choices, row["answerKey"], ((start, start + len(selected)),))
