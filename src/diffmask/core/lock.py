"""A claim: the right to make one artefact while others wait, which a maker that died cannot hold for ever.

Claims save work and nothing else. An artefact's name says what is in it and it appears whole, so two makers of the same
one would do the work twice and leave the same bits. Where a claim is broken too early, that is all that happens.
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

BEAT = 10.0
"""Seconds between two signs of life."""
PATIENCE = 120.0
"""Seconds without one after which a claim is abandoned; network file systems may show a sign a minute late."""


@contextmanager
def claimed(file: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Within this block nobody else holds the claim written at `file`, as long as this process shows signs of life."""
    mine = _Holder(socket.gethostname(), os.getpid(), uuid.uuid4().hex)
    _wait_for(file, mine, patience)
    over = threading.Event()
    beating = threading.Thread(target=_beat, args=(file, over), daemon=True)
    beating.start()
    try:
        yield
    finally:
        over.set()
        beating.join()
        if _holder(file) == mine:
            file.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Holder:
    host: str
    process: int
    token: str

    def is_gone(self) -> bool:
        """Whether it ran on this machine and does not any more; of other machines only the beat tells."""
        if os.name != "posix" or self.host != socket.gethostname():
            return False
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


def _wait_for(file: Path, mine: _Holder, patience: float) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    seen, since, pause = (0, ""), time.monotonic(), 0.01
    while not _create(file, mine):
        holder, sign = _holder(file), _sign(file)
        if sign != seen:
            # Only that it changed counts, and only by this machine's clock: clocks of two machines differ.
            seen, since = sign, time.monotonic()
        if (holder and holder.is_gone()) or time.monotonic() - since > patience:
            _break(file)
        else:
            time.sleep(pause)
            pause = min(2 * pause, 1.0)


def _create(file: Path, mine: _Holder) -> bool:
    try:
        handle = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w") as stream:
        stream.write(f"{mine.host} {mine.process} {mine.token}")
    return True


def _holder(file: Path) -> _Holder | None:
    """Who holds the claim; nobody known where it is gone or not written yet."""
    try:
        host, process, token = file.read_text().split()
        return _Holder(host, int(process), token)
    except (OSError, ValueError):
        return None


def _sign(file: Path) -> tuple[int, str]:
    try:
        return file.stat().st_mtime_ns, file.read_text()
    except OSError:
        return 0, ""


def _break(file: Path) -> None:
    """Take the abandoned claim away: a rename, of which one of many waiting succeeds."""
    aside = file.with_name(f".broken-{uuid.uuid4().hex}")
    try:
        file.rename(aside)
    except FileNotFoundError:
        return
    aside.unlink(missing_ok=True)


def _beat(file: Path, over: threading.Event) -> None:
    while not over.wait(BEAT):
        try:
            os.utime(file)
        except FileNotFoundError:
            return
