"""Work done in portions that fit in memory: one that does not is halved, and the work goes on."""

import logging
import sys
from collections.abc import Callable
from ctypes import CDLL
from dataclasses import dataclass
from typing import TypeVar

import torch

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

SIGNS = ("out of memory", "can't allocate memory", "not enough memory")
"""How torch's allocators, of any device and version, say that there was no room."""


@dataclass
class Portion:
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


def give_back() -> None:
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
