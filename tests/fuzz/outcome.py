"""Which ends of a command or a call are right: it succeeds, or it raises an error of this package."""

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SECONDS = 120
"""Longest time of one command or call."""


class TooLongError(BaseException):
    """A command or call that took longer than `SECONDS`."""


@dataclass(frozen=True)
class Failure:
    """A wrong end: what was run, and why its end is wrong."""

    given: str
    why: str
    place: str = ""
    """Last line of this package in the traceback: failures of one place have one cause."""

    @staticmethod
    def of(given: str, error: BaseException) -> "Failure":
        """Return the failure of an exception that is not ours."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "diffmask" in Path(frame.filename).parts and "src" in frame.filename]
        last = own[-1] if own else frames[-1]
        text = (str(error).splitlines() or [""])[0]
        return Failure(given, f"{type(error).__name__}: {text[:200]}", f"{last.filename}:{last.lineno}")


@contextmanager
def time_limit() -> Iterator[None]:
    """Raise `TooLongError` in the block after `SECONDS`."""

    def stop(*_: object) -> None:
        raise TooLongError(f"over {SECONDS} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
