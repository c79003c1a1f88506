"""A `Record` is one measured number with everything needed to know what it is. No torch here."""

import json
import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Record:
    """One number: which experiment, task, method, site and metric, at which seed, at what cost."""

    experiment: str = ""
    task: str
    method: str
    site: str
    metric: str
    value: float
    seed: int
    rows: int = 1
    """Rows the value is a mean over."""
    deviation: float = 0.0
    """Standard deviation over those rows."""
    cost: Mapping[str, int | float] = field(default_factory=dict)
    """What the explanations behind the number took."""
    digest: str = ""
    """The artefact the number was measured on."""
    at: float | None = None
    """The knob's value where the number is a point of a curve, such as the share of tokens erased."""
    per_row: tuple[float, ...] = ()
    """The rows' own values, in the split's order, where methods are compared row by row; else empty."""


def write_jsonl(path: Path, records: Iterable[Record]) -> None:
    """One record a line; numbers that JSON has no word for become "inf", "-inf" and "nan"."""
    write_text(path, "".join(json.dumps(plain(asdict(record))) + "\n" for record in records))


def read_jsonl(path: Path) -> list[Record]:
    """The records of a file."""
    return [record_from(json.loads(line)) for line in path.read_text().splitlines() if line]


def write_json(path: Path, value: Any) -> None:
    """A JSON file that any reader can read."""
    write_text(path, json.dumps(plain(value), indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Written aside, then renamed: nobody sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(aside, 0o644)
    os.replace(aside, path)


def plain(value: Any) -> Any:
    """The same value with non-finite numbers as words.

    >>> plain({"a": [1.0, float("inf")]})
    {'a': [1.0, 'inf']}
    """
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def record_from(node: Mapping[str, Any]) -> Record:
    """The record that plain values stand for: lists are tuples again, words numbers."""
    rows = tuple(float(value) for value in node.get("per_row", ()))
    return Record(**{**node, "value": float(node["value"]), "deviation": float(node["deviation"]), "per_row": rows})


Key = tuple[str, str, str, str]


def grouped(records: Iterable[Record]) -> dict[Key, list[Record]]:
    """Records by task, method, site and metric, in order of appearance."""
    groups: dict[Key, list[Record]] = defaultdict(list)
    for record in records:
        groups[record.task, record.method, record.site, record.metric].append(record)
    return dict(groups)
