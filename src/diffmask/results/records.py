"""Records: one measured number each, with its origin and cost; their files and their summary. No torch here."""

import errno
import json
import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from diffmask.errors import DiffMaskError, InputError, StoreError
from diffmask.results.intervals import t_interval


@dataclass(frozen=True, kw_only=True)
class Record:
    """One measured number with its experiment, task, method, site, metric, seed and cost."""

    experiment: str = ""
    task: str
    method: str
    site: str
    metric: str
    """Name of the number, equal to the name of its `MetricInfo`. One metric config may yield several."""
    value: float
    seed: int
    rows: int = 1
    """Number of rows that the value is the mean of."""
    deviation: float = 0.0
    """Standard deviation over these rows."""
    cost: Mapping[str, int | float] = field(default_factory=dict)
    """Cost of the explanations."""
    digest: str = ""
    """Digest of the artefact that was measured."""
    at: float | None = None
    """Position on the x axis if the record is a point of a curve, such as the share of erased tokens."""
    per_row: tuple[float, ...] = ()
    """Values of the rows in the order of the split, if methods are compared row by row; else empty."""


def write_jsonl(path: Path, records: Iterable[Record]) -> None:
    """Write one record per line. Non-finite numbers become "inf", "-inf" and "nan", which JSON does not have."""
    write_text(path, "".join(json.dumps(to_plain(asdict(record))) + "\n" for record in records))


def read_jsonl(path: Path) -> list[Record]:
    """Read the records of a file; the error names the file, the line and a remedy."""
    records = []
    for number, line in enumerate(read_text(path, RUN_AGAIN).splitlines(), start=1):
        try:
            if line:
                records.append(record_from(json.loads(line)))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not a record ({error!r}); {RUN_AGAIN}") from None
    return records


RUN_AGAIN = "run the experiment again, finished work is kept"


def read_json(path: Path, remedy: str) -> Any:
    """Read a JSON file; the error names the file, what is wrong with it and the remedy."""
    text = read_text(path, remedy)
    try:
        return json.loads(text)
    except RecursionError:
        raise InputError(f"{path} is damaged: JSON nested too deeply; {remedy}") from None
    except ValueError as error:
        raise InputError(f"{path} is damaged: it is not whole JSON ({error}); {remedy}") from None


def read_text(path: Path, remedy: str) -> str:
    """Read a text file; the error names the file, what is wrong with it and the remedy."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path} is missing: {remedy}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; {remedy}") from None
    except UnicodeError:
        raise InputError(f"{path} is damaged: not text in UTF-8; {remedy}") from None


def write_json(path: Path, value: Any) -> None:
    """Write a value as standard JSON."""
    write_text(path, json.dumps(to_plain(value), indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` after the block: a reader sees the whole file or none.

    If the block fails, `path` stays as it was.
    """
    with naming_path(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(0o644)  # mkstemp makes files that only their owner can read
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path, last: str) -> Iterator[Path]:
    """Yield a temporary folder whose files are moved to the folder `path` after the block, the file `last` at the end.

    If the block fails, `path` stays as it was. Other files in `path` are left alone.
    """
    with naming_path(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-", ignore_cleanup_errors=True) as name:
            aside = Path(name) / path.name
            aside.mkdir()
            yield aside
            path.mkdir(exist_ok=True)
            for file in sorted(aside.iterdir(), key=lambda file: file.name == last):
                os.replace(file, path / file.name)


@contextmanager
def naming_path(path: Path) -> Iterator[None]:
    """Convert an error of the file system within this block to a `StoreError` that names the path and a remedy."""
    try:
        yield
    except DiffMaskError:
        raise
    except OSError as error:
        remedy = WRITE_REMEDIES.get(error.errno or 0, "give another path")
        raise StoreError(f"{path} cannot be written: {error.strerror or error}; {remedy}") from error


def require_path(path: Any) -> None:
    """Raise a StoreError for a value that no file system accepts as a path, such as a name that is too long."""
    try:
        os.lstat(Path(path))
        Path(path).resolve()
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError, RuntimeError) as error:  # RuntimeError: a symlink that leads to itself
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"{str(path)[:100]!r} is not a path that can be used: {reason}") from None


WRITE_REMEDIES = {
    errno.ENOSPC: "free some space and start again: finished work is kept",
    errno.EDQUOT: "free some space and start again: finished work is kept",
    errno.EFBIG: "raise the limit of file sizes, or write to another file system",
    errno.EROFS: "give a path that can be written",
    errno.EACCES: "give a path that can be written",
    errno.EPERM: "give a path that can be written",
}
"""Advice by error number of the operating system."""


def to_plain(value: Any) -> Any:
    """Return the value with non-finite numbers as words.

    >>> to_plain({"a": [1.0, float("inf")]})
    {'a': [1.0, 'inf']}
    """
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def record_from(node: Mapping[str, Any]) -> Record:
    """Build a record from plain values: lists become tuples, words become numbers."""
    rows = tuple(float(value) for value in node.get("per_row", ()))
    return Record(**{**node, "value": float(node["value"]), "deviation": float(node["deviation"]), "per_row": rows})


GroupKey = tuple[str, str, str, str]
"""Task, method, site and metric."""


def group_records(records: Iterable[Record]) -> dict[GroupKey, list[Record]]:
    """Group records by task, method, site and metric, in order of appearance."""
    groups: dict[GroupKey, list[Record]] = defaultdict(list)
    for record in records:
        groups[record.task, record.method, record.site, record.metric].append(record)
    return dict(groups)


def summarise(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Summarise records: mean, 95 % interval and number of seeds per task, method, site and metric.

    The interval is over seeds if there are several, else over rows. Points of curves are left out.
    """
    groups = group_records(record for record in records if record.at is None)
    return [_summarise_group(*key, group) for key, group in groups.items()]


def _summarise_group(task: str, method: str, site: str, metric: str, group: Sequence[Record]) -> dict[str, Any]:
    values = [record.value for record in group]
    has_seeds = len(values) > 1
    low, high = t_interval(values) if has_seeds else _interval_over_rows(group[0])
    return {
        "task": task,
        "method": method,
        "site": site,
        "metric": metric,
        "mean": sum(values) / len(values),
        "interval": [low, high],
        "interval_over": "seeds" if has_seeds else "rows",
        "seeds": len(values),
        "rows": group[0].rows,
        "worst": max(values),
        "median": median(values),
        "cost": _mean_cost(group),
    }


def _interval_over_rows(record: Record) -> tuple[float, float]:
    if not math.isfinite(record.value) or not math.isfinite(record.deviation):
        return record.value, record.value
    half = 1.96 * record.deviation / math.sqrt(max(record.rows, 1))
    return record.value - half, record.value + half


def _mean_cost(group: Sequence[Record]) -> dict[str, float]:
    names = group[0].cost
    return {name: round(sum(record.cost.get(name, 0.0) for record in group) / len(group), 3) for name in names}
