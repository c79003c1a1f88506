"""Progress of long work: a bar with the time left on a terminal, else a line in the log every six seconds.

Lines go to the logger `diffmask.core.progress`; without any logging handler they go to standard error. A monitor
thread writes them, and moves the clocks of the bars, so that one long item, such as a forward pass, is no silence.
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

from diffmask.results.formatting import format_duration

PROGRESS_LOGGER = __name__
logger = logging.getLogger(PROGRESS_LOGGER)

INTERVAL = 6.0
"""Longest silence, in seconds."""
FORECAST_AFTER = 2.0
"""Seconds of work after which its duration is forecast, if it will be longer than `WORTH_FORECAST`."""
WORTH_FORECAST = 10.0
"""Shortest remaining time, in seconds, that a log forecasts."""

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
        if _on_terminal() and not _MONITOR.hidden:
            from tqdm import tqdm

            shape = "{desc}: {percentage:3.0f}% |{bar}| {n:.0f}/{total:.0f} [{elapsed}<{remaining}]"
            self.bar = tqdm(
                total=self.total,
                desc=self.label,
                leave=False,
                dynamic_ncols=True,
                bar_format=shape if self.total else None,
            )
        _MONITOR.push(self)
        return self

    def __exit__(self, *_: object) -> None:
        _MONITOR.pop(self)
        if self.bar is not None:
            self.bar.close()

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
            if left is not None and left > WORTH_FORECAST:
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
        count = f"{self.done:,.0f} of {self.total:,.0f}" if self.total else f"{self.done:,.0f} done"
        left = self.seconds_left()
        rest = "" if left is None else f", {format_duration(left)} left"
        return f"{self.label}: {count}, {_elapsed(self.start)} so far{rest}"

    def speak(self) -> None:
        """Write the status, or move the clock of the bar."""
        if self.bar is not None:
            self.bar.refresh()
            _MONITOR.last_line = time.monotonic()
        else:
            _write(self.status())


class Stage:
    """Work without a count, such as loading a model; `status` may return other words for it, or None for silence."""

    def __init__(self, status: Callable[[], str | None]) -> None:
        self.status, self.start = status, time.monotonic()

    def __enter__(self) -> "Stage":
        self.start = time.monotonic()
        _MONITOR.push(self)
        return self

    def __exit__(self, *_: object) -> None:
        _MONITOR.pop(self)

    def speak(self) -> None:
        """Write the status and the time so far."""
        status = self.status()
        if status is None:
            _MONITOR.last_line = time.monotonic()
        else:
            _write(f"{status}: {_elapsed(self.start)} so far")


def stage(label: str) -> Stage:
    """Return a block of work that says its name and its time every few seconds, if it takes that long."""
    return Stage(lambda: label)


def silent_stage() -> Stage:
    """Return a block during which something else shows the progress."""
    return Stage(lambda: None)


@contextmanager
def hidden_progress() -> Iterator[None]:
    """Show no progress within this block, in the whole process."""
    _MONITOR.hidden, before = True, _MONITOR.hidden
    try:
        yield
    finally:
        _MONITOR.hidden = before


def _elapsed(start: float) -> str:
    return format_duration(round(time.monotonic() - start))


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


class _Monitor:
    """Thread that lets the innermost work speak whenever no work has spoken for a few seconds."""

    def __init__(self) -> None:
        self.active: list[Progress[Any] | Stage] = []
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None
        self.process = os.getpid()
        self.last_line = time.monotonic()
        self.hidden = False

    def push(self, work: "Progress[Any] | Stage") -> None:
        if self.process != os.getpid():  # a fork has no copy of the thread, and may have a locked condition
            hidden = self.hidden
            self.__init__()  # type: ignore[misc]
            self.hidden = hidden
        with self.changed:
            if not self.active:
                self.last_line = time.monotonic()
            self.active.append(work)
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._run, name="diffmask-progress", daemon=True)
                self.thread.start()
            self.changed.notify()

    def pop(self, work: "Progress[Any] | Stage") -> None:
        with self.changed:
            if work in self.active:
                self.active.remove(work)

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
            innermost.speak()


_MONITOR = _Monitor()


def _write(line: str) -> None:
    _MONITOR.last_line = time.monotonic()
    if _MONITOR.hidden:
        return
    if _on_terminal():
        from tqdm import tqdm

        tqdm.write(line, file=sys.stderr)  # above the bars
    elif logger.hasHandlers():
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
