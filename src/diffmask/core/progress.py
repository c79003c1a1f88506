"""Progress of long work: a bar with the time left on a terminal, else a line in the log every ten seconds.

Lines go to the logger `diffmask.core.progress`; without any logging handler they go to standard error. A monitor
thread writes them, so that one long item, such as a forward pass, is no silence either.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from tqdm import tqdm

from diffmask.results.formatting import format_duration

logger = logging.getLogger(__name__)

INTERVAL = 10.0
"""Longest silence in a log, in seconds."""
FORECAST_AFTER = 2.0
"""Seconds of work after which its duration is forecast, if it will be longer than `INTERVAL`."""

Item = TypeVar("Item")


class Progress(Generic[Item]):
    """Counter of finished items, shown on a terminal or written to the log; iterable over the items it was given."""

    def __init__(self, items: Iterable[Item], label: str, total: int | float | None = None) -> None:
        self.items, self.label = items, label
        self.total = total if total is not None else len(items) if hasattr(items, "__len__") else None  # type: ignore[arg-type]
        self.done, self.start, self.forecast_given = 0.0, time.monotonic(), False
        self.bar: Any = None

    def __enter__(self) -> "Progress[Item]":
        self.start = time.monotonic()
        if sys.stderr is not None and sys.stderr.isatty():
            shape = "{desc}: {percentage:3.0f}% |{bar}| {n:.0f}/{total:.0f} [{elapsed}<{remaining}]"
            self.bar = tqdm(
                total=self.total,
                desc=self.label,
                leave=False,
                dynamic_ncols=True,
                bar_format=shape if self.total else None,
            )
        else:
            _MONITOR.push(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()
        else:
            _MONITOR.pop(self)

    def __iter__(self) -> Iterator[Item]:
        with self:
            for item in self.items:
                yield item
                self.update()

    def update(self, count: int | float = 1) -> None:
        """Count finished items."""
        self.done += count
        if self.bar is not None:
            self.bar.update(count)
        elif not self.forecast_given and time.monotonic() - self.start >= FORECAST_AFTER:
            self.forecast_given = True
            left = self.seconds_left()
            if left is not None and left > INTERVAL:
                _write(f"{self.label}: about {format_duration(left)} to go")

    def seconds_left(self) -> float | None:
        """Return the remaining time at the mean speed so far; None if it cannot be known yet."""
        if not self.total or not self.done:
            return None
        return (time.monotonic() - self.start) * max(self.total - self.done, 0) / self.done

    def status(self) -> str:
        """Describe how far the work is.

        >>> progress = Progress(range(4), "fit")
        >>> progress.status()
        'fit: 0 of 4, 0 s so far'
        """
        elapsed = format_duration(round(time.monotonic() - self.start))
        count = f"{self.done:,.0f} of {self.total:,.0f}" if self.total else f"{self.done:,.0f} done"
        left = self.seconds_left()
        rest = "" if left is None else f", {format_duration(left)} left"
        return f"{self.label}: {count}, {elapsed} so far{rest}"


class _Monitor:
    """Thread that writes the status of the innermost progress whenever nothing was written for ten seconds."""

    def __init__(self) -> None:
        self.active: list[Progress[Any]] = []
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None
        self.process = os.getpid()
        self.last_line = time.monotonic()

    def push(self, progress: "Progress[Any]") -> None:
        if self.process != os.getpid():  # a fork has no copy of the thread, and may have a locked condition
            self.__init__()  # type: ignore[misc]
        with self.changed:
            if not self.active:
                self.last_line = time.monotonic()
            self.active.append(progress)
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._run, name="diffmask-progress", daemon=True)
                self.thread.start()
            self.changed.notify()

    def pop(self, progress: "Progress[Any]") -> None:
        with self.changed:
            if progress in self.active:
                self.active.remove(progress)

    def _run(self) -> None:
        while True:
            with self.changed:
                while not self.active:
                    self.changed.wait()
                due = self.last_line + INTERVAL - time.monotonic()
                if due > 0:
                    self.changed.wait(due)
                    continue
                innermost = self.active[-1]
            _write(innermost.status())


_MONITOR = _Monitor()


def _write(line: str) -> None:
    _MONITOR.last_line = time.monotonic()
    if logger.hasHandlers():
        logger.info(line)
    elif sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)


def progress_bar(items: Iterable[Item], label: str, total: int | float | None = None) -> Progress[Item]:
    """Return the items with their progress; use it in a `for`, or in a `with` and call `update`."""
    return Progress(items, label, total)


_KEEP: ContextVar[bool] = ContextVar("keep what was learned", default=False)


@contextmanager
def keep_if_interrupted(keep: bool = True) -> Iterator[None]:
    """Let training loops inside end early at Ctrl-C, with what they have learned, instead of failing."""
    token = _KEEP.set(keep and threading.current_thread() is threading.main_thread())
    try:
        yield
    finally:
        _KEEP.reset(token)


@contextmanager
def stop_at_interrupt(label: str, how_far: Callable[[], str]) -> Iterator[None]:
    """Wrap a training loop: inside `keep_if_interrupted`, Ctrl-C ends the loop and says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        if not _KEEP.get():
            raise
        logger.warning(
            "%s: stopped at %s. What was learned is kept and checked now; press Ctrl-C again to abort. To learn more, "
            "fit again, if you like with a time limit such as budget='5min'",
            label,
            how_far(),
        )
