"""Cost of model use (passes, rows, seconds, memory), and batch sizes that shrink when memory runs out."""

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
    """Accumulated cost of all calls so far."""

    forwards: int = 0
    """Forward passes of the model, whatever their number of rows."""
    backwards: int = 0
    """Backward passes through the model."""
    rows: int = 0
    """Rows of all forward passes, every copy counted."""
    seconds: float = 0.0
    peak_megabytes: float = 0.0
    """Peak resident memory of the process; 0 if the system does not report it."""
    rows_back: int = 0
    """Rows of all backward passes."""

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
        """Return the figures by name, rounded to three decimals."""
        return {name: round(value, 3) for name, value in asdict(self).items()}


@contextmanager
def metering(model: nn.Module, cost: Cost) -> Iterator[Cost]:
    """Add every pass through `model` within this block to `cost`."""

    def count(output: Tensor) -> None:
        cost.forwards += 1
        cost.rows += output.shape[0]
        count_backward(output, cost)
        if cost.forwards % 16 == 1:  # reading the system's files takes some microseconds
            cost.peak_megabytes = max(cost.peak_megabytes, _memory("VmRSS"))

    record = _memory("VmHWM")
    start = time.perf_counter()
    try:
        with on_output(model, count):
            yield cost
    finally:
        cost.seconds += time.perf_counter() - start
        # The system's record is exact if this block raised it. It is never reset: it belongs to the user's process.
        highest = _memory("VmHWM")
        cost.peak_megabytes = max(cost.peak_megabytes, highest if highest > record else _memory("VmRSS"))


def count_backward(state: Tensor, cost: Cost) -> None:
    """Add every backward pass through this tensor to `cost`."""

    def count(gradient: Tensor) -> None:
        cost.backwards += 1
        cost.rows_back += gradient.shape[0]

    on_gradient(state, count)


def _memory(entry: str) -> float:
    """Return a number of Linux about this process in megabytes, such as VmRSS or its record VmHWM; 0 elsewhere."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0.0
    match = re.search(rf"{entry}:\s+(\d+) kB", status)
    return int(match.group(1)) / 1024 if match else 0.0


Result = TypeVar("Result")

logger = logging.getLogger(__name__)

OUT_OF_MEMORY_MESSAGES = ("out of memory", "can't allocate memory", "not enough memory")
"""Parts of the error messages of torch's allocators, on any device and in any version."""


@dataclass
class AdaptiveBatchSize:
    """Number of rows per forward pass; it is halved permanently when memory runs out."""

    rows: int

    def split(self, count: int, work: Callable[[slice], Result], rows_each: int = 1) -> list[Result]:
        """Call `work` on consecutive slices of 0..count of at most `rows` rows, where each item is `rows_each` rows."""
        results: list[Result] = []
        start = 0
        while start < count:
            stop = min(count, start + max(1, self.rows // rows_each))
            result = _attempt(work, slice(start, stop))
            if result is None:
                self._halve((stop - start) * rows_each, smallest=rows_each)
                continue
            results.append(result[0])
            start = stop
        return results

    def _halve(self, tried: int, smallest: int) -> None:
        if tried <= smallest:
            raise MemoryError(
                f"out of memory with {tried} rows per pass, and fewer are not possible here; lower internal_batch_size"
            )
        self.rows = max(smallest, tried // 2)
        logger.warning("out of memory with %d rows per pass; continuing with %d", tried, self.rows)


def _attempt(work: Callable[[slice], Result], items: slice) -> tuple[Result] | None:
    """Return the result in a tuple, or None if memory ran out; by then the failed attempt has freed its tensors."""
    try:
        return (work(items),)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None


def release_free_memory() -> None:
    """Return free heap memory to the system, including holes between used blocks, if the C library is glibc.

    Batches of many shapes fragment the heap: without this a process grows with the work it has done.
    """
    if sys.platform == "linux":
        getattr(CDLL(None), "malloc_trim", lambda _: None)(0)


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that a process can still take on a device; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        status = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    match = re.search(r"MemAvailable:\s+(\d+) kB", status)
    return int(match.group(1)) * 1024 if match else None


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error reports that memory ran out, on any device.

    >>> is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))
    True
    """
    return isinstance(error, MemoryError) or any(message in str(error).lower() for message in OUT_OF_MEMORY_MESSAGES)
