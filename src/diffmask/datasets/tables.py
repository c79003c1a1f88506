"""Examples from lists, columns, data frames, and CSV, TSV, JSON Lines or Parquet files.

Every data set of the package reads its files through `read_table` or `read_lines`, so that a file that cannot be read
raises an `InputError` with its path, the line and a remedy.
"""

import csv
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import singledispatch
from io import TextIOWrapper
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from diffmask.datasets.frames import describe_value, is_single_row, iter_rows
from diffmask.errors import ExtraError, InputError, nearest

MAX_FIELD = 10_000_000
"""Longest cell of a CSV file, in characters. An unclosed quotation mark reads the rest of the file as one cell."""


@dataclass(frozen=True)
class Example:
    """A text or a pair of texts, with an optional label."""

    text: str
    pair: str | None = None
    label: Any = None


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Examples of the training, validation and test splits, and the names of the classes."""

    train: list[Example]
    valid: list[Example]
    test: list[Example]
    names: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes: `names`, or else the sorted training labels."""
        return self.names or tuple(sorted({str(row.label) for row in self.train if row.label is not None}))


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of a table's columns and its character encoding."""

    text_column: str = "text"
    """Column of the text, or of the first text of a pair."""
    pair_column: str | None = None
    """Column of the second text of a pair."""
    label_column: str = "label"
    """Column of the label. A table without it has no labels, and so has a row with an empty cell there."""
    encoding: str = "utf-8"
    """Character encoding of a CSV, TSV or JSON Lines file, such as `latin-1` or `utf-16`."""


Source = str | Path | Mapping[str, Any] | Iterable[Any]
"""Path of a file, a mapping from column to values, or rows."""


def read_examples(source: Source, columns: Columns) -> Iterator[Example]:
    """Yield the examples of a source.

    A source is the path of a file, a mapping from column to values, a data frame, or rows. A row is a text,
    `(text, label)`, `((first, second), label)` or a mapping from column to value, as in `datasets.Dataset`.
    """
    is_file = isinstance(source, str | Path)
    rows = read_table(Path(source), columns.encoding) if is_file else iter_rows(source)  # type: ignore[arg-type]
    return _number_rows(rows, lambda row: to_example(row, columns), f"{source}, " if is_file else "")


def _number_rows(rows: Iterable[Any], convert: Callable[[Any], Example], file: str = "") -> Iterator[Example]:
    """Convert every row; an error names the row, and the file."""
    for number, row in enumerate(rows):
        try:
            yield convert(row)
        except InputError as error:
            raise InputError(f"{file}row {number}: {error}") from None


def read_inputs(inputs: Any, convert: Callable[[Any], Example]) -> tuple[list[Example], bool]:
    """Return inputs to explain as examples, and whether they are one input rather than several.

    One input is a text, a pair `(first, second)` or a mapping from field to value. Several are a list, a generator, a
    column, a data frame, a `datasets.Dataset`, a mapping from column to values, or the `Path` of a table. `convert`
    reads one of them; an error names its row.
    """
    if isinstance(inputs, str | tuple | Example) or is_single_row(inputs):
        return [convert(inputs)], True
    rows = read_table(inputs) if isinstance(inputs, Path) else iter_rows(inputs)
    return list(_number_rows(rows, convert, f"{inputs}, " if isinstance(inputs, Path) else "")), False


def pair_of_texts(pair: Any) -> Example:
    """Return a pair of texts, given as a tuple or a list, as an example."""
    if len(pair) != 2:
        raise InputError(f"a pair has two texts; found {len(pair)}; give several texts as a list of texts")
    return Example(*map(require_text, pair))


