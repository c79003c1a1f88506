"""An explainer is saved without its model, and goes back onto that very model only."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import diffmask as dm
from diffmask.core.explainer import Explainer
from diffmask.core.store import read_artefact, write_artefact
from diffmask.errors import StoreError
from diffmask.tasks.classification import TextClassification
from diffmask.tasks.text.encoding import TextEncodingConfig
from diffmask.workspace.persistence import find_explainer
from support.tiny_models import tiny_model, word_pieces

pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")

ROWS = [("the film is good", 1), ("a very dull mess , but it was fun !", 2), ("enjoyable", 0)] * 4
READING = TextEncodingConfig(max_tokens=16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier in `clf` and an explainer of it in `explainer`."""
    home = tmp_path_factory.mktemp("saved")
    tiny_model("bert").save_pretrained(home / "clf")
    word_pieces().save_pretrained(home / "clf")
    task = TextClassification(home / "clf", train=ROWS, encoding=READING)
    dm.SurrogateMask(steps=5, batch_size=4).fit(task).save_pretrained(home / "explainer")
    return home


@pytest.fixture(scope="module")
def expected(folder: Path) -> torch.Tensor:
    task = TextClassification(folder / "clf", train=ROWS, encoding=READING)
    return dm.SurrogateMask(steps=5, batch_size=4).fit(task)("the film is enjoyable").scores


def scores(explainer: Explainer) -> torch.Tensor:
    return explainer("the film is enjoyable").scores


def test_it_explains_as_before_with_the_model_and_tokenizer(folder: Path, expected: torch.Tensor) -> None:
    loaded = dm.load_explainer(folder / "explainer", tiny_model("bert"), word_pieces())
    assert torch.equal(scores(loaded), expected)
    assert loaded.task.text_encoder.config == READING
    assert loaded.task.data == {}


def test_it_explains_as_before_with_a_task_a_folder_or_what_it_remembers(folder: Path, expected: torch.Tensor) -> None:
    task = TextClassification(tiny_model("bert"), word_pieces(), encoding=READING)
    for loaded in (
        dm.load_explainer(folder / "explainer", task),
        dm.load_explainer(folder / "explainer", folder / "clf"),
        dm.load_explainer(folder / "explainer"),
    ):
        assert torch.equal(scores(loaded), expected)


def test_what_is_saved_again_is_the_same(folder: Path, tmp_path: Path) -> None:
    dm.load_explainer(folder / "explainer").save_pretrained(tmp_path / "again")
    first, second = (home / "tensors.safetensors" for home in (folder / "explainer", tmp_path / "again"))
    assert first.read_bytes() == second.read_bytes()


def test_the_folder_holds_the_explainer_alone_as_safetensors_and_json(folder: Path) -> None:
    assert sorted(file.name for file in (folder / "explainer").iterdir()) == ["artefact.json", "tensors.safetensors"]
    note = json.loads((folder / "explainer" / "artefact.json").read_text())
    assert note["values"]["model"] == "../clf"
    assert note["values"]["method"]["name"] == "surrogate-mask"


def test_another_model_is_refused(folder: Path) -> None:
    with pytest.raises(StoreError, match=r"was fitted to model \w{16}; this task's model is"):
        dm.load_explainer(folder / "explainer", tiny_model("bert", seed=1), word_pieces())


def test_an_explainer_is_replaced_and_anything_else_is_not(folder: Path, tmp_path: Path) -> None:
    explainer = dm.load_explainer(folder / "explainer")
    for _ in range(2):
        explainer.save_pretrained(tmp_path / "twice")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="holds no explainer"):
        explainer.save_pretrained(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("step", ["written", "moved away"])
def test_a_replacement_that_is_interrupted_leaves_the_old_explainer(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    explainer = dm.load_explainer(folder / "explainer")
    target = tmp_path / "explainer"
    explainer.save_pretrained(target)
    before = (target / "tensors.safetensors").read_bytes()
    rename = Path.rename

    def dies(path: Path, destination: Path) -> Path:
        if step == "written" or destination == target:
            raise KeyboardInterrupt
        return rename(path, destination)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dies)
        with pytest.raises(KeyboardInterrupt):
            explainer.save_pretrained(target)
    kept = find_explainer(target)
    assert (kept / "tensors.safetensors").read_bytes() == before
    explainer.save_pretrained(target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["explainer"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"margin": 0.1', '"margin": 0.2', "checksum of its values differs"),
        ('"method": {', '"method": {"seed": 1,', "checksum of its values differs"),
    ],
)
def test_an_edited_note_is_refused(folder: Path, tmp_path: Path, old: str, new: str, message: str) -> None:
    shutil.copytree(folder / "explainer", tmp_path / "explainer")
    note = tmp_path / "explainer" / "artefact.json"
    assert old in note.read_text()
    note.write_text(note.read_text().replace(old, new, 1))
    with pytest.raises(StoreError, match=message):
        dm.load_explainer(tmp_path / "explainer", folder / "clf")


def test_a_config_with_another_digest_than_the_saved_one_is_refused(folder: Path, tmp_path: Path) -> None:
    artefact = read_artefact(folder / "explainer", "explainer")
    write_artefact(tmp_path / "explainer", "explainer", "0" * 16, artefact)
    with pytest.raises(StoreError, match="was saved with method digest 0000000000000000"):
        dm.load_explainer(tmp_path / "explainer", folder / "clf")


def test_a_hub_id_works_where_a_path_does(
    folder: Path, expected: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def download(repository: str, allow_patterns: list[str]) -> str:
        asked.append(repository)
        return str(folder / "explainer")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert torch.equal(scores(dm.load_explainer("someone/explainer", folder / "clf")), expected)
    assert asked == ["someone/explainer"]


def test_it_is_pushed_through_the_hubs_own_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []

    class Hub:
        def create_repo(self, repository: str, private: bool, exist_ok: bool) -> None:
            done.append((repository, private))

        def upload_folder(self, repo_id: str, folder_path: Path) -> str:
            done.append(sorted(file.name for file in folder_path.iterdir()))
            return f"https://hub/{repo_id}"

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    place = dm.load_explainer(folder / "explainer").push_to_hub("me/explainer", private=True)
    assert place == "https://hub/me/explainer"
    assert done == [("me/explainer", True), ["artefact.json", "tensors.safetensors"]]


def test_a_name_that_is_nowhere_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="neither a folder nor found on the hub"):
        dm.load_explainer(tmp_path / "nothing")
