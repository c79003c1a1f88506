"""What an explanation costs: passes through the model, rows, seconds, memory.

Work done in portions that fit in memory: one that does not is halved, and the work goes on.
"""

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CDLL
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from diffmask.core.hooks import on_gradient, on_output


@dataclass
class Cost:
    """Everything spent so far; adds up over calls."""

    forwards: int = 0
    """Forward passes of the model, of any number of rows."""
    backwards: int = 0
    """Backward passes through the model."""
    rows: int = 0
    """Rows that went forward, each copy counted."""
    seconds: float = 0.0
    peak_megabytes: float = 0.0
    """Largest resident memory of the process while it ran; 0 where the system does not tell."""
    rows_back: int = 0
    """Rows that went backward."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.forwards + other.forwards,
            self.backwards + other.backwards,
            self.rows + other.rows,
            self.seconds + other.seconds,
            max(self.peak_megabytes, other.peak_megabytes),
            self.rows_back + other.rows_back,
        )

    def as_dict(self) -> dict[str, int | float]:
        """The figures by name, rounded for people."""
        return {name: round(value, 3) for name, value in asdict(self).items()}


@contextmanager
def metering(model: nn.Module, cost: Cost) -> Iterator[Cost]:
    """Within this block every pass through `model` is added to `cost`."""

    def seen(answer: Tensor) -> None:
        cost.forwards += 1
        cost.rows += answer.shape[0]
        count_backward(answer, cost)

    _forget_peak()
    start = time.perf_counter()
    try:
        with on_output(model, seen):
            yield cost
    finally:
        cost.seconds += time.perf_counter() - start
        cost.peak_megabytes = max(cost.peak_megabytes, _peak_megabytes())


def count_backward(state: Tensor, cost: Cost) -> None:
    """Add to `cost` every backward pass that comes by this tensor."""

    def count(gradient: Tensor) -> None:
        cost.backwards += 1
        cost.rows_back += gradient.shape[0]

    on_gradient(state, count)


def _forget_peak() -> None:
    """Ask Linux to start its record of peak memory anew; elsewhere there is nothing to ask."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _peak_megabytes() -> float:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found.group(1)) / 1024 if found else 0.0


Result = TypeVar("Result")

logger = logging.getLogger(__name__)

SIGNS = ("out of memory", "can't allocate memory", "not enough memory")
"""How torch's allocators, of any device and version, say that there was no room."""


@dataclass
class AdaptiveBatchSize:
    """How many rows the model is given at once; it halves for good when they do not fit."""

    rows: int

    def split(self, count: int, work: Callable[[slice], Result], rows_each: int = 1) -> list[Result]:
        """`work` on items 0..count in order, in runs of at most `rows` rows, each item being `rows_each` of them."""
        done: list[Result] = []
        start = 0
        while start < count:
            stop = min(count, start + max(1, self.rows // rows_each))
            found = _attempt(work, slice(start, stop))
            if found is None:
                self._halve((stop - start) * rows_each, smallest=rows_each)
                continue
            done.append(found[0])
            start = stop
        return done

    def _halve(self, tried: int, smallest: int) -> None:
        if tried <= smallest:
            raise MemoryError(
                f"out of memory with {tried} rows at once, and fewer cannot be tried here; lower internal_batch_size"
            )
        self.rows = max(smallest, tried // 2)
        logger.warning("out of memory with %d rows at once; going on with %d", tried, self.rows)


def _attempt(work: Callable[[slice], Result], items: slice) -> tuple[Result] | None:
    """The result, or None where memory ran out; by then the failed attempt holds no tensor any more."""
    try:
        return (work(items),)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None


def release_free_memory() -> None:
    """Return free memory to the system, also what lies between pieces in use, where its C library can (glibc's).

    Portions of many shapes leave the heap full of holes: without it a process grows with the work it has done.
    """
    if sys.platform == "linux":
        getattr(CDLL(None), "malloc_trim", lambda _: None)(0)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory ran out, on any device.

    >>> is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))
    True
    """
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in SIGNS)
