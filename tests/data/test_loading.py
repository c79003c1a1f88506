"""Data sets by name, and tables of the user."""

import gzip
import os
from pathlib import Path

import pytest

from diffmask.datasets import loading, snli
from diffmask.datasets import sentiment as sst
from diffmask.datasets.loading import load_data, split_by_hash
from diffmask.datasets.tables import Columns, Example, read_examples
from diffmask.errors import InputError

SHARED = Path(os.environ.get("DIFFMASK_DATA", Path(__file__).parents[2].parent / "shared" / "data"))


def shared(name: str) -> Path:
    """A folder of data that is not part of the repository."""
    if not (SHARED / name).is_dir():
        pytest.skip(f"there is no {name} in the data folder; set DIFFMASK_DATA")
    return SHARED / name


def reviews() -> Path:
    try:
        return loading.packaged_reviews()
    except InputError as error:
        pytest.skip(str(error))


def test_the_treebank_has_its_published_sizes() -> None:
    folder = shared("sst")
    fine, binary = sst.load_sst(folder, classes=5), sst.load_sst(folder, classes=2)
    assert [len(split) for split in (fine.train, fine.valid, fine.test)] == [8544, 1101, 2210]
    assert [len(split) for split in (binary.train, binary.valid, binary.test)] == [6920, 872, 1821]
    assert {row.label for row in fine.train} == {0, 1, 2, 3, 4}


def test_every_word_of_the_treebank_has_a_sentiment() -> None:
    first = next(sst.read_trees(shared("sst"), "dev"))
    assert first.text == "It 's a lovely film with lovely performances by Buy and Accorsi ."
    assert dict(zip(first.words, first.sentiments, strict=True))["lovely"] == 3
    assert all(len(tree.words) == len(tree.sentiments) for tree in sst.read_trees(shared("sst"), "dev"))


def test_escapes_of_the_treebank_are_undone_and_its_odd_spaces_kept() -> None:
    tree = sst.parse_tree("(1 (2 -LRB-) (1 (2 1\\/2) (3 so\u00a0so)))")
    assert tree == sst.Tree(("(", "1/2", "so\u00a0so"), (2, 2, 3), 1)
    with pytest.raises(InputError, match="not a tree"):
        sst.parse_tree("plain text")


def test_snli_has_pairs_and_three_classes() -> None:
    data = snli.load_snli(shared("snli"))
    assert [len(split) for split in (data.train, data.valid, data.test)] == [18000, 2000, 9842]
    assert data.test[0].pair is not None
    assert data.classes == ("entailment", "neutral", "contradiction")
    quoted = next(row for row in data.train if row.pair == "A cat is a terrorist.")
    assert quoted.text.endswith('"I\'m a photographer not a terrorist."')


def test_the_packaged_reviews_have_a_fixed_split() -> None:
    reviews()
    data = load_data("rotten-tomatoes", Columns())
    assert [len(split) for split in (data.train, data.valid, data.test)] == [6819, 865, 846]
    texts = [{row.text for row in split} for split in (data.train, data.valid, data.test)]
    assert not texts[0] & texts[1] and not texts[0] & texts[2] and not texts[1] & texts[2]
    assert data.classes == ("negative", "positive")


def test_a_text_stays_in_its_split_if_other_rows_change() -> None:
    rows = [Example(f"text {number}") for number in range(1000)]
    whole, part = split_by_hash(rows), split_by_hash(rows[::3])
    assert set(part.valid) == set(whole.valid) & set(rows[::3])
    assert 70 < len(whole.valid) < 130 and 70 < len(whole.test) < 130


def test_a_folder_holds_a_table_for_each_split(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.tsv").write_text(f"sentence\tlabel\n{split} text\t1\n")
    data = load_data(str(tmp_path), Columns(text_column="sentence"))
    assert data.valid == [Example("valid text", label="1")]
    (tmp_path / "test.tsv").unlink()
    with pytest.raises(InputError, match=r"has no table 'test\.csv'"):
        load_data(str(tmp_path), Columns(text_column="sentence"))


def test_compressed_tables_are_read_and_broken_ones_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl.gz"
    file.write_bytes(gzip.compress('{"text": "gut é"}\n{"text": \n'.encode()))
    rows = read_examples(file, Columns())
    assert next(rows) == Example("gut é")
    with pytest.raises(InputError, match="line 2: not JSON"):
        next(rows)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nothing.csv", "there is no file"),
        ([("a", "b", "c")], "row 0: a row of 3 members"),
        (["fine", 3], r"row 1: expected text, got 3 \(int\)"),
        ([{"text": 3}], r"row 0: expected text, got 3 \(int\)"),
    ],
)
def test_rows_that_cannot_be_read_are_named(source: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(read_examples(source, Columns()))  # type: ignore[arg-type]


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(InputError, match="neither a data set nor the path of a table; nearest: 'rotten-tomatoes'"):
        load_data("rotten-tomatos", Columns())


def test_a_text_that_was_decoded_wrongly_has_a_split() -> None:
    assert sum(map(len, vars(split_by_hash([Example("good \ud800 film")])).values())) == 1
