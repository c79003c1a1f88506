"""Data sets of the hub, which the library also reads from a folder of the same form."""

import json
from pathlib import Path

import pytest

from diffmask.datasets.loading import load_data
from diffmask.datasets.tables import Columns
from diffmask.errors import InputError
from diffmask.tasks.bilstm.bilstm_config import BiLSTMConfig

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def _offline_and_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write_dataset(folder: Path, **splits: list[dict[str, object]]) -> str:
    folder.mkdir()
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"hub:{folder}"


def rows(count: int, column: str = "text", **more: object) -> list[dict[str, object]]:
    return [{column: f"text number {n} of these", "label": n % 2, **more} for n in range(count)]


def test_three_splits_are_taken_as_they_are(tmp_path: Path) -> None:
    data = load_data(write_dataset(tmp_path / "d", train=rows(20), validation=rows(4), test=rows(6)), Columns())
    assert [len(data.train), len(data.valid), len(data.test)] == [20, 4, 6]
    assert data.train[1].text == "text number 1 of these" and data.train[1].label == 1


def test_rows_without_a_label_are_left_out_and_splits_filled_up(tmp_path: Path) -> None:
    unknown = [{**row, "label": -1} for row in rows(6)]
    data = load_data(write_dataset(tmp_path / "d", train=rows(200), validation=rows(4), test=unknown), Columns())
    assert len(data.test) == 4 and len(data.train) + len(data.valid) == 200
    assert 5 < len(data.valid) < 50
    assert not {row.text for row in data.valid} & {row.text for row in data.train}


def test_training_rows_alone_are_parted(tmp_path: Path) -> None:
    data = load_data(write_dataset(tmp_path / "d", train=rows(200)), Columns())
    parts = [{row.text for row in part} for part in (data.train, data.valid, data.test)]
    assert all(parts) and len(set().union(*parts)) == 200 == sum(map(len, parts))


def test_columns_with_common_names_are_found(tmp_path: Path) -> None:
    data = load_data(write_dataset(tmp_path / "d", train=rows(30, "premise", hypothesis="so")), Columns())
    assert data.train[0].pair == "so"
    with pytest.raises(InputError, match="has no column 'text', but body, label"):
        load_data(write_dataset(tmp_path / "e", train=rows(3, "body")), Columns())


def test_missing_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'nobody/nothing' cannot be loaded"):
        load_data("hub:nobody/nothing", Columns())
    with pytest.raises(InputError, match="no split 'train', only test"):
        load_data(write_dataset(tmp_path / "d", test=rows(3)), Columns())


def test_a_bilstm_reads_the_hub_too(tmp_path: Path) -> None:
    name = write_dataset(tmp_path / "d", train=rows(40, "sentence"), validation=rows(8, "sentence"))
    with pytest.raises(InputError, match="babi-1 is not read from the hub"):
        BiLSTMConfig(data="babi-1", folder=name).dataset()
    # Of five words each; the treebank's sentences have six or more.
    assert not BiLSTMConfig(data="sst", folder=name).dataset().train
    longer = write_dataset(
        tmp_path / "e", train=[{"sentence": f"a text of seven words , {n}", "label": 1} for n in range(40)]
    )
    data = BiLSTMConfig(data="sst", folder=longer).dataset()
    assert "seven" in data.train[0].words
