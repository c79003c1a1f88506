"""Artefacts are whole or not there; what is damaged or foreign is refused with its path, and built again."""

import json
import logging
import os
from pathlib import Path

import pytest
import torch

from diffmask.core.store import Artefact, Store, read, write
from diffmask.errors import StoreError

ARTEFACT = Artefact({"weight": torch.arange(6.0).reshape(2, 3)}, {"note": "kept", "numbers": [1, 2.5]})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def refuse() -> Artefact:
    raise AssertionError("it should have been found")


def test_an_artefact_is_found_again_as_it_was(store: Store) -> None:
    store.get_or_make("fit", "abc", lambda: ARTEFACT)
    found = store.get_or_make("fit", "abc", refuse)
    assert torch.equal(found.tensors["weight"], ARTEFACT.tensors["weight"])
    assert found.values == ARTEFACT.values


@pytest.mark.parametrize("file", ["tensors.safetensors", "artefact.json"])
@pytest.mark.parametrize("damage", ["truncated", "missing", "foreign"])
def test_a_damaged_artefact_is_refused_with_its_path_and_built_again(
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


def test_a_flipped_bit_is_noticed(store: Store) -> None:
    store.get_or_make("fit", "abc", lambda: ARTEFACT)
    file = store.path("fit", "abc") / "tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(StoreError, match="checksum differs"):
        read(store.path("fit", "abc"), "fit")


def test_a_changed_digit_in_the_values_is_noticed(store: Store) -> None:
    store.get_or_make("fit", "abc", lambda: ARTEFACT)
    file = store.path("fit", "abc") / "artefact.json"
    file.write_text(file.read_text().replace("2.5", "2.6"))
    with pytest.raises(StoreError, match="checksum of its values differs"):
        read(store.path("fit", "abc"), "fit")
    assert not store.has("fit", "abc")


def test_an_artefact_of_another_kind_or_digest_is_refused(store: Store) -> None:
    store.get_or_make("fit", "abc", lambda: ARTEFACT)
    with pytest.raises(StoreError, match="another artefact than the requested task"):
        read(store.path("fit", "abc"), "task")
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
        write(folder, "fit", "abc", Artefact({}, {"bad": object()}))
    assert list(folder.parent.iterdir()) == []


def test_whoever_writes_second_leaves_the_first_in_place(store: Store) -> None:
    folder = store.path("fit", "abc")
    write(folder, "fit", "abc", ARTEFACT)
    write(folder, "fit", "abc", Artefact({}, {"note": "late"}))
    assert read(folder, "fit").values["note"] == "kept"
    assert len(list(folder.parent.iterdir())) == 1


def test_what_killed_writers_left_is_swept_once_it_is_old(store: Store) -> None:
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
