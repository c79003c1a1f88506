"""Rows of tables in memory: pandas and polars frames and columns, Arrow tables, NumPy arrays, mappings, data sets."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from diffmask.errors import InputError


def iter_rows(source: Any) -> Iterable[Any]:
    """Return the rows of a table in memory: mappings for tables with named columns, else the values themselves."""
    if isinstance(source, Mapping):
        return _transpose(source)
    library = type(source).__module__.partition(".")[0]
    if library == "pandas":
        return source.to_dict("records") if hasattr(source, "columns") else source.tolist()
    if library == "polars":
        return source.iter_rows(named=True) if hasattr(source, "columns") else source.to_list()
    if library == "pyarrow":
        return source.to_pylist()
    if library == "numpy":
        return source.tolist()
    if not isinstance(source, Iterable) or isinstance(source, bytes | bytearray):
        raise InputError(f"expected text, got {describe_value(source)}; give a text or a list of texts")
    return source


def is_single_row(source: Any) -> bool:
    """Return whether a mapping is one row, such as {"text": "a film"}, rather than columns of many."""
    return isinstance(source, Mapping) and any(isinstance(value, str) for value in source.values())


def describe_value(value: Any) -> str:
    """Describe what was found in place of a text.

    >>> [describe_value(value) for value in (None, float("nan"), 5, b"good")]
    ['None', 'nan (a missing value)', '5 (int)', "b'good' (bytes; decode it first)"]
    """
    if value is None:
        return "None"
    if (isinstance(value, float) and value != value) or type(value).__name__ in ("NAType", "NaTType"):
        return f"{value} (a missing value)"
    hint = "; decode it first" if isinstance(value, bytes | bytearray) else ""
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(value).__name__}{hint})"


def _transpose(columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a mapping from column to values."""
    splits = [str(name) for name, values in columns.items() if hasattr(values, "column_names")]
    if splits:
        raise InputError(f"found a data set with the splits {', '.join(splits)}; give one of them")
    if is_single_row(columns):
        raise InputError("found one row, a mapping from column to value; give a list of rows, or columns of values")
    values = {name: list(iter_rows(column)) for name, column in columns.items()}
    if len(set(map(len, values.values()))) > 1:
        sizes = ", ".join(f"'{name}' {len(column)}" for name, column in values.items())
        raise InputError(f"the columns have different numbers of rows: {sizes}")
    return (dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True))
