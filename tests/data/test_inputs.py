"""Everyday objects that hold texts are read, and what is no text is named with its row."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest

from diffmask.datasets.tables import Columns, Example, read_examples, read_inputs
from diffmask.errors import InputError
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.text.encoding import TextEncodingConfig
from support.everyday import EXAMPLES, SEVERAL
from support.tiny_models import tiny_model, word_pieces

TASK = TextClassification(tiny_model("bert"), word_pieces())


@pytest.mark.parametrize("kind", SEVERAL)
def test_several_texts(kind: str) -> None:
    assert read_inputs(SEVERAL[kind](), TASK.to_example) == (EXAMPLES, False)


@pytest.mark.parametrize(
    ("value", "example"),
    [
        ("a film", Example("a film")),
        (np.str_("a film"), Example("a film")),
        (("a film", "good"), Example("a film", "good")),
        ({"text": "a film"}, Example("a film")),
        ({"text": "a film", "text_pair": "good", "label": 1}, Example("a film", "good")),
        (Example("a film"), Example("a film")),
    ],
)
def test_one_text(value: object, example: Example) -> None:
    assert read_inputs(value, TASK.to_example) == ([example], True)


def test_pairs_are_read_from_tuples_lists_and_columns(tmp_path: Path) -> None:
    pairs = [Example("a film", "good"), Example("dull", "bad")]
    for value in (
        [("a film", "good"), ("dull", "bad")],
        [["a film", "good"], ["dull", "bad"]],
        {"text": ["a film", "dull"], "text_pair": ["good", "bad"]},
        pd.DataFrame({"text": ["a film", "dull"], "text_pair": ["good", "bad"]}),
    ):
        assert read_inputs(value, TASK.to_example) == (pairs, False)
    table = tmp_path / "pairs.csv"
    table.write_text("premise;hypothesis\na film;good\ndull;bad\n")
    columns = TextEncodingConfig(text_column="premise", pair_column="hypothesis")
    task = TextClassification(TASK.model, TASK.tokenizer, encoding=columns)
    assert read_inputs(table, task.to_example) == (pairs, False)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, r"^expected text, got None; give a text or a list of texts$"),
        (5, r"^expected text, got 5 \(int\)"),
        (float("nan"), r"^expected text, got nan \(a missing value\)"),
        (b"good", r"^expected text, got b'good' \(bytes; decode it first\)"),
        (["good", None], r"^row 1: expected text, got None$"),
        (["good", 5], r"^row 1: expected text, got 5 \(int\)$"),
        ([b"good"], r"^row 0: expected text, got b'good' \(bytes; decode it first\)$"),
        (pd.Series(["good", None], dtype=object), r"^row 1: expected text, got None$"),
        (pd.Series(["good", np.nan], dtype=object), r"^row 1: expected text, got nan"),
        (pd.Series(["good", pd.NA], dtype="string"), r"^row 1: expected text, got .*missing value"),
        (pd.DataFrame({"text": ["good", None]}), r"^row 1: expected text, got "),
        (pd.DataFrame({"review": ["good"]}), r"^row 0: there is no column 'text'; known: review"),
        ({"texts": "a film"}, r"^there is no column 'text'; nearest: 'texts'"),
        (("a", "b", "c"), r"^a pair has two texts; found 3"),
        (("a", None), r"^expected text, got None"),
        ({"text": ["a", "b"], "text_pair": ["c"]}, r"^the columns have different numbers of rows: 'text' 2"),
        (datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": ["a"]})}), r"with the splits train; give"),
    ],
)  # fmt: skip
def test_what_is_no_text_is_named_with_its_row(value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_inputs(value, TASK.to_example)


@pytest.mark.parametrize("value", [[("good", 1), (None, 0)], {"text": "good", "label": 1}])
def test_training_rows_are_checked_likewise(value: Any) -> None:
    with pytest.raises(InputError, match=r"row 1: expected text, got None|found one row"):
        list(read_examples(value, Columns()))


def test_a_cell_that_a_csv_row_lacks_is_empty(tmp_path: Path) -> None:
    table = tmp_path / "short.csv"
    table.write_text("label,text\n1,good\n0\n")
    assert list(read_examples(table, Columns())) == [Example("good", label="1"), Example("", label="0")]
