"""Artefacts are complete or absent; damaged or foreign ones are rejected with their path and rebuilt."""

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from diffmask.core.store import Artefact, Store, read_artefact, write_artefact
from diffmask.errors import StoreError
from diffmask.methods.gradients import Gradient
from diffmask.results.records import require_path
from support.linear import LinearTask
from support.workspaces import workspace_of

ARTEFACT = Artefact({"weight": torch.arange(6.0).reshape(2, 3)}, {"note": "kept", "numbers": [1, 2.5]})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def refuse() -> Artefact:
    raise AssertionError("the artefact should be in the store")


def test_a_stored_artefact_is_returned_unchanged(store: Store) -> None:
    store.get_or_make("fit", "abc", lambda: ARTEFACT)
    artefact = store.get_or_make("fit", "abc", refuse)
    assert torch.equal(artefact.tensors["weight"], ARTEFACT.tensors["weight"])
    assert artefact.values == ARTEFACT.values


@pytest.mark.parametrize("file", ["tensors.safetensors", "artefact.json"])
@pytest.mark.parametrize("damage", ["truncated", "missing", "foreign"])
def test_a_damaged_artefact_is_rejected_with_its_path_and_rebuilt(
    store: Store, file: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.get_or_make("fit", "abc", lambda: ARTEFACT)
    victim = store.path("fit", "abc") / file
    content = victim.read_bytes()
    victim.unlink()
    if damage != "missing":
        victim.write_bytes(content[:20] if damage == "truncated" else b"\x80\x04\x95 a pickle")
    assert not store.has("fit", "abc")
    with caplog.at_level(logging.WARNING):
        rebuilt = store.get_or_make("fit", "abc", lambda: Artefact({}, {"note": "new"}))
    assert rebuilt.values["note"] == "new"
    assert str(store.path("fit", "abc")) in caplog.text
    assert store.get_or_make("fit", "abc", refuse).values["note"] == "new"


def test_a_flipped_bit_is_detected(store: Store) -> None:
    store.get_or_make("fit", "abc", lambda: ARTEFACT)
    file = store.path("fit", "abc") / "tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(StoreError, match="checksum differs"):
        read_artefact(store.path("fit", "abc"), "fit")


def test_a_changed_digit_in_the_values_is_detected(store: Store) -> None:
    store.get_or_make("fit", "abc", lambda: ARTEFACT)
    file = store.path("fit", "abc") / "artefact.json"
    file.write_text(file.read_text().replace("2.5", "2.6"))
    with pytest.raises(StoreError, match="checksum of its values differs"):
        read_artefact(store.path("fit", "abc"), "fit")
    assert not store.has("fit", "abc")


def test_an_artefact_of_another_kind_or_digest_is_rejected(store: Store) -> None:
    store.get_or_make("fit", "abc", lambda: ARTEFACT)
    with pytest.raises(StoreError, match="another artefact than the requested task"):
        read_artefact(store.path("fit", "abc"), "task")
    store.path("fit", "abc").rename(store.path("fit", "xyz"))
    assert not store.has("fit", "xyz")


def test_work_that_fails_leaves_nothing_behind(store: Store) -> None:
    def fails() -> Artefact:
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        store.get_or_make("fit", "abc", fails)
    assert not store.has("fit", "abc")


def test_a_write_that_fails_leaves_no_half_artefact(store: Store) -> None:
    folder = store.path("fit", "abc")
    with pytest.raises(TypeError):
        write_artefact(folder, "fit", "abc", Artefact({}, {"bad": object()}))
    assert list(folder.parent.iterdir()) == []


def test_a_second_writer_does_not_replace_the_first_artefact(store: Store) -> None:
    folder = store.path("fit", "abc")
    write_artefact(folder, "fit", "abc", ARTEFACT)
    write_artefact(folder, "fit", "abc", Artefact({}, {"note": "late"}))
    assert read_artefact(folder, "fit").values["note"] == "kept"
    assert len(list(folder.parent.iterdir())) == 1


def test_old_remains_of_killed_writers_are_removed(store: Store) -> None:
    store.get_or_make("fit", "abc", lambda: ARTEFACT)
    old, new = store.root / "fit" / ".writing-old", store.root / "fit" / ".writing-new"
    for aside in (old, new):
        aside.mkdir()
        (aside / "tensors.safetensors").write_bytes(b"half")
    os.utime(old, (0, 0))
    os.utime(store.path("fit", "abc"), (0, 0))
    store.remove_partial_writes()
    assert not old.exists() and new.exists() and store.has("fit", "abc")


def test_the_note_is_plain_json(store: Store) -> None:
    store.get_or_make("fit", "abc", lambda: ARTEFACT)
    assert json.loads((store.path("fit", "abc") / "artefact.json").read_text())["kind"] == "fit"


@pytest.mark.parametrize(
    "damage",
    [
        lambda scores: scores.flatten()[:1],
        lambda scores: scores[:1],
        lambda scores: scores.long(),
        lambda scores: scores * float("nan"),
    ],
)
def test_stored_scores_of_another_shape_or_type_are_computed_again(
    damage: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    workspace, method = workspace_of(LinearTask([[1, 2, 3], [3, 1]]), tmp_path), Gradient()
    expected = workspace.explained(method, "test").attribution.scores
    (folder,) = tmp_path.rglob("explain/*")
    stored = read_artefact(folder, "explain")
    values, tensors = dict(stored.values), {"scores": damage(expected)}
    shutil.rmtree(folder)
    write_artefact(folder, "explain", folder.name, Artefact(tensors, values))
    assert torch.equal(workspace.explained(method, "test").attribution.scores, expected)
    assert torch.equal(read_artefact(folder, "explain").tensors["scores"], expected)


def test_a_path_that_is_a_loop_or_no_path_is_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop.name)
    for path in (loop, loop / "inside", b"bytes", 7, "a\0b", "x" * 1000):
        with pytest.raises(StoreError, match="is not a path that can be used"):
            require_path(path)
    require_path(tmp_path / "new")