@singledispatch
def to_example(row: Any, columns: Columns) -> Example:
    """Convert a row to an example."""
    raise InputError(
        f"expected text, got {describe_value(row)}; "
        "a row is a text, (text, label), ((first, second), label) or a mapping from column to value"
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
    if isinstance(text, tuple | list) and len(text) != 2:
        raise InputError(f"a pair has two texts; found {len(text)}")
    first, second = text if isinstance(text, tuple | list) else (text, None)
    return Example(require_text(first), None if second is None else require_text(second), _label(label))


@to_example.register(Mapping)
def _(row: Mapping[str, Any], columns: Columns) -> Example:
    names = [columns.text_column, *([columns.pair_column] if columns.pair_column else [])]
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"the name of a column is a text; found {name!r}")
        if name not in row:
            raise InputError(f"there is no column '{name}'; {nearest(name, map(str, row))}")
    first, *second = (require_text(row[name]) for name in names)
    return Example(first, second[0] if second else None, _label(row.get(columns.label_column)))


def require_text(value: Any) -> str:
    """Return a text, or say what was found instead, or which character no tokenizer accepts."""
    if not isinstance(value, str):
        raise InputError(f"expected text, got {describe_value(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the character at position {error.start} is half of a surrogate pair: the text was decoded wrongly; "
            "remove it with text.encode('utf-8', 'ignore').decode()"
        ) from None
    return value


def _label(value: Any) -> Any:
    """Return None for a blank cell and for NaN, which is how data frames write a missing value."""
    blank = isinstance(value, str) and not value.strip()
    return None if blank or (isinstance(value, float) and value != value) else value


def read_table(path: Path, encoding: str = "utf-8") -> Iterator[dict[str, Any]]:
    """Yield the rows of a CSV, TSV, JSON Lines or Parquet file; `.gz` is decompressed while it is read."""
    require_file(path)
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix not in READERS:
        raise InputError(f"{path}: '{suffix}' tables are not read; {nearest(suffix, READERS)}")
    return READERS[suffix](path, encoding)


def require_file(path: Path) -> None:
    """Raise an `InputError` unless the path is a file."""
    if "\0" in str(path):
        raise InputError(f"{str(path)!r} is not a path")
    if path.is_dir():
        inside = sorted(file.name for file in path.iterdir() if file.is_file())[:5]
        raise InputError(f"{path} is a folder; give a file in it ({', '.join(inside) or 'it has none'})")
    if not path.is_file():
        raise InputError(f"there is no file {path}")


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a text file with their line ends; a byte order mark is dropped, `.gz` is decompressed."""
    require_file(path)
    try:
        with _open(path, encoding) as stream:
            yield from stream
    except UnicodeError:
        raise InputError(_not_decodable(path, encoding)) from None
    except LookupError:
        raise InputError(f"'{encoding}' is not a character encoding; {nearest(encoding, ENCODINGS)}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} cannot be decompressed: {error}; is the file complete, and is it gzip?") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


ENCODINGS = ("utf-8", "utf-16", "latin-1", "cp1252", "gb18030", "shift_jis")
"""Character encodings to suggest; every codec of Python works."""


def _open(path: Path, encoding: str) -> TextIOWrapper:
    # utf-8-sig drops the byte order mark that Windows programs put in front of UTF-8.
    codec = "utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding
    # newline="": csv must see line ends inside quoted cells as they are.
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding=codec, newline="")
    return path.open(encoding=codec, newline="")


def _not_decodable(path: Path, encoding: str) -> str:
    """Return the message for a file that is not in this encoding, with the first line that is not."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        first = stream.read(4096)
        marked = first.startswith((b"\xff\xfe", b"\xfe\xff"))
        stream.seek(0)
        line = next((number for number, raw in enumerate(stream, start=1) if not _decodes(raw, encoding)), 1)
    if b"\0" in first and not marked:
        return f"{path}, line {line}: not text in {encoding}, but binary data; give a CSV, TSV, JSONL or Parquet file"
    remedy = "utf-16" if marked else "latin-1"
    return f"{path}, line {line}: not text in {encoding}; give its encoding, for example encoding='{remedy}'"


def _decodes(raw: bytes, encoding: str) -> bool:
    try:
        raw.decode(encoding)
    except UnicodeError:
        return False
    return True


