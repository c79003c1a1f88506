"""An explainer is saved without its model, and goes back onto that very model only."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import diffmask as dm
from diffmask.core.explainer import Explainer
from diffmask.core.store import Artefact, read_artefact, write_artefact
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


def saved_with(values: dict[str, Any], folder: Path, target: Path) -> Path:
    """A copy of the explainer whose notes were changed, with the right checksum, as anybody can write it."""
    artefact = read_artefact(folder / "explainer", "explainer")
    write_artefact(target, "explainer", artefact.digest, Artefact(artefact.tensors, values))
    return target


def test_a_sibling_model_is_found_as_long_as_its_weights_are_those_of_the_fit(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "moved")
    assert scores(dm.load_explainer(tmp_path / "moved" / "explainer")).isfinite().all()
    weights = tmp_path / "moved" / "clf" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    with pytest.raises(StoreError, match=r"names the model \.\./clf, a folder outside its own with other safetensors"):
        dm.load_explainer(tmp_path / "moved" / "explainer")


@pytest.mark.parametrize("checksum", [None, "", "0" * 64, 7])
def test_a_file_cannot_lead_to_a_model_whose_weights_its_author_does_not_know(
    folder: Path, tmp_path: Path, checksum: object
) -> None:
    notes = dict(read_artefact(folder / "explainer", "explainer").values)
    outside = {"model": "../../elsewhere", "weights": checksum}
    explainer = saved_with({**notes, **outside}, folder, tmp_path / "a" / "explainer")
    shutil.copytree(folder / "clf", tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"outside its own .* give model=\.\.\. \(command line: --model\)"):
        dm.load_explainer(explainer)
    given = dm.load_explainer(explainer, tmp_path / "elsewhere")  # the user gives the path
    assert scores(given).isfinite().all()


def test_a_model_of_pickled_weights_outside_the_folder_is_not_loaded(folder: Path, tmp_path: Path) -> None:
    notes = dict(read_artefact(folder / "explainer", "explainer").values)
    explainer = saved_with({**notes, "model": "../clf"}, folder, tmp_path / "explainer")
    shutil.copytree(folder / "clf", tmp_path / "clf")
    torch.save(tiny_model("bert").state_dict(), tmp_path / "clf" / "pytorch_model.bin")
    (tmp_path / "clf" / "model.safetensors").unlink()
    with pytest.raises(StoreError, match="a folder outside its own"):
        dm.load_explainer(explainer)


def test_a_symlink_does_not_make_a_folder_the_explainer_s_own(folder: Path, tmp_path: Path) -> None:
    notes = dict(read_artefact(folder / "explainer", "explainer").values)
    explainer = saved_with({**notes, "model": "clf", "weights": ""}, folder, tmp_path / "explainer")
    (explainer / "clf").symlink_to(folder / "clf")
    with pytest.raises(StoreError, match="a folder outside its own"):
        dm.load_explainer(explainer)
    (explainer / "clf").unlink()
    shutil.copytree(folder / "clf", explainer / "clf")
    assert scores(dm.load_explainer(explainer)).isfinite().all()


@pytest.mark.parametrize("name", ["clf", "../missing", "./clf", "mine/clf"])
def test_a_remembered_path_is_not_looked_up_in_the_working_directory(
    folder: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = dict(read_artefact(folder / "explainer", "explainer").values)
    explainer = saved_with({**notes, "model": name}, folder, tmp_path / "a" / "explainer")
    (tmp_path / "here" / "mine").mkdir(parents=True)
    shutil.copytree(folder / "clf", tmp_path / "here" / "clf")
    shutil.copytree(folder / "clf", tmp_path / "here" / "mine" / "clf")
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(StoreError, match=r"names the model .*, which is not there; give model="):
        dm.load_explainer(explainer)


def test_an_upload_does_not_tell_the_path_of_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    uploaded: dict[str, Any] = {}

    class Hub:
        """Keeps what would be uploaded."""

        def create_repo(self, *_: object, **__: object) -> None:
            pass

        def upload_folder(self, repo_id: str, folder_path: Path) -> str:
            uploaded.update(read_artefact(folder_path, "explainer").values)
            return repo_id

    monkeypatch.setattr(hub, "HfApi", Hub)
    explainer = dm.load_explainer(folder / "explainer")
    assert dm.push_explainer(explainer, explainer._known_config(), "me/explainer") == "me/explainer"
    assert uploaded["model"] == "" and uploaded["method"]["name"] == "surrogate-mask"
