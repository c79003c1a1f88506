"""File locks with a heartbeat: one process makes an artefact while others wait, and a dead process loses its lock.

Locks only save work. Artefacts are content-addressed and appear atomically, so two processes that make the same one do
the work twice and write the same bits. Nothing else happens if a lock is broken too early.
"""

import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from diffmask.results.records import naming_path

HEARTBEAT_SECONDS = 10.0
"""Interval between two updates of the lock file."""
TIMEOUT_SECONDS = 120.0
"""Time without an update after which a lock is broken; network file systems may show updates a minute late."""


@contextmanager
def locked(file: Path, timeout: float = TIMEOUT_SECONDS) -> Iterator[None]:
    """Hold the lock file `file`; another process breaks it if it is not updated for `timeout` seconds."""
    mine = _Holder(socket.gethostname(), os.getpid(), uuid.uuid4().hex)
    _wait_for(file, mine, timeout)
    stop = threading.Event()
    heartbeat = threading.Thread(target=_keep_alive, args=(file, stop), daemon=True)
    heartbeat.start()
    try:
        yield
    finally:
        stop.set()
        heartbeat.join()
        if _holder(file) == mine:
            file.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Holder:
    host: str
    process: int
    token: str

    def has_ended(self) -> bool:
        """Return whether the process ran on this machine and has ended; other machines have only the heartbeat."""
        if os.name != "posix" or self.host != socket.gethostname():
            return False
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


def _wait_for(file: Path, mine: _Holder, timeout: float) -> None:
    with naming_path(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    seen, since, pause = (0, ""), time.monotonic(), 0.01
    while not _create(file, mine):
        holder, update = _holder(file), _last_update(file)
        if update != seen:
            # Compare changes by this machine's clock only: the clocks of two machines differ.
            seen, since = update, time.monotonic()
        if (holder and holder.has_ended()) or time.monotonic() - since > timeout:
            _break(file)
        else:
            time.sleep(pause)
            pause = min(2 * pause, 1.0)


def _create(file: Path, mine: _Holder) -> bool:
    with naming_path(file):
        try:
            handle = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        try:
            os.write(handle, f"{mine.host} {mine.process} {mine.token}".encode())
        except OSError:
            file.unlink()  # on a full disk; others would wait for a holder that nobody knows
            raise
        finally:
            os.close(handle)
    return True


def _holder(file: Path) -> _Holder | None:
    """Return the holder of the lock; None if the file is missing or not written yet."""
    try:
        host, process, token = file.read_text().split()
        return _Holder(host, int(process), token)
    except (OSError, ValueError):
        return None


def _last_update(file: Path) -> tuple[int, str]:
    try:
        return file.stat().st_mtime_ns, file.read_text()
    except OSError:
        return 0, ""


def _break(file: Path) -> None:
    """Remove an abandoned lock by a rename, which succeeds for only one of several waiting processes."""
    aside = file.with_name(f".broken-{uuid.uuid4().hex}")
    try:
        file.rename(aside)
    except FileNotFoundError:
        return
    aside.unlink(missing_ok=True)


def _keep_alive(file: Path, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_SECONDS):
        try:
            os.utime(file)
        except FileNotFoundError:
            return
