"""Tables that are not as expected: each is read, or refused with the file, the line and a remedy."""

import gzip
import json
from pathlib import Path

import pytest

from diffmask.datasets.tables import Columns, Example, read_examples, read_table
from diffmask.errors import InputError


def read(path: Path, **columns: str) -> list[Example]:
    return list(read_examples(path, Columns(**columns)))


def write(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no file .*rows\.csv"):
        read(tmp_path / "rows.csv")
    (tmp_path / "folder.csv").mkdir()
    write(tmp_path / "folder.csv", "rows.csv", "text\n")
    with pytest.raises(InputError, match=r"folder\.csv is a folder; give a file in it \(rows\.csv\)"):
        read(tmp_path / "folder.csv")


def test_another_kind_of_file_is_refused_with_the_nearest_kind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'\.json' tables are not read; nearest: '\.jsonl'"):
        read(write(tmp_path, "rows.json", "[]"))


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_a_byte_order_mark_is_dropped(tmp_path: Path, name: str) -> None:
    content = "text,label\ngood,1\n" if name == "rows.csv" else '{"text": "good", "label": "1"}\n'
    assert read(write(tmp_path, name, b"\xef\xbb\xbf" + content.encode())) == [Example("good", label="1")]


def test_another_encoding_is_named_with_its_line_and_read_with_the_option(tmp_path: Path) -> None:
    path = write(tmp_path, "rows.csv", "text,label\nplain,0\ncafé,1\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"rows\.csv, line 3: not text in utf-8; .*encoding='latin-1'"):
        read(path)
    assert read(path, encoding="latin-1")[1] == Example("café", label="1")


def test_utf_16_is_recognised_by_its_mark_and_read_with_the_option(tmp_path: Path) -> None:
    path = write(tmp_path, "rows.tsv", "text\tlabel\ncafé\t1\n".encode("utf-16"))
    with pytest.raises(InputError, match=r"rows\.tsv, line 1: not text in utf-8; .*encoding='utf-16'"):
        read(path)
    assert read(path, encoding="utf-16") == [Example("café", label="1")]
    unmarked = write(tmp_path, "unmarked.csv", "text,label\ngood,1\n".encode("utf-16-le"))
    with pytest.raises(InputError, match=r"unmarked\.csv, line 1: NUL characters: .*encoding='utf-16'"):
        read(unmarked)


def test_binary_data_is_not_taken_for_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"rows\.csv, line 1: not text in utf-8, but binary data"):
        read(write(tmp_path, "rows.csv", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"))


def test_an_unknown_encoding_gets_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'latin1x' is not a character encoding; nearest: 'latin-1'"):
        read(write(tmp_path, "rows.csv", "text\ngood\n"), encoding="latin1x")


def test_a_cell_may_be_longer_than_csv_allows_by_default(tmp_path: Path) -> None:
    import csv

    limit = csv.field_size_limit()
    assert len(read(write(tmp_path, "rows.csv", f"text\n{'x' * 131_073}\n"))[0].text) == 131_073
    assert csv.field_size_limit() == limit


def test_a_quotation_mark_that_is_never_closed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffmask.datasets.tables.MAX_FIELD", 50)
    path = write(tmp_path, "rows.csv", 'text\n"open\n' + "another row\n" * 10)
    with pytest.raises(InputError, match=r"rows\.csv, line \d+: field larger .*close every quotation mark"):
        read(path)


@pytest.mark.parametrize("end", ["", "\n", "another row\n" * 10])
def test_a_quotation_mark_that_takes_in_the_rest_of_the_file_is_refused(tmp_path: Path, end: str) -> None:
    path = write(tmp_path, "rows.csv", f'text,label\ngood,1\n"two\nlines",0\n"open,1\n{end}')
    with pytest.raises(InputError, match=r"rows\.csv, line 5: a quotation mark is never closed; close it"):
        read(path)


def test_quotation_marks_and_line_ends_within_texts_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path, "rows.csv", 'text\n"two\nlines, ""quoted"""\na 5" screen\n"a"b\n"the\nend"\n')
    assert [row.text for row in read(path)] == ['two\nlines, "quoted"', 'a 5" screen', "ab", "the\nend"]


@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(b"text\n" + b"good\n" * 9999)[:60]], ids=["no archive", "truncated"]
)
def test_a_broken_archive_is_named(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError, match=r"rows\.csv\.gz cannot be decompressed"):
        read(write(tmp_path, "rows.csv.gz", content))


def test_broken_parquet_is_named_and_whole_parquet_is_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"text": ["good"], "label": [1]}), path)
    assert read(path) == [Example("good", label=1)]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"rows\.parquet cannot be read as Parquet"):
        read(path)
    twice = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    parquet.write_table(twice, path)
    with pytest.raises(InputError, match="several columns are called 'text'"):
        read(path)


def test_json_that_is_broken_or_nested_too_deeply_is_named_with_its_line(tmp_path: Path) -> None:
    deep = write(tmp_path, "deep.jsonl", '{"text": "good"}\n' + "[" * 100_000 + "]" * 100_000 + "\n")
    with pytest.raises(InputError, match=r"deep\.jsonl, line 2: JSON nested too deeply"):
        read(deep)
    with pytest.raises(InputError, match=r"broken\.jsonl, line 3: not JSON"):
        read(write(tmp_path, "broken.jsonl", '{"text": "good"}\n\n{"text": \n'))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"rows\.csv: several columns are called 'text'; rename all but one"):
        read(write(tmp_path, "rows.csv", "text,label,text\na,1,b\n"))
    unnamed = write(tmp_path, "unnamed.csv", ",,text\n0,0,good\n")
    assert read(unnamed) == [Example("good")]


def test_a_row_with_more_cells_than_columns_is_named_and_empty_cells_at_its_end_are_not(tmp_path: Path) -> None:
    assert read(write(tmp_path, "blank.csv", "text,label\ngood,1,,\n")) == [Example("good", label="1")]
    with pytest.raises(InputError, match=r"rows\.csv, line 3: 3 cells in a table of 2 columns; .*quotation marks"):
        read(write(tmp_path, "rows.csv", "text,label\nfine,0\ngood, really good,1\n"))


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_delimiter_of_a_csv_file_is_found_in_its_header(tmp_path: Path, delimiter: str) -> None:
    lines = [["number", "text", "label"], ["0", '"one, two; three\tfour"', "1"]]
    path = write(tmp_path, "rows.csv", "\n".join(delimiter.join(cells) for cells in lines))
    assert read(path) == [Example("one, two; three\tfour", label="1")]


def test_a_delimiter_between_quotation_marks_of_the_header_does_not_count(tmp_path: Path) -> None:
    path = write(tmp_path, "rows.csv", '"a;b;c",text\n1,good\n')
    assert list(read_table(path)) == [{"a;b;c": "1", "text": "good"}]


def test_a_blank_label_is_no_label(tmp_path: Path) -> None:
    assert read(write(tmp_path, "rows.csv", "text,label\ngood,\nbad, \nfine,0\n")) == [
        Example("good"),
        Example("bad"),
        Example("fine", label="0"),
    ]
    rows = [{"text": "good", "label": float("nan")}, {"text": "bad", "label": None}]
    assert list(read_examples(rows, Columns())) == [Example("good"), Example("bad")]


def test_a_row_that_cannot_be_read_is_named_with_its_file(tmp_path: Path) -> None:
    path = write(tmp_path, "rows.jsonl", "\n".join(json.dumps(row) for row in ({"text": "good"}, {"text": 3})))
    with pytest.raises(InputError, match=r"rows\.jsonl, row 1: expected text, got 3 \(int\)"):
        read(path)
