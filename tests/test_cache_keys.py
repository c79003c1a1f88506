"""Cache keys include the content of the files that a task reads."""

import shutil
from pathlib import Path

from diffmask.core.config import digest_of_files
from diffmask.core.store import Store
from diffmask.tasks.bilstm.bilstm_config import BiLSTMConfig
from diffmask.tasks.text.text_configs import FineTunedClassificationConfig
from diffmask.workspace.workspace import Workspace


def test_the_digest_of_a_folder_is_that_of_its_names_and_contents(tmp_path: Path) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy"
    (folder / "trees").mkdir(parents=True)
    (folder / "trees" / "train.txt").write_text("good")
    shutil.copytree(folder, copy)
    before = digest_of_files(folder)
    assert digest_of_files(copy) == before
    (copy / "trees" / "train.txt").write_text("poor")  # The same size.
    assert digest_of_files(copy) != before
    (folder / "trees" / "train.txt").rename(folder / "trees" / "test.txt")
    assert digest_of_files(folder) != before


def test_results_and_hidden_files_do_not_change_the_digest_of_a_data_folder(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("good")
    before = digest_of_files(tmp_path)
    (tmp_path / "run" / "store").mkdir(parents=True)
    (tmp_path / "run" / "report.html").write_text("results")
    (tmp_path / ".cache").write_text("hidden")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    assert digest_of_files(tmp_path) == before


def test_a_task_whose_files_are_edited_has_another_cache_key(tmp_path: Path) -> None:
    vectors, folder = tmp_path / "words.vec", tmp_path / "data"
    folder.mkdir()
    vectors.write_text("good 1 2")
    config = BiLSTMConfig(data="sst", folder=str(folder), vectors=str(vectors))
    workspace, store = Workspace(Store(tmp_path / "store"), config, 0), Store(tmp_path / "store")
    key = workspace.task_digest()
    assert Workspace(store, config, 0).task_digest() == key
    vectors.write_text("good 2 1")
    edited = Workspace(store, config, 0).task_digest()
    assert edited != key != Workspace(store, config, 0).training_digest()
    assert workspace.task_digest() == key  # A run that has begun keeps its keys.
    (folder / "train.txt").write_text("good")
    assert Workspace(store, config, 0).task_digest() not in (key, edited)


def test_the_folder_after_the_name_of_a_data_set_is_part_of_the_cache_key(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("good")
    config = FineTunedClassificationConfig(data=f"sst2:{tmp_path}")
    before = config.file_digests()
    (tmp_path / "train.txt").write_text("poor")
    assert len(before) == 1 and config.file_digests() != before
    assert not FineTunedClassificationConfig(data="short-reviews").file_digests()
