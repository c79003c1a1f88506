"""Content-addressed artefacts on disk: safetensors and JSON, written atomically, never pickled."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from diffmask.core.lock import locked
from diffmask.errors import StoreError
from diffmask.results.records import naming_path

logger = logging.getLogger(__name__)

FORMAT = "diffmask-artefact-2"


@dataclass(frozen=True)
class Artefact:
    """Named tensors and named plain values."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    digest: str = field(default="", compare=False)
    """Cache key under which it was written; empty for an artefact that was not read from disk."""


def _anything(artefact: Artefact) -> None:
    """Accept every complete artefact."""


@dataclass(frozen=True)
class Store:
    """A folder of artefacts: `root/kind/digest/` holds `tensors.safetensors` and `artefact.json`."""

    root: Path

    def path(self, kind: str, digest: str) -> Path:
        """Return the folder of an artefact, whether it exists or not."""
        return self.root / kind / digest

    def get_or_make(
        self, kind: str, digest: str, make: Callable[[], Artefact], accept: Callable[[Artefact], None] = _anything
    ) -> Artefact:
        """Return the stored artefact if it is complete and accepted; otherwise make, write and return it.

        `accept` may use the stored artefact and rejects it with a StoreError. If several processes ask at once, one
        makes the artefact and the others wait.
        """
        artefact = self._find(kind, digest, accept, logging.DEBUG)
        if artefact is not None:
            return artefact
        with locked(self.root / "locks" / f"{kind}-{digest}"):
            # The previous holder of the lock may have made it.
            artefact = self._find(kind, digest, accept, logging.WARNING)
            if artefact is not None:
                return artefact
            _remove(self.path(kind, digest))
            artefact = make()
            write_artefact(self.path(kind, digest), kind, digest, artefact)
        return artefact

    def _find(self, kind: str, digest: str, accept: Callable[[Artefact], None], level: int) -> Artefact | None:
        folder = self.path(kind, digest)
        if not folder.exists():
            return None
        try:
            artefact = read_artefact(folder, kind, digest)
            accept(artefact)
            return artefact
        except StoreError as error:
            logger.log(level, "%s; the artefact is rebuilt", error)
            return None

    def has(self, kind: str, digest: str) -> bool:
        """Return whether the artefact is stored and complete."""
        try:
            read_artefact(self.path(kind, digest), kind, digest)
        except StoreError:
            return False
        return True

    def remove_partial_writes(self, hours: float = 24) -> None:
        """Remove the remains of writers that were killed more than `hours` hours ago."""
        for pattern in ("*/.writing-*", "*/.removing-*"):
            for aside in self.root.glob(pattern):
                if time.time() - aside.stat().st_mtime > hours * 3600:
                    shutil.rmtree(aside, ignore_errors=True)


def write_artefact(folder: Path, kind: str, digest: str, artefact: Artefact) -> None:
    """Write to a temporary folder and rename it: readers see the whole artefact or none. An existing artefact stays."""
    with naming_path(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder.parent))
        aside.chmod(0o755)  # mkdtemp makes private folders, but other users may read the store
        try:
            _write_files(aside, kind, digest, artefact)
            try:
                os.rename(aside, folder)
            except OSError:
                if not folder.exists():
                    raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _write_files(aside: Path, kind: str, digest: str, artefact: Artefact) -> None:
    """Write the tensors and the note that names their checksum."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in artefact.tensors.items()}
    try:
        save_file(tensors, aside / "tensors.safetensors")
    except SafetensorError as error:  # the library's own type, also for a full disk
        raise OSError(None, str(error)) from None
    note = {
        "format": FORMAT,
        "kind": kind,
        "digest": digest,
        "tensors": _checksum(aside / "tensors.safetensors"),
        "values": artefact.values,
        "values_checksum": values_checksum(artefact.values),
    }
    (aside / "artefact.json").write_text(json.dumps(note, indent=1))


def _remove(folder: Path) -> None:
    """Remove a damaged artefact, or a file in its place; the rename makes it disappear at once."""
    aside = folder.with_name(f".removing-{uuid.uuid4().hex}")
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    else:
        aside.unlink()


def read_artefact(folder: Path, kind: str, digest: str | None = None) -> Artefact:
    """Read and verify the artefact in `folder`; a truncated or foreign one is a StoreError that names the path."""
    try:
        note = json.loads((folder / "artefact.json").read_text())
        if note["format"] != FORMAT or note["kind"] != kind or digest not in (None, note["digest"]):
            raise StoreError(f"{folder} holds another artefact than the requested {kind}")
        if note["tensors"] != _checksum(folder / "tensors.safetensors"):
            raise StoreError(f"{folder / 'tensors.safetensors'} is damaged: its checksum differs")
        if note["values_checksum"] != values_checksum(note["values"]):
            raise StoreError(f"{folder / 'artefact.json'} is damaged: the checksum of its values differs")
        tensors = _Parts(load_file(folder / "tensors.safetensors"), folder)
        return Artefact(tensors, _Parts(note["values"], folder), note["digest"])
    except StoreError:
        raise
    except FileNotFoundError as error:
        raise StoreError(f"{error.filename} is missing: {folder} is not a complete artefact") from None
    except OSError as error:
        raise StoreError(f"{error.filename or folder} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise StoreError(f"{folder / 'artefact.json'} is damaged: JSON nested too deeply") from None
    except (ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise StoreError(f"{folder} is not an artefact of this package: {error!r}") from None


class _Parts(dict[str, Any]):
    """Tensors or values of an artefact. A missing one is a StoreError that names the folder."""

    def __init__(self, parts: Mapping[str, Any], folder: Path) -> None:
        super().__init__(parts)
        self.folder = folder

    def __missing__(self, name: str) -> Any:
        raise StoreError(f"{self.folder} is damaged: '{name}' is missing")


def values_checksum(values: Any) -> str:
    """Return the SHA-256 of plain values as canonical JSON, the same before writing and after reading them."""
    plain = json.loads(json.dumps(values))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
