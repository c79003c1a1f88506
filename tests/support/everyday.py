"""Objects and files in which people keep their texts, and objects in which they keep their models."""

from collections.abc import Callable, Iterator
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from diffmask.datasets.tables import Example

TEXTS = ["a film", "good", "dull"]
EXAMPLES = [Example(text) for text in TEXTS]


def generated() -> Iterator[str]:
    yield from TEXTS


SEVERAL: dict[str, Callable[[], Any]] = {
    "list": lambda: TEXTS,
    "generator": generated,
    "tuple of a set": lambda: dict.fromkeys(TEXTS).keys(),
    "NumPy strings": lambda: np.array(TEXTS),
    "NumPy objects": lambda: np.array(TEXTS, dtype=object),
    "pandas column": lambda: pd.Series(TEXTS, index=[7, 8, 9]),
    "pandas frame": lambda: pd.DataFrame({"label": [1, 0, 0], "text": TEXTS}),
    "pandas index": lambda: pd.Index(TEXTS),
    "polars column": lambda: pl.Series("text", TEXTS),
    "polars frame": lambda: pl.DataFrame({"text": TEXTS, "label": [1, 0, 0]}),
    "Arrow table": lambda: pa.table({"text": TEXTS}),
    "Arrow column": lambda: pa.array(TEXTS),
    "data set": lambda: datasets.Dataset.from_dict({"text": TEXTS, "label": [1, 0, 0]}),
    "column of a data set": lambda: datasets.Dataset.from_dict({"text": TEXTS})["text"],
    "columns": lambda: {"text": TEXTS},
    "columns of arrays": lambda: {"text": np.array(TEXTS), "label": pd.Series([1, 0, 0])},
    "rows": lambda: [{"text": text, "label": "ignored"} for text in TEXTS],
    "examples": lambda: EXAMPLES,
}

ROWS = "text,label\ncaf\u00e9,1\ngood film,0\n"
Content = bytes | str
FILES: dict[str, tuple[str, Content, str]] = {
    "CSV": ("a.csv", ROWS, ""),
    "CSV with a byte order mark": ("a.csv", "\ufeff" + ROWS, ""),
    "CSV of a German Excel": ("a.csv", ROWS.replace(",", ";").replace("\n", "\r\n"), ""),
    "CSV with tabs": ("a.csv", ROWS.replace(",", "\t"), ""),
    "CSV with blank labels": ("a.csv", "text,label\ncaf\u00e9,\ngood film,0\n", ""),
    "CSV without labels": ("a.csv", "text\ncaf\u00e9\ngood film\n", ""),
    "CSV with quotation marks": ("a.csv", 'text,label\n"caf\u00e9",1\n"good film",0\n', ""),
    "CSV with blank lines": ("a.csv", ROWS + "\n\n", ""),
    "CSV in Latin-1": ("a.csv", ROWS.encode("latin-1"), "line 2: not text in utf-8; give its encoding"),
    "CSV in UTF-16": ("a.csv", ROWS.encode("utf-16"), "line 1: not text in utf-8; .* encoding='utf-16'"),
    "CSV with another column": ("a.csv", "review\ngood\n", "there is no column 'text'; known: review"),
    "CSV with one column twice": ("a.csv", "text,text\na,b\n", "a.csv"),
    "CSV with too many cells": ("a.csv", "text,label\na,1,2\n", "a.csv, row 0|a.csv, line 2"),
    "TSV": ("a.tsv", ROWS.replace(",", "\t"), ""),
    "JSON Lines": ("a.jsonl", '{"text": "caf\u00e9"}\n{"text": "good film"}\n', ""),
    "JSON Lines with a mark": ("a.jsonl", '\ufeff{"text": "caf\u00e9"}\n{"text": "good film"}\n', ""),
    "JSON Lines with null": ("a.jsonl", '{"text": null}\n', "row 0: expected text, got None"),
    "broken JSON Lines": ("a.jsonl", '{"text": "a"}\n{oops\n', "line 2"),
    "spreadsheet": ("a.xlsx", b"PK", "'.xlsx' tables are not read"),
    "binary file": ("a.csv", b"\x00\x01\x02\xff", "a.csv"),
    "empty file": ("a.csv", "", "a.csv is empty"),
}
"""Name, content and the error that a file must give in one line; without an error it holds two texts."""
