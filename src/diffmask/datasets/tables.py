"""Texts with labels from wherever they are: lists, columns, data sets, CSV, TSV, JSONL or Parquet files."""

import csv
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import singledispatch
from io import TextIOWrapper
from pathlib import Path
from typing import Any, cast

from diffmask.errors import InputError, nearest


@dataclass(frozen=True)
class Example:
    """One text, or a pair of texts, and its label where it has one."""

    text: str
    pair: str | None = None
    label: Any = None


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Three splits, and what the classes are called."""

    train: list[Example]
    valid: list[Example]
    test: list[Example]
    names: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes: those given, or the labels themselves in order."""
        return self.names or tuple(sorted({str(row.label) for row in self.train if row.label is not None}))


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What the columns of a table are called."""

    text_column: str = "text"
    """Column of the text, or of the first of two."""
    pair_column: str | None = None
    """Column of the second text, where there are two."""
    label_column: str = "label"
    """Column of the label; a table without it has no labels."""


Source = str | Path | Mapping[str, Any] | Iterable[Any]
"""A file's path, columns, or rows."""


def examples(source: Source, columns: Columns) -> Iterator[Example]:
    """The examples of a source, one after the other.

    A source is a file's path, a mapping from column to values, or rows; a row is a text, `(text, label)`,
    `((first, second), label)` or a mapping from column to value. A `datasets.Dataset` is rows.
    """
    for number, row in enumerate(_rows(source)):
        try:
            yield to_example(row, columns)
        except InputError as error:
            raise InputError(f"row {number}: {error}") from None


@singledispatch
def to_example(row: Any, columns: Columns) -> Example:
    """One row as an example."""
    raise InputError(
        f"{type(row).__name__} is not a row; a row is a text, (text, label), ((first, second), label) or a mapping"
    )


@to_example.register
def _(row: Example, columns: Columns) -> Example:
    return row


@to_example.register
def _(row: str, columns: Columns) -> Example:
    return Example(row)


@to_example.register(tuple)
@to_example.register(list)
def _(row: Any, columns: Columns) -> Example:
    if len(row) != 2:
        raise InputError(f"a row of {len(row)} members; write (text, label) or ((first, second), label)")
    text, label = row
    first, second = text if isinstance(text, tuple | list) else (text, None)
    return Example(_text(first), None if second is None else _text(second), label)


@to_example.register(Mapping)
def _(row: Mapping[str, Any], columns: Columns) -> Example:
    wanted = [columns.text_column, *([columns.pair_column] if columns.pair_column else [])]
    for name in wanted:
        if name not in row:
            raise InputError(f"there is no column '{name}'; {nearest(name, map(str, row))}")
    first, *second = (_text(row[name]) for name in wanted)
    return Example(first, second[0] if second else None, row.get(columns.label_column))


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    raise InputError(f"{value!r} is not a text but a {type(value).__name__}")


def _rows(source: Source) -> Iterable[Any]:
    if isinstance(source, str | Path):
        return read_table(Path(source))
    if isinstance(source, Mapping):
        return _transposed(source)
    if type(source).__module__.partition(".")[0] == "pandas":
        return cast(Any, source).to_dict("records")
    return source


def _transposed(columns: Mapping[str, Iterable[Any]]) -> Iterator[dict[str, Any]]:
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def read_table(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a table, read as they are asked for; `.gz` is unpacked on the way."""
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if kind not in READERS:
        raise InputError(f"{path}: '{kind}' tables are not read; {nearest(kind, READERS)}")
    return READERS[kind](path)


def _delimited(delimiter: str) -> Callable[[Path], Iterator[dict[str, Any]]]:
    def read(path: Path) -> Iterator[dict[str, Any]]:
        with _open(path) as lines:
            yield from csv.DictReader(lines, delimiter=delimiter)

    return read


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with _open(path) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError(f"{path}, line {number}: not JSON: {error}") from None


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as table:
        for batch in table.iter_batches(batch_size=1024):
            yield from batch.to_pylist()


def _open(path: Path) -> TextIOWrapper:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


READERS: Mapping[str, Callable[[Path], Iterator[dict[str, Any]]]] = {
    ".csv": _delimited(","),
    ".tsv": _delimited("\t"),
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}