def _delimited(delimiters: str) -> Callable[[Path, str], Iterator[dict[str, Any]]]:
    def read(path: Path, encoding: str) -> Iterator[dict[str, Any]]:
        lines = read_lines(path, encoding)
        first = next(lines, "")
        if not first:
            raise InputError(f"{path} is empty")
        if "\0" in first:
            raise InputError(
                f"{path}, line 1: NUL characters: binary data, or text in another encoding; give its encoding, for "
                "example encoding='utf-16'"
            )
        unquoted = re.sub(r'"[^"]*"', "", first)
        # max takes the first of equal counts: a comma if the header has no delimiter at all.
        delimiter = max(delimiters, key=unquoted.count)
        header: list[str] = []
        for line, cells in _parse_csv(chain([first], lines), delimiter, path):
            if not header:
                header = _unique(cells, path)
            elif any(cells[len(header) :]):
                raise InputError(
                    f"{path}, line {line}: {len(cells)} cells in a table of {len(header)} columns; put a text that "
                    "contains the delimiter between quotation marks"
                )
            else:
                yield dict(zip_longest(header, cells[: len(header)], fillvalue=""))

    return read


def _parse_csv(lines: Iterator[str], delimiter: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the cells of each row that is not blank."""
    raw: list[str] = []
    rows = csv.reader(_kept(lines, raw), delimiter=delimiter)
    while True:
        raw.clear()
        first = rows.line_num + 1
        try:
            with _long_fields():
                cells = next(rows, None)
        except csv.Error as error:
            raise InputError(
                f"{path}, line {rows.line_num}: {error}; close every quotation mark, or write longer texts as JSON "
                "Lines or Parquet"
            ) from None
        if cells is None:
            return
        if any("\n" in cell or "\r" in cell for cell in cells):
            _require_closed_quotes(raw, delimiter, f"{path}, line {first}")
        if cells:
            yield rows.line_num, cells


def _kept(lines: Iterator[str], raw: list[str]) -> Iterator[str]:
    """Yield lines and keep them in `raw`."""
    for line in lines:
        raw.append(line)
        yield line


def _require_closed_quotes(raw: list[str], delimiter: str, where: str) -> None:
    """Refuse a row with line ends in its cells whose last quotation mark is open: it took in the rest of the file."""
    try:
        with _long_fields():
            list(csv.reader(raw, delimiter=delimiter, strict=True))
    except csv.Error as error:
        if "end of data" in str(error):
            problem = "a quotation mark is never closed; close it, or double it within a text"
            raise InputError(f"{where}: {problem}") from None


@contextmanager
def _long_fields() -> Iterator[None]:
    """Allow cells over csv's limit of 131,072 characters; the limit is global, so it is restored at once."""
    previous = csv.field_size_limit(MAX_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(previous)


def _unique(names: list[str], path: Path) -> list[str]:
    """Return the column names, unless two are equal; spreadsheets write several columns without a name."""
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise InputError(f"{path}: several columns are called {', '.join(map(repr, twice))}; rename all but one")
    return names


def _json_lines(path: Path, encoding: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(read_lines(path, encoding), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except RecursionError:
            raise InputError(f"{path}, line {number}: JSON nested too deeply; a row is one flat object") from None
        except ValueError as error:
            raise InputError(f"{path}, line {number}: not JSON: {error}") from None
        yield row


def _parquet(path: Path, encoding: str) -> Iterator[dict[str, Any]]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise ExtraError("Parquet files need 'pyarrow'; pip install 'diffmask[text]'") from None
    try:
        with ParquetFile(path) as table:
            _unique(table.schema_arrow.names, path)
            for batch in table.iter_batches(batch_size=1024):
                yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}; is the file complete?") from None


READERS: Mapping[str, Callable[[Path, str], Iterator[dict[str, Any]]]] = {
    ".csv": _delimited(",;\t"),
    ".tsv": _delimited("\t"),
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}
